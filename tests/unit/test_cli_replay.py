"""`penstock replay`: what the log keeps goes to a stream again, once each, whoever is killed; tables are refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loop_bench import ORDERS, PEOPLE
from penstock.cli import main as cli
from penstock.config.load import load
from penstock.control import replay_tables
from penstock.destinations.contract import InProcessRunner
from penstock.destinations.memory import MemoryDestination
from penstock.destinations.memory_tables import MemoryStore
from penstock.errors import DestinationUnreachable
from penstock.model.table import TableId
from pgoutput_messages import delete, insert, update
from pipeline_files import pipeline_file
from publish_bench import PublishBench
from stream_reader import StreamReader

STREAM = {"name": "events", "type": "files", "path": "events", "format": "jsonl"}
INTO = ("--destination", "lake", "--into", "audit.{table}")
LAKE = {"name": "lake", "type": "iceberg", "warehouse": "warehouse"}


class Replaying:
    """A pipeline whose log has changes at 110 to 410; commit n is at second n / 100 after 1970."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self.file = pipeline_file(folder, destinations=[STREAM, LAKE], batch={"max_changes": 1})
        bench = PublishBench(Path(load(self.file).log_uri))
        bench.seal(300, (ORDERS, 110, insert("1", "new")), (PEOPLE, 120, insert("2", "Ann", "x")))
        bench.seal(400, (ORDERS, 310, update("3", "moved", key=("1", None))))
        bench.seal(500, (PEOPLE, 410, update("2", "Bo", "y")), (ORDERS, 420, delete("3", None)))
        bench.writer.__exit__(None, None, None)

    def command(self, *words: str) -> list[str]:
        return ["replay", str(self.file), "--destination", "events", *words]

    def __call__(self, *words: str) -> dict[str, Any]:
        assert cli.main(self.command("--json", *words)) == 0, self._capsys.readouterr().err
        done: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        return done

    def refused(self, *words: str, code: int = 2) -> str:
        assert cli.main(self.command(*words)) == code
        return self._capsys.readouterr().err

    def printed(self) -> list[dict[str, Any]]:
        """All events of the log, as `penstock events` prints them."""
        assert cli.main(["events", str(self.file)]) == 0
        return [json.loads(line) for line in self._capsys.readouterr().out.splitlines()]

    def streams(self) -> list[list[dict[str, Any]]]:
        """The events of each replay, by place."""
        folders = sorted((self.folder / "events").glob("shop_replay_*"), key=lambda one: one.stat().st_mtime_ns)
        return [sorted(StreamReader(one).events(), key=lambda event: str(event["place"])) for one in folders]


@pytest.fixture
def replaying(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Replaying:
    return Replaying(tmp_path, capsys)


def test_a_stretch_of_the_log_is_published_again_with_the_same_events(replaying: Replaying) -> None:
    everything = sorted(replaying.printed(), key=lambda event: str(event["place"]))
    assert len(everything) == 6, "the change of a key is two events"
    assert replaying("--from", "0/64") == {"events": 6, "from": "0/64", "to": "0/1F4", "left_out": []}
    assert replaying.streams() == [everything]
    assert replaying("--from", "0/12C", "--to", "0/19A")["events"] == 2
    assert replaying.streams()[1] == everything[2:4]
    assert replaying("--from", "1970-01-01T00:00:03Z", "--to", "1970-01-01T00:00:03.5Z")["events"] == 2
    assert replaying.streams()[2] == everything[2:4]
    assert replaying("--from", "0/64", "--table", "public.people")["events"] == 2
    assert {one["table"] for one in replaying.streams()[3]} == {"people"}
    assert replaying("--from", "0/64")["events"] == 6, "asked for again it is published again"
    assert replaying.streams()[4] == everything
    assert not list((replaying.folder / "penstock-shop" / "replays").glob("*.json"))


def test_what_cannot_be_replayed_is_refused(replaying: Replaying) -> None:
    assert "log.replay` in the file keeps more" in replaying.refused("--from", "0/10")
    assert "begins at 0/64: not everything from 1969" in replaying.refused("--from", "1969-01-01T00:00:00Z")
    assert "the change log ends at 0/1F4" in replaying.refused("--from", "0/64", "--to", "0/FFFF")
    assert "no change from" in replaying.refused("--from", "0/12C", "--to", "0/12C")
    assert "neither a position nor a time" in replaying.refused("--from", "yesterday")
    assert "has no change of table public.unknown" in replaying.refused("--from", "0/64", "--table", "public.unknown")
    assert "has no destination other" in replaying.refused("--from", "0/64", "--destination", "other")
    assert "never made older" in replaying.refused("--from", "0/64", "--destination", "lake")
    assert replaying.streams() == []


@pytest.mark.parametrize("step", ["publish.batch_done", "publish.visible", "publish.file_written"])
def test_a_replay_that_is_killed_goes_on_where_it_stopped(replaying: Replaying, tmp_path: Path, step: str) -> None:
    failpoint = tmp_path / "failpoint"
    failpoint.write_text(f"{step} 3")
    command = [sys.executable, "-m", "penstock.cli.main", *replaying.command("--from", "0/64")]
    environment = {**os.environ, "PENSTOCK_FAILPOINT_FILE": str(failpoint)}
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    replaying("--from", "0/64")
    everything = sorted(replaying.printed(), key=lambda event: str(event["place"]))
    assert replaying.streams() == [everything]


class Mortal(MemoryDestination):
    """A twin that goes away behind so many commits."""

    def __init__(self, store: MemoryStore, commits: int) -> None:
        super().__init__("lake", store)
        self._left = commits

    def commit(self, *words: Any, **options: Any) -> None:
        if not self._left:
            raise DestinationUnreachable("no answer", "")
        self._left -= 1
        super().commit(*words, **options)


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is in the lake, and how many commits it still takes."""
    there: dict[str, Any] = {"store": MemoryStore(), "commits": 1000}

    @contextmanager
    def beside(*_: object) -> Iterator[tuple[MemoryDestination, InProcessRunner]]:
        yield Mortal(there["store"], there["commits"]), InProcessRunner()

    monkeypatch.setattr(replay_tables, "tables_beside", beside)
    return there


def events_of(lake: dict[str, Any], table: str) -> list[tuple[Any, ...]]:
    rows = lake["store"].tables[TableId("audit", table)].rows.to_pylist()
    return sorted((row["commit_position"], row["ordinal"], row["op"]) for row in rows)


def test_a_stretch_of_the_log_becomes_new_tables_of_events(replaying: Replaying, lake: dict[str, Any]) -> None:
    assert replaying(*INTO, "--from", "0/12C") == {"events": 3, "from": "0/12C", "to": "0/1F4", "left_out": []}
    assert set(lake["store"].tables) == {TableId("audit", "orders"), TableId("audit", "people")}
    assert len(events_of(lake, "people")) == 1
    assert [op for _, _, op in events_of(lake, "orders")] == ["update", "delete"]
    assert replaying(*INTO[:3], "later.{schema}_{table}", "--from", "0/64", "--table", "public.orders")["events"] == 3
    later = lake["store"].tables[TableId("later", "public_orders")].rows.num_rows
    assert later == 3
    assert "Name another table with --into" in replaying.refused(*INTO, "--from", "0/64"), "it has another stretch"


def test_a_replay_into_tables_that_ends_early_goes_on_where_it_stopped(
    replaying: Replaying, lake: dict[str, Any]
) -> None:
    lake["commits"] = 2
    assert "no answer" in replaying.refused(*INTO, "--from", "0/64", code=3)
    lake["commits"] = 1000
    replaying(*INTO, "--from", "0/64")
    assert (len(events_of(lake, "orders")), len(events_of(lake, "people"))) == (3, 2)


def test_tables_that_are_followed_are_never_replayed_into(replaying: Replaying, lake: dict[str, Any]) -> None:
    into = ("--destination", "lake", "--from", "0/64", "--into")
    assert "a table that the pipeline follows" in replaying.refused(*into, "{schema}.{table}")
    assert "stands for several tables" in replaying.refused(*into, "audit.all")
    assert "names no table" in replaying.refused(*into, "{tabel}")
    assert "is a stream, and takes no --into" in replaying.refused("--from", "0/64", "--into", "a.b")
    assert lake["store"].tables == {}

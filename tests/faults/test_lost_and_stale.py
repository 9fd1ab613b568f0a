"""What is lost or out of date: state database, key index, a driver's view of its tables. None of it may cost a row."""

from __future__ import annotations

import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from databases import Database
from lake import Lake
from penstock.changelog.log import ChangeLog
from running import PipelineFactory, PipelineFile, Running, await_condition, make_pipeline, running
from work_tables import TABLES
from workload import Workload, create_tables

MOST_ROUNDS = 40


def _lose_state(pipeline: PipelineFile) -> None:
    lost = list(pipeline.folder.glob("state.db*"))
    assert lost
    for path in lost:
        path.unlink()


def _index_contents(pipeline: PipelineFile) -> dict[Path, bytes]:
    """The files of the key index; the run, which goes on, may remove one while they are read."""
    contents = {}
    for path in (pipeline.home / "index").rglob("*"):
        with suppress(FileNotFoundError, IsADirectoryError):
            contents[path] = path.read_bytes()
    assert contents, "there is a key index to lose"
    return contents


def _lose_index(pipeline: PipelineFile) -> None:
    assert _index_contents(pipeline)
    # A file that the run has just removed, or made in a folder that is being emptied, is no failure of the loss.
    await_condition(lambda: _is_removed(pipeline.home / "index"), "the key index is removed", 10)


def _is_removed(folder: Path) -> bool:
    with suppress(OSError):
        shutil.rmtree(folder)
        return True
    return False


def _truncate_index(pipeline: PipelineFile) -> None:
    for path, content in _index_contents(pipeline).items():
        path.write_bytes(content[: len(content) // 2])


def _mix_up_index(pipeline: PipelineFile) -> None:
    """Each sidecar gets the content of another one: well-formed, and wrong."""
    found = _index_contents(pipeline)
    contents = list(found.values())
    for path, content in zip(found, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)


def test_lost_state_and_index_change_nothing(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    create_tables(postgres.url)
    file = pipeline()
    with Workload(postgres.url, seed=9, connections=2) as workload:
        with running(file) as run:
            for lose in (_lose_index, _truncate_index, _mix_up_index):
                workload.take_turns(25)
                run.drain()
                lose(file)
                workload.take_turns(25)
                run.drain()
                lake.assert_equals(postgres)
        _lose_state(file)
        _lose_index(file)
        workload.take_turns(30)
        file.run_once()
        lake.assert_equals(postgres)


@pytest.fixture
def rivals(postgres: Database, tmp_path: Path) -> tuple[PipelineFile, PipelineFile]:
    """Two pipelines of one name and one catalog that do not know of each other: own file, home, log and slot."""
    first = make_pipeline(tmp_path, postgres)
    folder = tmp_path / "rival"
    folder.mkdir()
    catalog = {"type": "jdbc", "uri": f"jdbc:sqlite:{first.warehouse}/catalog.db", "jdbc.schema-version": "V1"}
    lake = {**first.settings["destinations"][0], "catalog": catalog}
    second = make_pipeline(
        folder, postgres, source={"slot": "rival_slot"}, destinations=[{**lake, "warehouse": "./elsewhere"}]
    )
    return first, second


def test_stale_driver_cannot_roll_a_table_back(
    rivals: tuple[PipelineFile, PipelineFile], postgres: Database, lake: Lake
) -> None:
    """Both apply the same changes to the same tables; each is stopped for a while, and goes on with what it knew."""
    create_tables(postgres.url)
    first, second = rivals
    with running(first) as run, Workload(postgres.url, seed=11, connections=2) as workload:
        filling = Running(second, ("capture", "FILE"))  # the rival's log must begin before the tables' positions
        try:
            filling.await_text("started")
            workload.take_turns(10)
            run.drain()
            start = int(min(path.name for path in second.log.glob("*.arrow")).split("-")[0], 16)
            await_condition(lambda: _positions(lake) > start, "every table's position past the rival's start", 30)
            filling.stop()
        finally:
            filling.clean_up()
        history = ChangeLog(str(second.log)).history()  # otherwise the rival would copy the tables of another's log
        for table in TABLES:
            lake.set_property(table.name, f"penstock.history.{first.name}", history or "")
        with running(second) as rival:
            for stopped, other in ((run, rival), (rival, run), (run, rival)):
                workload.take_turns(15)
                stopped.process.send_signal(signal.SIGSTOP)
                workload.take_turns(15)
                other.drain()
                lake.assert_equals(postgres)
                stopped.process.send_signal(signal.SIGCONT)
                workload.take_turns(15)
            for driver in (run, rival):
                driver.drain()
            lake.assert_equals(postgres)
            assert "commit refused" in run.text() + rival.text(), "the drivers never met"


def _positions(lake: Lake) -> int:
    """The lowest position of any table."""
    found = []
    for table in TABLES:
        properties = lake.properties(table.name)
        found += [int(value, 16) for name, value in properties.items() if name.startswith("penstock.position.")]
    assert len(found) == len(TABLES)
    return min(found)

"""Two Iceberg destinations from outside: one is away while the other goes on, one is removed, one is added.

With --full it is away for 10 minutes under 2,000 changes per second, and the other's freshness is compared.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from databases import Database
from penstock.model.table_state import State
from penstock.state.sql import find_store
from running import PipelineFile, Running, await_condition, make_pipeline, running
from steady_writes import TABLE, SteadyWrites

KEPT = {"expire_every": 4, "keep_snapshots": 3, "keep_for": "1s", "compact_files": 4, "advance_idle_every": "1s"}


def destination(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "iceberg", "warehouse": f"./{name}", "maintenance": KEPT, **more}


def asked(file: PipelineFile, destination: str, query: str) -> list[tuple[Any, ...]]:
    done = file.command("query", "FILE", query, "--destination", destination, "--format", "json")
    assert done.returncode == 0, done.stderr
    return [tuple(row.values()) for row in json.loads(done.stdout)]


def await_processed(run: Running, file: PipelineFile, *names: str) -> None:
    """Wait until what the source has now is at each of these destinations."""
    wanted = file.database.flush_position()
    store = find_store(file.state)
    assert store is not None

    def there() -> bool:
        assert run.process.poll() is None, run.tail()
        settled = all(one.state is State.READY for name in names for one in store.table_status(name).values())
        return settled and all((store.processed(name) or 0) >= wanted for name in names)

    try:
        await_condition(there, f"{', '.join(names)} to be level", 240)
    except AssertionError as late:
        raise AssertionError(f"{late}\n{run.tail()}") from None
    finally:
        store.close()


def retained(file: PipelineFile) -> int:
    """WAL held back by the slot, after the checkpoint that lets Postgres notice what it may drop."""
    file.database.execute("checkpoint")
    return file.slot_state()["retained"]


def test_one_is_away_while_the_other_goes_on_and_one_is_removed_and_one_added(
    postgres: Database, tmp_path: Path, full: bool
) -> None:
    postgres.execute(
        "create table account (id int primary key, n int)",
        "create table note (id int primary key, what text)",
        TABLE,
        "insert into account select n, 0 from generate_series(1, 100) n",
    )
    file = make_pipeline(
        tmp_path,
        postgres,
        tables=[
            {"match": "public.account", "mode": {"warehouse": "clone", "second": ["clone", "events"]}},
            {"match": "public.note", "to": ["warehouse"]},
            {"match": "public.steady"},
        ],
        destinations=[destination("warehouse"), destination("second")],
    )
    first, away = tmp_path / "second", tmp_path / "away"
    with running(file) as run:
        await_processed(run, file, "warehouse", "second")
        postgres.execute("update account set n = 1 where id <= 50", "insert into note values (1, 'a')")
        await_processed(run, file, "warehouse", "second")
        writes = SteadyWrites(postgres, file.state)
        before = writes.run(60 if full else 2, ["warehouse"])["warehouse"]
        first.rename(away)
        postgres.execute("delete from account where id > 90", "update account set n = 2 where id = 1")
        await_condition(lambda: file.component("destination second")["state"] == "retrying", "second to be away", 60)
        postgres.execute("insert into account values (1000, 7)")
        began = postgres.flush_position()
        during = writes.run(600 if full else 10, ["warehouse"])["warehouse"]
        written = postgres.flush_position() - began
        assert during, "the other goes on"
        if full:
            assert statistics.median(during) <= 1.1 * statistics.median(before), "and is as fresh as before"
        await_condition(
            lambda: retained(file) < min(written / 4, 64 << 20), "the retained WAL to be flat", 60, every=0.5
        )
        await_processed(run, file, "warehouse")
        assert file.component("destination warehouse")["state"] == "ok"
        waiting = file.command("wait", "FILE", "--timeout", "0")
        assert waiting.returncode == 3, "what it needs is away"
        assert "destination second" in waiting.stderr
        away.rename(first)
        await_processed(run, file, "second")
        assert file.component("destination second")["state"] == "ok"
        delivered = file.command("wait", "FILE", "--timeout", "60")
        assert delivered.returncode == 0, delivered.stderr
        run.stop()
    for name in ("warehouse", "second"):
        assert asked(file, name, "select count(*) from public.steady") == [(writes.rows,)], name
    rows = [(1, 2), *((n, 1) for n in range(2, 51)), *((n, 0) for n in range(51, 91)), (1000, 7)]
    for name in ("warehouse", "second"):
        assert asked(file, name, "select id, n from public.account order by id") == rows, name
    events = asked(file, "second", "select op, count(*) from public.account__events group by op")
    assert dict(events) == {"read": 100, "update": 51, "delete": 10, "insert": 1}
    assert asked(file, "warehouse", "select id from public.note") == [(1,)]
    refused = file.command("query", "FILE", "select id from public.note", "--destination", "second")
    assert refused.returncode == 2, "that rule does not go there"
    assert "--destination" in file.command("query", "FILE", "select id from public.note").stderr

    postgres.execute("update account set n = 3")
    file.settings["destinations"] = [destination("warehouse"), destination("third")]
    file.settings["tables"] = [{"match": "public.*"}]
    file.write()
    file.run_once(seconds=240)
    for name in ("warehouse", "third"):
        assert asked(file, name, "select count(*), sum(n) from public.account") == [(91, 273)], name
    late = file.command("wait", "FILE", "--until", "FFFFFFFF/0", "--timeout", "1")
    assert late.returncode == 1
    assert "warehouse, third" in late.stderr
    kept = file.home / "index" / "second"
    assert kept.exists()
    assert "--yes" in file.command("destinations", "drop", "FILE", "second").stderr
    assert file.command("destinations", "drop", "FILE", "third", "--yes").returncode != 0, "it is in the file"
    dropped = file.command("destinations", "drop", "FILE", "second", "--yes")
    assert dropped.returncode == 0, dropped.stderr
    assert not kept.exists()
    store = find_store(file.state)
    assert store is not None
    assert (store.table_status("second"), store.processed("second")) == ({}, None)
    assert store.table_status("third")
    store.close()

"""Capture reads two publications, and never dies of the second one, whenever that is made, dropped or made again."""

from __future__ import annotations

from pathlib import Path

import psycopg

from capturing import PUBLICATION, CaptureBench, Capturing
from databases import Database
from penstock.changelog.log import ChangeLog
from penstock.source.postgres.connect import connect
from penstock.source.postgres.publication import inserts_publication, slot_sees
from penstock.source.postgres.slot import create_slot

SECOND = inserts_publication(PUBLICATION)
MAKE_SECOND = f"create publication {SECOND} for table bare with (publish = 'insert, truncate')"


def bench_of(database: Database, folder: Path) -> CaptureBench:
    database.execute(
        "create table keyed (id int primary key)",
        "create table bare (id int)",
        f"create publication {PUBLICATION} for table keyed",
    )
    bench = CaptureBench(database, ChangeLog(str(folder / "log")))
    with connect(database.url) as connection:
        create_slot(connection, database.url, bench.slot)
    return bench


def captured(bench: CaptureBench) -> dict[str, int]:
    """How many changes of each table the log has."""
    found: dict[str, int] = {}
    for segment in bench.log.segments():
        for item in bench.log.slices(segment):
            name = item.table_schema.table.name
            found[name] = found.get(name, 0) + item.slice.rows
    return found


def await_both(bench: CaptureBench, capture: Capturing, after: int = 0) -> None:
    """A checkpoint notes which transactions run, which lets the slot move on, as the server does every 15 s."""

    def reads_both() -> bool:
        bench.database.execute("checkpoint")
        return [SECOND in report["reading"] for report in capture.events("started")][after:][-1:] == [True]

    capture.await_condition(reads_both, "capture to read both publications")


def test_a_second_publication_is_read_as_soon_as_the_slot_sees_it(any_postgres: Database, tmp_path: Path) -> None:
    """A pipeline that ran with one publication; beside a transaction that is older than the second one."""
    bench = bench_of(any_postgres, tmp_path)
    any_postgres.execute("insert into keyed values (1)")
    with bench.capturing() as capture:
        capture.await_event("started")
        with psycopg.connect(any_postgres.url) as old:
            old.execute("insert into keyed values (2)")
            any_postgres.execute(MAKE_SECOND, "insert into keyed values (3)")
            with connect(any_postgres.url) as connection:
                seen = slot_sees(connection, bench.slot, SECOND)
                assert seen is (connection.info.server_version >= 180000)
            old.execute("insert into keyed values (4)")
            old.commit()
        await_both(bench, capture)
        any_postgres.execute("insert into bare values (1), (2)", "update bare set id = 7", "delete from bare")
        any_postgres.execute("insert into keyed values (5)")
        capture.drain()
    assert captured(bench) == {"keyed": 5, "bare": 2}


def test_a_second_publication_that_goes_away_and_comes_back(any_postgres: Database, tmp_path: Path) -> None:
    bench = bench_of(any_postgres, tmp_path)
    any_postgres.execute(MAKE_SECOND)
    with bench.capturing() as capture:
        await_both(bench, capture)
        any_postgres.execute("insert into bare values (1)", f"drop publication {SECOND}")
        any_postgres.execute("insert into keyed values (1)", "insert into bare values (2)")
        capture.drain()
        starts = len(capture.events("started"))
        any_postgres.execute(MAKE_SECOND)
        if any_postgres.value("select current_setting('server_version_num')::int") < 180000:
            await_both(bench, capture, starts)
        any_postgres.execute(f"alter publication {SECOND} rename to other", "insert into keyed values (2)")
        any_postgres.execute(f"alter publication other rename to {SECOND}", "insert into keyed values (3)")
        capture.drain()
    assert captured(bench)["keyed"] == 3

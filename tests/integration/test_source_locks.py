"""Somebody holds ACCESS EXCLUSIVE on one partition and on one plain table: nobody else waits, and nobody for long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from capturing import CaptureBench, first_values
from copying import copying
from databases import Database
from lake import Lake
from penstock.changelog.log import ChangeLog
from penstock.errors import SourceLocked
from penstock.model.table import TableId
from penstock.source.postgres.check import check_source
from penstock.source.postgres.check_tables import has_rows
from penstock.source.postgres.connect import connect
from penstock.source.postgres.copy_ranges import plan_ranges
from penstock.source.postgres.copy_read import row_filter
from penstock.source.postgres.discover import describe, discover
from penstock.source.postgres.partitions import has_rows as partition_has_rows
from penstock.source.postgres.partitions import read_partitions
from running import PipelineFactory, running

TABLES = (
    "create table control (id int primary key, note text)",
    "create table plain (id int primary key, note text)",
    "create table parted (id int, day int, primary key (id, day)) partition by list (day)",
    "create table parted_1 partition of parted for values in (1)",
    "create table parted_2 partition of parted for values in (2)",
    "insert into control values (1)",
    "insert into plain values (1)",
    "insert into parted values (1, 1), (1, 2)",
)
LOCKS = ("alter table plain add column more int", "alter table parted_1 set (fillfactor = 50)")
SECONDS = 15.0  # a wait for the lock would never end


class Names:
    publication, slot, pipeline = "capture_test", "nobody", "shop"
    create_slot = True
    keeps_changes = True


@contextmanager
def locked(database: Database) -> Iterator[None]:
    with psycopg.connect(database.url) as connection:
        for statement in LOCKS:
            connection.execute(statement.encode())
        connection.execute("lock table parted_1 in access exclusive mode")
        yield
        connection.rollback()


@contextmanager
def soon() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < SECONDS


def test_the_catalogue_is_read_and_changes_flow_while_tables_are_locked(any_postgres: Database, tmp_path: Path) -> None:
    bench = CaptureBench(any_postgres, ChangeLog(str(tmp_path / "log")))
    bench.prepare(*TABLES)
    with copying(any_postgres, TableId("public", "plain")) as copy, connect(any_postgres.url) as connection:
        connection.execute("SET statement_timeout TO '15s'")
        before = {schema.table.name: schema for schema in discover(connection, lambda _: True, "capture_test")}
        with locked(any_postgres):
            with soon():
                found = {schema.table.name: schema for schema in discover(connection, lambda _: True, "capture_test")}
                assert found == before
                assert describe(connection, found["parted"].relation_id) is not None
                assert [one.what for one in check_source(connection, Names(), lambda _: True)]
                assert row_filter(connection, "capture_test", TableId("public", "control")) is None
                partitions = read_partitions(connection, [found["parted"].relation_id])[found["parted"].relation_id]
                assert has_rows(connection, found["plain"])
            with soon(), bench.capturing() as capture:
                any_postgres.execute("insert into parted values (2, 2)", "insert into control values (3)")
                capture.drain()
            assert first_values(bench.log) == ["2", "3"]

            in_the_way: list[Any] = [
                lambda: plan_ranges(connection, found["plain"], range_bytes=1 << 20),
                lambda: partition_has_rows(connection, partitions.partitions[0]),
                copy.read,
            ]
            for needs_the_table in in_the_way:
                with soon(), pytest.raises(SourceLocked, match="somebody holds a lock"):
                    needs_the_table()


def test_a_run_starts_streams_and_stops_while_tables_are_locked(
    pipeline: PipelineFactory, postgres: Database, lake: Lake
) -> None:
    postgres.execute(*TABLES)
    file = pipeline(copy={"discover_every": "1s"})
    file.run_once()
    with locked(postgres):
        with running(file) as run:
            postgres.execute("insert into control values (2, 'flows')", "insert into parted values (2, 2)")
            run.drain(60)
            lake.assert_equals(postgres, ["public.control"])
            asked = time.monotonic()
            run.process.terminate()
            run.process.wait(60)
        assert time.monotonic() - asked < 30
        assert run.process.returncode == 0, run.tail()
        assert "lock" not in run.text()
    file.run_once()
    lake.assert_equals(postgres, ["public.control", "public.plain", "public.parted"])

"""Ranges on a real server: together they are the table, whatever kind it is and whatever is written meanwhile."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pytest

from copying import PUBLICATION, copying, held_snapshot, prepared, rows_of, schema_of
from databases import Database
from penstock.errors import RangeVoid, SourceMisconfigured
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.source.postgres.connect import Connection, connect
from penstock.source.postgres.copy_ranges import plan_ranges
from penstock.source.postgres.copy_read import estimate
from penstock.source.postgres.snapshot import snapshot_connection

T = TableId("public", "t")
BLOCK = 8192


def ids(rows: pa.Table) -> list[int]:
    return sorted(rows["id"].to_pylist())


def test_ranges_are_of_similar_size_and_leave_nothing_out(any_postgres: Database) -> None:
    any_postgres.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, repeat('x', g % 500) FROM generate_series(1, 10000) g",
    )
    with copying(any_postgres, T, range_bytes=20 * BLOCK) as copy:
        blocks = [one.first_block for one in copy.ranges]
        assert len(blocks) > 10
        assert blocks[0] == 0
        for one, following in pairwise(copy.ranges):
            assert one.end_block == following.first_block
            assert 10 <= one.end_block - one.first_block <= 20
        assert copy.ranges[-1].end_block is None
        assert [one.number for one in copy.ranges] == list(range(len(copy.ranges)))
        assert all(one.bytes <= 20 * BLOCK for one in copy.ranges)
        assert all((one.table, one.relation) == (T, T) for one in copy.ranges)
        parts = [ids(copy.read(one)) for one in copy.ranges]
    assert all(parts)
    assert sorted(id for part in parts for id in part) == list(range(1, 10001))


def test_an_empty_table_has_no_range(postgres: Database) -> None:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with copying(postgres, T) as copy:
        postgres.execute("INSERT INTO t VALUES (1)")
        assert copy.ranges == []


def test_a_table_that_was_never_analysed(postgres: Database) -> None:
    postgres.execute(
        "CREATE TABLE t (id int PRIMARY KEY) WITH (autovacuum_enabled = off)",
        "INSERT INTO t SELECT generate_series(1, 20000)",
    )
    assert postgres.value("SELECT reltuples FROM pg_class WHERE relname = 't'") == -1
    with copying(postgres, T, range_bytes=30 * BLOCK) as copy:
        assert len(copy.ranges) == 3
        assert ids(copy.read()) == list(range(1, 20001))
    with connect(postgres.url) as connection:
        rows, size = estimate(connection, schema_of(connection, T))
        assert 2_000 < rows < 200_000
        assert size == 89 * BLOCK
        connection.execute("ANALYZE t")
        connection.execute("INSERT INTO t SELECT generate_series(20001, 40000)")
        rows, _ = estimate(connection, schema_of(connection, T))
        assert 39_000 < rows < 41_000


def test_large_values_count_for_the_size(postgres: Database) -> None:
    """A row of a few bytes in the table may have megabytes beside it."""
    postgres.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "ALTER TABLE t ALTER v SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT g, repeat('x', 100000) FROM generate_series(1, 400) g",
    )
    with copying(postgres, T, range_bytes=20_000_000) as copy:
        assert len(copy.ranges) == 3
        assert sum(one.bytes for one in copy.ranges) > 40_000_000
        assert ids(copy.read()) == list(range(1, 401))


def test_a_partitioned_table_is_read_by_its_leaves(any_postgres: Database) -> None:
    any_postgres.execute(
        "CREATE SCHEMA other",
        "CREATE TABLE t (id int, region text, v text, PRIMARY KEY (id, region)) PARTITION BY LIST (region)",
        "CREATE TABLE t_north PARTITION OF t FOR VALUES IN ('n')",
        "CREATE TABLE other.south PARTITION OF t FOR VALUES IN ('s') PARTITION BY RANGE (id)",
        "CREATE TABLE t_south_low PARTITION OF other.south FOR VALUES FROM (0) TO (1000)",
        "CREATE TABLE t_empty PARTITION OF other.south FOR VALUES FROM (100000) TO (200000)",
        # a leaf whose columns stand in another order
        "CREATE TABLE t_rest (v text, gone int, region text NOT NULL, id int NOT NULL)",
        "ALTER TABLE t_rest DROP COLUMN gone",
        "ALTER TABLE t ATTACH PARTITION t_rest DEFAULT",
        "INSERT INTO t SELECT g, (array['n', 's', 'x'])[g % 3 + 1], 'v' || g FROM generate_series(1, 900) g",
    )
    with copying(any_postgres, T) as copy:
        assert [str(one.relation) for one in copy.ranges] == ["public.t_north", "public.t_rest", "public.t_south_low"]
        assert {one.table for one in copy.ranges} == {T}
        assert [one.number for one in copy.ranges] == [0, 1, 2]
        assert all(one.end_block is None for one in copy.ranges)
        rows = copy.read().sort_by("id").to_pylist()
    assert rows == [{"id": g, "region": "nsx"[g % 3], "v": f"v{g}"} for g in range(1, 901)]


def test_children_of_inheritance_are_tables_of_their_own(postgres: Database) -> None:
    postgres.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE child (more text) INHERITS (t)",
        "INSERT INTO t VALUES (1)",
        "INSERT INTO child VALUES (2, 'x')",
    )
    with held_snapshot(postgres) as snapshot:
        assert prepared(postgres, snapshot, T).read().to_pylist() == [{"id": 1}]
        child = prepared(postgres, snapshot, TableId("public", "child"))
        assert child.read().to_pylist() == [{"id": 2, "more": "x"}]


@pytest.mark.parametrize(
    ("made", "kind"), [("VIEW", "a view"), ("MATERIALIZED VIEW", "a materialised view")], ids=["view", "materialised"]
)
def test_what_is_no_table_is_refused(postgres: Database, made: str, kind: str) -> None:
    postgres.execute(f"CREATE {made} t AS SELECT 1 AS id")
    schema = TableSchema(
        T, postgres.value("SELECT 't'::regclass::oid::int"), (Column("id", ColumnType(23, "int4")),), ()
    )
    with connect(postgres.url) as connection, pytest.raises(SourceMisconfigured, match=f"public.t is {kind}") as caught:
        plan_ranges(connection, schema, range_bytes=BLOCK)
    assert "Name the tables that it reads from" in caught.value.solution


def test_a_table_that_the_snapshot_does_not_know(postgres: Database) -> None:
    with held_snapshot(postgres) as snapshot:
        postgres.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with connect(postgres.url) as connection:
            schema = schema_of(connection, T)
        with (
            snapshot_connection(postgres.url, snapshot.name) as inside,
            pytest.raises(RangeVoid, match=r"public\.t is not in the snapshot"),
        ):
            plan_ranges(inside, schema, range_bytes=BLOCK)


def test_a_table_that_was_rewritten_before_it_was_planned(postgres: Database) -> None:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with held_snapshot(postgres) as snapshot:
        postgres.execute("VACUUM FULL t")
        with pytest.raises(RangeVoid, match=r"public\.t was rewritten, truncated or dropped"):
            prepared(postgres, snapshot, T)


def test_the_union_of_ranges_is_the_snapshot_while_others_write(postgres: Database) -> None:
    postgres.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int) WITH (fillfactor = 60, autovacuum_enabled = off)",
        "INSERT INTO t SELECT g, 0 FROM generate_series(1, 20000) g",
    )
    stop = threading.Event()
    rounds = threading.Semaphore(0)

    def write() -> None:
        with postgres.connect() as connection:
            last = 20_000
            while not stop.is_set():
                connection.execute("UPDATE t SET v = v + 1 WHERE mod(id, 97) = %s", (last % 97,))
                connection.execute(
                    "INSERT INTO t SELECT g, -1 FROM generate_series(%s::int, %s::int) g", (last + 1, last + 200)
                )
                connection.execute("UPDATE t SET id = -id WHERE id BETWEEN %s AND %s", (last - 99, last - 50))
                connection.execute("DELETE FROM t WHERE mod(id, 101) = %s", (last % 101,))
                last += 200
                rounds.release()

    def await_writes() -> None:
        assert rounds.acquire(timeout=30)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        await_writes()
        with held_snapshot(postgres) as snapshot:
            await_writes()
            copy = prepared(postgres, snapshot, T, range_bytes=40 * BLOCK)
            assert len(copy.ranges) >= 3
            tables = []
            for one in copy.ranges:
                await_writes()
                tables.append(copy.read(one))
            postgres.execute("VACUUM t")
            tables_after_vacuum = [copy.read(one) for one in copy.ranges]
            with snapshot_connection(postgres.url, snapshot.name) as inside:
                expected = sorted(inside.execute("SELECT id, v FROM t").fetchall())
    finally:
        stop.set()
        writer.join()
    assert pairs(tables) == expected
    assert pairs(tables_after_vacuum) == expected
    assert postgres.value("SELECT count(*) FROM t WHERE v = -1") > 0


def pairs(tables: list[pa.Table]) -> list[tuple[int, int]]:
    return sorted((row["id"], row["v"]) for row in pa.concat_tables(tables).to_pylist())


def test_a_range_reads_its_own_blocks_only(postgres: Database) -> None:
    """Also where an index would suit the row filter better: it would be read for each range anew."""
    postgres.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, repeat('x', 300) FROM generate_series(1, 20000) g",
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE t WHERE (id > 100)",
        "VACUUM ANALYZE t",
    )
    with copying(postgres, T, range_bytes=50 * BLOCK) as copy:
        total = sum(one.bytes for one in copy.ranges) // BLOCK
        assert total > 800
        with connect(postgres.url) as connection:
            before = blocks_read(connection)
            copy.read(copy.ranges[5])
            for _ in range(200):
                if (read := blocks_read(connection) - before) > 0:
                    break
                connection.execute("SELECT pg_sleep(0.05)")
        assert 0 < read < 150


def blocks_read(connection: Connection) -> int:
    query = "SELECT heap_blks_read + heap_blks_hit FROM pg_statio_user_tables WHERE relname = 't'"
    row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def test_a_range_from_an_older_snapshot_is_read_in_a_new_one(postgres: Database) -> None:
    """What remains of a copy whose snapshot has died."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 3000)")
    with copying(postgres, T, range_bytes=5 * BLOCK) as first:
        early = ids(first.read(first.ranges[0]))
    postgres.execute("INSERT INTO t VALUES (3001)")
    with held_snapshot(postgres) as snapshot:
        rest = ids(rows_of(replace(first.source, snapshot=snapshot.name), *first.ranges[1:]))
        assert sorted(early + rest) == list(range(1, 3002))
    postgres.execute("VACUUM FULL t")
    with held_snapshot(postgres) as snapshot, pytest.raises(RangeVoid):
        rows_of(replace(first.source, snapshot=snapshot.name), first.ranges[1])

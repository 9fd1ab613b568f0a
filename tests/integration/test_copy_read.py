"""Reading ranges on a real server: rewrites, publications, names, limits, locks, and what happens when things break."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest

from copying import PUBLICATION, copying, rows_of
from databases import Database
from penstock.errors import RangeVoid, SourceMisconfigured, SourceUnreachable
from penstock.model.table import TableId
from penstock.source.postgres import copy_read
from penstock.source.postgres.connect import connect
from penstock.source.postgres.copy_read import CopySource, read_range, row_filter

T = TableId("public", "t")


def hundred_rows(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int, w text)",
        "INSERT INTO t SELECT g, g, 'w' || g FROM generate_series(1, 100) g",
    )


@pytest.mark.parametrize(
    "rewrite",
    [
        "VACUUM FULL t",
        "CLUSTER t USING t_pkey",
        "ALTER TABLE t ALTER v TYPE bigint",
        "ALTER TABLE t ALTER w TYPE bytea USING w::bytea",
        "ALTER TABLE t ADD COLUMN x float DEFAULT random()",
        "ALTER TABLE t SET UNLOGGED",
        "TRUNCATE t",
        "DROP TABLE t",
        "ALTER TABLE t RENAME TO u",
        "ALTER TABLE t RENAME TO u; CREATE TABLE t (LIKE u); INSERT INTO t SELECT * FROM u",
    ],
)
def test_a_rewrite_voids_ranges(postgres: Database, rewrite: str) -> None:
    hundred_rows(postgres)
    with copying(postgres, T) as copy:
        assert copy.read().num_rows == 100
        postgres.execute(*rewrite.split("; "))
        with pytest.raises(RangeVoid, match=r"public\.t was rewritten, truncated or dropped") as caught:
            copy.read()
        assert caught.value.retry == "at once"


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE t DROP COLUMN v",
        "ALTER TABLE t RENAME COLUMN v TO x",
        "ALTER TABLE t DROP COLUMN v; ALTER TABLE t ADD COLUMN v int DEFAULT 7",
        "ALTER TABLE t RENAME v TO x; ALTER TABLE t RENAME w TO v; ALTER TABLE t RENAME x TO w",
        "ALTER TABLE t ALTER at TYPE timestamptz",
    ],
)
def test_columns_that_are_no_longer_those_of_the_snapshot_void_ranges(postgres: Database, change: str) -> None:
    hundred_rows(postgres)
    postgres.execute("ALTER TABLE t ADD COLUMN at timestamp")
    with copying(postgres, T) as copy:
        postgres.execute(*change.split("; "))
        with pytest.raises(RangeVoid, match=r"public\.t was altered while it was copied"):
            copy.read()


def test_what_rewrites_nothing_voids_nothing(postgres: Database) -> None:
    hundred_rows(postgres)
    with copying(postgres, T) as copy:
        before = copy.read()
        postgres.execute(
            "ALTER TABLE t ADD COLUMN x int DEFAULT 5",
            "ALTER TABLE t ALTER w SET NOT NULL",
            "CREATE INDEX ON t (v)",
            "DELETE FROM t WHERE id > 50",
            "VACUUM ANALYZE t",
            "ALTER TABLE t REPLICA IDENTITY FULL",
        )
        assert copy.read().equals(before)


def test_the_rewrite_of_one_partition_voids_its_ranges(postgres: Database) -> None:
    postgres.execute(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (50)",
        "CREATE TABLE t_high PARTITION OF t FOR VALUES FROM (50) TO (200)",
        "INSERT INTO t SELECT generate_series(1, 100)",
    )
    with copying(postgres, T) as copy:
        postgres.execute("TRUNCATE t_low")
        high, low = copy.ranges
        assert copy.read(high).num_rows == 51
        with pytest.raises(RangeVoid, match=r"public\.t \(its partition public\.t_low\) was rewritten"):
            copy.read(low)


def test_nobody_can_rewrite_what_is_being_read_and_everybody_can_write(postgres: Database) -> None:
    hundred_rows(postgres)
    with copying(postgres, T) as copy:
        reading = read_range(copy.source, copy.ranges[0], statement_timeout=60)
        first = next(reading)
        with postgres.connect() as other:
            other.execute("SET lock_timeout = '100ms'")
            for rewrite in ("TRUNCATE t", "VACUUM FULL t", "ALTER TABLE t ADD COLUMN x int"):
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    other.execute(rewrite.encode())
            other.execute("UPDATE t SET v = 0")
            other.execute("CREATE INDEX ON t (v)")
            locks = other.execute(
                "SELECT DISTINCT l.mode FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
                " WHERE a.application_name = 'penstock copy' AND l.locktype = 'relation'"
                " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            ).fetchall()
        assert locks == [("AccessShareLock",)]
        assert first.num_rows + sum(batch.num_rows for batch in reading) == 100


def test_a_reader_that_is_left_leaves_nothing(postgres: Database) -> None:
    postgres.execute("CREATE TABLE t AS SELECT g AS id, repeat('x', 1000) AS v FROM generate_series(1, 50000) g")
    with copying(postgres, T) as copy:
        reading = read_range(copy.source, copy.ranges[0], statement_timeout=60)
        assert 0 < next(reading).num_rows < 50_000
        reading.close()
        with postgres.connect() as other:
            other.execute("SET lock_timeout = '10s'")
            other.execute("TRUNCATE t")


def test_row_filter_and_column_list_hold(any_postgres: Database) -> None:
    hundred_rows(any_postgres)
    any_postgres.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE t (id, w) WHERE (id > 90 AND w <> 'w95''%')")
    with copying(any_postgres, T) as copy:
        assert copy.source.row_filter is not None
        assert copy.read().to_pylist() == [{"id": g, "w": f"w{g}"} for g in range(91, 101)]


def test_the_filter_of_a_root_holds_for_its_leaves(any_postgres: Database) -> None:
    any_postgres.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
        "CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (50)",
        "CREATE TABLE t_high (v int, id int NOT NULL)",
        "ALTER TABLE t ATTACH PARTITION t_high FOR VALUES FROM (50) TO (200)",
        "INSERT INTO t SELECT g, g % 10 FROM generate_series(1, 100) g",
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE t WHERE (v IN (3, 4)), t_low WHERE (id = 7)"
        " WITH (publish_via_partition_root = true, publish = 'insert')",
    )
    with copying(any_postgres, T) as copy:
        assert sorted(copy.read()["id"].to_pylist()) == [g for g in range(1, 101) if g % 10 in (3, 4)]


def test_no_filter(postgres: Database) -> None:
    hundred_rows(postgres)
    with connect(postgres.url) as connection:
        assert row_filter(connection, PUBLICATION, T) is None
        connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE t".encode())
        assert row_filter(connection, PUBLICATION, T) is None


@pytest.mark.parametrize(
    "name",
    ["Orders", "order by", 'quo"ted', "o'clock", "select", "naïve 🐘", "per%cent %s", "dot.ted", "back\\slash", "$1"],
)
def test_odd_names(postgres: Database, name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    postgres.execute(
        f"CREATE SCHEMA {quoted}",
        f"CREATE TABLE {quoted}.{quoted} ({quoted} int PRIMARY KEY, v inet)",
        f"INSERT INTO {quoted}.{quoted} VALUES (1, '10.0.0.1')",
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {quoted}.{quoted} WHERE ({quoted} > 0)",
    )
    with copying(postgres, TableId(name, name)) as copy:
        assert copy.read().to_pylist() == [{name: 1, "v": "10.0.0.1"}]
        postgres.execute(f"TRUNCATE {quoted}.{quoted}")
        with pytest.raises(RangeVoid):
            copy.read()


def test_a_column_named_like_the_table_and_a_table_of_many_columns(postgres: Database) -> None:
    columns = ", ".join(f"c{n} int DEFAULT {n}" for n in range(1, 1600))
    postgres.execute(f"CREATE TABLE t (t int PRIMARY KEY, {columns})", "INSERT INTO t VALUES (1)")
    with copying(postgres, T) as copy:
        (row,) = copy.read().to_pylist()
    assert row["t"] == 1
    assert row["c1599"] == 1599
    assert len(row) == 1600


def test_batches_are_small_and_a_pace_is_kept(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_read, "BATCH_BYTES", 10_000)
    postgres.execute("CREATE TABLE t AS SELECT g AS id, repeat('x', 100) AS v FROM generate_series(1, 1000) g")
    with copying(postgres, T) as copy:
        began = time.monotonic()
        sizes = [
            batch.num_rows
            for batch in read_range(copy.source, copy.ranges[0], max_rows_per_second=1000, statement_timeout=60)
        ]
        assert time.monotonic() - began >= 1
    assert sum(sizes) == 1000
    assert max(sizes) < 120


MEMORY = """
import pickle, re, sys
from pathlib import Path
from penstock.source.postgres.copy_read import read_range
source, some = pickle.load(sys.stdin.buffer)
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
before = None
total = 0
for batch in read_range(source, some, statement_timeout=120):
    before = before or peak()
    total += batch.nbytes
    del batch
print(total // 2**20, peak() - before, peak())
"""


def test_memory_is_bounded_however_wide_the_rows(postgres: Database) -> None:
    postgres.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, repeat('x', 4 * 1024 * 1024) FROM generate_series(1, 100) g",
        "INSERT INTO t VALUES (101, repeat('y', 64 * 1024 * 1024))",
    )
    with copying(postgres, T) as copy:
        work = pickle.dumps((copy.source, copy.ranges[0]))
        done = subprocess.run([sys.executable, "-c", MEMORY], input=work, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    total, growth, peak = map(int, done.stdout.split())
    assert total >= 464
    assert growth < 300, f"{growth} MiB more than at the first batch"
    assert peak < 500


def test_a_statement_timeout_of_our_own(postgres: Database) -> None:
    hundred_rows(postgres)
    with copying(postgres, T) as copy:
        slow = replace(copy.source, row_filter="pg_sleep(0.1) IS NOT NULL")
        with pytest.raises(SourceUnreachable, match=r"range 0 of table public\.t: .*statement timeout") as caught:
            list(read_range(slow, copy.ranges[0], statement_timeout=0.3))
    assert "smaller ranges" in caught.value.solution


def test_limits_of_the_role_do_not_count(postgres: Database) -> None:
    hundred_rows(postgres)
    with copying(postgres, T) as copy:
        postgres.execute(f"ALTER DATABASE {postgres.name} SET statement_timeout = '1ms'")
        assert copy.read().num_rows == 100


def test_the_connection_is_cut_in_the_middle(postgres: Database) -> None:
    postgres.execute("CREATE TABLE t AS SELECT g AS id, repeat('x', 1000) AS v FROM generate_series(1, 50000) g")
    with copying(postgres, T) as copy:
        reading = read_range(copy.source, copy.ranges[0], statement_timeout=60)
        next(reading)
        postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'penstock copy'"
            " AND backend_type = 'client backend' AND datname = current_database()"
        )
        with pytest.raises(SourceUnreachable, match=r"copying range 0 of table public\.t"):
            list(reading)


def test_the_snapshot_has_gone(postgres: Database) -> None:
    hundred_rows(postgres)
    with copying(postgres, T) as copy:
        pass
    with pytest.raises(SourceUnreachable, match="goes on under a new snapshot"):
        copy.read()


def test_connection_errors_have_the_words_of_all_others(postgres: Database) -> None:
    hundred_rows(postgres)
    with copying(postgres, T) as copy:
        for url, what, solution in (
            ("postgresql://app:s3cret@127.0.0.1:1/shop", "127.0.0.1:1/shop", "Check host and port"),
            (postgres.url + "_none", 'database ".*" does not exist', "Name a database that exists"),
        ):
            with pytest.raises(SourceUnreachable, match=what) as caught:
                rows_of(replace(copy.source, url=url), *copy.ranges)
            assert solution in caught.value.solution
            assert "s3cret" not in repr(caught.value)
        with pytest.raises(SourceMisconfigured, match="not a Postgres URL") as refused:
            rows_of(replace(copy.source, url="postgresql://app:s3 cret@h/%zz"), *copy.ranges)
        assert "cret" not in str(refused.value)
        assert "postgresql" not in repr(copy.source)


@contextmanager
def role(database: Database, *rights: str) -> Iterator[str]:
    """A role that may replicate, with these rights; gives its URL."""
    name = f"reader_{database.name}"
    database.execute(f"CREATE ROLE {name} LOGIN REPLICATION", *(f"GRANT {right} TO {name}" for right in rights))
    try:
        yield database.url.replace("postgres@", f"{name}@")
    finally:
        database.execute(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def test_a_role_that_may_not_see_all_rows_is_told_so(postgres: Database) -> None:
    hundred_rows(postgres)
    with role(postgres, "SELECT ON t") as url, copying(postgres, T) as copy:
        source = replace(copy.source, url=url)
        assert rows_of(source, *copy.ranges).num_rows == 100
        postgres.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY", "CREATE POLICY p ON t USING (id < 10)")
        with pytest.raises(SourceMisconfigured, match="row-level security") as caught:
            rows_of(source, *copy.ranges)
        assert "BYPASSRLS" in caught.value.solution


def test_a_role_without_the_right_is_told_which(postgres: Database) -> None:
    hundred_rows(postgres)
    with role(postgres, "SELECT (id, v, w) ON t") as url, copying(postgres, T) as copy:
        with pytest.raises(SourceMisconfigured, match=r"range 0 of table public\.t: permission denied .*t\.") as caught:
            rows_of(replace(copy.source, url=url), *copy.ranges)
        assert 'GRANT SELECT ON "public"."t" TO' in caught.value.solution


def test_a_source_survives_pickling(postgres: Database) -> None:
    hundred_rows(postgres)
    with copying(postgres, T) as copy:
        source, ranges = pickle.loads(pickle.dumps((copy.source, copy.ranges)))
        assert isinstance(source, CopySource)
        assert rows_of(source, *ranges).num_rows == 100

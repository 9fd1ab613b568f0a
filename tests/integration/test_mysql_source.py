"""MariaDB and MySQL as sources, from the server into tables: copies, the stream, structure, and what is refused.

MySQL's part runs with `--full`: its server is a large download (server_dist.py)."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mysql_bench import MysqlBench
from mysql_server import LARGE, PASSWORD, SERVERS, MariadbServer, Server, numbers
from mysql_types import MARIADB_TYPES, TYPES
from penstock.errors import GapError, PenstockError, SourceMisconfigured, SourceUnreachable
from penstock.model.table import TableId
from penstock.source.factory import source_of
from running import await_condition


@pytest.fixture(scope="module", params=["mariadb", *(pytest.param(one, marks=pytest.mark.full) for one in LARGE)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with SERVERS[request.param](tmp_path_factory.mktemp(request.param)) as started:
        yield started


@pytest.fixture(autouse=True)
def empty(server: Server) -> None:
    server.execute("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop CHARACTER SET utf8mb4")


def table_of(bench: MysqlBench, name: str) -> dict[Any, dict[str, Any]]:
    return {row["id"]: row for row in bench.rows(name)}


def pairs(bench: MysqlBench, name: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values())[:2] for row in bench.rows(name))


def test_every_type_is_the_same_by_copy_by_stream_and_by_select(server: Server, tmp_path: Path) -> None:
    types = TYPES | MARIADB_TYPES if isinstance(server, MariadbServer) else TYPES
    declared = ", ".join(f"{name} {type}" for name, (type, _) in types.items())
    server.execute(f"CREATE TABLE shop.types (id int primary key, {declared})")
    given = {name: values for name, (_, values) in types.items() if values}

    def fill(first: int) -> None:
        for number in range(3):
            values = ", ".join(values[number] for values in given.values())
            server.execute(
                "SET sql_mode = '', time_zone = '+00:00'",
                f"INSERT INTO shop.types (id, {', '.join(given)}) VALUES ({first + number}, {values})",
            )
        server.execute(f"INSERT INTO shop.types (id) VALUES ({first + 3})")

    fill(0)
    with MysqlBench(tmp_path / "p", server.url) as bench:
        bench.settle("types")
        copied = table_of(bench, "types")
        fill(10)
        bench.settle("types")
        rows = table_of(bench, "types")
    assert len(copied) == 4
    for number in range(4):
        for name in types:
            if name not in ("c_virtual", "c_stored"):
                by_copy, by_stream = rows[number][name], rows[number + 10][name]
                assert by_copy == by_stream, (name, number)
        assert rows[number].get("_rescued") == rows[number + 10].get("_rescued"), number
        assert (rows[number]["c_virtual"], rows[number + 10]["c_stored"]) == (2 * number, f"k{number + 10}")
    assert dict(rows[10]["_rescued"])["c_zero"] == "0000-00-00"
    assert dict(rows[11]["_rescued"]) == {"c_zero": "2024-00-10", "c_dt3": "0000-00-00 00:00:00.000"}
    # As the driver reads them: what it has other types for, or rounds, is asked for as text.
    shown = {"c_ubig", "c_bit1", "c_bit63", "c_bit64", "c_time", "c_time2", "c_time6", "c_dec65", "c_set", "c_float"}
    shown |= {"c_date", "c_dt", "c_dt3", "c_dt6", "c_zero", "c_ts", "c_ts5"}
    plain = [name for name in types if name not in shown]
    for found in server.rows(f"SELECT id, {', '.join(plain)} FROM shop.types"):
        for name, value in zip(plain, found[1:], strict=True):
            assert rows[found[0]][name] == value, (name, found[0])
    texts = ["c_time", "c_time2", "c_time6", "c_dec65", "c_set"]
    for found in server.rows(f"SELECT id, {', '.join(f'CAST({name} AS CHAR)' for name in texts)} FROM shop.types"):
        for name, value in zip(texts, found[1:], strict=True):
            assert rows[found[0]][name] == value, (name, found[0])
    numbers = ["c_ubig", "c_bit1", "c_bit63", "c_bit64"]
    for found in server.rows(f"SELECT id, {', '.join(f'{name} + 0' for name in numbers)} FROM shop.types"):
        for name, value in zip(numbers, found[1:], strict=True):
            assert rows[found[0]][name] == value, (name, found[0])
    moments = ["c_date", "c_dt", "c_dt3", "c_dt6", "c_zero", "c_ts", "c_ts5"]
    for found in server.rows(f"SELECT id, {', '.join(f'CAST({name} AS CHAR)' for name in moments)} FROM shop.types"):
        for name, value in zip(moments, found[1:], strict=True):
            cell = rows[found[0]][name]
            rescued = dict(rows[found[0]].get("_rescued") or {})
            text = (
                rescued.get(name) if cell is None else cell.isoformat(sep=" ") if hasattr(cell, "hour") else str(cell)
            )
            expected = value if value is None else value.rstrip("0").rstrip(".") if "." in value else value
            got = text if text is None else text.removesuffix("+00:00")
            got = got if got is None or "." not in got else got.rstrip("0").rstrip(".")
            assert got == expected, (name, found[0])


def test_a_workload_is_equal_through_restarts(server: Server, tmp_path: Path, full: bool) -> None:
    server.execute(
        "CREATE TABLE shop.a (id int primary key, note text, n bigint unsigned)",
        "CREATE TABLE shop.b (k varchar(20), part int, v decimal(30,4), primary key (part, k))",
        "CREATE TABLE shop.bag (x int, y varchar(10))",
        f"INSERT INTO shop.a SELECT seq, repeat(char(65 + seq % 26), seq % 200), seq FROM {numbers(4000)}",
        f"INSERT INTO shop.bag SELECT seq % 10, seq % 3 FROM {numbers(60)}",
    )
    stop, chosen = threading.Event(), random.Random(7)

    def work() -> None:
        connection = server.connect("shop")
        with connection.cursor() as cursor:
            while not stop.is_set():
                key = chosen.randrange(1, 6000)
                statements = [
                    f"REPLACE INTO a VALUES ({key}, 'é{key}', {key} * 3)",
                    f"DELETE FROM a WHERE id = {key}",
                    f"UPDATE IGNORE a SET id = id + 1 WHERE id = {key}",
                    f"UPDATE a SET n = n + 1 WHERE id BETWEEN {key} AND {key + 20}",
                    f"INSERT INTO b VALUES ('k{key % 97}', {key % 5}, {key} / 7) ON DUPLICATE KEY UPDATE v = v + 1",
                    f"DELETE FROM b WHERE part = {key % 5} AND k < 'k{key % 97}'",
                    f"INSERT INTO bag VALUES ({key % 10}, 'w')",
                    f"DELETE FROM bag WHERE x = {key % 10} LIMIT 1",
                ]
                cursor.execute("BEGIN")
                for statement in chosen.sample(statements, 3):
                    cursor.execute(statement)
                    if chosen.random() < 0.2:
                        cursor.execute("SAVEPOINT s")
                        cursor.execute(f"UPDATE a SET note = 'gone' WHERE id = {key + 1}")
                        cursor.execute("ROLLBACK TO s")
                cursor.execute("ROLLBACK" if chosen.random() < 0.1 else "COMMIT")
                if chosen.random() < 0.005:
                    cursor.execute("TRUNCATE b")
                if chosen.random() < 0.02:
                    cursor.execute("FLUSH BINARY LOGS")
        connection.close()

    bench = MysqlBench(tmp_path / "p", server.url, segment_bytes=20_000)
    writer = threading.Thread(target=work)
    writer.start()
    try:
        for _ in range(12 if full else 3):
            bench.start()
            try:
                bench.settle("a", "b", "bag")
            finally:
                bench.stop()
        bench.start()
        stop.set()
        writer.join()
        bench.settle("a", "b", "bag")
        for name, columns in (("a", "id, note, n"), ("b", "k, part, v"), ("bag", "x, y")):
            expected = sorted(server.rows(f"SELECT {columns} FROM shop.{name}"), key=repr)
            found = sorted((tuple(row[one] for one in columns.split(", ")) for row in bench.rows(name)), key=repr)
            assert found == expected, name
    finally:
        stop.set()
        writer.join()
        bench.stop()


COPIED = "copied again"


def test_structure_follows_in_stream_order(server: Server, tmp_path: Path) -> None:
    """`twin` has the structure of `t` at first: it is another table all the same."""
    server.execute(
        *(f"CREATE TABLE shop.{name} (id int primary key, a int, x varchar(9))" for name in ("t", "twin")),
        "INSERT INTO shop.t VALUES (1, 1, 'x'), (2, 2, NULL)",
    )
    first, second = "ALTER TABLE shop.t ", "INSERT INTO shop.t (id) VALUES (99)"
    with MysqlBench(tmp_path / "p", server.url, match="shop.t%, mode: [clone, history, events]") as bench:
        bench.settle("t", "twin", "t__history")
        server.execute("INSERT INTO shop.twin VALUES (5, 5, 'y')")
        for statement, expected, copied in (
            ("ADD b int, ADD INDEX (x)", {"id": 1, "a": 1, "x": "x", "b": None}, False),
            ("RENAME COLUMN a TO c, MODIFY x varchar(300) FIRST", {"x": "x", "id": 1, "c": 1, "b": None}, False),
            ("CHANGE c b int, CHANGE b `c` int", {"x": "x", "id": 1, "b": 1, "c": None}, False),
            ("DROP COLUMN c, ADD c varchar(5) NULL DEFAULT NULL AFTER id", {"id": 1, "c": None, "b": 1}, False),
            ("COMMENT 'no', ALTER b SET DEFAULT 3, ENGINE = InnoDB", {"id": 1, "c": None, "b": 1}, False),
            ("ADD d int DEFAULT 7", {"id": 1, "c": None, "b": 1, "d": 7}, True),
            ("MODIFY b varchar(9)", {"id": 1, "c": None, "b": "1", "d": 7}, True),
            ("DROP b, ADD b int AS (d + 1) STORED", {"id": 1, "c": None, "b": 8, "d": 7}, True),
        ):
            before = copies(bench)
            server.execute(first + statement, second, "DELETE FROM shop.t WHERE id = 99")
            bench.settle("t", "twin", "t__history")
            found = {key: value for key, value in table_of(bench, "t")[1].items() if key in expected}
            assert found == expected, statement
            assert (copies(bench) > before) is copied, statement
        past = bench.rows("t__history")
        events = bench.rows("t__events")
        assert table_of(bench, "twin") == {5: {"id": 5, "a": 5, "x": "y"}}
        assert copies(bench, "twin") == 0
        server.execute(  # as gh-ost ends
            "CREATE TABLE shop.shadow (id int primary key, b bigint)",
            "INSERT INTO shop.shadow VALUES (5, 50)",
            "RENAME TABLE shop.t TO shop.old, shop.shadow TO shop.t",
        )
        bench.settle("t")
        assert [(row["id"], row["b"]) for row in bench.rows("t")] == [(5, 50)]
        server.execute("DROP TABLE shop.t", "CREATE TABLE shop.t (id int primary key, b bigint)")
        bench.settle("t")
        assert bench.rows("t") == []
    versions = sorted((row for row in past if row["id"] == 1), key=lambda row: row["valid_from"])
    assert [[row[name] for name in ("b_dropped_1", "b_dropped_2", "b", "d")] for row in versions] == [
        [1, None, None, None],
        [1, None, None, 7],
        [None, "1", None, 7],
        [None, None, 8, 7],
    ]
    assert [row["op"] for row in events] == ["read", "read", *["insert", "delete"] * 8], "an ALTER is no event"


def copies(bench: MysqlBench, table: str = "t") -> int:
    """Return how often the table was copied again."""
    return sum(event.table == TableId("shop", table) and COPIED in event.message for event in bench.state.events())


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (["SET SESSION binlog_format = STATEMENT", "UPDATE shop.t SET a = 5"], "binlog_format is not ROW"),
        (["SET SESSION binlog_row_image = MINIMAL", "UPDATE shop.t SET a = 5"], "binlog_row_image is not FULL"),
        (
            [
                "SET GLOBAL binlog_row_metadata = MINIMAL",
                "UPDATE shop.t SET a = 5",
                "SET GLOBAL binlog_row_metadata = FULL",
            ],
            "binlog_row_metadata is not FULL",
        ),
        (
            ["XA START 'x'", "UPDATE shop.t SET a = 5", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'"],
            "XA transaction",
        ),
    ],
)
def test_what_cannot_be_followed_makes_the_table_errored(
    server: Server, tmp_path: Path, statements: list[str], reason: str
) -> None:
    server.execute("CREATE TABLE shop.t (id int primary key, a int)", "INSERT INTO shop.t VALUES (1, 1), (2, 2)")
    with MysqlBench(tmp_path / "p", server.url) as bench:
        bench.settle("t")
        server.execute(*statements)
        errored = bench.await_errored("t")
    assert reason in errored.reason, errored
    assert pairs(bench, "t") == [(1, 1), (2, 2)]


def test_a_transaction_larger_than_segments_and_compressed_events(server: Server, tmp_path: Path) -> None:
    server.execute("CREATE TABLE shop.t (id int primary key, note varchar(200))", "INSERT INTO shop.t VALUES (0, 'x')")
    with MysqlBench(tmp_path / "p", server.url, segment_bytes=50_000) as bench:
        bench.settle("t")
        server.execute(
            f"SET GLOBAL {server.compression} = ON",
            f"INSERT INTO shop.t SELECT seq, repeat('é', 90) FROM {numbers(20_000)}",
            "UPDATE shop.t SET note = concat(note, id) WHERE id % 2 = 0",
            f"SET GLOBAL {server.compression} = OFF",
            "INSERT INTO shop.t VALUES (-1, 'after')",
        )
        bench.settle("t")
        assert pairs(bench, "t") == sorted(server.rows("SELECT id, note FROM shop.t"))
        assert any(bench.log.header(segment).parts for segment in bench.log.segments())


def test_tables_that_cannot_be_followed_are_refused_by_name(server: Server, tmp_path: Path) -> None:
    server.execute(
        "CREATE TABLE shop.parent (id int primary key)",
        "CREATE TABLE shop.child (id int primary key, p int,"
        " foreign key (p) references shop.parent(id) on delete cascade)",
        "CREATE TABLE shop.isam (id int primary key) ENGINE = MyISAM",
        "CREATE TABLE shop.prefix (id varchar(20), primary key (id(5)))",
    )
    refused = {"child", "isam", "prefix"}
    if isinstance(server, MariadbServer):
        server.execute("CREATE TABLE shop.v (id int primary key) WITH SYSTEM VERSIONING")
        refused |= {"v"}
    with MysqlBench(tmp_path / "p", server.url) as bench:
        bench.settle("parent")
        said = {table.name: error.what for table, error in bench.troubles.items()}
        with source_of(bench.pipeline.source).connect() as session:
            findings = session.check(bench.pipeline)
            assert session.version.startswith(("MariaDB 1", "MySQL 8.0"))
            assert any(fact.label == "oldest binlog" for fact in session.health().facts)
    assert set(said) == refused
    assert "ON DELETE CASCADE" in said["child"]
    assert {one.table.name for one in findings if one.table is not None and one.level == "error"} == set(said)


def test_gaps_are_found_and_settings_are_checked(server: Server, tmp_path: Path) -> None:
    server.execute("CREATE TABLE shop.t (id int primary key)")
    bench = MysqlBench(tmp_path / "p", server.url)
    bench.start()
    bench.settle("t")
    bench.stop()
    server.execute("SET GLOBAL binlog_row_metadata = MINIMAL")
    with pytest.raises(SourceMisconfigured, match="binlog_row_metadata is MINIMAL"):
        bench.start()
    server.execute("SET GLOBAL binlog_row_metadata = FULL", "FLUSH BINARY LOGS", "INSERT INTO shop.t VALUES (1)")
    last = server.rows("SHOW BINARY LOGS")[-1][0]

    def purged() -> bool:
        """A file stays without a word while somebody reads it, or MariaDB may still need it after a crash."""
        server.execute(f"PURGE BINARY LOGS TO '{last}'")
        return bool(server.rows("SHOW BINARY LOGS")[0][0] == last)

    await_condition(purged, "the older files to be gone", 20, every=0.2)
    with pytest.raises(GapError, match="no longer has the binlog file"):
        bench.start()
    reset = MysqlBench(tmp_path / "q", server.url)
    reset.start()
    reset.settle("t")
    reset.stop()
    server.execute("RESET MASTER", *[f"INSERT INTO shop.t VALUES ({number})" for number in range(100, 130)])
    server.execute(*["FLUSH BINARY LOGS"] * 4)
    with pytest.raises(GapError, match="reset"):
        reset.start()


def test_a_server_that_is_away_is_waited_for_and_passwords_are_not_shown(server: Server, tmp_path: Path) -> None:
    server.execute("CREATE TABLE shop.t (id int primary key)")
    with MysqlBench(tmp_path / "p", server.url) as bench:
        bench.settle("t")
        server.stop()
        server.start()
        server.execute("INSERT INTO shop.t VALUES (4)")
        bench.settle("t")
        assert bench.rows("t") == [{"id": 4}]
    wrong = MysqlBench(tmp_path / "q", server.url.replace(PASSWORD, "wr0ng"))
    with pytest.raises(PenstockError) as refused:
        wrong.start()
    assert isinstance(refused.value, SourceUnreachable)
    assert "wr0ng" not in str(refused.value)

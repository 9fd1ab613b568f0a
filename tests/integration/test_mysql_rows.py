"""What rows of MariaDB and MySQL become beyond a clone: events, modes, and the comparison with a lake."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from databases import Database
from mysql_bench import MysqlBench
from mysql_server import LARGE, SERVERS, MariadbServer, Server, numbers
from mysql_types import MARIADB_TYPES, TYPES
from penstock.changelog.log import ChangeLog
from penstock.config.load import load
from penstock.control.query.log_events import EVERYTHING, LogEvents
from penstock.control.verify.compare import Comparison, compare
from penstock.control.verify.repair import net_effect
from penstock.control.verify.sides import LakeColumn, LakeSide
from penstock.decode.mysql.charset_tables import BYTES, EXCEPTIONS
from penstock.decode.mysql.charsets import CHARSETS, decoded
from penstock.destinations.memory import MemoryDestination
from penstock.errors import RangeVoid, SourceError
from penstock.model.row_digest import DIGITS, Figures
from penstock.model.table import TableId
from penstock.render.format import Envelope, EnvelopeType, EventFormat
from penstock.source.factory import source_of
from penstock.source.mysql.canonical import digests

COLUMNS = """id int primary key, d decimal(12,8), f float, dt datetime(3), ts timestamp(6) null, z date, b blob,
    e enum('a','b'), s set('x','y'), bi bigint unsigned, bt bit(10), tm time(3), y year, note text"""
ROW = """(1, 0.00000001, 0.1, '2024-01-02 03:04:05.678', '2024-01-02 03:04:05.678901', '0000-00-00', x'00ff', 'b',
    'x,y', 9223372036854775807, b'1000000001', '-100:00:00.5', 2024, 'h"é')"""
NATIVE = {
    "id": 1,
    "d": "0.00000001",
    "f": 0.1,
    "dt": "2024-01-02T03:04:05.678",
    "ts": "2024-01-02T03:04:05.678901Z",
    "z": "0000-00-00",
    "b": "AP8=",
    "e": "b",
    "s": "x,y",
    "bi": 9223372036854775807,
    "bt": 513,
    "tm": "-100:00:00.500",
    "y": 2024,
    "note": 'h"é',
}
DEBEZIUM = NATIVE | {
    "d": "AQ==",
    "dt": 1704164645678,
    "z": None,
    "bt": "AQI=",
    "tm": -360000500000,
}


@pytest.fixture(scope="module", params=["mariadb", *(pytest.param(one, marks=pytest.mark.full) for one in LARGE)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with SERVERS[request.param](tmp_path_factory.mktemp(request.param)) as started:
        yield started


@pytest.fixture(autouse=True)
def empty(server: Server) -> None:
    server.execute("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop CHARACTER SET utf8mb4")


def printed(bench: MysqlBench, envelope: EnvelopeType) -> list[dict[str, Any]]:
    told: list[str] = []
    format = EventFormat(Envelope(envelope), split_moves=envelope != "faucet")
    lines = [json.loads(line) for line in LogEvents(bench.pipeline, None, format, told.append).lines(EVERYTHING)]
    assert not told
    return lines


def test_changes_are_events_in_every_envelope_and_rows_in_every_mode(server: Server, tmp_path: Path) -> None:
    server.execute(f"CREATE TABLE shop.t ({COLUMNS})")
    insert = ["SET sql_mode = '', time_zone = '+00:00'", f"INSERT INTO shop.t VALUES {ROW}"]
    with MysqlBench(tmp_path / "p", server.url, match="shop.t, mode: [clone, append, history, events]") as bench:
        bench.settle("t")
        later = [f"SET timestamp = {2_000_000_000 + second}" for second in range(3)]
        update = "UPDATE shop.t SET id = 2", "UPDATE shop.t SET note = 'x'"
        server.execute(later[0], *insert, later[1], update[0], later[2], update[1])
        bench.settle("t")
        server.execute("ALTER TABLE shop.t ADD extra int", "INSERT INTO shop.t (id, extra) VALUES (3, 5)")
        server.execute("DELETE FROM shop.t WHERE id = 3", "TRUNCATE shop.t")
        bench.settle("t")
        native, faucet = printed(bench, "native"), printed(bench, "faucet")
        cloud, debezium = printed(bench, "cloudevents"), printed(bench, "debezium")
        kept = {mode: bench.rows(f"t__{mode}") for mode in ("append", "history", "events")}
        assert bench.rows("t") == []

    moved = ["insert", "delete", "insert", "update", "insert", "delete", "truncate"]
    assert [one["op"] for one in native] == moved, "an ALTER is no event"
    assert native[0]["after"] == NATIVE
    assert (native[0]["database"], native[0]["schema"], native[0]["before"]) == ("shop", "shop", None)
    assert (native[1]["before"], native[1]["moved_to"], native[2]["moved_from"]) == (NATIVE, {"id": 2}, {"id": 1})
    assert (native[3]["before_kind"], native[3]["after"]) == ("full", NATIVE | {"id": 2, "note": "x"})
    assert native[4]["after"] == dict.fromkeys(NATIVE) | {"id": 3, "extra": 5}
    assert [one["place"] for one in native] == sorted(one["place"] for one in native)
    assert len({one["id"] for one in native}) == len(native)

    assert [one["op"] for one in faucet] == ["insert", "update", "update", "insert", "delete", "truncate"]
    moments = {"dt": "2024-01-02 03:04:05.678", "ts": "2024-01-02 03:04:05.678901"}
    assert faucet[0]["after"] == NATIVE | moments
    assert [one["data"]["after"] for one in cloud] == [one["after"] for one in native]

    assert [one["op"] for one in debezium] == [*"cdcucdt"]
    assert debezium[0]["after"] == DEBEZIUM
    source = debezium[0]["source"]
    assert (source["connector"], source["db"], source["table"]) == ("mysql", "shop", "t")
    assert (source["file"], source["row"]) == ("binlog.000001", 0)
    number = native[0]["transaction"]
    uuid = None if isinstance(server, MariadbServer) else server.rows("SELECT @@server_uuid")[0][0]
    assert source["gtid"] == (uuid and f"{uuid}:{number}")
    assert [one["source"]["pos"] for one in debezium] == sorted(one["source"]["pos"] for one in debezium)

    versions = sorted(
        (row["id"], row["note"], row["deleted"], row["valid_from"]) for row in kept["history"] if row["id"] < 3
    )
    assert [one[:3] for one in versions] == [(1, 'h"é', True), (2, 'h"é', False), (2, "x", True)]
    if isinstance(server, MariadbServer):  # MySQL's commit times are the server's clock, whatever a session says
        assert versions[2][3].second == 22
    assert [row["id"] for row in kept["append"]] == [2, 3]
    assert [row["op"] for row in kept["events"]] == ["insert", "update", "update", "insert", "delete", "truncate"]
    assert kept["events"][0]["after"]["bi"] == 9223372036854775807
    assert kept["events"][0]["transaction"] == native[0]["transaction"]


def test_rules_choose_rows_and_columns_alike_in_copies_streams_and_events(server: Server, tmp_path: Path) -> None:
    server.execute(
        "CREATE TABLE shop.t"
        " (id int primary key, n bigint unsigned, d decimal(8,2), at datetime(3), b blob, c char(3))",
        "INSERT INTO shop.t VALUES (1, 5, 1.5, '2024-01-01', x'00ff', 'q'), (2, 7, -1, '2023-01-01', null, 'z')",
    )
    where = "d < 2 AND (n > 6 OR at >= '2023-06-01') AND c <> 'no'"
    rule = f'shop.t, where: "{where}", columns: {{b: mask, c: {{rename: k}}, at: drop}}, set: {{who: shop, live: true}}'
    with MysqlBench(tmp_path / "p", server.url, match=rule) as bench:
        bench.settle("t")
        copied = {row["id"]: row for row in bench.rows("t")}
        server.execute(
            "INSERT INTO shop.t VALUES (3, 5, 1.5, '2024-01-01', x'00ff', 'q'), (4, 5, 2.5, '2024-01-01', null, 'q')",
            "UPDATE shop.t SET d = 1 WHERE id = 4",
            "UPDATE shop.t SET d = 9 WHERE id = 1",
            "UPDATE shop.t SET c = 'NO' WHERE id = 2",
        )
        bench.settle("t")
        rows = {row["id"]: row for row in bench.rows("t")}
        events = printed(bench, "native")
    assert rows.keys() == {2, 3, 4}
    assert rows[3] == copied[1] | {"id": 3}
    assert (rows[2]["k"], rows[2]["b"], rows[2]["who"], rows[2]["live"]) == ("NO", None, "shop", True)
    assert [(one["op"], one["key"]["id"]) for one in events] == [
        ("insert", 3),
        ("insert", 4),
        ("delete", 1),
        ("update", 2),
    ]
    assert events[0]["after"] == {
        "who": "shop",
        "live": True,
        "id": 3,
        "n": 5,
        "d": "1.50",
        "b": rows[3]["b"],
        "k": "q",
    }


def compared(bench: MysqlBench, spark: SparkSession, table: str, folder: Path) -> Comparison:
    """Compare a table with what is in the destination, as Spark digests it."""
    name, rows = TableId("shop", table), bench.destination.rows(TableId("shop", table))
    pq.write_table(rows, folder / f"{table}.parquet")
    relation = f"parquet.`{folder}/{table}.parquet`"
    types = {field.name: field.dataType for field in spark.sql(f"SELECT * FROM {relation}").schema.fields}
    source = source_of(bench.pipeline.source)
    with source.snapshot(timeout=5, waiting=lambda _: None) as snapshot, snapshot.session() as session:
        schema = session.describe(bench.pipeline, name)
        assert schema is not None
        columns = {column.name: LakeColumn(column.name, types[column.name]) for column in schema.columns}
        lake = LakeSide(spark, schema, relation, columns, "_rescued" in types)
        side = session.comparable(bench.pipeline.carried(schema))
        found = compare(side, lake, buckets=4, keyed=bool(schema.key), shown=20)
        if found.differences and schema.key:
            read = net_effect(session.reader(schema), found.differences, statement_timeout=10)
            found.repair = read  # type: ignore[attr-defined]
        return found


def test_every_type_is_compared_with_what_spark_makes_of_the_lake(
    server: Server, spark: SparkSession, tmp_path: Path
) -> None:
    types = TYPES | MARIADB_TYPES if isinstance(server, MariadbServer) else TYPES
    declared = ", ".join(f"{name} {type}" for name, (type, _) in types.items())
    given = {name: values for name, (_, values) in types.items() if values}
    server.execute(
        f"CREATE TABLE shop.types (id int primary key, {declared})",
        "CREATE TABLE shop.k (a varchar(20), b decimal(10,2), c timestamp(6), v double, primary key (a, b, c))",
        "CREATE TABLE shop.bag (x int, y varchar(10))",
        f"INSERT INTO shop.k SELECT concat('é', seq), seq / 7, '2024-01-01 00:00:00.5', seq * 0.1 FROM {numbers(300)}",
        f"INSERT INTO shop.bag SELECT seq % 10, if(seq % 3, concat('a', char(31)), null) FROM {numbers(60)}",
    )

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
        bench.settle("types", "k", "bag")
        fill(10)
        server.execute("UPDATE shop.k SET v = v + 1 WHERE b < 5")
        bench.settle("types", "k", "bag")
        for table, rows in (("types", 8), ("k", 300), ("bag", 60)):
            found = compared(bench, spark, table, tmp_path)
            assert found.equal, (table, found.differences)
            assert found.source_rows == rows
        server.execute(
            "SET sql_log_bin = 0",
            "UPDATE shop.k SET v = -5 WHERE a = 'é3'",
            "DELETE FROM shop.k WHERE a = 'é4'",
            "INSERT INTO shop.k VALUES ('NEW''', 1, '2024-01-01', 1)",
            "UPDATE shop.types SET c_float = 7, c_zero = '2024-05-05' WHERE id = 0",
            "DELETE FROM shop.bag LIMIT 1",
        )
        keyed = compared(bench, spark, "k", tmp_path)
        assert sorted(one.kind for one in keyed.differences) == ["differs", "extra", "missing"]
        repaired = keyed.repair.upserts.to_pylist()  # type: ignore[attr-defined]
        assert sorted((row["a"], row["v"]) for row in repaired) == [("NEW'", 1.0), ("é3", -5.0)]
        typed = compared(bench, spark, "types", tmp_path)
        (difference,) = typed.differences
        assert {cell.column for cell in difference.cells} == {"c_float", "c_zero"}
        assert [one.kind for one in compared(bench, spark, "bag", tmp_path).differences] == ["extra"]


def test_a_table_that_is_altered_under_the_snapshot_is_not_compared(server: Server, tmp_path: Path) -> None:
    server.execute("CREATE TABLE shop.t (id int primary key)", "INSERT INTO shop.t VALUES (1)")
    source = source_of(MysqlBench(tmp_path / "p", server.url).pipeline.source)
    wanted = MysqlBench(tmp_path / "q", server.url).pipeline
    with source.connect() as looking:
        (found,) = [one for one in looking.discover(wanted) if one.table.name == "t"]
        assert looking.first_rows(found, 5).to_pylist() == [{"id": 1}]
    with source.snapshot(timeout=5, waiting=lambda _: None) as snapshot:
        server.execute("INSERT INTO shop.t VALUES (2)")
        with snapshot.session() as session:
            schema = session.describe(wanted, TableId("shop", "t"))
            assert schema is not None
            assert sum(count for count, _ in session.comparable(schema).figures(1).values()) == 1
    with source.snapshot(timeout=5, waiting=lambda _: None) as snapshot:
        server.execute("ALTER TABLE shop.t ADD a int")
        with snapshot.session() as session, pytest.raises(RangeVoid):
            session.comparable(schema)


def test_character_sets_are_read_as_the_server_converts_them(server: Server) -> None:
    """Every code of one and of two bytes that can stand in a column."""
    checked = 0
    listed = {name for (name,) in server.rows("SELECT CHARACTER_SET_NAME FROM information_schema.CHARACTER_SETS")}
    assert listed - CHARSETS <= {"gb18030"}
    for charset in sorted({*BYTES, *EXCEPTIONS, "cp932", "euckr", "gb2312", "gbk"} & listed):
        wide = charset not in BYTES
        first, count = (0x8000, 0x8000) if wide else (1, 255)
        code = f"UNHEX(LPAD(HEX(seq + {first - 1}), {4 if wide else 2}, '0'))"
        text = f"CAST({code} AS CHAR CHARACTER SET {charset})"
        found = server.rows(
            f"SELECT HEX({code}), HEX(CONVERT({text} USING utf8mb4)) FROM {numbers(count)}"
            f" WHERE CHAR_LENGTH({text}) = 1 AND HEX({text}) = HEX({code})"
            f" AND CONVERT({text} USING utf8mb4) IS NOT NULL"
        )
        expected = [bytes.fromhex(shown).decode() for _, shown in found]
        codes = pa.array([bytes.fromhex(code) for code, _ in found], pa.binary())
        assert decoded(codes, charset).to_pylist() == expected, charset
        checked += len(found)
    assert checked > 60_000


CUT_BY = {
    "n": ("bigint unsigned", "seq * 7"),
    "ci": (
        "varchar(30) COLLATE utf8mb4_general_ci",
        "concat(char(65 + seq % 2 * 32 using utf8mb4), seq, 'é')",
    ),
    "latin": ("char(20) CHARACTER SET latin1", "concat('ü', seq)"),
    "raw": ("binary(8)", "unhex(lpad(hex(seq * 1000), 16, '0'))"),
    "money": ("decimal(12,3)", "seq / 3 - 500"),
    "at": ("datetime(3)", "'2024-01-01' + interval seq second"),
    "u": ("uuid", "uuid()"),
}


def test_tables_are_cut_by_keys_of_any_type_and_every_row_is_in_one_range(server: Server, tmp_path: Path) -> None:
    kinds = {name: of for name, of in CUT_BY.items() if isinstance(server, MariadbServer) or name != "u"}
    for name, (type, value) in kinds.items():
        server.execute(
            f"CREATE TABLE shop.{name} (k {type}, part int, note char(200), primary key (k, part))",
            f"INSERT INTO shop.{name} SELECT {value}, seq % 3, 'x' FROM {numbers(1500)}",
            f"INSERT INTO shop.{name} SELECT k, 7, note FROM shop.{name}",
            f"ANALYZE TABLE shop.{name}",
        )
    bench = MysqlBench(tmp_path / "p", server.url)
    source = source_of(bench.pipeline.source)
    with source.snapshot(timeout=5, waiting=lambda _: None) as snapshot, snapshot.session() as session:
        for name in kinds:
            schema = session.describe(bench.pipeline, TableId("shop", name))
            assert schema is not None
            planned = session.plan_ranges(schema, range_bytes=100_000)
            assert 3 < len(planned) < 20, (name, len(planned))
            again = [source.range_from_json(part.to_json()) for part in planned]
            assert again == list(planned)
            reader = session.reader(schema)
            found = [pa.Table.from_batches(reader.read(part, statement_timeout=10)) for part in again]
            assert sum(1 for part in found if part.num_rows) > 3, name
            rows = pa.concat_tables(found).select(["k", "part"]).to_pylist()
            assert len(rows) == 3000, name
            assert len({tuple(row.values()) for row in rows}) == 3000, name


MANY = """
version: 1
name: many
sources:
  - {{name: old, type: mysql, url: "{mysql}", sid: maria}}
  - {{name: new, type: postgres, url: "{postgres}", sid: postgres}}
tables:
  - {{match: shop.orders, target: all.orders}}
  - {{match: public.orders, target: all.orders}}
destinations: [{{name: lake, type: iceberg, warehouse: "{folder}/lake"}}]
"""


def test_postgres_and_mariadb_fill_one_table_with_a_sid(server: Server, postgres: Database, tmp_path: Path) -> None:
    postgres.execute("CREATE TABLE orders (id int primary key, note text, price numeric(8,2), at timestamp)")
    postgres.execute("INSERT INTO orders VALUES (1, 'p', 1.50, '2024-01-01')")
    server.execute(
        "CREATE TABLE shop.orders (id int primary key, note varchar(20), price decimal(8,2), at datetime(6))",
        "INSERT INTO shop.orders VALUES (1, 'm', 2.50, '2024-01-02')",
    )
    (tmp_path / "many.yaml").write_text(MANY.format(mysql=server.url, postgres=postgres.url, folder=tmp_path))
    views = [view.destination_views[0] for view in load(tmp_path / "many.yaml").source_views]
    destination = MemoryDestination("lake")
    benches = [MysqlBench(tmp_path / view.source.name, server.url) for view in views]
    for bench, view in zip(benches, views, strict=True):
        bench.pipeline, bench.destination, bench.log = view, destination, ChangeLog(view.log_uri)
    try:
        for bench, schema in zip(benches, ("shop", "public"), strict=True):
            bench.start()
            bench.settle("orders", schema=schema)
        server.execute("INSERT INTO shop.orders VALUES (2, 'm', 3, null)", "DELETE FROM shop.orders WHERE id = 1")
        postgres.execute("UPDATE orders SET note = 'q'")
        for bench, schema in zip(benches, ("shop", "public"), strict=True):
            bench.settle("orders", schema=schema)
        rows = destination.rows(TableId("all", "orders")).to_pylist()
    finally:
        for bench in benches:
            bench.stop()
    assert sorted((row["sid"], row["id"], row["note"], str(row["price"])) for row in rows) == [
        ("maria", 2, "m", "3.00"),
        ("postgres", 1, "q", "1.50"),
    ]


GHOST = [
    "CREATE /* gh-ost */ TABLE `shop`.`_t_ghc` (id bigint auto_increment, hint varchar(64), primary key (id))",
    "CREATE /* gh-ost */ TABLE `shop`.`_t_gho` LIKE `shop`.`t`",
    "ALTER /* gh-ost */ TABLE `shop`.`_t_gho` ADD b int NOT NULL DEFAULT 5, MODIFY a bigint",
    "INSERT /* gh-ost */ IGNORE INTO `shop`.`_t_gho` (id, a) SELECT id, a FROM `shop`.`t`",
    "REPLACE /* gh-ost */ INTO `shop`.`_t_gho` (id, a) SELECT id, a FROM `shop`.`t` WHERE id < 3",
    "RENAME /* gh-ost */ TABLE `shop`.`t` TO `shop`.`_t_del`, `shop`.`_t_gho` TO `shop`.`t`",
    "DROP /* gh-ost */ TABLE IF EXISTS `shop`.`_t_ghc`, `shop`.`_t_del`",
]
PT = [
    "CREATE TABLE `shop`.`_t_new` LIKE `shop`.`t`",
    "ALTER TABLE `shop`.`_t_new` DROP b, ADD c varchar(9) DEFAULT 'x'",
    "CREATE TRIGGER `shop`.`pt_osc_shop_t_del` AFTER DELETE ON `shop`.`t` FOR EACH ROW"
    " DELETE IGNORE FROM `shop`.`_t_new` WHERE `shop`.`_t_new`.`id` <=> OLD.`id`",
    "CREATE TRIGGER `shop`.`pt_osc_shop_t_upd` AFTER UPDATE ON `shop`.`t` FOR EACH ROW"
    " REPLACE INTO `shop`.`_t_new` (`id`, `a`) VALUES (NEW.`id`, NEW.`a`)",
    "CREATE TRIGGER `shop`.`pt_osc_shop_t_ins` AFTER INSERT ON `shop`.`t` FOR EACH ROW"
    " REPLACE INTO `shop`.`_t_new` (`id`, `a`) VALUES (NEW.`id`, NEW.`a`)",
    "INSERT LOW_PRIORITY IGNORE INTO `shop`.`_t_new` (`id`, `a`) SELECT `id`, `a` FROM `shop`.`t` /*pt-osc copy*/",
    "UPDATE shop.t SET a = a + 1 WHERE id = 4",
    "ANALYZE TABLE `shop`.`_t_new` /* pt-online-schema-change */",
    "RENAME TABLE `shop`.`t` TO `shop`.`_t_old`, `shop`.`_t_new` TO `shop`.`t`",
    "DROP TABLE IF EXISTS `shop`.`_t_old`",
    "DROP TRIGGER IF EXISTS `shop`.`pt_osc_shop_t_del`",
]


def test_online_schema_changes_end_with_the_table_as_it_is_at_the_source(server: Server, tmp_path: Path) -> None:
    server.execute("CREATE TABLE shop.t (id int primary key, a int)", "INSERT INTO shop.t VALUES (1, 1), (2, 2)")
    with MysqlBench(tmp_path / "p", server.url, match="shop.t, mode: [clone, events]") as bench:
        bench.settle("t")
        for number, (statements, columns) in enumerate(((GHOST, "id, a, b"), (PT, "id, a, c")), 3):
            for place, statement in enumerate(statements):
                server.execute(statement, f"INSERT INTO shop.t (id, a) VALUES ({number * 100 + place}, 7)")
                if place == 1:
                    server.execute(
                        f"INSERT INTO shop.t (id, a) VALUES ({number}, 7)", "DELETE FROM shop.t WHERE id = 1"
                    )
            bench.settle("t")
            wanted = sorted(server.rows(f"SELECT {columns} FROM shop.t"))
            assert sorted(tuple(row[one] for one in columns.split(", ")) for row in bench.rows("t")) == wanted
        events = bench.rows("t__events")
    assert {row["op"] for row in events} <= {"read", "insert", "update", "delete"}, "a RENAME is no truncate"


def test_what_is_compared_is_exactly_what_was_committed_before_the_position(
    server: Server, tmp_path: Path, full: bool
) -> None:
    server.execute("CREATE TABLE shop.t (id int primary key, n int)")
    stop, name = threading.Event(), TableId("shop", "t")

    def work(seed: int) -> None:
        chosen, connection = random.Random(seed), server.connect("shop")
        with connection.cursor() as cursor:
            while not stop.is_set():
                key = chosen.randrange(60)
                cursor.execute(f"REPLACE INTO t VALUES ({key}, {chosen.randrange(1000)})")
                cursor.execute(f"DELETE FROM t WHERE id = {chosen.randrange(60)}")
        connection.close()

    unsure = () if isinstance(server, MariadbServer) else (SourceError,)  # MySQL: something was committed meanwhile
    seen: list[tuple[int, Figures]] = []
    with MysqlBench(tmp_path / "p", server.url) as bench:
        bench.settle("t")
        source = source_of(bench.pipeline.source)
        writers = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for writer in writers:
            writer.start()
        try:
            for _ in range(300 if full else 25):
                with source.snapshot(timeout=5, waiting=lambda _: None) as snapshot, snapshot.session() as session:
                    schema = session.describe(bench.pipeline, name)
                    assert schema is not None
                    with suppress(*unsure):
                        seen.append((snapshot.position, session.comparable(schema).figures(1).get(0, (0, 0))))
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        bench.settle("t")
        events = printed(bench, "native")
    rows: dict[int, int] = {}
    done = 0
    for position, figures in sorted(seen):
        while done < len(events) and int(events[done]["place"][:16], 16) < position:
            event = events[done]
            if event["before"] is not None:
                del rows[event["before"]["id"]]
            if event["after"] is not None:
                rows[event["after"]["id"]] = event["after"]["n"]
            done += 1
        texts = digests([f"{key}\x1f,{n}\x1f," for key, n in rows.items()])
        assert figures == (len(rows), sum(int(text[:DIGITS], 16) for text in texts)), position
    if isinstance(server, MariadbServer):
        assert len({position for position, _ in seen}) > 5, "there was traffic between them"

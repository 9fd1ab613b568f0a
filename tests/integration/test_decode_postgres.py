"""Postgres is the oracle: what a real server sends, decoded and folded, is what SELECT returns there."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock.decode.choices import fitted
from penstock.decode.postgres.columns import column
from penstock.decode.postgres.messages import Messages
from penstock.demo.server import PostgresServer
from penstock.destinations.iceberg.type_map import ICEBERG_TYPES
from penstock.errors import ValueDoesNotFit
from penstock.fold.clone import fold_clone
from penstock.fold.net_effect import NetEffect
from penstock.model.change import RawChanges
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.model.type_map import WIDEST
from pgoutput_messages import Change, raw_changes

SETTINGS = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
}
Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        yield running


@pytest.fixture
def connection(server: PostgresServer) -> Iterator[Connection]:
    """A session on a clean database with a slot that has seen nothing yet."""
    options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    with psycopg.connect(server.url(), autocommit=True, options=options) as session:
        session.execute("DROP SCHEMA public CASCADE")
        session.execute("CREATE SCHEMA public")
        session.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        session.execute("SELECT pg_create_logical_replication_slot('slot', 'pgoutput')")
        yield session
        session.execute("SELECT pg_drop_replication_slot('slot')")
        session.execute("DROP PUBLICATION everything")


def described(connection: Connection, table: str, key: tuple[str, ...], identity: str = "key") -> TableSchema:
    relation = connection.execute("SELECT %s::regclass::oid::int8", [table]).fetchone()
    assert relation is not None
    rows = connection.execute(
        "SELECT attname, atttypid::int8, format_type(atttypid, NULL), atttypmod FROM pg_attribute "
        "WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        [relation[0]],
    ).fetchall()
    columns = tuple(
        Column(name, ColumnType(oid, type, modifier), name not in key) for name, oid, type, modifier in rows
    )
    return TableSchema(TableId("public", table), relation[0], columns, key, identity)


def sent(connection: Connection, schema: TableSchema) -> list[Change]:
    """What the slot has for one table since the last call; a transaction's changes carry its commit's position."""
    messages = connection.execute(
        "SELECT data FROM pg_logical_slot_get_binary_changes('slot', NULL, NULL, "
        "'proto_version', '1', 'publication_names', 'everything')"
    ).fetchall()
    relation = schema.relation_id.to_bytes(4, "big")
    changes: list[Change] = []
    commit_position = ordinal = 0
    for (message,) in messages:
        if message[:1] == b"B":
            commit_position, ordinal = int.from_bytes(message[1:9], "big"), 0
        elif (message[:1] in (b"I", b"U", b"D") and message[1:5] == relation) or (
            message[:1] == b"T" and relation in [message[i : i + 4] for i in range(6, len(message), 4)]
        ):
            changes.append(Change(commit_position, ordinal, message))
            ordinal += 1
    return changes


EVERY_TYPE = {
    "bool": ["true", "false", None],
    "int2": ["-32768", "32767", None],
    "int4": ["-2147483648", "2147483647", None],
    "int8": ["-9223372036854775808", "9223372036854775807", None],
    "float4": ["3.4028235e38", "1e-45", "'-0'", "'NaN'", "'Infinity'", "0.1", None],
    "float8": ["1.7976931348623157e308", "5e-324", "'-Infinity'", "'NaN'", "0.1", "1e23", None],
    "numeric(38, 10)": ["9999999999999999999999999999.9999999999", "-0.0000000001", "1", None],
    "numeric(5, 5)": ["0.99999", "-0.1", None],
    "numeric(3, -2)": ["12345", None],
    "numeric": ["1.500", "-0.000000000000000001", "99999999999999999999.5", None],
    "text": ["''", "'NULL'", "E'a\\tb\\\\n\\x01'", "'🐘 é'", "repeat('long ', 100000)", None],
    "varchar(10)": ["'0123456789'", "''", None],
    "char(5)": ["'ab'", "''", None],
    '"char"': ["'c'", None],
    "name": ["'a name'", None],
    "bytea": ["''", "'\\x00ff10'", "convert_to(repeat('x', 300000), 'UTF8')", None],
    "date": ["'0001-01-01'", "'9999-12-31'", "'2024-02-29'", "'5874897-12-31'", "'10000-01-01'", None],
    "time": ["'24:00:00'", "'00:00:00.000001'", "'12:00'", None],
    "timetz": ["'12:00+05:30'", None],
    "timestamp": ["'0001-01-01 00:00'", "'2024-02-29 23:59:59.999999'", "'294246-12-31 23:59:59.999999'", None],
    "timestamptz": ["'0001-01-02 00:00+00'", "'2024-02-29 12:00:00.1+05:30'", "'10000-01-01 00:00:00+00'", None],
    "uuid": ["'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", None],
    "json": ["""'{"a":1,  "a":2}'""", "'null'", None],
    "jsonb": ["""'{"b": 1e400, "a": [null, "\\u00e9"]}'""", "'null'", None],
    "interval": ["'1 mon 2 days 03:04:05.000006'", None],
    "int4[]": ["'{1,NULL,3}'", "'{}'", None],
    "inet": ["'10.0.0.1/8'", None],
    "money": ["1.5", None],
}


def comparable(type: str) -> str:
    """The SELECT expression that says the same as the Arrow value does in `plain`."""
    return {
        "date": "(v - date '1970-01-01')",
        "timestamp": "(extract(epoch FROM v) * 1000000)::int8",
        "timestamptz": "(extract(epoch FROM v) * 1000000)::int8",
        "bool": "v",
        "int2": "v",
        "int4": "v",
        "int8": "v",
        "float4": "float8send(v::float8)",
        "float8": "float8send(v)",
        "numeric(38, 10)": "v",
        "numeric(5, 5)": "v",
        "numeric(3, -2)": "v",
        "numeric": "v",
        "bytea": "v",
        "char(5)": "rpad(v::text, 5)",
    }.get(type, "v::text")


def plain(values: pa.Array) -> list[Any]:
    if pa.types.is_temporal(values.type):
        return list(values.cast(pa.int32() if pa.types.is_date(values.type) else pa.int64()).to_pylist())
    if pa.types.is_floating(values.type):
        return [None if value is None else struct.pack(">d", value) for value in values.to_pylist()]
    return list(values.to_pylist())


WIDE_TYPES = {  # where a destination with all of Arrow's types has others than Iceberg: values, and how they compare
    "int2": (EVERY_TYPE["int2"], "v"),
    "numeric(50, 10)": (["repeat('9', 40)::numeric", "-0.0000000001", "1", None], "v"),
    "numeric": ([*EVERY_TYPE["numeric"], "'NaN'", "'Infinity'", "1e400"], "v::text"),
    "time": (["'23:59:59.999999'", "'00:00:00.000001'", "'12:00'", None], "(extract(epoch FROM v) * 1000000)::int8"),
}


@pytest.mark.parametrize("type", WIDE_TYPES)
def test_a_wide_destination_gets_values_as_select_returns_them(connection: Connection, type: str) -> None:
    literals, comparable = WIDE_TYPES[type]
    connection.execute(f"CREATE TABLE t (id int4 PRIMARY KEY, v {type})")
    for number, literal in enumerate(literals):
        connection.execute(f"INSERT INTO t VALUES ({number}, {literal or 'NULL'})")
    schema = fitted(described(connection, "t", ("id",)), WIDEST)
    net = fold_clone([raw_changes(schema, sent(connection, schema))], position=0, strict=True)
    expected = connection.execute(f"SELECT id, {comparable} FROM t ORDER BY id").fetchall()
    decoded = plain(net.upserts.column("v").combine_chunks())
    assert dict(zip(net.upserts.column("id").to_pylist(), decoded, strict=True)) == dict(expected)


@pytest.mark.parametrize("type", EVERY_TYPE)
def test_values_are_what_select_returns(connection: Connection, type: str) -> None:
    connection.execute(f"CREATE TABLE t (id int4 PRIMARY KEY, v {type}, e text)")
    for number, literal in enumerate(EVERY_TYPE[type]):
        connection.execute(f"INSERT INTO t VALUES ({number}, {literal or 'NULL'}, '')")
    schema = fitted(described(connection, "t", ("id",)), ICEBERG_TYPES)
    net = fold_clone([raw_changes(schema, sent(connection, schema))], position=0)
    net.upserts.validate(full=True)
    expected = connection.execute(f"SELECT id, {comparable(type)} FROM t ORDER BY id").fetchall()
    order = net.upserts.column("id").combine_chunks()
    decoded = plain(net.upserts.column("v").combine_chunks())
    assert dict(zip(order.to_pylist(), decoded, strict=True)) == dict(expected)
    assert set(net.upserts.column("e").to_pylist()) == {""}


@pytest.mark.parametrize(
    ("type", "literal", "shown"),
    [
        ("date", "'infinity'", "'infinity'"),
        ("date", "'0044-03-15 BC'", "'0044-03-15 BC'"),
        ("timestamp", "'-infinity'", "'-infinity'"),
        ("timestamptz", "'294276-12-31 23:59:59.999999+00'", "'294276-12-31 23:59:59.999999+00'"),
        ("numeric(10, 2)", "'NaN'", "'NaN'"),
    ],
)
def test_values_without_a_place_are_refused(connection: Connection, type: str, literal: str, shown: str) -> None:
    connection.execute(f"CREATE TABLE t (id int4 PRIMARY KEY, v {type})")
    connection.execute(f"INSERT INTO t VALUES (1, {literal})")
    schema = described(connection, "t", ("id",))
    with pytest.raises(ValueDoesNotFit, match=r"public\.t.*\"v\"") as caught:
        fold_clone([raw_changes(schema, sent(connection, schema))], position=0, strict=True)
    assert shown in caught.value.what


def test_every_image_of_a_batch_can_be_decoded(connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int4 PRIMARY KEY, v text)")
    connection.execute("INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 500) i")
    connection.execute("UPDATE t SET v = v || '!'")
    schema = described(connection, "t", ("id",))
    messages = Messages(raw_changes(schema, sent(connection, schema)))
    cells = messages.images(pa.array(range(1000)).to_numpy())
    expected = [f"v{i}" for i in range(1, 501)] + [f"v{i}!" for i in range(1, 501)]
    assert column(messages, cells, 1).to_pylist() == expected


IDENTITIES = {
    "default": ("", ("id", "code"), "key"),
    "full": ("ALTER TABLE t REPLICA IDENTITY FULL", ("id", "code"), "full"),
    "index": ("ALTER TABLE t REPLICA IDENTITY USING INDEX by_label", ("label",), "key"),
}


@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("seed", [1, 2])
def test_random_changes_with_toasted_cells_and_keys(connection: Connection, identity: str, seed: int) -> None:
    """Values stored out of line, in keys too, under each replica identity, folded in several windows."""
    statement, key, kind = IDENTITIES[identity]
    connection.execute(
        "CREATE TABLE t (note text, id int4, body text, code text, blob bytea, label text NOT NULL, "
        "PRIMARY KEY (id, code))"
    )
    connection.execute("ALTER TABLE t ALTER body SET STORAGE EXTERNAL, ALTER code SET STORAGE EXTERNAL")
    connection.execute("ALTER TABLE t ALTER label SET STORAGE EXTERNAL")
    connection.execute("CREATE UNIQUE INDEX by_label ON t (label)")
    if statement:
        connection.execute(statement)
    schema = described(connection, "t", key, kind)
    chance = random.Random(seed)
    held: dict[Any, dict[str, Any]] = {}
    fetched = 0
    log: list[RawChanges] = []
    position = 0
    for _ in range(8):
        for _ in range(chance.randint(1, 6)):
            with connection.transaction():
                for _ in range(chance.randint(1, 8)):
                    change_at_random(connection, chance)
        changes = sent(connection, schema)
        half = len(changes) // 2
        log += [raw_changes(schema, changes[:half]), raw_changes(schema, changes[half:])]
        net = fold_clone(log, position=position)
        fetched += sum(len(fetch.rows) for fetch in net.fetches)
        apply(held, net)
        position = max([position, *(change.commit_position + 1 for change in changes)])
        expected = connection.execute("SELECT note, id, body, code, blob, label FROM t").fetchall()
        assert sorted((tuple(row.values()) for row in held.values()), key=repr) == sorted(expected, key=repr)
    assert (fetched > 0) == (kind == "key")


def change_at_random(connection: Connection, chance: random.Random) -> None:
    one = f"(SELECT ctid FROM t ORDER BY md5(label || {chance.random()}) LIMIT 1)"
    long = f"repeat(md5('{chance.random()}'), {chance.choice([1, 70, 200])})"
    wide_key = f"repeat(md5('{chance.random()}'), {chance.choice([1, 65])})"
    statements = [
        f"INSERT INTO t VALUES (NULL, 1, {long}, {wide_key}, convert_to({long}, 'UTF8'), {wide_key})",
        f"INSERT INTO t VALUES ('', {chance.randint(1, 9)}, NULL, {wide_key}, NULL, {wide_key})",
        f"UPDATE t SET note = '{chance.random()}' WHERE ctid = {one}",
        f"UPDATE t SET note = NULL WHERE ctid = {one}",
        f"UPDATE t SET note = '' WHERE ctid = {one}",
        f"UPDATE t SET body = {long} WHERE ctid = {one}",
        f"UPDATE t SET id = id + 10 WHERE ctid = {one}",
        f"UPDATE t SET id = id + 100, code = {wide_key} WHERE ctid = {one}",
        f"UPDATE t SET label = {wide_key} WHERE ctid = {one}",
        f"DELETE FROM t WHERE ctid = {one}",
    ]
    statement = "TRUNCATE t" if chance.random() < 0.01 else chance.choice([*statements[:2] * 2, *statements])
    connection.execute(statement)


def apply(held: dict[Any, dict[str, Any]], net: NetEffect) -> None:
    assert net.upsert_keys is not None
    assert net.touched_keys is not None
    rows = net.upserts.to_pylist()
    for fetch in net.fetches:
        for row, key in zip(fetch.rows.tolist(), fetch.keys.to_pylist(), strict=True):
            rows[row][fetch.column] = held[key][fetch.column]
    if net.truncated:
        held.clear()
    for key in net.touched_keys.to_pylist():
        held.pop(key, None)
    held.update(zip(net.upsert_keys.to_pylist(), rows, strict=True))

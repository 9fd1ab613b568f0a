"""Values are the same on both roads: each one is inserted before the slot and after it, copied and streamed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

from copying import OUR_SLOTS, PUBLICATION, await_zero, changes_of, copying, held_snapshot, prepared, streamed
from databases import Database
from penstock.decode.rescue import RESCUED
from penstock.decode.schema import arrow_schema
from penstock.errors import RangeVoid, SourceUnreachable, ValueDoesNotFit
from penstock.fold.clone import fold_clone
from penstock.model.table import TableId
from penstock.source.postgres.statements import quoted

AFTER = 1000  # is added to the ids of the rows that go through the stream

FITTING: dict[str, list[str]] = {
    "bool": ["true", "false"],
    "int2": ["-32768", "32767"],
    "int4": ["-2147483648", "2147483647"],
    "int8": ["-9223372036854775808", "9223372036854775807"],
    "float4": ["1.1", "1e-45", "3.4028235e38", "'NaN'", "'-Infinity'", "'-0'", "'Infinity'::float4 - 'Infinity'"],
    "float8": ["0.1", "5e-324", "1.7976931348623157e308", "'NaN'", "'Infinity'", "'-0'", "1/3::float8", "-sqrt(2)"],
    "numeric(12,2)": ["0", "-9999999999.99", "1.5"],
    "numeric(38,10)": ["1234567890123456789012345678.0123456789", "-0.0000000001"],
    "numeric(38,0)": ["repeat('9', 38)::numeric"],
    "numeric": ["'NaN'", "'Infinity'", "'-Infinity'", "1.500", "1e-20", "1e400", "0.00", "12300"],
    "numeric(3,-2)": ["12345"],
    "numeric(50,5)": ["1.5", "'NaN'"],
    "text": ["''", r"'\N'", "E'a\\tb\\r\\n\\\\'", "'🐘é\u2028'", "'\"quoted\", and ''quoted'''", "repeat('x', 100000)"],
    "varchar(5)": ["''", "'abc  '"],
    "char(5)": ["'ab'", "''", "'éé'"],
    "\"char\"": ["'a'", "''", "'é'"],
    "name": ["'a name'"],
    "bytea": [r"'\x'", r"'\x00ff5c'", "decode(repeat('ab', 50000), 'hex')"],
    "date": ["'0001-01-01'", "'2024-02-29'", "'9999-12-31'", "'10000-01-01'", "'5874897-12-31'"],
    "time": ["'00:00'", "'24:00:00'", "'23:59:59.999999'", "'12:00:00.5'"],
    "time(2)": ["'12:00:00.128'"],
    "timetz": ["'12:00:00+05:30'", "'24:00:00-08'"],
    "timestamp": ["'0001-01-01'", "'2024-02-29 23:59:59.5'", "'9999-12-31 23:59:59.999999'", "'294246-12-31 23:59:59'"],
    "timestamp(0)": ["'2024-02-29 23:59:59.5'"],
    "timestamptz": ["'0001-01-01 00:00+00'", "'2024-02-29 23:59:59.000001-08'", "'294246-12-31 23:59:59.999999+00'"],
    "uuid": ["'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "'00000000-0000-0000-0000-000000000000'"],
    "json": ["""'{"a": 1,  "a": [null, 2] }'""", "'null'", "'\"é\"'"],
    "jsonb": ["""'{"b": 1e400, "a": [null, 2]}'""", "'null'", "'{}'"],
    "interval": ["'1 year 2 mons -3 days 04:05:06.789'", "'0'"],
    "inet": ["'10.0.0.1'", "'10.0.0.1/8'", "'::1'"],
    "cidr": ["'10.0.0.0/8'", "'10.0.0.1/32'"],
    "macaddr": ["'08:00:2b:01:02:03'"],
    "money": ["-12.34"],
    "bit(3)": ["B'101'"],
    "varbit": ["B''", "B'10101'"],
    "int[]": ["'{}'", "'{1,NULL,3}'", "'[0:1]={1,2}'", "'{{1,2},{3,4}}'"],
    "text[]": ["""'{"a b","\\"q\\"",NULL,"NULL",""}'"""],
    "timestamptz[]": ["array[timestamptz '2024-01-01 12:00+02']"],
    "float8[]": ["array[0.1::float8, 1/3::float8]"],
    "bytea[]": [r"array['\x00ff'::bytea]"],
    "int4range": ["'[1,5)'", "'empty'"],
    "tstzmultirange": ["'{[2024-01-01 00:00+00,2024-02-01 00:00+00)}'"],
    "point": ["'(1,0.1)'"],
    "tsvector": ["'a b:1'"],
    "oid": ["4294967295"],
    "regclass": ["'pg_class'", "'mood_carrier'"],
    "pg_lsn": ["'16/B374D848'"],
    "xid8": ["'12'"],
    "mood": ["'so so'"],
    "pair": ["row(1, 'a b')", "row(null, null)"],
    "pair[]": ["array[row(1, 'x')::pair]"],
    "positive": ["'12.50'"],
    "very_positive": ["'12.50'"],
    "padded": ["'ab'"],
    "moods": ["'{happy,\"so so\"}'"],
    "a_pair": ["row(2, null)"],
    "hours": ["'[2024-01-01,2024-01-02)'"],
}  # fmt: skip

TYPES = (
    "CREATE TYPE mood AS ENUM ('happy', 'so so')",
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE DOMAIN positive AS numeric(10,3) CHECK (VALUE > 0)",
    "CREATE DOMAIN very_positive AS positive",
    "CREATE DOMAIN padded AS char(6)",
    "CREATE DOMAIN moods AS mood[]",
    "CREATE DOMAIN a_pair AS pair",
    "CREATE TYPE hours AS RANGE (subtype = timestamp)",
    "CREATE TABLE mood_carrier (id int PRIMARY KEY)",
)

# As Postgres writes the value, or a part of it where it is long.
MISFITS: dict[str, list[tuple[str, str]]] = {
    "date": [
        ("'infinity'", "'infinity'"),
        ("'-infinity'", "'-infinity'"),
        ("'0044-03-15 BC'", "'0044-03-15 BC'"),
        ("'4713-01-01 BC'", "'4713-01-01 BC'"),
        ("'0001-12-31 BC'", "'0001-12-31 BC'"),
    ],
    "timestamp": [
        ("'infinity'", "'infinity'"),
        ("'-infinity'", "'-infinity'"),
        ("'0001-12-31 23:59:59.25 BC'", "'0001-12-31 23:59:59.25 BC'"),
        ("'294247-01-01'", "'294247-01-01 00:00:00'"),
        ("'294276-12-31 23:59:59.999999'", "'294276-12-31 23:59:59.999999'"),
    ],
    "timestamptz": [
        ("'infinity'", "'infinity'"),
        ("'-infinity'", "'-infinity'"),
        ("'4713-02-01 00:00:00.5+00 BC'", "'4713-02-01 00:00:00.5+00 BC'"),
        ("'294247-01-01 00:00+00'", "'294247-01-01 00:00:00+00'"),
    ],
    "numeric(10,2)": [("'NaN'", "'NaN'")],
    "numeric(38,2)": [("'NaN'", "'NaN'")],
}

# What a role or database may have set, and the session must not have.
ODD_DEFAULTS = (
    "DateStyle = 'SQL, DMY'",
    "IntervalStyle = 'iso_8601'",
    "TimeZone = 'Asia/Kolkata'",
    "extra_float_digits = 0",
    "bytea_output = 'escape'",
)


EVERYTHING = TableId("public", "everything")


def rows_of_values() -> list[dict[str, str]]:
    """Row n has the nth value of each type that has so many; the last row has none."""
    most = max(map(len, FITTING.values()))
    return [{type: values[n] for type, values in FITTING.items() if n < len(values)} for n in range(most + 1)]


def test_every_type_is_the_same_on_both_roads(any_postgres: Database) -> None:
    slot = f"values_{any_postgres.name}"
    any_postgres.execute(
        *TYPES,
        f"CREATE TABLE everything (id int PRIMARY KEY, {', '.join(f'{quoted(type)} {type}' for type in FITTING)})",
        f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES",
        *(
            f"INSERT INTO everything (id{''.join(f', {quoted(type)}' for type in row)})"
            f" VALUES ({id}{''.join(f', ({value})::{type}' for type, value in row.items())})"
            for id, row in enumerate(rows_of_values())
        ),
        *(f"ALTER DATABASE {any_postgres.name} SET {setting}" for setting in ODD_DEFAULTS),
        f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')",
    )
    columns = ", ".join(map(quoted, FITTING))
    with copying(any_postgres, EVERYTHING) as copy:
        any_postgres.execute(f"INSERT INTO everything SELECT id + {AFTER}, {columns} FROM everything")
        schema = copy.source.schema
        copied = copy.read().sort_by("id")
        folded = fold_clone([changes_of(streamed(any_postgres, slot), schema)], position=0)
    assert folded.rescued is not None
    kept = dict(zip(folded.upserts["id"].to_pylist(), folded.rescued.to_pylist(), strict=True))
    assert dict(zip(copied["id"].to_pylist(), copied[RESCUED].to_pylist(), strict=True)) == {
        id - AFTER: cells for id, cells in kept.items()
    }
    rescued = Counter(name for cells in kept.values() for name, _ in cells or ())
    net = folded.upserts.sort_by("id")
    assert net.schema == arrow_schema(schema)
    assert copied.drop_columns([RESCUED]).schema == net.schema
    assert copied["id"].to_pylist() == list(range(len(rows_of_values())))
    assert net["id"].to_pylist() == [id + AFTER for id in copied["id"].to_pylist()]
    copied.validate(full=True)
    for type, values in FITTING.items():
        assert octets(copied[type]) == octets(net[type]), type
        assert copied[type].null_count == copied.num_rows - len(values) + rescued[type], type


def octets(column: pa.ChunkedArray) -> list[object]:
    """Values that are equal only if they are the same, NaN and negative zero included."""
    if pa.types.is_floating(column.type):
        whole = pa.int32() if column.type == pa.float32() else pa.int64()
        return [chunk.view(whole).to_pylist() for chunk in [column.combine_chunks()]]
    if pa.types.is_timestamp(column.type):
        return list(column.cast(pa.int64()).to_pylist())
    if pa.types.is_date32(column.type):
        return list(column.cast(pa.int32()).to_pylist())
    return list(column.to_pylist())


def test_what_does_not_fit_is_refused_in_the_same_words(postgres: Database) -> None:
    cases = [(type, value, text) for type, some in MISFITS.items() for value, text in some]
    slot = f"misfits_{postgres.name}"
    postgres.execute(
        f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES",
        *(f"CREATE TABLE v{number} (id int PRIMARY KEY, v {type})" for number, (type, _, _) in enumerate(cases)),
        *(
            f"INSERT INTO v{number} VALUES (0, NULL), (1, {value}::{type}), (2, NULL)"
            for number, (type, value, _) in enumerate(cases)
        ),
        f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')",
    )
    with held_snapshot(postgres) as snapshot:
        postgres.execute(
            *(
                f"INSERT INTO v{number} VALUES ({AFTER}, {value}::{type})"
                for number, (type, value, _) in enumerate(cases)
            )
        )
        stream = streamed(postgres, slot)
        for number, (_, _, text) in enumerate(cases):
            copy = prepared(postgres, snapshot, TableId("public", f"v{number}"))
            changes = [changes_of(stream, copy.source.schema)]
            copied = refusal(partial(copy.read, strict=True))
            folded = refusal(partial(fold_clone, changes, position=0, strict=True))
            assert copied.what.partition("column ")[2] == folded.what.partition("column ")[2]
            assert copied.solution.partition("; then")[0] == folded.solution.partition("; then")[0]
            assert copied.solution.endswith("`penstock retry`"), "its copy is tried again"
            assert folded.solution.endswith("`penstock resync`"), "the row's place in the stream has passed"
            assert f": {text} does not fit" in copied.what
            assert f"table public.v{number}, range 0 of its copy" in copied.what
            kept = [("v", text.strip("'"))]
            assert copy.read().sort_by("id")[RESCUED].to_pylist() == [None, kept, None]
            net = fold_clone(changes, position=0)
            assert net.rescued is not None
            assert net.rescued.to_pylist() == [kept]
            assert net.upserts["v"].to_pylist() == [None]


def refusal(attempt: Callable[[], object]) -> ValueDoesNotFit:
    with pytest.raises(ValueDoesNotFit) as caught:
        attempt()
    return caught.value


def test_bytes_that_are_no_text_are_refused_by_the_server(postgres: Database) -> None:
    """A database of encoding SQL_ASCII holds whatever it was given."""
    name = f"{postgres.name}_ascii"
    postgres.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    unchecked = Database(name, postgres.url.removesuffix(postgres.name) + name)
    try:
        unchecked.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            r"INSERT INTO t VALUES (1, 'plain'), (2, convert_from('\xff'::bytea, 'SQL_ASCII'))",
        )
        with (
            copying(unchecked, TableId("public", "t")) as copy,
            pytest.raises(SourceUnreachable, match=r"range 0 of table public\.t: invalid byte sequence .* 0xff"),
        ):
            copy.read()
    finally:
        await_zero(postgres, OUR_SLOTS)
        postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_key_that_was_nullable_in_the_snapshot_is_void(postgres: Database) -> None:
    postgres.execute("CREATE TABLE t (id int, v int)", "INSERT INTO t VALUES (NULL, 1)")
    with copying(postgres, TableId("public", "t")) as copy:
        keyed = replace(copy.source, schema=replace(copy.source.schema, key=("id",)))
        assert copy.read().to_pylist() == [{"id": None, "v": 1}]
        with pytest.raises(RangeVoid, match="was nullable when the snapshot was made"):
            replace(copy, source=keyed).read()

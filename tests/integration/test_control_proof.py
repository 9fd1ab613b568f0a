"""The proof: equal tables are equal whatever their types and order, and one changed value, however small, shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from rich.console import Console

from databases import Database
from lake import Lake
from penstock.config.sources import PostgresSource
from penstock.control.verify.proof import proof_table, prove
from penstock.model.table import TableId, TableSchema
from penstock.source.postgres.connect import Connection, connect
from penstock.source.postgres.discover import discover
from penstock.source.postgres.session import PostgresSession

T = TableId("public", "t")
SECTION = PostgresSource(type="postgres", url=SecretStr("postgresql://localhost/shop"))

COLUMNS = {  # name: (Postgres type, Spark type)
    "id": ("bigint primary key", "bigint not null"),
    "flag": ("boolean", "boolean"),
    "small": ("smallint", "int"),
    "single": ("real", "float"),
    "double": ("double precision", "double"),
    "amount": ("numeric(38, 10)", "decimal(38, 10)"),
    "whole": ("numeric(5)", "decimal(5, 0)"),
    "exact": ("numeric", "decimal(38,18)"),
    "words": ("text", "string"),
    "padded": ("char(4)", "string"),
    "bytes": ("bytea", "binary"),
    "day": ("date", "date"),
    "daytime": ("time", "string"),
    "local": ("timestamp", "timestamp_ntz"),
    "instant": ("timestamptz", "timestamp"),
    "ident": ("uuid", "string"),
    "doc": ("jsonb", "string"),
    "address": ("inet", "string"),
    'weird `"{name}': ("integer", "int"),
}
UUID = "'123e4567-e89b-12d3-a456-426614174000'"

POSTGRES_ROWS = (
    "(1, true, -32768, 'NaN', '-0', -1.5, 0, 1.50, '', 'ab', '', '1600-02-29', '24:00:00',"
    " '1969-12-31 23:59:59.999999', '2026-01-01 00:00:00.000001+02', " + UUID + ', \'{"b": 1, "a": [null]}\','
    " '10.0.0.1', -1)",
    "(2, false, 32767, 1.5e-38, 0.1, 0.0000000001, -99999, 0.001, 'naïve 🎁', '', '\\x00ff', '2024-02-29',"
    " '00:00:00.5', '0001-01-01 00:00:00', '9999-12-31 23:59:59.999999+00', null, '[]', null, 0)",
    "(3, null, null, 'Infinity', 1e300, 0, null, -1e-18, null, null, null, null, null, null, null, null, null, null,"
    " null)",
)
SPARK_ROWS = (
    "(1, true, -32768, float('NaN'), -0.0D, -1.5, 0, 1.50, '', 'ab  ', x'', date'1600-02-29', '24:00:00',"
    " timestamp_ntz'1969-12-31 23:59:59.999999', timestamp'2025-12-31 22:00:00.000001Z', " + UUID + ","
    " '{\"a\": [null], \"b\": 1}', '10.0.0.1', -1)",
    "(2, false, 32767, 1.5e-38F, 0.1D, 0.0000000001, -99999, 0.001, 'naïve 🎁', '    ', x'00ff', date'2024-02-29',"
    " '00:00:00.5', timestamp_ntz'0001-01-01 00:00:00', timestamp'9999-12-31 23:59:59.999999Z', null, '[]', null, 0)",
    "(3, null, null, float('Infinity'), 1e300D, 0, null, -0.000000000000000001, null, null, null, null, null,"
    " null, null, null, null, null, null)",
)


@pytest.fixture
def connection(postgres: Database) -> Iterator[Connection]:
    with connect(postgres.url) as connection:
        columns = ", ".join(f'"{name.replace(chr(34), chr(34) * 2)}" {kind}' for name, (kind, _) in COLUMNS.items())
        connection.execute(f"create table t ({columns})".encode())
        for row in POSTGRES_ROWS:
            connection.execute(f"insert into t values {row}".encode())
        yield connection


@pytest.fixture
def filled(lake: Lake, tmp_path: Path) -> Lake:
    (tmp_path / "warehouse").mkdir()
    columns = ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, (_, kind) in COLUMNS.items())
    lake.sql("create namespace lake.public")
    lake.sql(f"create table lake.public.t ({columns}) using iceberg")
    lake.sql(f"insert into lake.public.t values {', '.join(reversed(SPARK_ROWS))}")
    return lake


def schema_of_t(connection: Connection) -> TableSchema:
    (schema,) = discover(connection, lambda table: table == T, "none")
    return schema


def test_proof_of_equal_and_of_changed_tables(connection: Connection, filled: Lake) -> None:
    schema = schema_of_t(connection)

    def proved() -> bool:
        (proof,) = prove(PostgresSession(connection, SECTION), filled.spark, filled.readable, {T: schema})
        assert proof.source.rows == 3
        return proof.equal

    assert proved()
    for change, undo in [
        ("words = null where id = 1", "words = '' where id = 1"),
        ("double = 0.0 where id = 1", "double = '-0' where id = 1"),
        ("local = local + interval '1 us' where id = 2", "local = local - interval '1 us' where id = 2"),
        ("id = 4 where id = 3", "id = 3 where id = 4"),
    ]:
        connection.execute(f"update t set {change}".encode())
        assert not proved(), change
        connection.execute(f"update t set {undo}".encode())
        assert proved(), undo


def test_a_row_that_is_there_twice_shows_even_when_another_is_missing(connection: Connection, filled: Lake) -> None:
    filled.sql("insert into lake.public.t select * from lake.public.t where id = 1")
    filled.sql("delete from lake.public.t where id = 2")
    (proof,) = prove(PostgresSession(connection, SECTION), filled.spark, filled.readable, {T: schema_of_t(connection)})
    assert proof.lake is not None
    assert proof.lake.rows == proof.source.rows
    assert not proof.equal


def test_a_table_the_lake_does_not_have_is_missing(connection: Connection, filled: Lake) -> None:
    (proof,) = prove(
        PostgresSession(connection, SECTION),
        filled.spark,
        filled.readable,
        {TableId("public", "gone"): schema_of_t(connection)},
    )
    assert proof.lake is None
    assert not proof.equal
    console = Console(record=True, width=120)
    console.print(proof_table([proof]))
    assert "MISSING" in console.export_text()


def test_empty_tables_are_equal(connection: Connection, filled: Lake) -> None:
    connection.execute("truncate t")
    filled.sql("delete from lake.public.t")
    (proof,) = prove(PostgresSession(connection, SECTION), filled.spark, filled.readable, {T: schema_of_t(connection)})
    assert proof.equal
    assert proof.source.rows == 0

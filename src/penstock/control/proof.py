"""The proof that lake equals source: for each table the row count and a checksum of all values, taken on both sides.

Each side computes its own figures in its own SQL: Postgres from its types, Spark from the lake's. Every value becomes a
canonical text, a row is the digest of its columns' digests (NULL is none of them), and a table is the sum of its rows'
digests: it does not depend on order, and a row that is there twice counts twice. Meant for tables at rest: whoever
calls it stops the traffic and drains first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from psycopg import sql
from pyspark.sql import SparkSession
from pyspark.sql import types as spark_types
from rich.table import Table
from rich.text import Text

from penstock.control.figures import UNKNOWN, count_text
from penstock.model.table import TableId, TableSchema
from penstock.source.postgres.connect import Connection, source_errors

DIGITS = 15  # of a row's digest, in hexadecimal: 60 bits, which both sides' integers hold

POSTGRES_TEXT: Mapping[str, str] = {
    "float4": "('x' || encode(float4send({0}), 'hex'))::bit(32)::integer::text",
    "float8": "('x' || encode(float8send({0}), 'hex'))::bit(64)::bigint::text",
    "bytea": "encode({0}, 'hex')",
    "date": "CASE WHEN isfinite({0}) THEN ({0} - date '1970-01-01')::text ELSE {0}::text END",
    "timestamp": "CASE WHEN isfinite({0}) THEN (extract(epoch FROM {0}) * 1000000)::bigint::text ELSE {0}::text END",
    "timestamptz": "CASE WHEN isfinite({0}) THEN (extract(epoch FROM {0}) * 1000000)::bigint::text ELSE {0}::text END",
}
POSTGRES_OTHER = "format('%%s', {0})"  # the type's own output, as replication sends it

SPARK_TEXT: Mapping[type[spark_types.DataType], str] = {
    spark_types.BooleanType: "CASE WHEN {0} THEN 't' ELSE 'f' END",
    spark_types.FloatType: "java_method('java.lang.Float', 'floatToIntBits', {0})",
    spark_types.DoubleType: "java_method('java.lang.Double', 'doubleToLongBits', {0})",
    spark_types.BinaryType: "lower(hex({0}))",
    spark_types.DateType: "CAST(unix_date({0}) AS STRING)",
    spark_types.TimestampType: "CAST(unix_micros({0}) AS STRING)",
    spark_types.TimestampNTZType: "CAST(unix_micros(CAST({0} AS TIMESTAMP)) AS STRING)",
}
SPARK_OTHER = "CAST({0} AS STRING)"


@dataclass(frozen=True)
class Figures:
    rows: int
    checksum: str


@dataclass(frozen=True)
class TableProof:
    """`lake` is None when the lake has no such table."""

    table: TableId
    source: Figures
    lake: Figures | None

    @property
    def equal(self) -> bool:
        return self.source == self.lake


def prove(
    connection: Connection, spark: SparkSession, catalog: str, tables: Mapping[TableId, TableSchema]
) -> list[TableProof]:
    """`tables`: from the name in the lake's catalog to the schema at the source."""
    return [
        TableProof(schema.table, source_figures(connection, schema), lake_figures(spark, catalog, target, schema))
        for target, schema in tables.items()
    ]


def source_figures(connection: Connection, schema: TableSchema) -> Figures:
    digests = sql.SQL(" || ").join(
        _postgres_digest(column.name, POSTGRES_TEXT.get(column.type.name, POSTGRES_OTHER)) for column in schema.columns
    )
    statement = sql.SQL(
        "SELECT count(*), coalesce(sum(('x' || left(md5({digests}), %s))::bit(60)::bigint), 0)::text FROM {table}"
    ).format(digests=digests, table=sql.Identifier(schema.table.schema, schema.table.name))
    with source_errors(f"reading table {schema.table} at the source"):
        row = connection.execute(statement, (DIGITS,)).fetchone()
    assert row is not None
    return Figures(row[0], _checksum(row[1]))


def lake_figures(spark: SparkSession, catalog: str, target: TableId, schema: TableSchema) -> Figures | None:
    name = ".".join(map(_quoted, (catalog, target.schema, target.name)))
    if not spark.catalog.tableExists(name):
        return None
    types = {field.name: type(field.dataType) for field in spark.table(name).schema.fields}
    if set(types) != {column.name for column in schema.columns}:
        return None
    digests = ", ".join(
        f"CASE WHEN {_quoted(column.name)} IS NULL THEN '-' ELSE "
        f"md5({SPARK_TEXT.get(types[column.name], SPARK_OTHER).format(_quoted(column.name))}) END"
        for column in schema.columns
    )
    row = spark.sql(
        f"SELECT count(*) AS row_count, coalesce(sum(digest), 0) AS digest FROM (SELECT CAST(conv(left(md5("
        f"concat({digests})), {DIGITS}), 16, 10) AS DECIMAL(20, 0)) AS digest FROM {name})"
    ).first()
    assert row is not None
    return Figures(row["row_count"], _checksum(str(row["digest"])))


def proof_table(proofs: Iterable[TableProof]) -> Table:
    """Source and lake side by side, readable without colours."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("table")
    table.add_column("source rows", justify="right")
    table.add_column("lake rows", justify="right")
    table.add_column("source checksum")
    table.add_column("lake checksum")
    table.add_column("")
    for proof in proofs:
        lake = proof.lake
        table.add_row(
            str(proof.table),
            count_text(proof.source.rows),
            count_text(lake.rows if lake else None),
            proof.source.checksum,
            lake.checksum if lake else UNKNOWN,
            Text("equal", "green") if proof.equal else Text("DIFFERENT" if lake else "MISSING", "bold red"),
        )
    return table


def _postgres_digest(column: str, expression: str) -> sql.Composed:
    name = sql.Identifier(column)
    digest = sql.SQL("CASE WHEN {name} IS NOT DISTINCT FROM NULL THEN '-' ELSE md5(convert_to({text}, 'UTF8')) END")
    return digest.format(name=name, text=sql.SQL(expression).format(name))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _checksum(total: str) -> str:
    return f"{int(total) % 16**DIGITS:015x}"

"""Prove that lake equals source: per table the row count and a checksum of all values, taken on both sides.

Each side computes its own figures: the source from its types, Spark from the lake's (`canonical`). A table is the sum
of its rows' digests: it does not depend on order, and a row that is there twice counts twice. Meant for tables at rest:
whoever calls it stops the traffic and drains first; `verify` is for tables that are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession
from rich.table import Table
from rich.text import Text

from penstock.control.text.figures import UNKNOWN, count_text
from penstock.control.verify.canonical import RESCUED, spark_number, spark_row
from penstock.destinations.reading import ReadableTables
from penstock.model.row_digest import DIGITS
from penstock.model.table import TableId, TableSchema
from penstock.source.contract import Session


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
    session: Session, spark: SparkSession, lake: ReadableTables, tables: Mapping[TableId, TableSchema]
) -> list[TableProof]:
    """`tables`: from the name at the destination to the schema at the source."""
    return [
        TableProof(schema.table, source_figures(session, schema), lake_figures(spark, lake, target, schema))
        for target, schema in tables.items()
    ]


def source_figures(session: Session, schema: TableSchema) -> Figures:
    rows, total = session.figures(schema)
    return Figures(rows, _checksum(total))


def lake_figures(spark: SparkSession, lake: ReadableTables, target: TableId, schema: TableSchema) -> Figures | None:
    lake.register(spark, str(target))
    name = lake.name(target)
    if not spark.catalog.tableExists(name):
        return None
    types = {field.name: field.dataType for field in spark.table(name).schema.fields}
    rescued = types.pop(RESCUED, None) is not None
    if set(types) != {column.name for column in schema.columns}:
        return None
    text = spark_row([(column.name, types[column.name]) for column in schema.columns], rescued=rescued)
    row = spark.sql(
        f"SELECT count(*) AS row_count, coalesce(sum({spark_number('digest')}), 0) AS digest "
        f"FROM (SELECT md5({text}) AS digest FROM {name})"
    ).first()
    assert row is not None
    return Figures(row["row_count"], _checksum(int(row["digest"])))


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


def _checksum(total: int) -> str:
    return f"{total % 16**DIGITS:015x}"

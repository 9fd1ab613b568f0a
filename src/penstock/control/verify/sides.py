"""The lake's side of a table that `compare` compares, at a bookmark, and how the source's side is fitted to it.

Every answer is one query over an inner query that gives `digest` and `bucket_of` for each row, the MD5s of row and key
(`canonical`). What comes back is figures, digests, keys and shortened cells: never a whole table. The source's side is
its own (`source.contract.ComparableTable`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, DoubleType

from penstock.control.verify.canonical import (
    RESCUED,
    spark_literal,
    spark_number,
    spark_row,
    spark_shown,
    spark_text,
)
from penstock.destinations.reading import ReadableTables, quoted
from penstock.errors import SchemaChanged
from penstock.model.feed import Sid
from penstock.model.row_digest import Cell, Figures, Row
from penstock.model.table import TableId, TableSchema
from penstock.source.snapshot_contract import ComparableTable

SHOWN = 80  # characters of a cell
NULL = "CAST(NULL AS STRING)"
_SHOWN_OF_ROW = 200


@dataclass(frozen=True)
class LakeColumn:
    name: str
    type: DataType


@dataclass(frozen=True)
class LakeSide:
    """`relation` is the table at its bookmark, in SQL; None where it holds nothing.

    `columns` are the source's by name: what each is called in the lake at that bookmark, and its type; a column that
    the lake does not have yet is null in all rows. With a `sid` the side is the rows that carry it, and nothing else of
    the table.
    """

    spark: SparkSession
    schema: TableSchema
    relation: str | None
    columns: Mapping[str, LakeColumn]
    rescued: bool
    sid: Sid | None = None

    def figures(self, buckets: int) -> dict[int, Figures]:
        rows = self._run(
            f"SELECT {_spark_bucket(buckets)} AS bucket, count(*) AS row_count,"
            f" CAST(sum({spark_number('digest')}) AS STRING) AS total FROM ({self._inner()}) GROUP BY 1"
        )
        return {row["bucket"]: (row["row_count"], int(row["total"])) for row in rows}

    def rows(self, buckets: int, chosen: Sequence[int]) -> list[Row]:
        texts = self._key_texts()
        extra = "".join(f", {text} AS key_{number}" for number, text in enumerate(texts))
        found = self._run(
            f"SELECT * FROM ({self._inner(extra)}) WHERE {_spark_bucket(buckets)} IN ({', '.join(map(str, chosen))})"
        )
        return [Row(row[0], row[1], tuple(row[2:])) for row in found]

    def cells(self, keys: Sequence[str]) -> dict[str, dict[str, Cell]]:
        names = [column.name for column in self.schema.columns]
        extra = "".join(
            f", md5({self._text(name)}) AS cell_{number}, left({self._shown(name)}, {SHOWN}) AS shown_{number}"
            for number, name in enumerate(names)
        )
        wanted = ", ".join(spark_literal(key) for key in keys)
        found = self._run(f"SELECT * FROM ({self._inner(extra)}) WHERE bucket_of IN ({wanted})")
        return {row[0]: _cells(names, row[2:]) for row in found}

    def _text(self, name: str) -> str:
        column = self.columns.get(name)
        return NULL if column is None else spark_text(column.name, column.type, rescued=self.rescued)

    def _shown(self, name: str) -> str:
        column = self.columns.get(name)
        return NULL if column is None else spark_shown(column.name, column.type, rescued=self.rescued)

    def _key_texts(self) -> list[str]:
        if not self.schema.key:
            names = [column.name for column in self.schema.columns]
            parts = ", ".join(f"coalesce({self._text(name)}, 'NULL')" for name in names)
            return [f"left(concat_ws(', ', {parts}), {_SHOWN_OF_ROW})"]
        return [self._shown(name) for name in self.schema.key]

    def _inner(self, extra: str = "") -> str:
        row = self._digest([column.name for column in self.schema.columns])
        key = self._digest(self.schema.key) if self.schema.key else row
        return f"SELECT {key} AS bucket_of, {row} AS digest{extra} {self.tail}"

    @property
    def tail(self) -> str:
        """FROM and WHERE."""
        whose = "" if self.sid is None else f" WHERE {quoted(self.sid.column)} = {_spark_constant(self.sid.value)}"
        return f"FROM {self.relation}{whose}"

    def _digest(self, names: Sequence[str]) -> str:
        there = [self.columns.get(name) for name in names]
        columns = [None if one is None else (one.name, one.type) for one in there]
        return f"md5({spark_row(columns, rescued=self.rescued)})"

    def _run(self, statement: str) -> list[Any]:
        return [] if self.relation is None else list(self.spark.sql(statement).collect())


def lake_side(
    spark: SparkSession,
    tables: ReadableTables,
    target: TableId,
    schema: TableSchema,
    *,
    bookmark: str,
    called: Mapping[int, str],
    sid: Sid | None = None,
) -> LakeSide:
    """`tables` are the destination's.

    `bookmark`: what it called the table's contents; "" where there are none. `called`: what the source's columns are
    called in the lake, by their numbers.

    The lake may have columns that the source has no more, or never had: they are not looked at. It may lack one that
    was added at the source since a row of the table changed last. SchemaChanged when it lacks a column of the key.
    """
    tables.register(spark, str(target))
    relation = tables.version(target, bookmark) if bookmark else None
    described = spark.sql(f"SELECT * FROM {relation or tables.name(target)}")
    fields = {field.name: field.dataType for field in described.schema.fields}
    columns = {}
    for column in schema.columns:
        there = called.get(column.number, column.name) if column.number and called else column.name
        if there in fields and (not called or not column.number or column.number in called):
            columns[column.name] = LakeColumn(there, fields[there])
    lacking = [key for key in schema.key if key not in columns]
    if lacking:
        raise SchemaChanged(
            f"table {schema.table}: the lake does not have its key column {', '.join(lacking)}",
            f"See `penstock tables`; `penstock resync` copies {schema.table} again",
        )
    return LakeSide(spark, schema, relation, columns, RESCUED in fields, sid)


def widened(source: ComparableTable, lake: LakeSide) -> ComparableTable:
    """Return the source with its numbers as wide as the lake has them: another source may need them so."""
    return source.widened({name for name, column in lake.columns.items() if isinstance(column.type, DoubleType)})


def _spark_constant(value: str | int) -> str:
    return spark_literal(value) if isinstance(value, str) else str(value)


def _spark_bucket(buckets: int) -> str:
    return f"CAST(conv(right(bucket_of, 4), 16, 10) AS INT) % {buckets}"


def _cells(names: Sequence[str], values: Sequence[object]) -> dict[str, Cell]:
    return {
        name: Cell(_text_or_none(values[2 * number]), _text_or_none(values[2 * number + 1]))
        for number, name in enumerate(names)
    }


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)

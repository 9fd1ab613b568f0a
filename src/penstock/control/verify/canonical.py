"""Make canonical text of values: the same text for the same value, in Postgres' SQL and in Spark's.

The text is what Postgres' output function gives under penstock's session settings, as pgoutput sends it, but for
floating-point numbers, whose bits are compared: two programs seldom print them alike. So a cell that did not fit the
lake's type, and lies in `_rescued` as Postgres wrote it, compares like any other.

A row is the texts of its columns, each behind the other, in a form from which they can be separated: a column ends
with US and a comma, or is US and a minus when it is null, and US within a text is doubled. Its MD5 stands for it.

What a single value's text is, `canonical_types` says. Used by `proof` and `compare`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import types as spark_types

from penstock.control.verify.canonical_types import (
    CAST_TO_TEXT,
    POSTGRES_TEXT,
    postgres_value,
    spark_quoted,
    spark_value,
    without_zeros,
)
from penstock.model.table import Column
from penstock.source.postgres.statements import quoted

RESCUED = "_rescued"
DIGITS = 15  # of a row's MD5, for checksums: 60 bits, which both sides' integers hold

_NO_SEPARATOR = (
    spark_types.BooleanType,
    spark_types.NumericType,
    spark_types.BinaryType,
    spark_types.DatetimeType,
)
_BITS = (spark_types.FloatType, spark_types.DoubleType)
_POSTGRES_BITS = ("float4", "float8")


def postgres_text(column: Column) -> str:
    """The column's canonical text; NULL when it is null."""
    return postgres_value(column.type, quoted(column.name))


def postgres_row(columns: Iterable[Column]) -> str:
    return " || ".join(f"coalesce({_postgres_part(column)} || E'\\037,', E'\\037-')" for column in columns) or "''"


def postgres_shown(column: Column) -> str:
    """Return what is shown of the column."""
    return f"{quoted(column.name)}::pg_catalog.text" if column.type.name in _POSTGRES_BITS else postgres_text(column)


def spark_text(name: str, kind: spark_types.DataType, *, rescued: bool = False) -> str:
    """The column's canonical text; NULL when it is null. `rescued`: the table has a column of cells that did not
    fit."""
    text = spark_value(kind, spark_quoted(name))
    if not rescued:
        return text
    original = f"try_element_at({spark_quoted(RESCUED)}, {spark_literal(name)})"
    return f"coalesce({text}, {without_zeros(original) if isinstance(kind, spark_types.DecimalType) else original})"


def spark_row(columns: Sequence[tuple[str, spark_types.DataType] | None], *, rescued: bool = False) -> str:
    """None stands for a column that is null in every row."""
    parts = [
        "'\\u001f-'"
        if one is None
        else f"coalesce(concat({_spark_part(*one, rescued=rescued)}, '\\u001f,'), '\\u001f-')"
        for one in columns
    ]
    return f"concat({', '.join(parts or [chr(39) * 2])})"


def spark_shown(name: str, kind: spark_types.DataType, *, rescued: bool = False) -> str:
    text = f"CAST({spark_quoted(name)} AS STRING)"
    return text if type(kind) in _BITS else spark_text(name, kind, rescued=rescued)


def postgres_number(digest: str) -> str:
    """An MD5's first digits as a number."""
    return f"('x' || left({digest}, {DIGITS}))::bit({DIGITS * 4})::bigint"


def spark_number(digest: str) -> str:
    return f"CAST(conv(left({digest}, {DIGITS}), 16, 10) AS DECIMAL(20, 0))"


def postgres_md5(text: str) -> str:
    return f"md5(convert_to({text}, 'UTF8'))"


def spark_literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _postgres_part(column: Column) -> str:
    text = postgres_text(column)
    if column.type.kind == "base" and (column.type.name in CAST_TO_TEXT or column.type.name in POSTGRES_TEXT):
        return text
    return f"replace({text}, E'\\037', E'\\037\\037')"


def _spark_part(name: str, kind: spark_types.DataType, *, rescued: bool) -> str:
    text = spark_text(name, kind, rescued=rescued)
    return text if isinstance(kind, _NO_SEPARATOR) else f"replace({text}, '\\u001f', '\\u001f\\u001f')"

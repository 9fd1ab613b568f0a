"""Values as canonical text: the same text for the same value, made by Postgres in its SQL and by Spark in its own.

The text is what Postgres' output function gives under penstock's session settings, as pgoutput sends it, but for
floating-point numbers, whose bits are compared: two programs seldom print them alike. So a cell that did not fit the
lake's type, and lies in `_rescued` as Postgres wrote it, compares like any other.

A row is the texts of its columns, each behind the other, in a form from which they can be told apart: a column ends
with US and a comma, or is US and a minus when it is null, and US within a text is doubled. Its MD5 stands for it.

To add a type: what it is in Postgres goes to POSTGRES_TEXT (unless its output function says it), what it is in the lake
to SPARK_TEXT. Used by `proof` and `compare`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import types as spark_types

from penstock.model.table import Column
from penstock.source.postgres.statements import quoted

RESCUED = "_rescued"
DIGITS = 15  # of a row's MD5, for checksums: 60 bits, which both sides' integers hold

POSTGRES_TEXT: Mapping[str, str] = {
    "bool": "CASE WHEN {0} THEN 't' WHEN NOT {0} THEN 'f' END",
    "float4": "CASE WHEN {0} = 'NaN' THEN '2143289344'"
    " ELSE ('x' || encode(float4send({0}), 'hex'))::bit(32)::integer::text END",
    "float8": "CASE WHEN {0} = 'NaN' THEN '9221120237041090560'"
    " ELSE ('x' || encode(float8send({0}), 'hex'))::bit(64)::bigint::text END",
}
_CAST_TO_TEXT = frozenset(  # where the cast is the output function, and the text never has US in it
    {"int2", "int4", "int8", "numeric", "uuid", "date", "time", "timestamp", "timestamptz", "bytea", "oid"}
)
_TEXT_AS_IT_IS = frozenset({"text", "varchar", "json", "jsonb"})

SPARK_TEXT: Mapping[type[spark_types.DataType], str] = {
    spark_types.BooleanType: "CASE WHEN {0} THEN 't' WHEN NOT {0} THEN 'f' END",
    spark_types.FloatType: "java_method('java.lang.Float', 'floatToIntBits', {0})",
    spark_types.DoubleType: "java_method('java.lang.Double', 'doubleToLongBits', {0})",
    spark_types.BinaryType: "concat('\\\\x', lower(hex({0})))",
    spark_types.DateType: "ltrim('+', CAST({0} AS STRING))",
    spark_types.TimestampType: "concat(ltrim('+', CAST({0} AS STRING)), '+00')",
    spark_types.TimestampNTZType: "ltrim('+', CAST({0} AS STRING))",
}
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
    name, kind = quoted(column.name), column.type.name
    if kind in POSTGRES_TEXT:
        return f"CASE WHEN {name} IS NOT NULL THEN {POSTGRES_TEXT[kind].replace('{0}', name)} END"
    if kind in _CAST_TO_TEXT or kind in _TEXT_AS_IT_IS:
        return f"{name}::pg_catalog.text"
    # Not IS NOT NULL, which a row of nulls is not either.
    return f"CASE WHEN {name} IS DISTINCT FROM NULL THEN pg_catalog.format('%s', {name}) END"


def postgres_row(columns: Iterable[Column]) -> str:
    return " || ".join(f"coalesce({_postgres_part(column)} || E'\\037,', E'\\037-')" for column in columns) or "''"


def postgres_shown(column: Column) -> str:
    """What a person is shown of the column."""
    return f"{quoted(column.name)}::pg_catalog.text" if column.type.name in _POSTGRES_BITS else postgres_text(column)


def spark_text(name: str, kind: spark_types.DataType, *, rescued: bool = False) -> str:
    """The column's canonical text; NULL when it is null. `rescued`: the table has a column of cells that did not
    fit."""
    value = spark_quoted(name)
    text = SPARK_TEXT.get(type(kind), "CAST({0} AS STRING)").replace("{0}", value)
    if type(kind) in _BITS:
        text = f"CASE WHEN {value} IS NOT NULL THEN {text} END"
    if rescued:
        text = f"coalesce({text}, try_element_at({spark_quoted(RESCUED)}, {spark_literal(name)}))"
    return text


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


def spark_quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def spark_literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _postgres_part(column: Column) -> str:
    text = postgres_text(column)
    if column.type.name in _CAST_TO_TEXT or column.type.name in POSTGRES_TEXT:
        return text
    return f"replace({text}, E'\\037', E'\\037\\037')"


def _spark_part(name: str, kind: spark_types.DataType, *, rescued: bool) -> str:
    text = spark_text(name, kind, rescued=rescued)
    return text if isinstance(kind, _NO_SEPARATOR) else f"replace({text}, '\\u001f', '\\u001f\\u001f')"

"""The canonical text of one value, at any depth: in Postgres' SQL by the source's type, in Spark's by the lake's.

A list is its elements' digests between brackets, a struct its fields' between parentheses, a minus for each null. So
what is inside needs no quoting. A list or struct that does not fit the lake is the text that Postgres writes of it, for
so it was rescued; which ones those are, `_fits` says in SQL, after the rules by which decode rescues (docs/types.md).
A numeric is written without zeros behind its fraction: how many there are is not part of its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from pyspark.sql import types as spark_types

from penstock.decode.postgres.types.numeric import NUMERIC, decimal_of
from penstock.model.table import ColumnType
from penstock.source.postgres.statements import quoted

POSTGRES_TEXT: Mapping[str, str] = {
    "bool": "CASE WHEN {0} THEN 't' WHEN NOT {0} THEN 'f' END",
    "float4": "CASE WHEN {0} = 'NaN' THEN '2143289344'"
    " ELSE ('x' || encode(float4send({0}), 'hex'))::bit(32)::integer::text END",
    "float8": "CASE WHEN {0} = 'NaN' THEN '9221120237041090560'"
    " ELSE ('x' || encode(float8send({0}), 'hex'))::bit(64)::bigint::text END",
    "numeric": "trim_scale({0})::pg_catalog.text",
}
CAST_TO_TEXT = frozenset({"int2", "int4", "int8", "uuid", "date", "time", "timestamp", "timestamptz", "bytea", "oid"})
TEXT_AS_IT_IS = frozenset({"text", "varchar", "json", "jsonb"})
_MOMENTS = "isfinite({0}) AND {0} >= '0001-01-01 00:00:00+00' AND {0} < '294247-01-01 00:00:00+00'"
_FITS: Mapping[str, str] = {
    "date": "isfinite({0}) AND {0} >= '0001-01-01'",
    "timestamp": _MOMENTS,
    "timestamptz": _MOMENTS,
}

SPARK_TEXT: Mapping[type[spark_types.DataType], str] = {
    spark_types.BooleanType: "CASE WHEN {0} THEN 't' WHEN NOT {0} THEN 'f' END",
    spark_types.FloatType: "java_method('java.lang.Float', 'floatToIntBits', {0})",
    spark_types.DoubleType: "java_method('java.lang.Double', 'doubleToLongBits', {0})",
    spark_types.BinaryType: "concat('\\\\x', lower(hex({0})))",
    spark_types.DateType: "ltrim('+', CAST({0} AS STRING))",
    spark_types.TimestampType: "concat(ltrim('+', CAST({0} AS STRING)), '+00')",
    spark_types.TimestampNTZType: "ltrim('+', CAST({0} AS STRING))",
}
_ESCAPED = "regexp_replace({0}, '([\"\\\\\\\\])', '\\\\\\\\$1')"


def postgres_value(type: ColumnType, value: str) -> str:
    """SQL for the text of `value`, an expression of that type; NULL when it is null."""
    if type.carried_as != "text":
        if type.kind == "array" and type.element is not None:
            return _either(type, value, _postgres_list(type.element, value))
        if type.kind == "composite" and type.fields:
            parts = [_postgres_digest(field, f"({value}).{quoted(name)}") for name, field in type.fields]
            joined = " || ',' || ".join(parts)
            return _either(type, value, f"'(' || {joined} || ')'")
        if type.name in POSTGRES_TEXT:
            return f"CASE WHEN {value} IS NOT NULL THEN {POSTGRES_TEXT[type.name].replace('{0}', value)} END"
    if type.name in CAST_TO_TEXT or type.name in TEXT_AS_IT_IS:
        return f"{value}::pg_catalog.text"
    # Not IS NOT NULL, which a row of nulls is not either.
    return f"CASE WHEN {value} IS DISTINCT FROM NULL THEN pg_catalog.format('%s', {value}) END"


def spark_value(kind: spark_types.DataType, value: str) -> str:
    """SQL for the text of `value`, an expression of that type; NULL when it is null."""
    depth = f"e{next(_NAMES)}"
    if isinstance(kind, spark_types.ArrayType):
        parts = f"transform({value}, {depth} -> {_spark_digest(kind.elementType, depth)})"
        return f"concat('[', array_join({parts}, ','), ']')"
    if isinstance(kind, spark_types.StructType):
        fields = [_spark_digest(one.dataType, f"{value}.{spark_quoted(one.name)}") for one in kind.fields]
        joined = ", ',', ".join(fields)
        return f"CASE WHEN {value} IS NOT NULL THEN concat('(', {joined}, ')') END"
    if isinstance(kind, spark_types.MapType):
        key, item = (_ESCAPED.replace("{0}", f"{depth}.{part}") for part in ("key", "value"))
        pair = f"concat('\"', {key}, '\"=>', coalesce(concat('\"', {item}, '\"'), 'NULL'))"
        return f"array_join(transform(map_entries({value}), {depth} -> {pair}), ', ')"
    text = SPARK_TEXT.get(type(kind), "CAST({0} AS STRING)").replace("{0}", value)
    if isinstance(kind, spark_types.FloatType | spark_types.DoubleType):
        return f"CASE WHEN {value} IS NOT NULL THEN {text} END"
    return without_zeros(text) if isinstance(kind, spark_types.DecimalType) else text


def without_zeros(text: str) -> str:
    """SQL for a number's text without the zeros behind its fraction, in Spark."""
    return f"CASE WHEN contains({text}, '.') THEN rtrim('.', rtrim('0', {text})) ELSE {text} END"


def spark_quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


_NAMES = count()


def _either(type: ColumnType, value: str, inside: str) -> str:
    return (
        f"CASE WHEN {value} IS NOT DISTINCT FROM NULL THEN NULL WHEN {_fits(type, value)} THEN {inside}"
        f" ELSE pg_catalog.format('%s', {value}) END"
    )


def _postgres_list(element: ColumnType, value: str) -> str:
    place = f"i{next(_NAMES)}"
    digest = _postgres_digest(element, f"({value})[{place}]")
    each = f"SELECT coalesce(string_agg({digest}, ',' ORDER BY {place}), '')"
    return f"'[' || ({each} FROM generate_subscripts({value}, 1) {place}) || ']'"


def _postgres_digest(type: ColumnType, value: str) -> str:
    return f"coalesce(md5(convert_to({postgres_value(type, value)}, 'UTF8')), '-')"


def _spark_digest(kind: spark_types.DataType, value: str) -> str:
    return f"coalesce(md5({spark_value(kind, value)}), '-')"


def _fits(type: ColumnType, value: str) -> str:
    """SQL for whether a value that is not null fits the lake's type."""
    if type.carried_as == "text":
        return "true"
    if type.oid == NUMERIC:
        precision, scale = decimal_of(type)
        wide = f"abs({value}) < 1e{precision - scale} AND scale(trim_scale({value})) <= {scale}"
        return f"({value} <> 'NaN' AND {wide})"
    if type.kind == "array" and type.element is not None:
        place = f"i{next(_NAMES)}"
        one = f"({value})[{place}]"
        inside = f"bool_and({one} IS NOT DISTINCT FROM NULL OR {_fits(type.element, one)})"
        return (
            f"(coalesce(array_ndims({value}), 1) = 1 AND coalesce(array_lower({value}, 1), 1) = 1"
            f" AND (SELECT coalesce({inside}, true) FROM generate_subscripts({value}, 1) {place}))"
        )
    if type.kind == "composite" and type.fields:
        parts = [(f"(({value}).{quoted(name)})", field) for name, field in type.fields]
        return " AND ".join(f"({one} IS NOT DISTINCT FROM NULL OR {_fits(field, one)})" for one, field in parts)
    return f"({_FITS.get(type.name, 'true').replace('{0}', value)})"

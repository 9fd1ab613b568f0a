"""The canonical text of one value in Spark SQL, at any depth, by the type that it has in the lake.

A list is its elements' digests between brackets, a struct its fields' between parentheses, a minus for each null. So
what is inside needs no quoting. A number is written without zeros behind its fraction.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from pyspark.sql import types as spark_types

from penstock.destinations.reading import quoted

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


def spark_value(kind: spark_types.DataType, value: str) -> str:
    """Return SQL for the text of `value`, an expression of that type; NULL when it is null."""
    depth = f"e{next(_NAMES)}"
    if isinstance(kind, spark_types.ArrayType):
        parts = f"transform({value}, {depth} -> {_spark_digest(kind.elementType, depth)})"
        return f"concat('[', array_join({parts}, ','), ']')"
    if isinstance(kind, spark_types.StructType):
        fields = [_spark_digest(one.dataType, f"{value}.{quoted(one.name)}") for one in kind.fields]
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
    """Return SQL for a number's text without the zeros behind its fraction, in Spark."""
    return f"CASE WHEN contains({text}, '.') THEN rtrim('.', rtrim('0', {text})) ELSE {text} END"


_NAMES = count()


def _spark_digest(kind: spark_types.DataType, value: str) -> str:
    return f"coalesce(md5({spark_value(kind, value)}), '-')"

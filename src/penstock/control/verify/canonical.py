"""Make canonical text of rows (model/row_digest.py) in Spark SQL, from the lake's types.

A cell that did not fit the lake's type lies in `_rescued` as the source wrote it, and compares like any other. What a
single value's text is, `canonical_types` says. The source makes the same texts in its own way.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import types as spark_types

from penstock.control.verify.canonical_types import spark_value, without_zeros
from penstock.destinations.reading import quoted
from penstock.model.row_digest import DIGITS

RESCUED = "_rescued"

_NO_SEPARATOR = (
    spark_types.BooleanType,
    spark_types.NumericType,
    spark_types.BinaryType,
    spark_types.DatetimeType,
)
_BITS = (spark_types.FloatType, spark_types.DoubleType)


def spark_text(name: str, kind: spark_types.DataType, *, rescued: bool = False) -> str:
    """Return the column's canonical text; NULL when it is null.

    `rescued`: the table has a column of cells that did not fit.
    """
    text = spark_value(kind, quoted(name))
    if not rescued:
        return text
    original = f"try_element_at({quoted(RESCUED)}, {spark_literal(name)})"
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
    text = f"CAST({quoted(name)} AS STRING)"
    return text if type(kind) in _BITS else spark_text(name, kind, rescued=rescued)


def spark_number(digest: str) -> str:
    return f"CAST(conv(left({digest}, {DIGITS}), 16, 10) AS DECIMAL(20, 0))"


def spark_literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _spark_part(name: str, kind: spark_types.DataType, *, rescued: bool) -> str:
    text = spark_text(name, kind, rescued=rescued)
    return text if isinstance(kind, _NO_SEPARATOR) else f"replace({text}, '\\u001f', '\\u001f\\u001f')"

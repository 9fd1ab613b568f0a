"""Canonical text of values (model/row_digest.py), made by Postgres in SQL.

The text is what Postgres' output function gives under penstock's session settings, as pgoutput sends it, except for
floating-point numbers, whose bits are compared: two programs seldom print them alike. A numeric is written without
zeros behind its fraction, because their number is not part of its value. A list is its elements' digests between
brackets, a struct its fields' between parentheses, a minus for each null, so nothing inside needs quoting. A list or
struct that does not fit the destination is the text that Postgres writes of it, because so it was rescued; `_fits` says
in SQL which ones those are, by the rules by which decode rescues (docs/types.md).

control/verify/canonical.py makes the same texts in Spark. Used by comparison.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from penstock.decode.postgres.types.numeric import NUMERIC, decimal_of
from penstock.model.row_digest_sql import ColumnSql
from penstock.model.row_digest_sql import column_sql as made_of
from penstock.model.table import Column, ColumnType
from penstock.source.postgres.statements import quoted

_TEXT: Mapping[str, str] = {
    "bool": "CASE WHEN {0} THEN 't' WHEN NOT {0} THEN 'f' END",
    "float4": "CASE WHEN {0} = 'NaN' THEN '2143289344'"
    " ELSE ('x' || encode(float4send({0}), 'hex'))::bit(32)::integer::text END",
    "float8": "CASE WHEN {0} = 'NaN' THEN '9221120237041090560'"
    " ELSE ('x' || encode(float8send({0}), 'hex'))::bit(64)::bigint::text END",
    "numeric": "trim_scale({0})::pg_catalog.text",
}
_CAST_TO_TEXT = frozenset({"int2", "int4", "int8", "uuid", "date", "time", "timestamp", "timestamptz", "bytea", "oid"})
_TEXT_AS_IT_IS = frozenset({"text", "varchar", "json", "jsonb"})
_MOMENTS = "isfinite({0}) AND {0} >= '0001-01-01 00:00:00+00' AND {0} < '294247-01-01 00:00:00+00'"
_FITS: Mapping[str, str] = {
    "date": "isfinite({0}) AND {0} >= '0001-01-01'",
    "timestamp": _MOMENTS,
    "timestamptz": _MOMENTS,
}
_BITS = ("float4", "float8")
_NAMES = count()


def column_text(column: Column) -> str:
    """Return the column's canonical text; NULL when it is null."""
    return value_text(column.type, quoted(column.name))


def column_sql(column: Column, *, read_as: str | None = None) -> ColumnSql:
    """Return the column for queries.

    `read_as`: a type of a Postgres destination; then the text is what Postgres writes of the column's own text after
    reading it into that type, "" for the text as it is.
    """
    if read_as is None:
        name = column.type.name
        plain = column.type.kind == "base" and (name in _CAST_TO_TEXT or name in _TEXT)
        shown = f"{quoted(column.name)}::pg_catalog.text" if name in _BITS else None
        return made_of(column.name, column_text(column), shown=shown, plain=plain)
    value = quoted(column.name)
    written = f"pg_catalog.format('%s', {value})"
    text = f"pg_catalog.format('%s', {written}::{read_as})" if read_as else written
    return made_of(column.name, f"CASE WHEN {value} IS DISTINCT FROM NULL THEN {text} END")


def value_text(type: ColumnType, value: str) -> str:
    """Return SQL for the text of `value`, an expression of that type; NULL when it is null."""
    if type.carried_as != "text":
        if type.kind == "array" and type.element is not None:
            return _either(type, value, _list(type.element, value))
        if type.kind == "composite" and type.fields:
            parts = [_digest(field, f"({value}).{quoted(name)}") for name, field in type.fields]
            joined = " || ',' || ".join(parts)
            return _either(type, value, f"'(' || {joined} || ')'")
        if type.name in _TEXT:
            return f"CASE WHEN {value} IS NOT NULL THEN {_TEXT[type.name].replace('{0}', value)} END"
    if type.name in _CAST_TO_TEXT or type.name in _TEXT_AS_IT_IS:
        return f"{value}::pg_catalog.text"
    # Not IS NOT NULL, which a row of nulls is not either.
    return f"CASE WHEN {value} IS DISTINCT FROM NULL THEN pg_catalog.format('%s', {value}) END"


def _either(type: ColumnType, value: str, inside: str) -> str:
    return (
        f"CASE WHEN {value} IS NOT DISTINCT FROM NULL THEN NULL WHEN {_fits(type, value)} THEN {inside}"
        f" ELSE pg_catalog.format('%s', {value}) END"
    )


def _list(element: ColumnType, value: str) -> str:
    place = f"i{next(_NAMES)}"
    digest = _digest(element, f"({value})[{place}]")
    each = f"SELECT coalesce(string_agg({digest}, ',' ORDER BY {place}), '')"
    return f"'[' || ({each} FROM generate_subscripts({value}, 1) {place}) || ']'"


def _digest(type: ColumnType, value: str) -> str:
    return f"coalesce(md5(convert_to({value_text(type, value)}, 'UTF8')), '-')"


def _fits(type: ColumnType, value: str) -> str:
    """Return SQL for whether a value that is not null fits the lake's type."""
    if type.carried_as == "text":
        return "true"
    if type.oid == NUMERIC:
        decimal = decimal_of(type)
        if decimal is None:
            return "true"
        precision, scale = decimal
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

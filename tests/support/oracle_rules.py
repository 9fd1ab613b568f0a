"""For each Postgres type: what its column in the lake is, which values fit there, and how values are compared.

A value is compared by a text that says all of it, made by Postgres in SQL and from the lake's Arrow column here; lists,
structs and maps by lists and dictionaries of such texts. A value that does not fit must be null in its column, and its
text, as Postgres writes it, must be in `_rescued`. Nothing of penstock takes part.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

Connection = psycopg.Connection[Any]
Texts = Callable[[pa.Array], list[Any]]

ORIGINAL = "format('%s', {0})"  # as replication sends it; a cast may say it otherwise


@dataclass(frozen=True)
class Rule:
    """`{0}` in `source` and `fits` stands for a value that is not null; `lake` gives None for a null."""

    lake_type: str
    source: str
    lake: Texts
    fits: str = "true"

    def of(self, expression: str) -> str:
        """SQL for the value's text; null when it is null or does not fit."""
        return f"case when {self.has(expression)} then {self.source.replace('{0}', expression)} end"

    def has(self, expression: str) -> str:
        return f"({expression} is distinct from null and ({self.fits.replace('{0}', expression)}))"

    def rescued(self, expression: str) -> str:
        """SQL for the text of a value that does not fit; null otherwise."""
        fits = self.fits.replace("{0}", expression)
        return (
            f"case when {expression} is distinct from null and not ({fits}) "
            f"then {ORIGINAL.replace('{0}', expression)} end"
        )


def _each(text_of: Callable[[Any], Any]) -> Texts:
    return lambda column: [None if value is None else text_of(value) for value in column.to_pylist()]


def _number(type: pa.DataType) -> Texts:
    """Days or microseconds since 1970: integers have no calendar to disagree about."""
    return lambda column: [None if value is None else str(value) for value in pc.cast(column, type).to_pylist()]


def _decimal_text(value: Decimal) -> str:
    text = f"{value:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text


TEXT = Rule("string", ORIGINAL, _each(str))
_INTEGER = Rule("int", "{0}::text", _each(str))
_LONG = Rule("bigint", "{0}::text", _each(str))
_MICROSECONDS = "((extract(epoch from {0}) * 1000000)::bigint)::text"
_MOMENTS = "isfinite({0}) and {0} >= '0001-01-01 00:00:00+00' and {0} < '294247-01-01 00:00:00+00'"
SCALARS = {
    "bool": Rule("boolean", "{0}::text", _each(lambda value: str(value).lower())),
    "int2": _INTEGER,
    "int4": _INTEGER,
    "int8": _LONG,
    "oid": _LONG,
    "xid": _LONG,
    "cid": _LONG,
    "float4": Rule("float", "encode(float4send({0}), 'hex')", _each(lambda value: struct.pack(">f", value).hex())),
    "float8": Rule("double", "encode(float8send({0}), 'hex')", _each(lambda value: struct.pack(">d", value).hex())),
    "bytea": Rule("binary", "encode({0}, 'hex')", _each(lambda value: value.hex())),
    "date": Rule(
        "date", "({0} - date '1970-01-01')::text", _number(pa.int32()), "isfinite({0}) and {0} >= '0001-01-01'"
    ),
    "timestamp": Rule("timestamp_ntz", _MICROSECONDS, _number(pa.int64()), _MOMENTS),
    "timestamptz": Rule("timestamp", _MICROSECONDS, _number(pa.int64()), _MOMENTS),
    "hstore": Rule("map<string,string>", "hstore_to_json({0})", _each(dict)),
}  # every other type: its text, exactly
_DECLARED = re.compile(r"numeric\((\d+),(-?\d+)\)")


def numeric_rule(full_type: str, chosen: tuple[int, int] = (38, 18)) -> Rule:
    """`full_type` is Postgres's format_type."""
    declared = _DECLARED.fullmatch(full_type)
    precision, scale = chosen
    if declared is not None:
        digits, behind = int(declared[1]), int(declared[2])
        if behind <= 38:
            precision, scale = min(max(digits, behind, digits - behind), 38), max(behind, 0)
    return Rule(
        f"decimal({precision},{scale})",
        "trim_scale({0})::text",
        _each(_decimal_text),
        f"{{0}} <> 'NaN' and abs({{0}}) < 1e{precision - scale} and scale(trim_scale({{0}})) <= {scale}",
    )


_PLACES = count()
_TYPE = """
    select t.typname, t.typtype::text, t.typbasetype, t.typtypmod, format_type(t.oid, %s),
           coalesce((select e.oid from pg_type e where e.typarray = t.oid), 0), t.typrelid
    from pg_type t where t.oid = %s
"""


def rule_of(connection: Connection, oid: int, modifier: int) -> Rule:
    """The rule of a declared type: domains count as what they are over, lists and structs as what is in them."""
    row = connection.execute(_TYPE, (modifier, oid)).fetchone()
    assert row is not None
    name, kind, base, base_modifier, full, element, relation = row
    if kind == "d":
        return rule_of(connection, base, base_modifier if modifier == -1 else modifier)
    if element:
        return list_rule(rule_of(connection, element, modifier))
    if kind == "c":
        fields = connection.execute(
            "select quote_ident(attname), attname, atttypid, atttypmod from pg_attribute "
            "where attrelid = %s and attnum > 0 and not attisdropped order by attnum",
            (relation,),
        ).fetchall()
        return struct_rule([(quoted, plain, rule_of(connection, *type)) for quoted, plain, *type in fields])
    return numeric_rule(full) if name == "numeric" else SCALARS.get(name, TEXT)


def list_rule(element: Rule) -> Rule:
    """One dimension that begins at 1, and every element fits."""
    place = f"i{next(_PLACES)}"  # lists may be in lists
    one = f"({{0}})[{place}]"
    fitting = f"bool_and({one} is not distinct from null or {element.has(one)})"

    def texts(column: pa.Array) -> list[Any]:
        found: list[Any] = []
        for row in range(len(column)):
            found.append(element.lake(column[row].values) if column[row].is_valid else None)
        return found

    return Rule(
        f"array<{element.lake_type}>",
        f"(select coalesce(json_agg({element.of(one)} order by {place}), '[]')"
        f" from generate_subscripts({{0}}, 1) {place})",
        texts,
        "coalesce(array_ndims({0}), 1) = 1 and coalesce(array_lower({0}, 1), 1) = 1"
        f" and (select coalesce({fitting}, true) from generate_subscripts({{0}}, 1) {place})",
    )


def struct_rule(fields: Sequence[tuple[str, str, Rule]]) -> Rule:
    def texts(column: pa.Array) -> list[Any]:
        parts = [rule.lake(column.field(number)) for number, (_, _, rule) in enumerate(fields)]
        rows = [list(row) for row in zip(*parts, strict=True)]
        return [row if valid else None for row, valid in zip(rows, column.is_valid().to_pylist(), strict=True)]

    inside = [(f"(({{0}}).{quoted})", rule) for quoted, _, rule in fields]
    return Rule(
        f"struct<{','.join(f'{plain}:{rule.lake_type}' for _, plain, rule in fields)}>",
        f"json_build_array({', '.join(rule.of(one) for one, rule in inside)})",
        texts,
        " and ".join(f"({one} is not distinct from null or {rule.has(one)})" for one, rule in inside),
    )

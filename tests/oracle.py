"""Postgres is the oracle: compares a lake table with its source table, row by row and value by value.

The source is asked by plain SQL, the lake is read into Arrow (by Spark, or any other reader); nothing of penstock takes
part. RULES says for each Postgres type what the lake's column must be, and how a value is brought to one Python value
on either side. Rows are compared as a multiset, so a missing, a changed and a doubled row are all found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyspark.sql import SparkSession

Row = tuple[Any, ...]
_SHOWN = 5


@dataclass(frozen=True)
class Rule:
    """How one type is compared: its column in the lake, the source's SQL expression, and the lake's values."""

    lake_type: str
    source: str
    lake: Callable[[pa.ChunkedArray], list[Any]]


def _plain(column: pa.ChunkedArray) -> list[Any]:
    return list(column.to_pylist())


def _number_of(type_name: str) -> Callable[[pa.ChunkedArray], list[Any]]:
    """Days or microseconds since 1970: integers have no calendar to disagree about."""
    return lambda column: list(pc.cast(column, type_name).to_pylist())


def _float_text(column: pa.ChunkedArray) -> list[Any]:
    return [None if value is None else repr(value) for value in column.to_pylist()]


_TEXT = Rule("string", "case when {0} is not null then format('%s', {0}) end", _plain)  # a cast may say it otherwise
_INTEGER = Rule("int", "{}", _plain)
_MICROSECONDS = "(extract(epoch from {}) * 1000000)::bigint"
RULES = {
    "bool": Rule("boolean", "{}", _plain),
    "int2": _INTEGER,
    "int4": _INTEGER,
    "int8": Rule("bigint", "{}", _plain),
    "float4": Rule("float", "{}::float8", _float_text),
    "float8": Rule("double", "{}", _float_text),
    "bpchar": Rule("string", "{}", _plain),  # a cast to text would take its blanks away
    "bytea": Rule("binary", "{}", _plain),
    "date": Rule("date", "{} - date '1970-01-01'", lambda column: list(pc.cast(column, "int32").to_pylist())),
    "timestamp": Rule("timestamp_ntz", _MICROSECONDS, _number_of("int64")),
    "timestamptz": Rule("timestamp", _MICROSECONDS, _number_of("int64")),
}  # every other type: its text, exactly
_FLOATS = ("float4", "float8")
_DECIMAL_TYPE = re.compile(r"numeric\((\d+),(-?\d+)\)")


def rule_for(type_name: str, full_type: str) -> Rule:
    """The rule of a base type; `full_type` is Postgres's format_type, for numeric's precision."""
    decimal = _DECIMAL_TYPE.fullmatch(full_type)
    if decimal is not None:
        precision, scale = int(decimal[1]), int(decimal[2])
        if precision <= 38 and 0 <= scale <= precision:
            return Rule(f"decimal({precision},{scale})", "{}", _plain)
    return RULES.get(type_name, _TEXT)


@dataclass(frozen=True)
class SourceColumn:
    name: str
    type_name: str
    rule: Rule


@dataclass(frozen=True)
class Difference:
    """What is wrong with one table. Empty when the lake equals the source."""

    table: str
    problems: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.problems)

    def __str__(self) -> str:
        return "\n  ".join((self.table, *self.problems))


_COLUMNS = """
    with recursive base as (
        select a.attnum, a.attname, a.atttypid as type, a.atttypmod as modifier
        from pg_attribute a where a.attrelid = %s::regclass and a.attnum > 0 and not a.attisdropped
          and a.attgenerated = ''
        union all
        select b.attnum, b.attname, t.typbasetype, t.typtypmod
        from base b join pg_type t on t.oid = b.type where t.typtype = 'd'
    )
    select b.attname, t.typname, format_type(b.type, b.modifier)
    from base b join pg_type t on t.oid = b.type where t.typtype <> 'd' order by b.attnum
"""


def source_columns(connection: psycopg.Connection[Any], table: str) -> list[SourceColumn]:
    rows = connection.execute(_COLUMNS, (table,)).fetchall()
    return [SourceColumn(name, type_name, rule_for(type_name, full)) for name, type_name, full in rows]


def source_rows(connection: psycopg.Connection[Any], table: str, columns: Sequence[SourceColumn]) -> list[Row]:
    wanted = sql.SQL(", ").join(sql.SQL(column.rule.source).format(sql.Identifier(column.name)) for column in columns)
    with connection.cursor() as cursor:
        cursor.execute("set timezone = 'UTC'")
        cursor.execute("set intervalstyle = 'postgres'")
        cursor.execute(sql.SQL("select {} from ").format(wanted) + sql.SQL(table))
        rows = cursor.fetchall()
    floats = [index for index, column in enumerate(columns) if column.type_name in _FLOATS]
    if not floats:
        return rows
    return [
        tuple(repr(value) if index in floats and value is not None else value for index, value in enumerate(row))
        for row in rows
    ]


def lake_rows(lake: pa.Table, columns: Sequence[SourceColumn]) -> list[Row]:
    values = [column.rule.lake(lake.column(index)) for index, column in enumerate(columns)]
    return list(zip(*values, strict=True)) if values else []


def read_with_spark(
    spark: SparkSession, catalog: str, target: tuple[str, str]
) -> tuple[pa.Table, list[tuple[str, str]]]:
    """The table as Arrow, and its columns as Spark names their types."""
    name = ".".join(f"`{part.replace('`', '``')}`" for part in (catalog, *target))
    frame = spark.table(name)
    return frame.toArrow(), list(frame.dtypes)


def compare(
    connection: psycopg.Connection[Any], table: str, lake: pa.Table, lake_types: Sequence[tuple[str, str]] | None = None
) -> Difference:
    """`table` is the source's name as SQL writes it; `lake_types` are checked when given."""
    columns = source_columns(connection, table)
    if lake_types is not None:
        wanted = [(column.name, column.rule.lake_type) for column in columns]
        if list(lake_types) != wanted:
            return Difference(table, (f"columns are {list(lake_types)}, not {wanted}",))
    source = Counter(map(_comparable, source_rows(connection, table, columns)))
    found = Counter(map(_comparable, lake_rows(lake, columns)))
    return Difference(table, tuple(_problems(source, found, _key_places(connection, table, columns), columns)))


def _comparable(row: Row) -> Row:
    """Decimals and binaries hash by value already; only memoryviews from drivers need help."""
    return tuple(bytes(value) if isinstance(value, memoryview | bytearray) else value for value in row)


def _key_places(connection: psycopg.Connection[Any], table: str, columns: Sequence[SourceColumn]) -> list[int]:
    names = connection.execute(
        "select a.attname from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey) "
        "where i.indrelid = %s::regclass and i.indisprimary",
        (table,),
    ).fetchall()
    keys = {name for (name,) in names}
    return [index for index, column in enumerate(columns) if column.name in keys]


def _problems(
    source: Counter[Row], found: Counter[Row], key: list[int], columns: Sequence[SourceColumn]
) -> Iterable[str]:
    missing, extra = source - found, found - source
    if not missing and not extra:
        return
    yield f"source has {source.total()} rows, lake {found.total()}: {missing.total()} missing, {extra.total()} extra"
    by_key = {tuple(row[place] for place in key): row for row in extra} if key else {}
    for row, times in list(missing.items())[:_SHOWN]:
        other = by_key.get(tuple(row[place] for place in key))
        if other is None:
            yield f"missing{_times(times)}: {_shown(row, columns)}"
            continue
        for column, right, wrong in zip(columns, row, other, strict=True):
            if right != wrong:
                yield f"changed: key {_key_text(row, key)}, column {column.name}: {_short(right)} is {_short(wrong)}"
    matched = {tuple(row[place] for place in key) for row in missing} if key else set()
    strangers = [(row, times) for row, times in extra.items() if not key or tuple(row[p] for p in key) not in matched]
    for row, times in strangers[:_SHOWN]:
        kind = "doubled" if source[row] else "extra"
        yield f"{kind}{_times(times)}: {_shown(row, columns)}"


def _times(times: int) -> str:
    return f" {times} times" if times > 1 else ""


def _key_text(row: Row, key: list[int]) -> str:
    return ", ".join(_short(row[place]) for place in key)


def _shown(row: Row, columns: Sequence[SourceColumn]) -> str:
    return ", ".join(f"{column.name}={_short(value)}" for column, value in list(zip(columns, row, strict=True))[:6])


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

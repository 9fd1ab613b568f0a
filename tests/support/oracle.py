"""Postgres is the oracle: compares a lake table with its source table, row by row and value by value.

The source is asked by plain SQL, the lake is read into Arrow (by Spark, or any other reader); nothing of penstock takes
part. oracle_rules.py says for each Postgres type what the lake's column must be, and how a value is brought to one
Python value on either side. Rows are compared as a multiset, so a missing, a changed and a doubled row are all found.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import SparkSession

from oracle_rules import Rule, rule_of

Row = tuple[Any, ...]
RESCUED = "_rescued"
_SHOWN = 5


@dataclass(frozen=True)
class SourceColumn:
    name: str
    rule: Rule


@dataclass(frozen=True)
class Rescued:
    """A cell that does not fit its column."""

    text: str


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
    select a.attname, a.atttypid, a.atttypmod
    from pg_attribute a
    join pg_class c on c.oid = a.attrelid
    join pg_namespace n on n.oid = c.relnamespace
    where a.attrelid = %s::regclass and a.attnum > 0 and not a.attisdropped
      and (a.attgenerated = '' or exists (
          select from pg_publication_tables p
          where p.schemaname = n.nspname and p.tablename = c.relname and a.attname = any (p.attnames)))
    order by a.attnum
"""


def source_columns(connection: psycopg.Connection[Any], table: str) -> list[SourceColumn]:
    rows = connection.execute(_COLUMNS, (table,)).fetchall()
    return [SourceColumn(name, rule_of(connection, *type)) for name, *type in rows]


def source_rows(connection: psycopg.Connection[Any], table: str, columns: Sequence[SourceColumn]) -> list[Row]:
    names = [sql.Identifier(column.name).as_string(connection) for column in columns]
    wanted = [
        part(name)
        for name, column in zip(names, columns, strict=True)
        for part in (column.rule.of, column.rule.rescued)
    ]
    with connection.cursor() as cursor:
        for setting in ("timezone = 'UTC'", "intervalstyle = 'postgres'", "datestyle = 'ISO'", "jit = off"):
            cursor.execute(f"set {setting}".encode())
        cursor.execute(f"select {', '.join(wanted)} from {table}".encode())
        rows = cursor.fetchall()
    return [
        tuple(value if text is None else Rescued(text) for value, text in zip(row[::2], row[1::2], strict=True))
        for row in rows
    ]


def lake_rows(lake: pa.Table, columns: Sequence[SourceColumn]) -> list[Row]:
    kept = lake.column(RESCUED).to_pylist() if RESCUED in lake.column_names else [None] * lake.num_rows
    values = []
    for index, column in enumerate(columns):
        plain = column.rule.lake(_one_array(lake.column(index)))
        texts = [dict(cells or ()).get(column.name) for cells in kept]
        values.append(
            [value if text is None else Rescued(text) for value, text in zip(plain, texts, strict=True)]
            if any(text is not None for text in texts)
            else plain
        )
        hidden = [text for value, text in zip(plain, texts, strict=True) if text is not None and value is not None]
        assert not hidden, f"column {column.name} has a value beside the rescued {hidden[0]!r}"
    return list(zip(*values, strict=True)) if values else []


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


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
        if [one for one in lake_types if one[0] != RESCUED] != wanted:
            return Difference(table, (f"columns are {list(lake_types)}, not {wanted}",))
    source = Counter(map(_comparable, source_rows(connection, table, columns)))
    found = Counter(map(_comparable, lake_rows(lake, columns)))
    return Difference(table, tuple(_problems(source, found, _key_places(connection, table, columns), columns)))


def _comparable(row: Row) -> Row:
    """Lists and dictionaries do not hash."""
    return tuple(json.dumps(value) if isinstance(value, list | dict) else value for value in row)


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

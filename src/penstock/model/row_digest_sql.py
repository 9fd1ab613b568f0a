"""Queries by which a Postgres server answers for its side of a comparison (`row_digest`): figures, rows and cells.

Every answer is one query over an inner query that gives `digest` and `bucket_of` for each row, the MD5s of row and key.
What comes back is figures, digests, keys and shortened cells: never a whole table. Who asks says what the text of each
column is in SQL: `source.postgres.comparison`, or `destinations.postgres.comparison`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.model.row_digest import DIGITS, Cell, Figures, Row

SHOWN = 80  # characters of a cell
_SHOWN_OF_ROW = 200


@dataclass(frozen=True)
class ColumnSql:
    """SQL for a column: its canonical text (NULL when it is null), what users are shown, and its part of a row's text.

    A US is doubled in that part.
    """

    name: str
    text: str
    shown: str
    part: str


def column_sql(name: str, text: str, *, shown: str | None = None, plain: bool = False) -> ColumnSql:
    """`plain`: no such text has a US in it."""
    part = text if plain else f"replace({text}, E'\\037', E'\\037\\037')"
    return ColumnSql(name, text, text if shown is None else shown, part)


def row_text(columns: Iterable[ColumnSql]) -> str:
    return " || ".join(f"coalesce({column.part} || E'\\037,', E'\\037-')" for column in columns) or "''"


def digits(digest: str) -> str:
    """Return an MD5's first digits as a number."""
    return f"('x' || left({digest}, {DIGITS}))::bit({DIGITS * 4})::bigint"


def md5(text: str) -> str:
    return f"md5(convert_to({text}, 'UTF8'))"


@dataclass(frozen=True)
class DigestQueries:
    """`tail` is FROM and WHERE. Without a `key` rows are told apart by all that is in them."""

    columns: Sequence[ColumnSql]
    key: Sequence[str]
    tail: str

    def figures(self, buckets: int) -> str:
        return f"SELECT {_bucket(buckets)}, count(*), sum({digits('digest')})::text FROM ({self._inner()}) s GROUP BY 1"

    def rows(self, buckets: int, chosen: Sequence[int]) -> str:
        texts = self._key_texts()
        extra = "".join(f", {text} AS key_{number}" for number, text in enumerate(texts))
        names = "".join(f", key_{number}" for number in range(len(texts)))
        return (
            f"SELECT bucket_of, digest{names} FROM ({self._inner(extra)}) s"
            f" WHERE {_bucket(buckets)} = ANY (ARRAY[{', '.join(map(str, chosen))}]::int[])"
        )

    def cells(self, keys: Sequence[str]) -> str:
        extra = "".join(
            f", {md5(column.text)} AS cell_{number}, left({column.shown}, {SHOWN}) AS shown_{number}"
            for number, column in enumerate(self.columns)
        )
        wanted = ", ".join(f"'{key}'" for key in keys)  # digests: hexadecimal digits
        return f"SELECT * FROM ({self._inner(extra)}) s WHERE bucket_of = ANY (ARRAY[{wanted}]::text[])"

    def cells_of(self, found: Iterable[Sequence[Any]]) -> dict[str, dict[str, Cell]]:
        """Read the answer to `cells`."""
        names = [column.name for column in self.columns]
        return {
            row[0]: {name: Cell(row[2 + 2 * number], row[3 + 2 * number]) for number, name in enumerate(names)}
            for row in found
        }

    def _key_texts(self) -> list[str]:
        by_name = {column.name: column for column in self.columns}
        if self.key:
            return [by_name[name].shown for name in self.key]
        parts = ", ".join(f"coalesce({column.text}, 'NULL')" for column in self.columns)
        return [f"left(array_to_string(ARRAY[{parts}]::text[], ', '), {_SHOWN_OF_ROW})"]

    def _inner(self, extra: str = "") -> str:
        """OFFSET 0 keeps the server from computing a digest again for each use of it."""
        by_name = {column.name: column for column in self.columns}
        row = md5(row_text(self.columns))
        key = md5(row_text([by_name[name] for name in self.key])) if self.key else row
        return f"SELECT {key} AS bucket_of, {row} AS digest{extra} {self.tail} OFFSET 0"


def figures_of(found: Iterable[Sequence[Any]]) -> dict[int, Figures]:
    """Read the answer to `DigestQueries.figures`."""
    return {bucket: (count, int(total)) for bucket, count, total in found}


def rows_of(found: Iterable[Sequence[Any]]) -> list[Row]:
    """Read the answer to `DigestQueries.rows`."""
    return [Row(key, digest, tuple(texts)) for key, digest, *texts in found]


def _bucket(buckets: int) -> str:
    return f"('x' || right(bucket_of, 4))::bit(16)::int % {buckets}"

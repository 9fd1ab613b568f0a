"""A table of a MySQL or MariaDB source as one side of a comparison (model/row_digest.py).

Rows are read in the snapshot's own transaction and digested here (canonical.py): once for the figures, and once more
for each question about buckets that differ. Memory holds a batch of rows, and what is asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from penstock.errors import SourceError
from penstock.model.row_digest import DIGITS, Cell, Figures, Row
from penstock.model.table import TableSchema
from penstock.source.mysql.canonical import canonical_texts, digests, row_texts, shown_texts

SHOWN = 80  # characters of a cell
_SHOWN_OF_ROW = 200

Selecting = Callable[[], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class MysqlSide:
    """`select` gives all rows in the snapshot, a column of bytes for each of the schema's."""

    schema: TableSchema
    select: Selecting
    wide: frozenset[str] = field(default=frozenset())

    @property
    def may_have_partitions(self) -> bool:
        """Partitions come and go in the binlog, as statements after which the table is copied again."""
        return False

    def widened(self, columns: Collection[str]) -> MysqlSide:
        return replace(self, wide=frozenset(columns))

    def as_read(self, types: Mapping[str, str]) -> MysqlSide:
        raise SourceError(
            f"table {self.schema.table}: a table of MySQL or MariaDB cannot be compared with one of a Postgres "
            "destination yet",
            "Compare with a lake; `penstock resync` copies a table that is in doubt",
        )

    def figures(self, buckets: int) -> dict[int, Figures]:
        found: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for batch in self._digested():
            for key, digest in zip(batch.keys, batch.rows, strict=True):
                one = found[_bucket(key, buckets)]
                one[0] += 1
                one[1] += int(digest[:DIGITS], 16)
        return {bucket: (count, total) for bucket, (count, total) in found.items()}

    def rows(self, buckets: int, chosen: Sequence[int]) -> list[Row]:
        wanted, found = frozenset(chosen), list[Row]()
        for batch in self._digested():
            at = [row for row, key in enumerate(batch.keys) if _bucket(key, buckets) in wanted]
            if at:
                texts = self._key_texts(batch, pa.array(at))
                found += [Row(batch.keys[row], batch.rows[row], key) for row, key in zip(at, texts, strict=True)]
        return found

    def cells(self, keys: Sequence[str]) -> dict[str, dict[str, Cell]]:
        wanted, found = frozenset(keys), dict[str, dict[str, Cell]]()
        for batch in self._digested():
            at = [row for row, key in enumerate(batch.keys) if key in wanted]
            if not at:
                continue
            index = pa.array(at)
            names = [column.name for column in self.schema.columns]
            texts = [column.take(index).to_pylist() for column in batch.texts]
            shown = [self._shown(batch, place).take(index).to_pylist() for place in range(len(names))]
            for number, row in enumerate(at):
                found[batch.keys[row]] = {
                    name: Cell(_digest(text[number]), _cut(seen[number]))
                    for name, text, seen in zip(names, texts, shown, strict=True)
                }
        return found

    def _digested(self) -> Iterator[_Digested]:
        places = [self.schema.index(name) for name in self.schema.key]
        for batch in self.select():
            texts = [
                canonical_texts(column.type, values, wide=column.name in self.wide)
                for column, values in zip(self.schema.columns, batch.columns, strict=True)
            ]
            rows = digests(row_texts(texts, batch.num_rows))
            keys = digests(row_texts([texts[place] for place in places], batch.num_rows)) if places else rows
            yield _Digested(batch, texts, rows, keys)

    def _shown(self, batch: _Digested, place: int) -> pa.Array:
        return shown_texts(self.schema.columns[place].type, batch.selected.column(place), batch.texts[place])

    def _key_texts(self, batch: _Digested, at: pa.Array) -> list[tuple[str, ...]]:
        if self.schema.key:
            places = [self.schema.index(name) for name in self.schema.key]
            columns = [self._shown(batch, place).take(at).to_pylist() for place in places]
            return list(zip(*columns, strict=True))
        columns = [column.take(at).to_pylist() for column in batch.texts]
        joined = (", ".join("NULL" if one is None else one for one in row) for row in zip(*columns, strict=True))
        return [(text[:_SHOWN_OF_ROW],) for text in joined]


@dataclass(frozen=True)
class _Digested:
    selected: pa.RecordBatch
    texts: list[pa.Array]
    rows: list[str]
    keys: list[str]


def whole_figures(schema: TableSchema, select: Selecting) -> Figures:
    """Return rows and checksum of a whole table."""
    found = MysqlSide(schema, select).figures(1)
    return found.get(0, (0, 0))


def _bucket(key: str, buckets: int) -> int:
    return int(key[-4:], 16) % buckets


def _digest(text: str | None) -> str | None:
    return None if text is None else digests([text])[0]


def _cut(text: str | None) -> str | None:
    return None if text is None else text[:SHOWN]

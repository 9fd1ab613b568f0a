"""Merge files of a table, on executors: data files without their dead rows, delete files without stale entries.

`compaction_choice` says which. Sidecars of the key index are written with the files. The tasks are pure of Java; the
destination commits their outcome strictly, between batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.data_files import PREFIX, Rows, WrittenFile, in_groups
from penstock.destinations.lake.key_index import KeyIndex
from penstock.destinations.lake.storage import reaching
from penstock.destinations.lake.table_format import TableFormat
from penstock.failpoints import reach
from penstock.model.table import TableId

NO_ROWS: Rows = np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class MergeData:
    """Data files to merge into one, without the rows that delete files end."""

    table_format: TableFormat
    target: TableId
    folder: str
    columns: tuple[LakeColumn, ...]
    index: KeyIndex
    files: tuple[str, ...]
    delete_files: tuple[str, ...]
    weight: int
    prefix: str = PREFIX
    beside: bool = False  # batches

    def run(self) -> WrittenFile | None:
        """None when no row is left."""
        with reaching(f"table {self.target}: its files cannot be merged"):
            dead = self.table_format.deleted_rows(self.delete_files, self.files)
            keys: list[pa.Array] = []
            groups = in_groups(self._live_rows(dead, keys))
            first = next(groups, None)
            if first is None:
                return None
            written = self.table_format.write_rows(self.folder, self.columns, self._told(first, groups), self.prefix)
            if self.index:
                self.index.write(written.path, pa.concat_arrays(keys))
            return written

    def _told(self, first: pa.Table, others: Iterator[pa.Table]) -> Iterator[pa.Table]:
        yield first
        if self.beside:
            reach("merge.writing")
        yield from others

    def _live_rows(self, dead: dict[str, Rows], keys: list[pa.Array]) -> Iterator[pa.Table]:
        for path in self.files:
            ended = dead.get(path, NO_ROWS)
            for start, rows in self.table_format.open_file(path, self.columns).batches(self.columns):
                alive = np.ones(rows.num_rows, bool)
                here = ended[(ended >= start) & (ended < start + rows.num_rows)]
                alive[here - start] = False
                kept = rows.filter(pa.array(alive)) if len(here) else rows
                if kept.num_rows == 0:
                    continue
                if self.index:
                    keys.append(self.index.encoded(kept))
                yield kept


@dataclass(frozen=True, kw_only=True)
class MergeDeletes:
    """Delete files to merge into one, without entries for data files that are gone."""

    table_format: TableFormat
    target: TableId
    folder: str
    files: tuple[str, ...]
    data_files: tuple[str, ...]
    weight: int

    def run(self) -> WrittenFile | None:
        """None when no entry is left."""
        with reaching(f"table {self.target}: its delete files cannot be merged"):
            positions = self.table_format.deleted_rows(self.files, self.data_files)
            return self.table_format.write_deletes(self.folder, positions) if positions else None


@dataclass(frozen=True, kw_only=True)
class Merged:
    """Data files as they went into one, in this order and without the rows that these deletes end."""

    into: str | None  # None: no row was left
    files: tuple[str, ...]
    records: tuple[int, ...]
    delete_files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MoveDeletes:
    """Delete files that came while data files were merged: the same with the places where their rows are now."""

    table_format: TableFormat
    target: TableId
    folder: str
    merged: tuple[Merged, ...]
    files: tuple[str, ...]
    data_files: tuple[str, ...]  # all others that they may point to
    weight: int

    def run(self) -> WrittenFile | None:
        """None when they end no row any more."""
        with reaching(f"table {self.target}: deletes cannot be moved to a merged file"):
            gone = tuple(path for merged in self.merged for path in merged.files)
            ended = self.table_format.deleted_rows(self.files, (*gone, *self.data_files))
            places = {path: ended[path] for path in self.data_files if path in ended}
            for merged in self.merged:
                rows = moved_rows(self.table_format, merged, ended)
                if merged.into is not None and len(rows):
                    places[merged.into] = rows
            return self.table_format.write_deletes(self.folder, places) if places else None


def moved_rows(table_format: TableFormat, merged: Merged, ended: Mapping[str, Rows]) -> Rows:
    """Return where rows of merged files are in the file that they went into."""
    before = table_format.deleted_rows(merged.delete_files, merged.files)
    moved: list[Rows] = []
    start = 0
    for path, records in zip(merged.files, merged.records, strict=True):
        dead, rows = before.get(path, NO_ROWS), ended.get(path, NO_ROWS)
        rows = rows[~np.isin(rows, dead)]
        moved.append(start + rows - np.searchsorted(dead, rows))
        start += records - len(dead)
    return np.concatenate(moved)


@dataclass(frozen=True)
class CountHits:
    """A delete file of which nobody has counted yet where its entries point."""

    table_format: TableFormat
    target: TableId
    file: str
    weight: int

    def run(self) -> dict[str, int]:
        with reaching(f"table {self.target}: a delete file cannot be read"):
            return self.table_format.count_deletes(self.file)


def merge(task: MergeData | MergeDeletes | MoveDeletes) -> WrittenFile | None:
    return task.run()


def count_hits(task: CountHits) -> dict[str, int]:
    return task.run()

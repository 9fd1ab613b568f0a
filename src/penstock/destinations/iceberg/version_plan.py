"""Writing versions, on an executor: open versions of touched keys found through the index and closed, others opened.

A row of Iceberg never changes, so closing a version is a positional delete of the open row, and the same row written
again with its end, to a file that is not looked at again. `fold.versions` decides what is closed and opened. A truncate
closes every open version; that alone reads all of them, a row group at a time. What was rescued of a row goes with each
of its versions; files have the column RESCUED only if one that was read, or the batch, brings it. Neighbours: `plan`,
of which this is the other way to write; `version_files` knows which file holds what.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.rescue import RESCUED
from penstock.destinations.iceberg.data_files import DataFile, WrittenFile, in_groups, write_deletes, write_rows
from penstock.destinations.iceberg.plan import IcebergPart, IcebergPlan
from penstock.destinations.iceberg.slices import stored
from penstock.destinations.iceberg.storage import reaching
from penstock.destinations.iceberg.table_schema import IcebergColumn
from penstock.destinations.iceberg.version_files import (
    ENDED_PREFIX,
    REPLACED_PREFIX,
    KeyReader,
    Rows,
    dead_rows,
    ended_index,
    open_versions,
)
from penstock.fold.keys import bucket_of, encode_keys
from penstock.fold.layout import OPEN
from penstock.fold.net_effect import NO_ROW, NetEffect, Steps
from penstock.fold.versions import Held, Mask, closed_versions, versions, with_rescued


class VersionPlan(IcebergPlan):
    """A plan of a table of versions. Its `files` are those that may hold open ones."""

    def write(self, net: NetEffect) -> IcebergPart:
        if net.steps is None:
            raise TypeError("a table of versions takes net effects with steps")
        with reaching(f"table {self.target}: its files cannot be written"):
            return self._write_versions(net, net.steps)

    def _counts(self, file: DataFile) -> Mask:
        period = self.layout.period
        assert period is not None
        ends = next(column for column in self.around if column.name == period.valid_to)
        return np.asarray(pc.equal(file.column(ends).cast(pa.int64()), OPEN), np.bool_)

    def _write_versions(self, net: NetEffect, steps: Steps) -> IcebergPart:
        touched = net.touched_keys
        assert touched is not None
        upserts, rescued, missing = self._filled(net)
        if rescued is not None or (steps.truncated_at is not None and self._holds_rescued):
            upserts = with_rescued(upserts, rescued)
        held, file_of, row_of = self._held(touched)
        made = versions(steps, upserts, held, self.layout)
        rescues = RESCUED in made.opened.column_names
        columns = (*self.columns, *self.beside, *([self.rescued] if rescues else []), *self.around)
        ended_keys = touched.take(pa.array(made.ended_keys))
        deletes: dict[str, list[Rows]] = {}
        for number in np.unique(file_of[made.closed]):
            here = made.closed & (file_of == number)
            deletes[self.files[number].path] = [row_of[here]]
        ending, keys_ending = [made.ended], [ended_keys]
        if steps.truncated_at is not None:
            rest = self._truncated(touched, steps, steps.truncated_at, columns, deletes, keys_ending)
            ended = self._file(chain(ending, rest), columns, ENDED_PREFIX)
        else:
            ended = self._file(ending, columns, ENDED_PREFIX)
        opened = self._file([made.opened], columns, self.prefix)
        replaced = self._file([made.replaced], columns, REPLACED_PREFIX)
        if opened is not None:
            self.index.write(opened.path, touched.take(pa.array(made.opened_keys)))
        if ended is not None:
            ended_index(self.index).write(ended.path, pa.concat_arrays(keys_ending))
        positions = {path: np.concatenate(rows) for path, rows in deletes.items()}
        delete = write_deletes(self.folder, positions, self.prefix) if positions else None
        wanted = sum(len(fetch.rows) for fetch in net.fetches)
        past = tuple(file for file in (replaced, ended) if file is not None)
        unresolved = tuple(np.unique(missing).tolist())
        part = IcebergPart(opened, delete, wanted - len(missing), len(missing), unresolved, past=past)
        return replace(part, data=None, rescued=opened, rescued_as=self.rescued) if rescues else part

    @property
    def _holds_rescued(self) -> bool:
        """Whether a file that may hold open versions has the column RESCUED."""
        return any(DataFile(file.path).has(self.rescued) for file in self.files)

    def _file(
        self, batches: list[pa.Table] | chain[pa.Table], columns: tuple[IcebergColumn, ...], prefix: str
    ) -> WrittenFile | None:
        """One file of all rows, which have these columns; None when there are none."""
        groups = in_groups(batches)
        first = next(groups, None)
        if first is None:
            return None
        written, _ = stored(self.slice, columns, first.slice(0, 0))
        rows = (stored(self.slice, columns, group)[1] for group in chain([first], groups))
        return write_rows(self.folder, written, rows, prefix)

    def _held(self, touched: pa.Array) -> tuple[Held, Rows, Rows]:
        """The open versions of touched keys; and of each key the file and the row, -1 where it has none."""
        period = self.layout.period
        assert period is not None
        places = self._locate(touched)
        paths = [self.files[number].path for number in np.unique(places.files)]
        found = self._live(places, dead_rows(self.delete_files, paths), len(touched))
        has = found >= 0
        file_of, row_of = np.full(len(touched), -1), np.full(len(touched), -1)
        file_of[has], row_of[has] = places.files[found[has]], places.rows[found[has]]
        numbers = np.unique(file_of[has]).tolist()
        kept = (*self.columns, *self.beside)
        files = {number: DataFile(self.files[number].path, kept) for number in numbers}
        if any(file.has(self.rescued) for file in files.values()):
            kept = (*kept, self.rescued)
        begins = next(column for column in self.around if column.name == period.valid_from)
        row = np.full(len(touched), NO_ROW)
        tables: list[pa.Table] = [pa.schema([column.field() for column in [*kept, begins]]).empty_table()]
        count = 0
        for number, file in files.items():
            here = np.flatnonzero(file_of == number)
            cells = [file.cells(column, row_of[here]) for column in [*kept, begins]]
            tables.append(pa.table(cells, schema=tables[0].schema))
            row[here] = count + np.arange(len(here))
            count += len(here)
        rows = pa.concat_tables(tables)
        since = np.asarray(rows.column(len(kept)).cast(pa.int64()))
        return Held(rows.select(range(len(kept))), since, row, self._known(touched, has)), file_of, row_of

    def _known(self, touched: pa.Array, has: Mask) -> Mask:
        """Which keys have a deleted version; asked only of those without an open one."""
        known = np.zeros(len(touched), np.bool_)
        absent = np.flatnonzero(~has)
        if len(absent) and self.ended_files:
            reader = KeyReader((*self.columns, *self.around), self.index.key, self.layout, ended=True)
            index = ended_index(self.index)
            places = index.locate(touched.take(pa.array(absent)), self.ended_files, reader)
            known[absent[places.keys]] = True
        return known

    def _truncated(
        self,
        touched: pa.Array,
        steps: Steps,
        at: int,
        columns: tuple[IcebergColumn, ...],
        deletes: dict[str, list[Rows]],
        keys_ending: list[pa.Array],
    ) -> Iterator[pa.Table]:
        """The open versions of all keys that the batch does not touch, closed. Notes their places and keys as well."""
        paths = [file.path for file in self.files]
        for path, numbers, rows in open_versions(paths, self.delete_files, columns, self.layout):
            keys = encode_keys([rows[name].combine_chunks() for name in self.index.key])
            left = ~np.asarray(pc.is_in(keys, value_set=touched))
            left &= bucket_of(keys, steps.buckets) == steps.bucket
            if not left.any():
                continue
            deletes.setdefault(path, []).append(numbers[left])
            keys_ending.append(keys.filter(pa.array(left)))
            yield closed_versions(rows.filter(pa.array(left)), at, self.layout)

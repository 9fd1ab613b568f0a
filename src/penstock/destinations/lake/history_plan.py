"""Writing versions, on an executor: open versions of touched keys found through the index and closed, others opened.

Rows in files never change, so closing a version is a positional delete of the open row, and the same row written again
with its end, to a file that is not looked at again. `fold.versions` decides what is closed and opened. A truncate
closes every open version; that alone reads all of them, a row group at a time. What was rescued of a row goes with each
of its versions; files have the column RESCUED only if one that was read, or the batch, brings it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.rescue import whole
from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.data_files import Cursor, DataFile, WrittenFile, in_groups
from penstock.destinations.lake.fetching import BaseCells, Pace, Picker
from penstock.destinations.lake.history_files import (
    ENDED_PREFIX,
    REPLACED_PREFIX,
    KeyReader,
    Rows,
    dead_rows,
    ended_index,
    open_versions,
)
from penstock.destinations.lake.source_partition import stored
from penstock.destinations.lake.storage import reaching
from penstock.destinations.lake.upsert_plan import LakePart, UpsertPlan
from penstock.fold.keys import bucket_of, encode_keys
from penstock.fold.layout import OPEN
from penstock.fold.net_effect import NO_ROW, NetEffect, Steps
from penstock.fold.versions import Held, Mask, Written, closed_versions, versions, with_rescued


class HistoryPlan(UpsertPlan):
    """A plan of a table of versions. Its `files` are those that may hold open ones."""

    def write(self, net: NetEffect) -> LakePart:
        if net.steps is None:
            raise TypeError("a table of versions takes net effects with steps")
        with reaching(f"table {self.target}: its files cannot be written"):
            return self._write_versions(net, net.steps)

    def _counts(self, file: DataFile) -> Mask:
        period = self.layout.period
        assert period is not None
        ends = next(column for column in self.around if column.name == period.valid_to)
        return np.asarray(pc.equal(file.column(ends).cast(pa.int64()), OPEN), np.bool_)

    def _write_versions(self, net: NetEffect, steps: Steps) -> LakePart:
        """Write versions of some keys at a time, in the order of the rows that they have in the base.

        What is held does not grow with the batch. Files are written as soon as what goes into them has become large.
        """
        assert net.touched_keys is not None
        touched, cells, at = net.touched_keys, self._cells(net), steps.truncated_at
        places = self._open_places(touched)
        files = {number: self._kept_file(number) for number in np.unique(places.file[places.file >= 0]).tolist()}
        held_columns = (*self.columns, *self.beside)
        if any(file.has(self.rescued) for file in files.values()):
            held_columns = (*held_columns, self.rescued)
        rescues = net.rescued is not None or self.rescued in held_columns
        rescues |= cells.may_bring_rescued or (at is not None and self._holds_rescued)
        columns = (*self.columns, *self.beside, *([self.rescued] if rescues else []), *self.around)
        made = _Made(self, columns)
        for some in _some_keys(net, steps, places, Pace(self.piece_bytes)):
            upserts, rescued = _completed(some, cells)
            held = self._held(some, held_columns, files)
            done = versions(some.steps, with_rescued(upserts, rescued) if rescues else upserts, held, self.layout)
            some.pace.note(len(some.touched), upserts.nbytes + held.rows.nbytes)
            made.add(done, some)
            if made.bytes >= self.piece_bytes:
                made.write()
        if at is None:
            made.write()
        else:
            made.write(self._truncated(touched, steps, at, columns, made.deletes, made.ended_keys))
        missing = cells.missing
        fetched, unresolved = len(cells.rows) - len(missing), tuple(np.unique(missing).tolist())
        part = LakePart(None, made.delete_file(), fetched, len(missing), unresolved, past=tuple(made.files))
        return replace(part, rescued_as=self.rescued) if rescues and made.files else part

    @property
    def _holds_rescued(self) -> bool:
        """Whether a file that may hold open versions has the column RESCUED."""
        return any(self.table_format.open_file(file.path).has(self.rescued) for file in self.files)

    def _kept_file(self, number: int) -> DataFile:
        return self.table_format.open_file(self.files[number].path, (*self.columns, *self.beside))

    def _open_places(self, touched: pa.Array) -> _Places:
        """Return where the open versions of touched keys are."""
        places = self._locate(touched)
        paths = [self.files[number].path for number in np.unique(places.files)]
        found = self._live(places, dead_rows(self.table_format, self.delete_files, paths), len(touched))
        has = found >= 0
        file_of, row_of = np.full(len(touched), -1), np.full(len(touched), -1)
        file_of[has], row_of[has] = places.files[found[has]], places.rows[found[has]]
        return _Places(file_of, row_of)

    def _held(self, some: _SomeKeys, kept: tuple[LakeColumn, ...], files: dict[int, DataFile]) -> Held:
        """Return the open versions of the keys. Files are let go once they are read: an open one keeps memory."""
        period, places = self.layout.period, some.places
        assert period is not None
        begins = next(column for column in self.around if column.name == period.valid_from)
        row = np.full(len(some.touched), NO_ROW)
        batches: list[pa.RecordBatch] = []
        count = 0
        for number in np.unique(places.file[places.file >= 0]).tolist():
            here = np.flatnonzero(places.file == number)
            batches += some.cursor(number, files, [*kept, begins]).take(places.row[here])
            row[here] = count + np.arange(len(here))
            count += len(here)
        rows = pa.Table.from_batches(batches, schema=pa.schema([column.field() for column in [*kept, begins]]))
        since = np.asarray(rows.column(len(kept)).cast(pa.int64()))
        return Held(rows.select(range(len(kept))), since, row, self._known(some.touched, places.file >= 0))

    def _known(self, touched: pa.Array, has: Mask) -> Mask:
        """Return which keys have a deleted version; asked only of those without an open one."""
        known = np.zeros(len(touched), np.bool_)
        absent = np.flatnonzero(~has)
        if len(absent) and self.ended_files:
            reader = KeyReader(
                self.table_format, (*self.columns, *self.around), self.index.key, self.layout, ended=True
            )
            index = ended_index(self.index)
            places = index.locate(touched.take(pa.array(absent)), self.ended_files, reader)
            known[absent[places.keys]] = True
        return known

    def _truncated(
        self,
        touched: pa.Array,
        steps: Steps,
        at: int,
        columns: tuple[LakeColumn, ...],
        deletes: dict[str, list[Rows]],
        keys_ending: list[pa.Array],
    ) -> Iterator[pa.Table]:
        """Yield the open versions of all keys that the batch does not touch, closed.

        Notes their places and keys as well.
        """
        paths = [file.path for file in self.files]
        for path, numbers, rows in open_versions(self.table_format, paths, self.delete_files, columns, self.layout):
            keys = encode_keys([rows[name].combine_chunks() for name in self.index.key])
            left = ~np.asarray(pc.is_in(keys, value_set=touched))
            left &= bucket_of(keys, steps.buckets) == steps.bucket
            if not left.any():
                continue
            deletes.setdefault(path, []).append(numbers[left])
            keys_ending.append(keys.filter(pa.array(left)))
            yield closed_versions(rows.filter(pa.array(left)), at, self.layout)


@dataclass(frozen=True)
class _Places:
    """Of each touched key the file that has its open version, and the row there; -1 where it has none."""

    file: Rows
    row: Rows


@dataclass(frozen=True)
class _SomeKeys:
    """Some of the touched keys, in the order of their places, with all that concerns them.

    `steps` has their numbers among these, and those of `upserts`, whose numbers among all upserts are `rows`.
    """

    touched: pa.Array
    steps: Steps
    upserts: pa.Table
    rescued: pa.Array | None
    rows: Rows
    places: _Places
    pace: Pace
    cursors: dict[int, Cursor]

    def cursor(self, number: int, files: dict[int, DataFile], columns: Sequence[LakeColumn]) -> Cursor:
        """Return one that goes on where the keys before these ended, or that takes the next of the files."""
        if number not in self.cursors:
            self.cursors.clear()
            self.cursors[number] = Cursor(files.pop(number), columns)
        return self.cursors[number]


def _some_keys(net: NetEffect, steps: Steps, places: _Places, pace: Pace) -> Iterator[_SomeKeys]:
    """Yield all touched keys, in pieces."""
    assert net.touched_keys is not None
    by_place = np.lexsort((places.row, places.file))
    rank = np.empty(len(by_place), np.int64)
    rank[by_place] = np.arange(len(by_place))
    by_key = np.lexsort((steps.moment, rank[steps.key]))
    key, moment, row = rank[steps.key[by_key]], steps.moment[by_key], steps.row[by_key]
    rows_before = np.concatenate([[0], np.cumsum(row != NO_ROW)])
    rows = row[row != NO_ROW]
    upserts, cursors = Picker(net.upserts), dict[int, Cursor]()
    begin = 0
    while begin < len(by_place):
        keys = by_place[begin : begin + pace.rows]
        low, high = (int(one) for one in np.searchsorted(key, [begin, begin + len(keys)]))
        first = int(rows_before[low])
        numbers = rows[first : int(rows_before[high])]
        own = np.where(row[low:high] == NO_ROW, NO_ROW, rows_before[low:high] - first)
        yield _SomeKeys(
            net.touched_keys.take(pa.array(keys)),
            replace(steps, key=key[low:high] - begin, moment=moment[low:high], row=own),
            upserts.take(numbers),
            None if net.rescued is None else whole(net.rescued.take(pa.array(numbers))),
            numbers,
            _Places(places.file[keys], places.row[keys]),
            pace,
            cursors,
        )
        begin += len(keys)


def _completed(some: _SomeKeys, cells: BaseCells) -> tuple[pa.Table, pa.Array | None]:
    """Return the upserts with what the source did not send, and what is rescued of them."""
    order = np.lexsort((cells.row_of[some.rows], cells.file_of[some.rows]))
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    picked, again = pa.array(order), pa.array(back)
    told = None if some.rescued is None else some.rescued.take(picked)
    filled = cells.filled(some.upserts.take(picked), told, some.rows[order])
    return Picker(filled.upserts).take(back), None if filled.rescued is None else filled.rescued.take(again)


class _Made:
    """What has been made of the touched keys, and the files that it has gone into."""

    def __init__(self, plan: HistoryPlan, columns: tuple[LakeColumn, ...]) -> None:
        self._plan, self._columns = plan, columns
        self._opened: list[pa.Table] = []
        self._opened_keys: list[pa.Array] = []
        self._replaced: list[pa.Table] = []
        self._ended: list[pa.Table] = []
        self.ended_keys: list[pa.Array] = []
        self.deletes: dict[str, list[Rows]] = {}
        self.files: list[WrittenFile] = []

    @property
    def bytes(self) -> int:
        return sum(table.nbytes for table in (*self._opened, *self._replaced, *self._ended))

    def add(self, made: Written, some: _SomeKeys) -> None:
        self._opened.append(made.opened)
        self._opened_keys.append(some.touched.take(pa.array(made.opened_keys)))
        self._replaced.append(made.replaced)
        self._ended.append(made.ended)
        self.ended_keys.append(some.touched.take(pa.array(made.ended_keys)))
        for number in np.unique(some.places.file[made.closed]).tolist():
            here = made.closed & (some.places.file == number)
            self.deletes.setdefault(self._plan.files[number].path, []).append(some.places.row[here])

    def write(self, further_ended: Iterable[pa.Table] = ()) -> None:
        """Files of what has been made since the last call. `further_ended` notes its keys as it goes."""
        index = self._plan.index
        ended = self._file(chain(self._ended, further_ended), ENDED_PREFIX)
        opened = self._file(self._opened, self._plan.prefix)
        self._file(self._replaced, REPLACED_PREFIX)
        if opened is not None:
            index.write(opened.path, pa.concat_arrays(self._opened_keys))
        if ended is not None:
            ended_index(index).write(ended.path, pa.concat_arrays(self.ended_keys))
        for made in (self._opened, self._opened_keys, self._replaced, self._ended, self.ended_keys):
            made.clear()

    def delete_file(self) -> WrittenFile | None:
        positions = {path: np.concatenate(rows) for path, rows in self.deletes.items()}
        if not positions:
            return None
        return self._plan.table_format.write_deletes(self._plan.folder, positions, self._plan.prefix)

    def _file(self, batches: Iterable[pa.Table], prefix: str) -> WrittenFile | None:
        """Return one file of all rows; None when there are none."""
        groups = in_groups(batches)
        first = next(groups, None)
        if first is None:
            return None
        share = self._plan.slice
        written, _ = stored(share, self._columns, first.slice(0, 0))
        rows = (stored(share, self._columns, group)[1] for group in chain([first], groups))
        file = self._plan.table_format.write_rows(self._plan.folder, written, rows, prefix)
        self.files.append(file)
        return file

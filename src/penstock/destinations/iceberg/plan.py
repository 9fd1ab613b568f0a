"""The base of one write of one table, and the write itself, on an executor: keys looked up, cells fetched, files
written.

A touched key costs a positional delete for its row in the newest file that has the key; in a table that was copied it
may have rows in several files of the same age, and each is deleted. A thorough plan deletes it wherever it is: somebody
else may have written a key that was there. If a row is dead already, deleting it again changes
nothing. Rows of deletes and cells come by position, through the key index; no table is scanned. A copy that is not
committed yet is written over in the same way: all its files are of one age. Neighbours: `destination` makes plans from
a table's state or from a copy's parts, `copy_plan` writes copies, `commit` commits the parts."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.decode.rescue import rescued_of, with_cells
from penstock.destinations.iceberg.data_files import (
    PREFIX,
    DataFile,
    WrittenFile,
    deleted_rows,
    write_deletes,
    write_rows,
)
from penstock.destinations.iceberg.evolution import Move
from penstock.destinations.iceberg.instances import removed_rows
from penstock.destinations.iceberg.key_index import IndexedFile, KeyIndex, Places
from penstock.destinations.iceberg.slices import IcebergSlice, stored
from penstock.destinations.iceberg.storage import reaching
from penstock.destinations.iceberg.table_schema import IcebergColumn
from penstock.destinations.iceberg.version_files import KeyReader
from penstock.fold.layout import ROWS, Layout
from penstock.fold.net_effect import Fetch, NetEffect
from penstock.model.position import Position
from penstock.model.table import TableId

Rows = npt.NDArray[np.int64]
NO_ROWS: Rows = np.empty(0, np.int64)


@dataclass(frozen=True)
class IcebergPart:
    """`rescued` is a data file too, one that has the column RESCUED, which is `rescued_as` at the table."""

    data: WrittenFile | None = None
    delete: WrittenFile | None = None
    fetched: int = 0
    unresolved: int = 0
    unresolved_rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()  # Iceberg's numbers of those that the data file was written with
    past: tuple[WrittenFile, ...] = ()  # versions that have ended
    rescued: WrittenFile | None = None
    rescued_as: IcebergColumn | None = None

    @property
    def rows(self) -> int:
        return sum(file.records for file in self.added)

    @property
    def deletes(self) -> int:
        return self.delete.records if self.delete else 0

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def empty(self) -> bool:
        return not self.files

    @property
    def added(self) -> list[WrittenFile]:
        """Data files."""
        return [file for file in (self.data, self.rescued, *self.past) if file is not None]

    @property
    def files(self) -> list[WrittenFile]:
        return [*self.added, *([] if self.delete is None else [self.delete])]


@dataclass(frozen=True)
class IcebergPlan:
    target: TableId
    source: str
    position: Position
    metadata: str  # the metadata file that is the base: whatever changes the table replaces it; "" over a copy
    folder: str  # where files go
    columns: tuple[IcebergColumn, ...]
    rescued: IcebergColumn  # as it is, or will be when it is first needed
    index: KeyIndex
    files: tuple[IndexedFile, ...]
    delete_files: tuple[str, ...]
    prefix: str = PREFIX  # of the names of its files
    slice: IcebergSlice | None = None  # of a table that several sources feed: what of it is this source's
    move: Move | None = None  # what the commit makes of the table's structure; None: it stays
    layout: Layout = ROWS
    around: tuple[IcebergColumn, ...] = ()  # the layout's columns
    beside: tuple[IcebergColumn, ...] = ()  # of a table of versions: those that follow no column of the source any more
    moment: int = 0
    ended_files: tuple[IndexedFile, ...] = ()  # of a table of versions: those that hold deleted ones
    sequence: int = 0  # of the base
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    follows: str | None = None  # the plan whose commit, still to be made, makes the base: then `metadata` is ""
    thorough: bool = False  # a touched key's rows are ended in every file, however often it is there

    def write(self, net: NetEffect) -> IcebergPart:
        with reaching(f"table {self.target}: its files cannot be written"):
            deletes = self._ended(net)
            upserts, rescued, missing = self._filled(net)
            data = self._write(upserts, rescued, net.upsert_keys) if upserts.num_rows else None
            delete = write_deletes(self.folder, deletes, self.prefix) if deletes else None
        fetched = sum(len(fetch.rows) for fetch in net.fetches) - len(missing)
        rows_in_doubt = tuple(np.unique(missing).tolist())
        columns = tuple(column.id for column in self.columns)
        part = IcebergPart(data, delete, fetched, len(missing), rows_in_doubt, columns)
        return part if rescued is None else replace(part, data=None, rescued=data, rescued_as=self.rescued)

    def _write(self, upserts: pa.Table, rescued: pa.Array | None, keys: pa.Array | None) -> WrittenFile:
        columns = self.columns
        if rescued is not None:
            columns, upserts = (*columns, self.rescued), upserts.append_column(self.rescued.name, rescued)
        written, rows = stored(self.slice, columns, upserts)
        data = write_rows(self.folder, written, [rows], self.prefix)
        if keys is not None:
            self.index.write(data.path, keys)
        return data

    @property
    def groups(self) -> int:
        return len(self.files)

    def held(self, group: int, columns: Sequence[str]) -> pa.Table:
        path = self.files[group].path
        by_name = {column.name: column for column in (*self.columns, self.rescued)}
        with reaching(f"table {self.target}: its files cannot be read"):
            file = DataFile(path, self.columns)
            rows = pa.table({name: file.column(by_name[name]) for name in columns})
            alive = np.ones(rows.num_rows, bool)
            alive[deleted_rows(self.delete_files, [path]).get(path, NO_ROWS)] = False
            alive &= np.asarray(self._counts(file))
        return rows.filter(pa.array(alive))

    def _counts(self, file: DataFile) -> npt.NDArray[np.bool_] | bool:
        """Which rows of a file may be alive at all."""
        return True

    def has(self, keys: pa.Array) -> npt.NDArray[np.bool_]:
        with reaching(f"table {self.target}: its index cannot be read"):
            places = self._locate(keys)
            paths = [self.files[number].path for number in np.unique(places.files)]
            return self._live(places, deleted_rows(self.delete_files, paths), len(keys)) >= 0

    def _ended(self, net: NetEffect) -> Mapping[str, Rows]:
        """The rows that the net effect ends, by data file."""
        if net.truncated:
            return {}
        if net.removals is not None:
            return removed_rows(self.target, self.index, net.removals, self.files, self.delete_files, self._read_rows)
        return {} if net.touched_keys is None else self._rows_of(net.touched_keys)

    def _read_rows(self, file: IndexedFile) -> pa.Array:
        """The keys of whole rows, for an index that has lost them, or whose columns were others."""
        data_file = DataFile(file.path, self.columns)
        columns = (*self.columns, self.rescued) if data_file.has(self.rescued) else self.columns
        return pa.concat_arrays([self.index.encoded(rows) for _, rows in data_file.batches(columns)])

    def _rows_of(self, keys: pa.Array) -> Mapping[str, Rows]:
        """The rows of keys that have some, by data file."""
        places = self.index.locate_all(keys, self.files, self._read_keys) if self.thorough else self._locate(keys)
        return {self.files[number].path: places.rows[places.files == number] for number in np.unique(places.files)}

    def _locate(self, keys: pa.Array) -> Places:
        return self.index.locate(keys, self.files, self._read_keys)

    def _read_keys(self, file: IndexedFile) -> pa.Array:
        return KeyReader((*self.columns, *self.around), self.index.key, self.layout, ended=False)(file)

    def _filled(self, net: NetEffect) -> tuple[pa.Table, pa.Array | None, Rows]:
        """The upserts with missing cells read from the base; what is rescued of them; and for each cell that is not
        there, which stays null, its row.
        """
        upserts, rescued, missing = net.upserts, net.rescued, [NO_ROWS]
        if net.truncated or not net.fetches:
            return upserts, rescued, NO_ROWS
        located = [self._locate(fetch.keys) for fetch in net.fetches]
        numbers = np.unique(np.concatenate([places.files for places in located]))
        dead = deleted_rows(self.delete_files, [self.files[number].path for number in numbers])
        for fetch, places in zip(net.fetches, located, strict=True):
            found = self._live(places, dead, len(fetch.keys))
            upserts, texts = self._with_cells(upserts, fetch, places, found)
            of = np.array(list(texts), np.int64)
            rescued = with_cells(rescued, upserts.num_rows, of, [fetch.column] * len(of), list(texts.values()))
            missing.append(fetch.rows[found < 0])
        return upserts, rescued, np.concatenate(missing)

    def _live(self, places: Places, dead: Mapping[str, Rows], keys: int) -> Rows:
        """For each key the newest of its places that is alive; -1 where none is."""
        alive = np.ones(len(places.rows), bool)
        for number in np.unique(places.files):
            here = np.flatnonzero(places.files == number)
            alive[here] = ~np.isin(places.rows[here], dead.get(self.files[number].path, NO_ROWS))
        found = np.full(keys, -1)
        found[places.keys[alive]] = np.flatnonzero(alive)  # of several for one key, the last stays
        return found

    def _with_cells(
        self, upserts: pa.Table, fetch: Fetch, places: Places, found: Rows
    ) -> tuple[pa.Table, dict[int, str]]:
        """The upserts with one column's cells from the places found; by row the texts of those that were rescued."""
        number = upserts.schema.get_field_index(fetch.column)
        column = self.columns[number]
        values, order, length = [_one_array(upserts.column(number))], np.arange(upserts.num_rows), upserts.num_rows
        cells_in_base = np.flatnonzero(found >= 0)
        file_numbers = places.files[found[cells_in_base]]
        rescued: dict[int, str] = {}
        for file_number in np.unique(file_numbers):
            here = cells_in_base[file_numbers == file_number]
            file, rows = DataFile(self.files[file_number].path, self.columns), places.rows[found[here]]
            cells = file.cells(column, rows)
            if cells.null_count and file.has(self.rescued):
                texts = rescued_of(file.cells(self.rescued, rows), column.name).to_pylist()
                there = zip(fetch.rows[here].tolist(), texts, strict=True)
                rescued |= {row: text for row, text in there if text is not None}
            order[fetch.rows[here]] = length + np.arange(len(cells))
            values.append(cells)
            length += len(cells)
        filled = pa.concat_arrays(values).take(pa.array(order))
        return upserts.set_column(number, upserts.schema.field(number), filled), rescued


def as_one_age(parts: Sequence[IcebergPart]) -> tuple[tuple[IndexedFile, ...], tuple[str, ...]]:
    """Data files and delete files of a copy's parts, as a plan takes them: a key may be in any of them."""
    data = tuple(IndexedFile(file.path, file.records, 0) for part in parts for file in part.added)
    return data, tuple(part.delete.path for part in parts if part.delete is not None)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)

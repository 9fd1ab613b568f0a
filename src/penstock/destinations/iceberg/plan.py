"""The base of one write of one table, and the write itself, on an executor: keys looked up, cells fetched, files
written.

A touched key costs at most one positional delete: its row in the newest file that has the key. If that row is dead
already, deleting it again changes nothing. Rows of deletes and cells come by position, through the key index; no
table is scanned. Neighbours: `destination` makes plans from a table's state, `commit` commits the parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.destinations.iceberg.data_files import DataFile, WrittenFile, deleted_rows, write_deletes, write_rows
from penstock.destinations.iceberg.key_index import IndexedFile, KeyIndex
from penstock.destinations.iceberg.storage import reaching
from penstock.destinations.iceberg.table_schema import IcebergColumn
from penstock.fold.keys import encode_keys
from penstock.fold.net_effect import Fetch, NetEffect
from penstock.model.position import Position
from penstock.model.table import TableId

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class IcebergPart:
    data: WrittenFile | None = None
    delete: WrittenFile | None = None
    fetched: int = 0

    @property
    def rows(self) -> int:
        return self.data.records if self.data else 0

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
    def files(self) -> list[WrittenFile]:
        return [file for file in (self.data, self.delete) if file is not None]


@dataclass(frozen=True)
class IcebergPlan:
    target: TableId
    source: str
    position: Position
    metadata: str  # the metadata file that is the base: whatever changes the table replaces it
    snapshot: int | None
    folder: str  # where files go
    columns: tuple[IcebergColumn, ...]
    index: KeyIndex
    files: tuple[IndexedFile, ...]
    delete_files: tuple[str, ...]

    def write(self, net: NetEffect) -> IcebergPart:
        with reaching(f"table {self.target}: its files cannot be written"):
            deletes = {} if net.truncated or net.touched_keys is None else self._live_rows(net.touched_keys)
            upserts = net.upserts
            for fetch in net.fetches:
                upserts = self._filled(upserts, fetch, truncated=net.truncated)
            data = None
            if upserts.num_rows:
                data = write_rows(self.folder, self.columns, [upserts])
                if net.upsert_keys is not None:
                    self.index.write(data.path, net.upsert_keys)
            delete = write_deletes(self.folder, deletes) if deletes else None
        return IcebergPart(data, delete, sum(len(fetch.rows) for fetch in net.fetches))

    def _live_rows(self, keys: pa.Array) -> Mapping[str, Rows]:
        """The rows of keys that have one, by data file."""
        file_numbers, rows = self.index.locate(keys, self.files, self._read_keys)
        return {
            self.files[number].path: rows[file_numbers == number] for number in np.unique(file_numbers) if number >= 0
        }

    def _read_keys(self, file: IndexedFile) -> pa.Array:
        by_name = {column.name: column for column in self.columns}
        data_file = DataFile(file.path)
        return encode_keys([data_file.column(by_name[name]) for name in self.index.key])

    def _filled(self, upserts: pa.Table, fetch: Fetch, *, truncated: bool) -> pa.Table:
        """The upserts with one column's missing cells read from the base; null where the base has no such row."""
        number = upserts.schema.get_field_index(fetch.column)
        column = self.columns[number]
        values, order = [_one_array(upserts.column(number))], np.arange(upserts.num_rows)
        if not truncated:
            length = upserts.num_rows
            file_numbers, rows = self.index.locate(fetch.keys, self.files, self._read_keys)
            dead = deleted_rows(self.delete_files, [self.files[n].path for n in np.unique(file_numbers) if n >= 0])
            for file_number in np.unique(file_numbers):
                if file_number < 0:
                    continue
                path = self.files[file_number].path
                alive = (file_numbers == file_number) & ~np.isin(rows, dead.get(path, np.empty(0, np.int64)))
                cells = DataFile(path).cells(column, rows[alive]) if alive.any() else pa.nulls(0, column.type)
                order[fetch.rows[alive]] = length + np.arange(len(cells))
                values.append(cells)
                length += len(cells)
        filled = pa.concat_arrays(values).take(pa.array(order))
        return upserts.set_column(number, upserts.schema.field(number), filled)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)

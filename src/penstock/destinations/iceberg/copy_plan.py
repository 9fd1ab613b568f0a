"""Writing the rows of a copy, on an executor: one data file and its sidecar for each range that is read.

Rows go to the file a row group at a time; what is held besides are the range's encoded keys, for the sidecar. Nobody
sees the file before the whole copy is committed. Neighbours: `destination` makes these plans and commits the parts,
`plan` writes over the parts what has changed since they were read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from penstock.destinations.iceberg.data_files import COPY_PREFIX, in_groups, write_rows
from penstock.destinations.iceberg.key_index import KeyIndex
from penstock.destinations.iceberg.plan import IcebergPart
from penstock.destinations.iceberg.slices import IcebergSlice, stored
from penstock.destinations.iceberg.storage import reaching, removed_on_error
from penstock.destinations.iceberg.table_schema import IcebergColumn
from penstock.fold.keys import encode_keys
from penstock.model.table import TableId


@dataclass(frozen=True)
class IcebergCopy:
    target: TableId
    folder: str
    columns: tuple[IcebergColumn, ...]
    index: KeyIndex
    slice: IcebergSlice | None = None

    def write_rows(self, batches: Iterable[pa.RecordBatch | pa.Table]) -> IcebergPart:
        with reaching(f"table {self.target}: the files of its copy cannot be written"):
            keys: list[pa.Array] = []
            groups = self._noting_keys(in_groups(batches), keys)
            first = next(groups, None)
            if first is None:
                return IcebergPart()
            columns, _ = stored(self.slice, self.columns, first)
            rows = (stored(self.slice, self.columns, group)[1] for group in chain([first], groups))
            data = write_rows(self.folder, columns, rows, COPY_PREFIX)
            if self.index.key:
                with removed_on_error(data.path):
                    self.index.write(data.path, pa.concat_arrays(keys))
        return IcebergPart(data, columns=tuple(column.id for column in self.columns))

    def _noting_keys(self, groups: Iterator[pa.Table], keys: list[pa.Array]) -> Iterator[pa.Table]:
        for group in groups:
            if self.index.key:
                keys.append(encode_keys([group[name] for name in self.index.key]))
            yield group

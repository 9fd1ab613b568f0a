"""Write the rows of a copy on an executor: one data file and its sidecar per range that is read.

There are two of each if some of the range's cells had to be rescued. Rows go to the file a row group at a time; what is
held besides are the range's encoded keys, for the sidecar. Nobody sees the file before the whole copy is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from penstock.decode.rescue import RESCUED, RESCUED_TYPE
from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.data_files import COPY_PREFIX, WrittenFile, in_groups
from penstock.destinations.lake.key_index import KeyIndex
from penstock.destinations.lake.source_partition import SourceSlice, stored
from penstock.destinations.lake.storage import reaching, removed_on_error
from penstock.destinations.lake.table_format import TableFormat
from penstock.destinations.lake.upsert_plan import LakePart
from penstock.model.table import TableId


@dataclass(frozen=True, kw_only=True)
class LakeCopyPlan:
    """Where the rows of a copy go; see the contract's `CopyPlan`."""

    table_format: TableFormat
    target: TableId
    folder: str
    columns: tuple[LakeColumn, ...]
    rescued: LakeColumn  # as it is, or will be when it is first needed
    index: KeyIndex
    slice: SourceSlice | None = None

    def write_rows(self, batches: Iterable[pa.RecordBatch | pa.Table]) -> LakePart:
        """Up to the first batch with rescued cells into one file; that batch and those behind it into another."""
        coming = iter(batches)
        rescuing: list[pa.RecordBatch | pa.Table] = []

        def plain() -> Iterator[pa.RecordBatch | pa.Table]:
            for batch in coming:
                if RESCUED in batch.schema.names:
                    rescuing.append(batch)
                    return
                yield batch

        numbers = tuple(column.id for column in self.columns)
        data = self._file(plain(), self.columns)
        if not rescuing:
            return LakePart(data, columns=numbers)
        others = (_with_rescued(batch) for batch in chain(rescuing, coming))
        with removed_on_error(data.path) if data is not None else nullcontext():
            rescued = self._file(others, (*self.columns, self.rescued))
        return LakePart(data, columns=numbers, rescued=rescued, rescued_as=self.rescued)

    def _file(
        self, batches: Iterable[pa.RecordBatch | pa.Table], columns: tuple[LakeColumn, ...]
    ) -> WrittenFile | None:
        with reaching(f"table {self.target}: the files of its copy cannot be written"):
            keys: list[pa.Array] = []
            groups = self._noting_keys(in_groups(batches), keys)
            first = next(groups, None)
            if first is None:
                return None
            written, _ = stored(self.slice, columns, first)
            rows = (stored(self.slice, columns, group)[1] for group in chain([first], groups))
            data = self.table_format.write_rows(self.folder, written, rows, COPY_PREFIX)
            if self.index:
                with removed_on_error(data.path):
                    self.index.write(data.path, pa.concat_arrays(keys))
        return data

    def _noting_keys(self, groups: Iterator[pa.Table], keys: list[pa.Array]) -> Iterator[pa.Table]:
        for group in groups:
            if self.index:
                keys.append(self.index.encoded(group))
            yield group


def _with_rescued(batch: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
    if RESCUED in batch.schema.names:
        return batch
    nothing = pa.nulls(batch.num_rows, RESCUED_TYPE)
    return pa.table([*batch.columns, nothing], schema=batch.schema.append(pa.field(RESCUED, RESCUED_TYPE)))

"""Write and read Parquet files of lake tables, by column number. No Java, no Spark: this runs on executors.

Every file has its columns' numbers in it and a name that begins with PREFIX, by which leftovers of killed writers are
known. A written file is garbage until a commit names it; files of copies, which may wait long for theirs, are known by
COPY_PREFIX. What else a format says of a file, and how it marks rows as deleted, is behind `table_format`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.decode.rescue import RESCUED, followed
from penstock.destinations.lake.columns import FIELD_ID, LakeColumn, inner_fields, leaves
from penstock.destinations.lake.storage import make_folder_again, opened, reading, removed_on_error

PREFIX = "penstock-"
COPY_PREFIX = "penstock-copy-"
NAMES = "penstock.names"  # in a file whose names of columns are not the table's: those that it had for them then
ROWS_PER_GROUP = 1 << 17
BYTES_PER_GROUP = 64 << 20
SLICE_BYTES = 8 << 20  # of a row group, read at once
SLICE_ROWS = 256
SAMPLED_ROWS = 1 << 13
LEAST_REPEATED = 8  # times each value, on average
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class WrittenFile:
    """A file that no commit names yet. `description` is the table format's own: what a commit says of the file."""

    path: str
    size: int
    records: int
    description: Mapping[str, Any]
    hits: Mapping[str, int] = field(default_factory=dict)  # of a delete file: entries by data file


@dataclass(frozen=True)
class ParquetFigures:
    """What is known of a Parquet file once it is written."""

    size: int
    records: int
    column_sizes: dict[int, int]  # compressed, by the number of the leaf
    split_offsets: list[int]  # where its row groups begin


def in_groups(batches: Iterable[pa.RecordBatch | pa.Table]) -> Iterator[pa.Table]:
    """Yield the same rows in tables worth a row group: files must not become heaps of tiny groups."""
    held: list[pa.Table] = []
    rows = size = 0
    for batch in batches:
        held.append(pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        while rows >= ROWS_PER_GROUP or size >= BYTES_PER_GROUP:
            together = pa.concat_tables(held)
            fitting = rows if size < 2 * BYTES_PER_GROUP else max(1, rows * BYTES_PER_GROUP // size)
            count = min(fitting, ROWS_PER_GROUP)
            yield together.slice(0, count)
            rest = together.slice(count)
            held, rows, size = [rest] if rest.num_rows else [], rest.num_rows, rest.nbytes
    if rows:
        yield pa.concat_tables(held)


def write_parquet(
    location: str,
    columns: Sequence[LakeColumn],
    batches: Iterable[pa.Table],
    note: Callable[[pa.Table], None],
    metadata: Mapping[str, str] | None = None,
) -> ParquetFigures:
    """Write one Parquet file of all batches, of which there is at least one, with the columns' numbers in it.

    `note` sees each batch as it is written; `metadata` goes into the file's footer. None of the file stays if `batches`
    or the store raises."""
    schema = pa.schema([column.field() for column in columns])
    tables = (pa.table(batch.columns, schema=schema) for batch in batches)
    first = next(tables)
    footers: list[pq.FileMetaData] = []
    with removed_on_error(location), _created(location) as sink:
        with pq.ParquetWriter(
            sink,
            schema,
            compression="zstd",
            use_dictionary=_repetitive(first),
            store_schema=False,
            metadata_collector=footers,
        ) as writer:
            for rows in chain([first], tables):
                note(rows)
                writer.write_table(rows, row_group_size=ROWS_PER_GROUP)
            if metadata:
                writer.add_key_value_metadata(metadata)
        size = sink.tell()
    footer = footers[0]
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    numbers = [leaf for column in columns for leaf in leaves(column.type, column.id)]
    sizes = {
        leaf: sum(group.column(place).total_compressed_size for group in groups) for place, leaf in enumerate(numbers)
    }
    return ParquetFigures(size, footer.num_rows, sizes, [_offset(group.column(0)) for group in groups])


def _created(location: str) -> pa.NativeFile:
    """Return a new file. That somebody removed the folder costs what was in it, and nothing else."""
    system, path = opened(location)
    try:
        return system.open_output_stream(path)
    except FileNotFoundError:
        if not make_folder_again(location.rpartition("/")[0]):
            raise
        return system.open_output_stream(path)


def _repetitive(rows: pa.Table) -> list[str]:
    """Return columns whose values repeat: for others a dictionary costs twice the time and makes the file larger."""
    sample = rows.slice(0, SAMPLED_ROWS)
    plain = [field.name for field in rows.schema if not pa.types.is_nested(field.type)]
    return [name for name in plain if len(sample[name].unique()) * LEAST_REPEATED <= sample.num_rows]


def _offset(column: pq.ColumnChunkMetaData) -> int:
    return int(column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset)


class DataFile:
    """An existing data file, opened to read columns by number, whoever wrote it and whatever it calls them.

    A file's entries in RESCUED have the names that the table had for its columns when it was written; they are read
    under the names that `known` has for these, the table's columns as they are now. Columns are known by the numbers in
    the file, or, where `numbers` is given, by those that it has for the file's names.
    """

    def __init__(
        self, location: str, known: Sequence[LakeColumn] = (), numbers: Mapping[str, int] | None = None
    ) -> None:
        self._location = location
        with reading(location):
            system, path = opened(location)
            self._file = pq.ParquetFile(system.open_input_file(path))
        self._places: dict[int, list[int]] = {}  # of a column's number: where its leaves are
        self._names: dict[int, str] = {}
        begin = 0
        names = json.loads((self._file.metadata.metadata or {}).get(NAMES.encode(), b"{}"))
        for column in self._file.schema_arrow:
            end = begin + _leaf_count(column.type)
            number = _number_in_file(column) if numbers is None else numbers.get(column.name)
            if number is not None:
                self._places[number] = list(range(begin, end))
                self._names[number] = names.get(column.name, column.name)
            begin = end
        self._renamed = _renamed(self._names, known)
        groups = [self._file.metadata.row_group(number).num_rows for number in range(self._file.num_row_groups)]
        self._starts = np.concatenate([[0], np.cumsum(groups)]).astype(np.int64)

    def has(self, column: LakeColumn) -> bool:
        return column.id in self._places

    def column(self, column: LakeColumn, groups: Sequence[int] | None = None) -> pa.Array:
        """Return all values, or those of some row groups. A column that is younger than the file is null."""
        numbers = range(self._file.num_row_groups) if groups is None else groups
        places = self._places.get(column.id)
        if places is None:
            return pa.nulls(
                int(sum(self._starts[number + 1] - self._starts[number] for number in numbers)), column.type
            )
        with reading(self._location):
            read = self._file.reader.read_row_groups(list(numbers), column_indices=places).column(0)
        return self._now(column, _single(read))

    def group_of(self, row: int) -> int:
        """Return the number of the row group that holds a row."""
        return int(np.searchsorted(self._starts, row, side="right")) - 1

    def slices(self, columns: Sequence[LakeColumn], group: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield a row group, a few rows at a time, with the number of the first of them."""
        schema = pa.schema([column.field() for column in columns])
        begin, end = int(self._starts[group]), int(self._starts[group + 1])
        there = [column for column in columns if column.id in self._places]
        if not there:
            yield begin, pa.record_batch([pa.nulls(end - begin, column.type) for column in columns], schema=schema)
            return
        there.sort(key=lambda column: self._places[column.id])  # as they come
        places = [place for column in there for place in self._places[column.id]]
        at_once = self._rows_at_once(group, places)
        batches = self._file.reader.iter_batches(at_once, row_groups=[group], column_indices=places)
        while True:
            with reading(self._location):
                batch = next(batches, None)
            if batch is None:
                return
            read = {column.id: values for column, values in zip(there, batch.columns, strict=True)}
            arrays = [
                self._now(column, read[column.id]) if column.id in read else pa.nulls(batch.num_rows, column.type)
                for column in columns
            ]
            yield begin, pa.record_batch(arrays, schema=schema)
            begin += batch.num_rows

    def _rows_at_once(self, group: int, places: Sequence[int]) -> int:
        """Return so many that they take a few MiB. Of values in a dictionary nobody knows how large they are."""
        told = self._file.metadata.row_group(group)
        columns = [told.column(place) for place in places]
        if any(column.has_dictionary_page for column in columns):
            return SLICE_ROWS
        size = sum(int(column.total_uncompressed_size) for column in columns)
        return max(SLICE_ROWS, int(told.num_rows) * SLICE_BYTES // max(size, 1))

    def _now(self, column: LakeColumn, values: pa.Array) -> pa.Array:
        """Return values that were read, under the type and the names that the table has now."""
        values = values.cast(column.type)
        return followed(values, self._renamed) if column.name == RESCUED and self._renamed else values

    def batches(self, columns: Sequence[LakeColumn]) -> Iterator[tuple[int, pa.Table]]:
        """Yield row groups with the number of their first row."""
        schema = pa.schema([column.field() for column in columns])
        for number in range(self._file.num_row_groups):
            yield int(self._starts[number]), pa.table([self.column(c, [number]) for c in columns], schema=schema)


class Cursor:
    """Read some rows of a data file, a few at a time: what is held does not grow with the row groups.

    Rows that are asked for in ascending order, in one call or several, are read in one pass.
    """

    def __init__(self, file: DataFile, columns: Sequence[LakeColumn]) -> None:
        self._file, self._columns = file, columns
        self._group = -1
        self._slices: Iterator[tuple[int, pa.RecordBatch]] = iter(())
        self._begin, self._rows = 0, pa.record_batch([], schema=pa.schema([]))

    def take(self, rows: Rows) -> Iterator[pa.RecordBatch]:
        """Return these rows, none of which is lower than the one before it."""
        at = 0
        while at < len(rows):
            self._go_to(int(rows[at]))
            end = at + int(np.searchsorted(rows[at:], self._begin + self._rows.num_rows))
            yield self._rows.take(pa.array(rows[at:end] - self._begin))
            at = end

    def _go_to(self, row: int) -> None:
        """Make the slice that has the row the current one."""
        group = self._file.group_of(row)
        if group != self._group or row < self._begin:
            self._group, self._slices = group, self._file.slices(self._columns, group)
            self._begin, self._rows = next(self._slices)
        while row >= self._begin + self._rows.num_rows:
            self._begin, self._rows = next(self._slices)


def _renamed(names: Mapping[int, str], known: Sequence[LakeColumn]) -> dict[str, str | None]:
    """Return names of a file's columns that are others by now; None where another column has it."""
    now = {column.id: column.name for column in known}
    taken = set(now.values())
    present = {name: now.get(number, None if name in taken else name) for number, name in names.items()}
    return {before: after for before, after in present.items() if after != before}


def _number_in_file(column: pa.Field) -> int | None:
    return int(column.metadata[FIELD_ID]) if column.metadata and FIELD_ID in column.metadata else None


def _leaf_count(type: pa.DataType) -> int:
    return sum(_leaf_count(one.type) for one in inner_fields(type)) or 1


def _single(values: pa.ChunkedArray) -> pa.Array:
    combined = values.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)

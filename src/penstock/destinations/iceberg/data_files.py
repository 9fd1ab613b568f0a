"""How Iceberg keeps rows and deletions in files: data files, and positional delete files. Implements `TableFormat`.

Every file is Parquet with Iceberg's column numbers in it, and its figures (`metrics`) computed while it is written. No
Java, no Spark: this runs on executors.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.destinations.iceberg.metrics import Metrics
from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.data_files import PREFIX, DataFile, Rows, WrittenFile, write_parquet

DELETE_COLUMNS = (  # numbers reserved by Iceberg's specification
    LakeColumn(2147483546, "file_path", pa.string(), required=True),
    LakeColumn(2147483545, "pos", pa.int64(), required=True),
)


@dataclass(frozen=True)
class IcebergFormat:
    """Tables of format version 2.

    `WrittenFile.description` is the JSON of Iceberg's ContentFileParser but for the partition spec.
    """

    def write_rows(
        self, folder: str, columns: Sequence[LakeColumn], batches: Iterable[pa.Table], prefix: str = PREFIX
    ) -> WrittenFile:
        return _write(f"{folder}/{prefix}{uuid.uuid4().hex}.parquet", "data", columns, batches, exact=False)

    def write_deletes(self, folder: str, positions: Mapping[str, Rows], prefix: str = PREFIX) -> WrittenFile:
        paths = sorted(path for path, rows in positions.items() if len(rows))
        sorted_rows = [np.unique(positions[path]) for path in paths]
        numbers = np.repeat(np.arange(len(paths)), [len(rows) for rows in sorted_rows])
        entries = pa.table(
            {
                "file_path": pa.array(paths, pa.string()).take(pa.array(numbers)),
                "pos": pa.array(np.concatenate(sorted_rows), pa.int64()),
            }
        )
        location = f"{folder}/{prefix}{uuid.uuid4().hex}-deletes.parquet"
        written = _write(location, "position-deletes", DELETE_COLUMNS, [entries], exact=True)
        hits = {path: len(rows) for path, rows in zip(paths, sorted_rows, strict=True)}
        return WrittenFile(written.path, written.size, written.records, written.description, hits)

    def open_file(self, location: str, known: Sequence[LakeColumn] = ()) -> DataFile:
        return DataFile(location, known)

    def deleted_rows(self, delete_files: Iterable[str], data_files: Sequence[str]) -> dict[str, Rows]:
        if not data_files:
            return {}
        wanted = pa.array(data_files, pa.string())
        found: dict[str, list[Rows]] = {}
        for location in delete_files:
            entries = read_deletes(location)
            entries = entries.filter(pc.is_in(entries["file_path"], value_set=wanted))
            numbers, rows = pc.index_in(entries["file_path"], value_set=wanted).to_numpy(), entries["pos"].to_numpy()
            for number in np.unique(numbers):
                found.setdefault(data_files[number], []).append(rows[numbers == number])
        return {path: np.unique(np.concatenate(parts)) for path, parts in found.items()}

    def delete_entries(self, location: str) -> Mapping[str, Rows]:
        table = read_deletes(location)
        encoded = table["file_path"].combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        numbers, rows = np.asarray(encoded.indices), table["pos"].to_numpy()
        return {path: np.unique(rows[numbers == number]) for number, path in enumerate(encoded.dictionary.to_pylist())}

    def count_deletes(self, location: str) -> dict[str, int]:
        counts = pc.value_counts(read_deletes(location)["file_path"])
        return {entry["values"]: entry["counts"] for entry in counts.to_pylist()}

    def concerning(self, delete_files: Sequence[str], data_files: Sequence[str]) -> Sequence[str]:
        return delete_files

    def liveness(self, delete_files: Sequence[str]) -> None:
        return None


ICEBERG = IcebergFormat()


def read_deletes(location: str) -> pa.Table:
    """Read `file_path` and `pos` of a positional delete file, whoever wrote it."""
    file = DataFile(location)
    return pa.table({column.name: file.column(column) for column in DELETE_COLUMNS})


def _write(
    location: str, content: str, columns: Sequence[LakeColumn], batches: Iterable[pa.Table], *, exact: bool
) -> WrittenFile:
    metrics = Metrics([(column.id, column.type) for column in columns], exact=exact)
    figures = write_parquet(location, columns, batches, metrics.add)
    description = {
        "content": content,
        "file-path": location,
        "file-format": "parquet",
        "file-size-in-bytes": figures.size,
        "split-offsets": figures.split_offsets,
        **metrics.as_json(figures.column_sizes),
    }
    return WrittenFile(location, figures.size, figures.records, description)

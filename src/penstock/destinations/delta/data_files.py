"""How Delta keeps rows and deletions: Parquet files by physical names, and deletion vectors. Implements `TableFormat`.

Rows that die are named in texts (`actions.delete_line`), several lines where there are several files: those of a
committed vector, and those that a task has just found, which no commit has joined with a vector yet. No Java, no Spark:
this runs on executors.
"""

from __future__ import annotations

import json
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from penstock.decode.rescue import RESCUED
from penstock.destinations.delta.statistics import Statistics
from penstock.destinations.delta.vectors import Vector, bitmap_of, dead_rows, rows_of
from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.data_files import NAMES, PREFIX, DataFile, Rows, WrittenFile, write_parquet

LINES, PARTS, HERE = "\x1e", "\x1f", "here"  # HERE: the storage of rows that only their text has


@dataclass(frozen=True)
class DeltaFormat:
    """Files of one table.

    `names`: of each column that it has or had, its number, its name in files, and its id there. `partition` is the
    number of the column that files do not have, since the log says its value.
    """

    root: str
    names: tuple[tuple[int, str, int], ...]
    partition: int | None = None
    mapped: bool = False

    def write_rows(
        self, folder: str, columns: Sequence[LakeColumn], batches: Iterable[pa.Table], prefix: str = PREFIX
    ) -> WrittenFile:
        known = {number: (name, field) for number, name, field in self.names}
        kept = [place for place, column in enumerate(columns) if column.id != self.partition]
        stored = [
            replace(column, name=known[column.id][0], id=known[column.id][1])
            for column in (columns[place] for place in kept)
        ]
        told = {known[column.id][0]: column.name for column in columns}
        rescues = self.mapped and any(column.name == RESCUED for column in columns)
        statistics = Statistics(pa.schema([column.field() for column in stored]))
        location = f"{folder}/{prefix}{uuid.uuid4().hex}.parquet"
        figures = write_parquet(
            location,
            stored,
            (batch.select(kept) for batch in batches),
            statistics.add,
            {NAMES: json.dumps(told, ensure_ascii=False)} if rescues else None,
        )
        return WrittenFile(location, figures.size, figures.records, {"stats": statistics.text()})

    def write_deletes(self, folder: str, positions: Mapping[str, Rows], prefix: str = PREFIX) -> WrittenFile:
        """Write nothing: the rows are in the path."""
        dead = {path: bitmap_of(rows) for path, rows in positions.items() if len(rows)}
        text = LINES.join(
            PARTS.join((path, HERE, b64encode(rows.serialize()).decode(), "", "0", str(len(rows))))
            for path, rows in dead.items()
        )
        hits = {path: len(rows) for path, rows in dead.items()}
        return WrittenFile(text, 0, sum(hits.values()), {}, hits)

    def open_file(self, location: str, known: Sequence[LakeColumn] = ()) -> DataFile:
        return DataFile(location, known, {name: number for number, name, _ in self.names})

    def deleted_rows(self, delete_files: Iterable[str], data_files: Sequence[str]) -> dict[str, Rows]:
        wanted = set(data_files)
        found = bitmaps(self.root, [line for text in delete_files for line in _lines(text) if line[0] in wanted])
        return {path: rows_of(rows) for path, rows in found.items()}

    def delete_entries(self, location: str) -> Mapping[str, Rows]:
        return {path: rows_of(rows) for path, rows in bitmaps(self.root, _lines(location)).items()}

    def count_deletes(self, location: str) -> dict[str, int]:
        return {path: vector.cardinality for path, vector in _lines(location)}

    def concerning(self, delete_files: Sequence[str], data_files: Sequence[str]) -> list[str]:
        wanted = set(data_files)
        return [text for text in delete_files if any(path in wanted for path, _ in _lines(text))]

    def liveness(self, delete_files: Sequence[str]) -> Callable[[str, Rows], npt.NDArray[np.bool_]]:
        by_file: dict[str, list[Line]] = {}
        for text in delete_files:
            for line in _lines(text):
                by_file.setdefault(line[0], []).append(line)

        def alive(path: str, rows: Rows) -> npt.NDArray[np.bool_]:
            found = np.ones(len(rows), np.bool_)
            for _, vector in by_file.get(path, ()):
                hits = bitmap_of(rows) & dead_in(self.root, vector)
                if hits:
                    found &= ~np.isin(rows, rows_of(hits))
            return found

        return alive


Line = tuple[str, Vector]


@lru_cache(maxsize=4096)
def _lines(text: str) -> tuple[Line, ...]:
    """Read what a text says: files, and their dead rows."""
    lines = [line.split(PARTS) for line in text.split(LINES) if line]
    return tuple(
        (path, Vector(storage, place, int(size), int(dead), int(offset) if offset else None))
        for path, storage, place, offset, size, dead in lines
    )


def bitmaps(root: str, lines: Iterable[Line]) -> dict[str, BitMap]:
    """Return the dead rows by data file, joined."""
    found: dict[str, BitMap] = {}
    for path, vector in lines:
        rows = dead_in(root, vector)
        found[path] = found[path] | rows if path in found else rows
    return found


def dead_in(root: str, vector: Vector) -> BitMap:
    """Return the rows that a line of a text says. Not to be changed."""
    return _here(vector.place) if vector.storage == HERE else dead_rows(root, vector)


def named_rows(root: str, texts: Iterable[str]) -> dict[str, BitMap]:
    """Return the rows that texts name, by data file."""
    return bitmaps(root, [line for text in texts for line in _lines(text)])


@lru_cache(maxsize=256)
def _here(text: str) -> BitMap:
    return BitMap.deserialize(b64decode(text))

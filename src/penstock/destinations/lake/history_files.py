"""Which files of a table of versions hold what, and where its open versions are.

Versions that are open, that were followed by another, and that ended with their row's deletion lie in files of their
own, told apart by name. Only the first and the last kind are indexed: an open version must be found to be closed, and a
key that comes back must be known to have been there. The others are never read again by a write, so what it costs does
not grow with their number. Compaction keeps the kinds apart. A file that somebody else wrote may hold all kinds: it is
searched for open and for deleted versions, by their columns, and otherwise left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.data_files import PREFIX
from penstock.destinations.lake.key_index import IndexedFile, KeyIndex
from penstock.destinations.lake.table_format import TableFormat
from penstock.fold.keys import encode_keys
from penstock.fold.layout import OPEN, Layout

REPLACED_PREFIX = f"{PREFIX}past-"
ENDED_PREFIX = f"{PREFIX}gone-"
DELETES_KEPT = 64  # delete files whose entries a process remembers

Kind = Literal["open", "replaced", "ended", "foreign"]
Rows = npt.NDArray[np.int64]
NO_ROWS: Rows = np.empty(0, np.int64)


def kind_of(path: str) -> Kind:
    name = path.rpartition("/")[2]
    if name.startswith(REPLACED_PREFIX):
        return "replaced"
    if name.startswith(ENDED_PREFIX):
        return "ended"
    return "open" if name.startswith(PREFIX) else "foreign"


def kind_prefix(path: str) -> str:
    """Return that of names of files of the same kind."""
    return {"replaced": REPLACED_PREFIX, "ended": ENDED_PREFIX}.get(kind_of(path), PREFIX)


def kind_index(index: KeyIndex, path: str) -> KeyIndex:
    """Return the index that files of that kind have: none (its key is empty) where versions are never looked for."""
    kind = kind_of(path)
    return ended_index(index) if kind == "ended" else replace(index, key=()) if kind == "replaced" else index


def ended_index(index: KeyIndex) -> KeyIndex:
    """Return the index of keys that have a deleted version."""
    return replace(index, suffix="gone")


@dataclass(frozen=True)
class KeyReader:
    """Read the keys of a file again, for an index that has lost them. What does not count for it is null."""

    table_format: TableFormat
    columns: tuple[LakeColumn, ...]
    key: tuple[str, ...]
    layout: Layout
    ended: bool

    def __call__(self, file: IndexedFile) -> pa.Array:
        by_name = {column.name: column for column in self.columns}
        data_file = self.table_format.open_file(file.path)
        keys = encode_keys([data_file.column(by_name[name]) for name in self.key])
        period = self.layout.period
        if period is None or kind_of(file.path) != "foreign":
            return keys
        if self.ended:
            counts = data_file.column(by_name[period.deleted])
        else:
            counts = pc.equal(data_file.column(by_name[period.valid_to]).cast(pa.int64()), OPEN)
        return pc.if_else(counts, keys, pa.scalar(None, keys.type))


def dead_rows(table_format: TableFormat, delete_files: Sequence[str], data_files: Sequence[str]) -> dict[str, Rows]:
    """Do as the format's `deleted_rows` does, but read a delete file once per process: it never changes."""
    found: dict[str, list[Rows]] = {}
    wanted = set(data_files)
    for location in table_format.concerning(delete_files, data_files):
        entries = _entries(table_format, location)
        for path in wanted & entries.keys():
            found.setdefault(path, []).append(entries[path])
    return {path: np.unique(np.concatenate(parts)) for path, parts in found.items()}


@lru_cache(maxsize=DELETES_KEPT)
def _entries(table_format: TableFormat, location: str) -> Mapping[str, Rows]:
    return table_format.delete_entries(location)


def are_dead(
    table_format: TableFormat, delete_files: Sequence[str], data_file: str, rows: Rows
) -> npt.NDArray[np.bool_]:
    """Which of some rows of a data file the delete files end. What they cost does not grow with all that is dead."""
    dead = np.zeros(len(rows), np.bool_)
    for location in table_format.concerning(delete_files, [data_file]):
        ended = _entries(table_format, location).get(data_file, NO_ROWS)
        if len(ended):
            at = np.minimum(np.searchsorted(ended, rows), len(ended) - 1)
            dead |= ended[at] == rows
    return dead


def open_versions(
    table_format: TableFormat,
    files: Sequence[str],
    delete_files: Sequence[str],
    columns: tuple[LakeColumn, ...],
    layout: Layout,
) -> Iterator[tuple[str, Rows, pa.Table]]:
    """Yield every open version, a row group at a time: its file, its rows there, and the rows themselves."""
    period = layout.period
    assert period is not None
    for path in files:
        dead = dead_rows(table_format, delete_files, [path]).get(path, NO_ROWS)
        for start, rows in table_format.open_file(path, columns).batches(columns):
            numbers = np.arange(start, start + rows.num_rows)
            alive = np.asarray(pc.equal(rows[period.valid_to].cast(pa.int64()), OPEN)) & ~np.isin(numbers, dead)
            if alive.any():
                yield path, numbers[alive], rows.filter(pa.array(alive))

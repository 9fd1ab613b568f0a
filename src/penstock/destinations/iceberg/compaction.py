"""Keeps a table's files few: which files to merge, and the merging itself, on executors.

Tiered by size like an LSM tree: a tier with enough files becomes one file of the next, so files stay O(log n) and a
row is rewritten O(log n) times, until its file is large. Besides, a data file with many dead rows is rewritten without
them, and a delete file whose entries mostly point to files that are gone is rewritten or dropped. Large files with few
dead rows are left alone. One call takes only so much, for batches wait for it. Sidecars are written with the files.
`choose` and the tasks are pure of Java; `destination` commits the outcome strictly, between batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.destinations.iceberg.data_files import (
    PREFIX,
    DataFile,
    Rows,
    WrittenFile,
    deleted_rows,
    in_groups,
    read_deletes,
    write_deletes,
    write_rows,
)
from penstock.destinations.iceberg.key_index import KeyIndex
from penstock.destinations.iceberg.live_files import LiveFile, TableState
from penstock.destinations.iceberg.storage import reaching
from penstock.destinations.iceberg.table_schema import IcebergColumn
from penstock.destinations.iceberg.version_files import kind_of
from penstock.fold.keys import encode_keys
from penstock.model.table import TableId

SMALLEST_TIER = 64 << 10
SMALL = 512 << 10  # merged for being many, and not for what is dead in it
LARGE = 32 << 20  # not merged for being many
MOST_AT_ONCE = 64 << 20  # merged by one call, about: batches wait for it
MOST_DEAD = 0.3  # of a large file's rows; of a table's, before smaller files are rewritten for it
LEAST_ALIVE = 0.5  # of a delete file's entries


@dataclass(frozen=True)
class Choice:
    """What to merge: groups of data files, each into one; delete files, all into one."""

    groups: tuple[tuple[LiveFile, ...], ...]
    deletes: tuple[LiveFile, ...]

    def __bool__(self) -> bool:
        return bool(self.groups or self.deletes)

    @property
    def data(self) -> list[LiveFile]:
        return [file for group in self.groups for file in group]


def choose(state: TableState, spec: int, tier_files: int, *, versions: bool = False) -> Choice:
    """What is due. Every delete file's hits must have been counted. In a table of versions, files of one kind only go
    together, and those that somebody else wrote stay."""
    dead: dict[str, int] = {}
    for delete in state.deletes:
        for path, count in (delete.hits or {}).items():
            dead[path] = dead.get(path, 0) + count
    ours = [file for file in state.data if file.spec == spec]
    kinds: list[list[LiveFile]] = [ours]
    if versions:
        kinds = [[file for file in ours if kind_of(file.path) == kind] for kind in ("open", "replaced", "ended")]
        ours = [file for kind in kinds for file in kind]
    tiers = [tier for kind in kinds for tier in _full_tiers([file for file in kind if file.size < LARGE], tier_files)]
    groups = [group for tier in tiers for group in _large_enough(tier)]
    grouped = {file.path for group in groups for file in group}
    crowded = sum(dead.values()) > MOST_DEAD * sum(file.records for file in state.data)
    least = SMALL if crowded else LARGE
    groups += [
        (file,)
        for file in ours
        if file.path not in grouped and file.size >= least and dead.get(file.path, 0) > MOST_DEAD * file.records
    ]
    groups = _at_once(groups)
    gone = {file.path for group in groups for file in group}
    staying = {file.path for file in state.data} - gone
    hollow: list[LiveFile] = []
    full: list[LiveFile] = []
    for file in state.deletes:
        alive = sum(count for path, count in (file.hits or {}).items() if path in staying)
        worth = bool(groups) or file.size >= SMALL
        (hollow if worth and alive < LEAST_ALIVE * file.records else full).append(file)
    merged = [file for tier in _full_tiers(full, tier_files) for file in tier]
    return Choice(tuple(groups), tuple(hollow + merged))


def _full_tiers(files: Sequence[LiveFile], tier_files: int) -> list[tuple[LiveFile, ...]]:
    tiers: dict[int, list[LiveFile]] = {}
    for file in files:
        tier, limit = 0, SMALLEST_TIER * tier_files
        while file.size >= limit:
            tier, limit = tier + 1, limit * tier_files
        tiers.setdefault(tier, []).append(file)
    return [tuple(tier) for tier in tiers.values() if len(tier) >= tier_files]


def _large_enough(tier: Sequence[LiveFile]) -> list[tuple[LiveFile, ...]]:
    """The tier's files in groups that each make a large file: a copy leaves many files of one size behind."""
    groups: list[list[LiveFile]] = [[]]
    size = 0
    for file in tier:
        if size >= LARGE:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return [tuple(group) for group in groups if len(group) > 1]


def _at_once(groups: Sequence[tuple[LiveFile, ...]]) -> list[tuple[LiveFile, ...]]:
    """As many of the groups as one call may take; the others are for the next."""
    before = accumulate((sum(file.size for file in group) for group in groups), initial=0)
    return [group for group, size in zip(groups, before, strict=False) if size < MOST_AT_ONCE]


@dataclass(frozen=True)
class MergeData:
    """Data files to merge into one, without the rows that delete files end."""

    target: TableId
    folder: str
    columns: tuple[IcebergColumn, ...]
    index: KeyIndex
    files: tuple[str, ...]
    delete_files: tuple[str, ...]
    weight: int
    prefix: str = PREFIX

    def run(self) -> WrittenFile | None:
        """None when no row is left."""
        with reaching(f"table {self.target}: its files cannot be merged"):
            dead = deleted_rows(self.delete_files, self.files)
            keys: list[pa.Array] = []
            groups = in_groups(self._live_rows(dead, keys))
            first = next(groups, None)
            if first is None:
                return None
            written = write_rows(self.folder, self.columns, chain([first], groups), self.prefix)
            if self.index.key:
                self.index.write(written.path, pa.concat_arrays(keys))
            return written

    def _live_rows(self, dead: dict[str, Rows], keys: list[pa.Array]) -> Iterator[pa.Table]:
        for path in self.files:
            ended = dead.get(path, np.empty(0, np.int64))
            for start, rows in DataFile(path, self.columns).batches(self.columns):
                alive = np.ones(rows.num_rows, bool)
                here = ended[(ended >= start) & (ended < start + rows.num_rows)]
                alive[here - start] = False
                kept = rows.filter(pa.array(alive)) if len(here) else rows
                if kept.num_rows == 0:
                    continue
                if self.index.key:
                    keys.append(encode_keys([kept[name].combine_chunks() for name in self.index.key]))
                yield kept


@dataclass(frozen=True)
class MergeDeletes:
    """Delete files to merge into one, without entries for data files that are gone."""

    target: TableId
    folder: str
    files: tuple[str, ...]
    data_files: tuple[str, ...]
    weight: int

    def run(self) -> WrittenFile | None:
        """None when no entry is left."""
        with reaching(f"table {self.target}: its delete files cannot be merged"):
            positions = deleted_rows(self.files, self.data_files)
            return write_deletes(self.folder, positions) if positions else None


@dataclass(frozen=True)
class CountHits:
    """A delete file of which nobody has counted yet where its entries point."""

    target: TableId
    file: str
    weight: int

    def run(self) -> dict[str, int]:
        with reaching(f"table {self.target}: a delete file cannot be read"):
            counts = pc.value_counts(read_deletes(self.file)["file_path"])
            return {entry["values"]: entry["counts"] for entry in counts.to_pylist()}


def merge(task: MergeData | MergeDeletes) -> WrittenFile | None:
    return task.run()


def count_hits(task: CountHits) -> dict[str, int]:
    return task.run()

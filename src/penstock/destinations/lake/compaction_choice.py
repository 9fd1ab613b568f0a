"""Choose which files of a table to merge.

Tiered by size like an LSM tree: a tier with enough files becomes one file of the next, so files stay O(log n) and a
row is rewritten O(log n) times, until its file is large. Besides, while a read of the table costs more than it may
(`read_cost`), the files are rewritten whose dead rows cost most for their size, and a delete file whose entries mostly
point to files that are gone is rewritten or dropped. All that follows from what has changed: large files with few dead
rows are left alone, and so are a copy's files, unless there are so many that looking keys up takes long. One call takes
only so much. A pure function of the list of files; `compaction` does the merging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from penstock.destinations.lake.data_files import COPY_PREFIX
from penstock.destinations.lake.file_list import LiveFile, TableState
from penstock.destinations.lake.history_files import kind_of
from penstock.destinations.lake.read_cost import FULL_SIZE, dead_rows, read_cost, saved

SMALLEST_TIER = 64 << 10
SMALL = 512 << 10  # merged for being many, and not for what is dead in it
LARGE = FULL_SIZE  # not merged for being many
LARGE_COPY = 4 << 20  # the same for a file that a copy wrote, in a table of not too many files
MANY_FILES = 256
MOST_AT_ONCE = 64 << 20  # merged by one call, about
READ_LIMIT = 1.3  # of what reading the compact table costs
LEAST_DEAD = 0.15  # of a file's rows: to rewrite it for fewer costs more than it gives
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

    @property
    def size(self) -> int:
        return sum(file.size for file in (*self.data, *self.deletes))


def choose(
    state: TableState,
    spec: int,
    tier_files: int,
    *,
    versions: bool = False,
    limit: float = READ_LIMIT,
    at_once: int = MOST_AT_ONCE,
) -> Choice:
    """Choose what is due: files of one size, and files whose dead rows make reads cost too much.

    `tier_files` of one size are due, and so is what makes a read cost more than `limit` times the compact table's.
    Every delete file's hits must have been counted. In a table of versions, files of one kind only go together, and
    those that somebody else wrote stay.
    """
    dead = dead_rows(state)
    ours = [file for file in state.data if file.spec == spec]
    kinds: list[list[LiveFile]] = [ours]
    if versions:
        kinds = [[file for file in ours if kind_of(file.path) == kind] for kind in ("open", "replaced", "ended")]
        ours = [file for kind in kinds for file in kind]
    large_copy = LARGE_COPY if len(state.data) <= MANY_FILES else LARGE
    small = [[file for file in kind if file.size < (large_copy if _is_copied(file) else LARGE)] for kind in kinds]
    tiers = [tier for kind in small for tier in _full_tiers(kind, tier_files)]
    groups = [group for tier in tiers for group in _large_enough(tier)]
    grouped = {file.path for group in groups for file in group}
    rest = [file for file in ours if file.path not in grouped and file.size >= SMALL]
    groups = _at_once([*groups, *_costly(state, dead, rest, limit)], at_once)
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
    """Return the tier's files in groups that each make a large file: a copy leaves many files of one size behind."""
    groups: list[list[LiveFile]] = [[]]
    size = 0
    for file in tier:
        if size >= LARGE:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return [tuple(group) for group in groups if len(group) > 1]


def _is_copied(file: LiveFile) -> bool:
    return file.path.rpartition("/")[2].startswith(COPY_PREFIX)


def _costly(
    state: TableState, dead: Mapping[str, int], files: Sequence[LiveFile], limit: float
) -> list[tuple[LiveFile, ...]]:
    """Return the files that are rewritten for their dead rows until a read costs no more than the limit.

    First come those that give most for what they take.
    """
    cost = read_cost(state, dead)
    worth = [file for file in files if dead.get(file.path, 0) > LEAST_DEAD * file.records]
    chosen: list[tuple[LiveFile, ...]] = []
    now = cost.now
    for file in sorted(worth, key=lambda file: -saved(file, dead) / file.size):
        if now <= limit * cost.compact:
            break
        now -= saved(file, dead)
        chosen.append((file,))
    return chosen


def _at_once(groups: Sequence[tuple[LiveFile, ...]], most: int) -> list[tuple[LiveFile, ...]]:
    """Return as many of the groups as one call may take; the others are for the next."""
    before = accumulate((sum(file.size for file in group) for group in groups), initial=0)
    return [group for group, size in zip(groups, before, strict=False) if size < most]

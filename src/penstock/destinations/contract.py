"""What a destination promises. One behaviour suite (`tests/behaviour/test_destination_contract.py`) holds all to it.

**Ordering.** A table's changes arrive as net effects of consecutive ranges of the log. `plan` fixes the base of one
write, `WritePlan.write` turns a net effect into parts on executors, `commit` makes the parts of one plan visible. Parts
of one plan touch disjoint keys, so their order is of no account. Plans of one table are committed one after another.

**Duplicates.** A table carries its position, and position and rows move in one step. `commit` and `advance` are
strict: they succeed only if nothing, by anybody, has changed in the table since `plan` read it (for `advance`: if its
position is the expected one); otherwise they raise StaleBase and nothing has changed. So a batch that is applied
again after a crash, or by a second driver, or over a table that somebody rewrote, is refused or finds itself done:
never applied twice.

**Durability.** A returned `commit` means: rows and position are visible to every reader that looks from now on, and
they survive the death of every process of ours. StaleBase and DestinationUnreachable mean: nothing has changed.
CommitUnknown means: nobody can say; read `position`, which then tells whether the commit took place. Parts of an
unknown commit are not discarded before that.

**Visibility.** A reader sees the table before a commit or after it, never between.

**Leftovers.** Parts that are never committed are garbage: `discard` removes them when the driver lives, a later
`ensure_table` when it did not. Files are removed only after older drivers have been shut out of the table.

**Threads.** Calls for different tables may run at the same time; calls for one table take turns.

Errors that concern one table are TableError; those that concern the destination are DestinationError. `memory` is the
twin of this contract in one process, `iceberg` the real thing. The runtime alone calls these, and knows no class
behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from penstock.fold.net_effect import NetEffect
from penstock.model.position import Position
from penstock.model.table import TableId, TableSchema

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Capabilities:
    """What a destination can do, as data."""

    transactional: bool  # rows and position move in one step
    upserts: bool  # takes net effects by key; otherwise it takes rows only
    truncates: bool
    fetches: bool  # fills cells whose value only the destination still has
    maintained: bool  # `maintain` has something to do


@dataclass(frozen=True)
class MaintenanceReport:
    """What one call of `maintain` did."""

    merged_files: int = 0  # data files that went into fewer
    merged_deletes: int = 0  # delete files that went into fewer, or were dropped
    expired_snapshots: int = 0

    @property
    def did_something(self) -> bool:
        return bool(self.merged_files or self.merged_deletes or self.expired_snapshots)

    def __str__(self) -> str:
        return (
            f"merged {self.merged_files} data files and {self.merged_deletes} delete files, "
            f"expired {self.expired_snapshots} snapshots"
        )


class WrittenPart(Protocol):
    """What one task wrote, not yet visible. Picklable; the figures are for people."""

    @property
    def rows(self) -> int: ...  # rows written

    @property
    def deletes(self) -> int: ...  # rows of the base that die

    @property
    def fetched(self) -> int: ...  # cells read from the base

    @property
    def bytes(self) -> int: ...

    @property
    def empty(self) -> bool: ...  # committing it would change no row


class WritePlan(Protocol):
    """The base of one write of one table. Picklable; `write` runs on executors, without Spark, as often as there are
    parts.
    """

    @property
    def target(self) -> TableId: ...

    @property
    def position(self) -> Position: ...  # of the base

    def write(self, net: NetEffect) -> WrittenPart: ...


class JobRunner(Protocol):
    """Runs a function over picklable tasks, somewhere; results in the order of the tasks.

    A task's attribute `weight`, if it has one, says how much work it is. The first error of a task is raised, after
    all are done.
    """

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]: ...


class InProcessRunner:
    """A runner without Spark: for tests, and where there is nothing to spread."""

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        return [function(task) for task in tasks]


class Destination(Protocol):
    """The driver's side of a destination. `source` names the pipeline whose position is meant."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def open(self) -> None: ...

    def close(self) -> None: ...

    def ensure_table(self, target: TableId, schema: TableSchema, source: str, start: Position) -> Position:
        """Creates the table at `start` if it is missing, in one step with its position; gives the table's position.

        SchemaChanged if it exists with other columns, types or key; PositionLost if it exists without a position of
        this source. Must come before `plan` in each process; also removes what killed writers left behind.
        """
        ...

    def position(self, target: TableId, source: str) -> Position | None:
        """As the destination has it now; None when there is no such table, or none of this source."""
        ...

    def plan(self, target: TableId, source: str) -> WritePlan:
        """Reads the table as it is now; cheap when nobody else touched it."""
        ...

    def commit(self, plan: WritePlan, parts: Sequence[WrittenPart], *, truncated: bool, position: Position) -> None:
        """Parts, truncation and position become visible in one step; StaleBase if anything changed since `plan`."""
        ...

    def advance(self, target: TableId, source: str, expected: Position, position: Position) -> None:
        """Moves the position alone, if it is `expected`; StaleBase otherwise."""
        ...

    def maintain(self, target: TableId, run: JobRunner) -> MaintenanceReport:
        """Does what is due, between batches: the contents stay equal, positions stay."""
        ...

    def discard(self, parts: Sequence[WrittenPart]) -> None:
        """Removes parts that will not be committed."""
        ...

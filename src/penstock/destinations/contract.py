"""Define what a destination of tables promises; `tests/behaviour/test_destination_*.py` hold each one to it.

**Ordering.** A table's changes arrive as net effects of consecutive ranges of the log. `plan` fixes the base of one
write, `WritePlan.write` turns a net effect into parts on executors, `commit` makes the parts of one plan visible. Parts
of one plan touch disjoint keys, so their order does not matter. Plans of one table are committed one after another;
`plan_after` gives the next one while a commit is still to be made, so that the next batch is written beside it.

**Duplicates.** A table carries its position, and position and rows move in one step. `commit` and `advance` are
strict: they succeed only if nothing, by anybody, has changed in the table since `plan` read it (for `advance`: if its
position is the expected one); otherwise they raise StaleBase and nothing has changed. So a batch that is applied
again after a crash, or by a second driver, or over a table that somebody rewrote, is refused or finds itself done:
never applied twice.

**Durability.** A returned `commit` means: rows and position are visible to every reader that looks from now on, and
they survive the death of every process of ours. StaleBase and DestinationUnreachable mean: nothing has changed.
CommitUnknown means: the outcome is unknown; `position` then says whether the commit took place. Parts of an
unknown commit are not discarded before that.

**History.** A position means something only in the history of the change log that it was taken from. A copy gives its
table the log's id in the same step as the position (`commit_copy`, `commit_merge`), and the table carries it from then
on: `history` reads it. Who finds another id there than the log's must not go on from the table's position.

**Lineage.** Somebody may take rows of a table back (a rollback, a restore, a replaced table) while its position stays,
which then says more than is there. Every commit notes what it made; when the table does not descend from that any more,
`plan`, `advance` and `structure` raise LineageLost, until `commit_copy` or `commit_merge` has brought the table up to
date, or somebody has put back what was there. What others add on top of our commits is not looked at.

**Visibility.** A reader sees the table before a commit or after it, never between. A destination with `whole_batches`
also commits the tables of a batch in one step (`commit_batch`): as batches end where transactions of the source do, a
reader of several tables then never sees half of one.

**Whole rows.** A table without a key whose source sends whole old rows (`TableSchema.by_row`, in the layout of rows) is
a multiset. A net effect with `removals` ends as many live instances of each row as it says, no matter which, for they
are equal in every column that follows the source; columns that the table keeps of dropped ones are not compared. A base
that has fewer instances than needed is not what the source was: `write` raises RowsMissing, and nothing is written.
Parts of one plan remove different rows. Of a copy's parts all rows count, so they must be of one snapshot.

**Rescue.** A table gets the column RESCUED (`_rescued`, a map from column to text) in the same step as the first row
that needs it, and keeps it. A fetched cell brings along what was rescued of it, under the name that its column has now;
entries of rows that stay as they are may keep an earlier name until those are written again. The column is not part
of a table's structure: `ensure_table` neither wants it nor minds it.

**Copies.** A table without a position is not copied yet; readers see it empty. `plan_copy` and `CopyPlan.write_rows`
write rows that nobody sees, `plan_catchup` takes those parts for the base of a write, again and again, and
`commit_copy` replaces all that the table holds by the parts' rows, in one step with its position. A key may
be in several parts of a copy: a write over them ends each of its rows, and so do later writes over the committed table.
Parts outlive their driver: who remembers them can go on with them, if `parts_intact` says that they are still there.

**Structure.** A table carries the structure of the source that it follows, with the numbers of its columns, and that
moves in the same step as rows and position. `plan` and `plan_copy` may name the structure that the table has after the
commit; the parts of that plan are written under it. A column keeps its identity when it is renamed or widened. A column
that goes at the source stays, goes or is renamed, as `on_drop` says. `plan` takes only what `fold.evolution.follow`
calls light; `plan_copy` takes anything, for `commit_copy` replaces all rows. Columns that somebody added stay, and are
null in rows that are written again.

**Versions.** A table of versions (its layout has a period) holds every version of a row. Net effects with steps close
the open versions of touched keys and open others, as `fold.versions` says; versions that have ended are never read
again, so a write costs what it touches however many of them there are. Such a table carries the last moment that was
applied to it beside its position.

**Merges.** Where a table's past is to be kept, a copy does not take its place: `plan_merge` gives the base of a write
that puts what the copy holds into the table, and `commit_merge` commits it with the position of the copy.

**Bookmarks.** `bookmark` names a table's contents as they are, and keeps them readable under that name while the table
goes on, until `release`. A bookmark whose driver died is given up after BOOKMARKS_LAST.

**Types.** Rows arrive under schemas that are fitted to the destination's type map (`Capabilities.types`), so a
destination never sees an Arrow type that it lacks. A value that does not fit the type it is given comes rescued.

**Several sources.** A table may be fed by several sources of one family (one pipeline), each with a `sid` of its own: a
column, and part of the key. Each source has a position, a structure and rows of its own there; what it plans, commits,
copies, truncates, maintains and discards is its share, and it sees nothing else. The table has the union of the
sources' columns, null where a source has none; a source adds and widens columns, and takes or renames none: with a
renamed column it is copied again. A source that comes to a table of its family is taken in, to be copied. Commits of
several sources by one process take turns, and a plan stays valid over them; over what anybody else has done it is
stale. Without a `sid` a table has one source.

**Leftovers.** Parts that are never committed are garbage: `discard` removes them when the driver lives, a later
`ensure_table` when it did not, except those that it is asked to keep. Files are removed only after older drivers have
been shut out of the table.

**Threads.** Calls for different tables, or for different sources of one table, may run at the same time; calls for one
source's table take turns.

Errors that concern one table are TableError; those that concern the destination are DestinationError. Between the two
is FileUnreadable, which `diagnose` decides. TableDropped, from any call that reads the table: somebody dropped it, or
replaced it by another; `ensure_table` makes it again. `memory` is the twin of this contract in one process, `iceberg`
the real thing. The runtime alone calls these, and knows no class behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.destinations.structure import OnDrop
from penstock.errors import FileUnreadable, PenstockError, TableError
from penstock.fold.layout import ROWS, Layout
from penstock.fold.net_effect import NetEffect
from penstock.model.feed import Mode, Sid
from penstock.model.position import Position
from penstock.model.table import TableId, TableSchema
from penstock.model.type_map import TypeMap
from penstock.model.upkeep import TableShape

BOOKMARKS_LAST = 24 * 3600.0  # seconds

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Capabilities:
    """What a destination can do, as data. The runtime asks before it calls what a destination may not have."""

    modes: frozenset[Mode]  # that its tables can have; a feed of another mode is Errored
    maintained: bool  # `maintain` has something to do; otherwise it is never called
    bookmarks: bool  # `bookmark` and `release` work; without them tables cannot be pinned, hence not verified
    types: TypeMap  # what its columns can be; schemas that it is given are fitted to it (`decode.choices.fitted`)
    whole_batches: bool = False  # `commit_batch` works (`WholeBatches`)
    # Who looks up what the base holds of a batch's rows: `write`, or only the commit. The figures of parts are then
    # upper bounds, and RowsMissing and CopyNeeded (for a cell that nobody has) come from the commit.
    looks_up: Literal["write", "commit"] = "write"
    # What a plan is strict about: any change of the table, by anybody, or only changes of its position and structure.
    strict: Literal["table", "position"] = "table"


@dataclass(frozen=True)
class MaintenanceReport:
    """What one call of `maintain` did."""

    merged_files: int = 0  # data files that went into fewer
    merged_deletes: int = 0  # delete files that went into fewer, or were dropped
    expired_snapshots: int = 0
    swept_files: int = 0  # files that nobody knew any more
    shape: TableShape | None = None  # what the table is like now; None: as it was before, or not known

    @property
    def did_something(self) -> bool:
        return bool(self.merged_files or self.merged_deletes or self.expired_snapshots or self.swept_files)

    def __str__(self) -> str:
        return (
            f"merged {self.merged_files} data files and {self.merged_deletes} delete files, "
            f"expired {self.expired_snapshots} snapshots, removed {self.swept_files} unknown files"
        )


class WrittenPart(Protocol):
    """What one task wrote, not yet visible. Picklable; the figures are for logs and `status`."""

    def to_json(self) -> str:
        """Write a part of a copy (`CopyPlan.write_rows`) as a record that outlives the run, without its rows."""
        ...

    @property
    def rows(self) -> int: ...  # rows written

    @property
    def deletes(self) -> int: ...  # rows of the base that die

    @property
    def fetched(self) -> int: ...  # cells read from the base

    @property
    def unresolved(self) -> int: ...  # cells that only the base could have told, and it has no such row: left null

    @property
    def unresolved_rows(self) -> Sequence[int]: ...  # the rows of the net effect's upserts that have such cells

    @property
    def bytes(self) -> int: ...

    @property
    def empty(self) -> bool: ...  # committing it would change no row


class WritePlan(Protocol):
    """The base of one write of one table.

    Picklable; `write` runs on executors, without Spark, as often as there are parts.
    """

    @property
    def target(self) -> TableId: ...

    @property
    def source(self) -> str: ...

    @property
    def position(self) -> Position: ...  # of the base

    @property
    def layout(self) -> Layout: ...  # what `write` takes: net effects of rows, or with steps

    @property
    def moment(self) -> int: ...  # for a table of versions: the last that was applied to the base; 0 before the first

    def write(self, net: NetEffect) -> WrittenPart:
        """RowsMissing when rows are to be removed that the base does not have."""
        ...

    @property
    def groups(self) -> int: ...  # into how many groups `held` divides the base

    def held(self, group: int, columns: Sequence[str]) -> pa.Table:
        """Return some columns of the rows that the base holds in a group; of a table of versions, of the open ones.

        RESCUED may be asked for: it is null where nothing was rescued.
        """
        ...

    def has(self, keys: pa.Array) -> npt.NDArray[np.bool_]:
        """Which of the keys (as encode_keys makes them) have a row in the base; an open version, in such a table."""
        ...


class CopyPlan(Protocol):
    """Where the rows of a copy go. Picklable; `write_rows` runs on executors, without Spark, once for each range."""

    @property
    def target(self) -> TableId: ...

    def write_rows(self, batches: Iterable[pa.RecordBatch | pa.Table]) -> WrittenPart:
        """Write one part of all batches, which have the columns of decode's arrow_schema.

        A batch with rescued cells has RESCUED behind them. Rows are written as they come: memory does not grow with
        their number, but for the keys. What `batches` raises goes through, and leaves nothing behind.
        """
        ...


@dataclass(frozen=True)
class TableCommit:
    """One table's part of a batch, as `commit` takes it."""

    plan: WritePlan
    parts: Sequence[WrittenPart]
    truncated: bool
    position: Position
    moment: int | None = None


class JobRunner(Protocol):
    """Run a function over picklable tasks, somewhere; results in the order of the tasks.

    A task's attribute `weight`, if it has one, says how much work it is. The first error of a task is raised, after
    all are done. May be called from several threads at once; jobs of different functions then share what there is."""

    @property
    def slots(self) -> int:
        """How many tasks it runs side by side."""

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]: ...


class PooledRunner(JobRunner, Protocol):
    """A runner that several destinations share."""

    def for_destination(self, name: str) -> JobRunner:
        """Return the same runner as one destination uses it: its jobs wait behind those of no other."""


@dataclass(frozen=True)
class InProcessRunner:
    """A runner without Spark: for tests, and where there is nothing to spread."""

    slots: int = 1

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        return [function(task) for task in tasks]

    def for_destination(self, name: str) -> InProcessRunner:
        return self


class TableDestination(Protocol):
    """The driver's side of a destination. `source` names the pipeline whose position is meant."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def open(self) -> None: ...

    def close(self) -> None: ...

    def ensure_table(
        self,
        target: TableId,
        schema: TableSchema,
        source: str,
        start: Position | None,
        keep: Sequence[WrittenPart] = (),
        layout: Layout = ROWS,
        sid: Sid | None = None,
    ) -> Position | None:
        """Create the table at `start` if it is missing, in one step with its position, and return the table's position.

        `schema` has the columns that are kept of the source's table, `layout` says what is around them.

        `start` None creates it without a position: it has to be copied. None is given as long as it is not.
        `schema` counts for a new table only: one that exists follows the structure that it says itself (`structure`).
        SchemaChanged if somebody took columns from it, or it is of another layout; PositionLost if it exists without a
        position of this source and was not made to be copied from it. Must come before plans in each process;
        also removes what killed writers left behind, but for the parts `keep` of a copy that goes on.

        `sid` is given for a table that several sources may feed: it is then this source's share that all calls with
        `source` are about. SchemaChanged if its structure cannot be united with the others'.
        """
        ...

    def position(self, target: TableId, source: str) -> Position | None:
        """Return it as the destination has it now; None when there is no such table, or none of this source."""
        ...

    def history(self, target: TableId, source: str) -> str:
        """Return the id of the log that the position is of, as the last copy gave it; "" when none did.

        After `ensure_table`.
        """
        ...

    def structure(self, target: TableId, source: str) -> TableSchema:
        """Return the structure of the source that the table follows, as it was last committed; after `ensure_table`."""
        ...

    def rule(self, target: TableId, source: str) -> str | None:
        """Return what the table's rows were made under: `layout.rule` of the last copy, or of the table's creation.

        To be called after `ensure_table`. None when the table does not say.
        """
        ...

    def drop_table(self, target: TableId, source: str) -> None:
        """Remove the table, with its rows and files, whatever its layout; `ensure_table` makes it again.

        A table that is gone is fine. TableError, and nothing is removed, when it also has rows of other sources or is
        not ours.
        """
        ...

    def plan(
        self,
        target: TableId,
        source: str,
        schema: TableSchema | None = None,
        on_drop: OnDrop = "keep",
        *,
        thorough: bool = False,
        presumed: bool = False,
    ) -> WritePlan:
        """Read the table as it is now; cheap when nobody else touched it.

        `schema` is what the table follows after the commit, every column numbered; None: it stays.

        `presumed`: the table as this destination's own last commit left it will do, without looking. If somebody else
        has touched it since, the commit is refused, and the plan must be made again, not presumed.

        A write over a `thorough` plan ends every row that a touched key has, also those that only somebody else can
        have made; otherwise it is sure to end the one that we wrote.
        """
        ...

    def commit(
        self,
        plan: WritePlan,
        parts: Sequence[WrittenPart],
        *,
        truncated: bool,
        position: Position,
        moment: int | None = None,
    ) -> None:
        """Parts, truncation and position become visible in one step; StaleBase if anything changed since `plan`.

        `moment`: for a table of versions, the last one of the parts.
        """
        ...

    def plan_after(
        self, plan: WritePlan, parts: Sequence[WrittenPart], *, position: Position, moment: int | None = None
    ) -> WritePlan | None:
        """Return the base of the write that follows the commit of these parts, asked before that commit begins.

        None when only the commit can tell. The plan's own commit is refused unless that commit, and nothing else, was
        made meanwhile. The structure stays, and nothing was truncated.
        """
        ...

    def plan_copy(
        self, target: TableId, source: str, schema: TableSchema | None = None, on_drop: OnDrop = "keep"
    ) -> CopyPlan:
        """Return where a copy of the table goes, and the base of its commit.

        What the table holds now is what the copy replaces, its structure too, if `schema` is another.
        """
        ...

    def plan_catchup(self, target: TableId, source: str, base: Sequence[WrittenPart], position: Position) -> WritePlan:
        """Return the base of a write over a copy that is not committed yet, which stands at `position`.

        `base` are all its parts so far, those that are newer behind those that are older. The write ends every row
        that a touched key has in them; cells are fetched from the newest of its rows that has not ended. What it
        gives is one more part of the copy; if it truncated the table, the only one.
        """
        ...

    def commit_copy(
        self, target: TableId, source: str, parts: Sequence[WrittenPart], position: Position, history: str = ""
    ) -> None:
        """All that the table holds goes, the parts' rows come, and position and history are set, in one step.

        StaleBase if another driver has opened the table and removed leftovers, or has moved its position, since
        `plan_copy`, which must come first in each process. RangeVoid if the parts are not of the structure planned."""
        ...

    def plan_merge(self, target: TableId, source: str) -> WritePlan:
        """Plan as `plan` does, for a table whose finished copy is to be merged: it may have no position.

        Its structure becomes that of the copy.
        """
        ...

    def commit_merge(
        self,
        plan: WritePlan,
        parts: Sequence[WrittenPart],
        position: Position,
        moment: int | None = None,
        history: str = "",
    ) -> None:
        """Commit as `commit` does, with position and history of the copy that was merged.

        StaleBase as `commit` and `commit_copy`.
        """
        ...

    def part_from_json(self, text: str) -> WrittenPart:
        """Read a part as `WrittenPart.to_json` wrote it, or raise UnreadableRecord.

        The record may come from anywhere: it names files that a copy has written, and no others.
        """
        ...

    def parts_intact(self, parts: Sequence[WrittenPart]) -> list[bool]:
        """Return for each part whether what it wrote is still there, and whole."""
        ...

    def advance(self, target: TableId, source: str, expected: Position, position: Position) -> None:
        """Move the position alone, if it is `expected`; StaleBase otherwise. To the same position: only looks."""
        ...

    def bookmark(self, target: TableId, source: str, name: str) -> str:
        """Keep the contents as they are now readable, and return what the destination calls them, "" if it has none."""
        ...

    def release(self, target: TableId, source: str, name: str) -> None:
        """Let go of a bookmark that is not needed any more. One that is gone already, or whose table is, is fine."""
        ...

    def maintain(self, target: TableId, source: str, run: JobRunner) -> MaintenanceReport:
        """Do what is due, between batches: the contents stay equal, positions stay.

        What takes long is begun by one call, goes on beside batches, and is ended by a later call. Of a table of
        several sources it touches this source's share only. Several threads may call at once, for different tables.
        """
        ...

    def discard(self, parts: Sequence[WrittenPart]) -> None:
        """Remove parts that will not be committed."""
        ...

    def diagnose(self, target: TableId, source: str, error: FileUnreadable) -> PenstockError:
        """Find out what it means that a file could not be read.

        FilesLost when the table consists of it and the store answers otherwise, TableDropped when the table is gone,
        StaleBase when it no longer consists of the file, DestinationUnreachable when the store does not answer, or the
        file may be read the next time.
        """
        ...


class WholeBatches(Protocol):
    """What a destination with the capability `whole_batches` has besides."""

    def commit_batch(self, commits: Sequence[TableCommit]) -> Sequence[TableError | FileUnreadable | None]:
        """Make the commits of several tables visible in one step, each as `commit` would.

        Return, in their order, None for each that was made and the error of each that its own table cannot take: that
        table is left as it was, and the others are committed without it. StaleBase, DestinationUnreachable: nothing
        has changed in any table. CommitUnknown: `position` says of each table whether it was committed; as they are
        committed together, all were or none."""
        ...


def committing_whole_batches(destination: TableDestination) -> WholeBatches | None:
    """Return the destination as one that commits whole batches; None when it commits table by table."""
    return cast(WholeBatches, destination) if destination.capabilities.whole_batches else None

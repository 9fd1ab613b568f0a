"""What penstock asks of a source: a database whose tables are followed.

The runtime, the commands and the reports know these protocols and `factory.py`, which makes the source that the file's
`type:` names; nobody outside `source/` imports an implementation. What a snapshot gives is in `snapshot_contract.py`.
docs/write-a-source.md goes through them in order.

**Positions.** A position is an unsigned 64-bit number that orders transactions by their commits. It is exclusive:
everything before it is contained. A transaction is skipped if and only if its commit position is below it. How people
write one is the source's (`position_text`, `parse_position`).

**Capture.** `Source.capture` runs in a process of its own until it is stopped. It puts whole transactions into a
`SegmentSink` in commit order, each change as the raw bytes that the source sent, and never interprets a value: one bad
value must not stop the stream. It goes on where the sink ends. A position is confirmed to the source only after the
sink has made it durable. What it cannot read any more is a GapError; a gap is never passed over in silence.

**Retention.** The source keeps its changes for the pipeline (`Session.retain`; a replication slot in Postgres) from a
position on, until `release`. Whatever the source keeps costs it disk, so a start that fails gives up what it made.

**Tables.** `discover` gives the wanted tables as a plain copy would see them. `follow` makes the source send their
changes, changes only what the pipeline manages, and returns what keeps single tables from being followed: that is the
trouble of those tables and of nothing else.

**Snapshots.** A snapshot sees all transactions below its position. Where readers cannot share one cut, `read` says at
which position it read a range (`seen`, never below the snapshot's), or, if it cannot say, `passed` is a position from
which on nothing was seen: the log is replayed from the lowest position until all of these are passed. A snapshot lives
as long as it is open and its connection lasts. Ranges that were planned in it together are the table, once each; a
`TableReader` reads one of them on any machine.
When what was read cannot be relied on (the table was rewritten or altered), the reader raises
RangeVoid at the latest at the end of the range, and all that was read of the table under that plan is void. Ranges
survive a restart as JSON: `why_void` says whether the rest of an earlier plan can still be read.

**Watching.** What the change stream does not say is found by looking: `marks`, `partitions` and `counters` of a table
are kept with its copy and compared with later ones by `runtime/watch`. A source whose stream says everything returns
marks that never change, no partitions, and counters that are never asked for.

**Health.** `health` says how the source fares as labelled facts for an operator, and as `details` for programs.

**Advice.** Statements that only this database understands come from `advice`; no other room writes its SQL.

Errors are SourceError: SourceUnreachable and SourceLocked pass by themselves, SourceMisconfigured is for an operator.
TableError concerns one table. No message holds a password.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Protocol, Self

import pyarrow as pa

from penstock.errors import GapError, TableError
from penstock.model.partitions import Links, Partition
from penstock.model.position import Position
from penstock.model.row_digest import Figures
from penstock.model.source_events import NONE_WANTED, WantedEvents
from penstock.model.table import TableId, TableSchema
from penstock.model.table_marks import TableMarks
from penstock.model.write_counters import WriteCounters
from penstock.source.finding import Finding
from penstock.source.sink import Origin, SegmentSink
from penstock.source.snapshot_contract import CatalogueReader, CopyRange, OwnRange, Snapshot, WantedTables

Severity = Literal["ok", "warning", "error"]
Report = Callable[[dict[str, object]], None]
Waiting = Callable[[Sequence[str]], None]  # is given whom a snapshot waits for


class StopFlag(Protocol):
    """A threading.Event, or anything that behaves like one."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


@dataclass(frozen=True)
class SegmentSettings:
    """How capture cuts its segments.

    `patient`: a source that cannot be reached at the very start is waited for, as one that goes away later is. `wanted`
    are events of the source that are kept beside changes of rows, as far as it has them.
    """

    segment_bytes: int
    segment_age: float  # seconds, like idle_every
    idle_every: float
    patient: bool = True
    wanted: WantedEvents = NONE_WANTED


@dataclass(frozen=True)
class Fact:
    """One thing about a source's health: `slot penstock_shop` is `active`. A number is a number of bytes."""

    label: str
    value: str | int
    severity: Severity = "ok"


@dataclass(frozen=True)
class SourceHealth:
    """How a source fares. `is_read`: somebody reads its changes for this pipeline now. `details` are JSON values."""

    position: Position
    is_read: bool
    facts: tuple[Fact, ...] = ()
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Retention:
    """What the source keeps of its changes for the pipeline.

    `name` is as an operator knows it (`slot penstock_shop`), `reader` is who reads it now, `kept` says how much is kept
    for it (`1,234 bytes of WAL`).
    """

    name: str
    reader: str | None
    confirmed: Position | None
    kept: str


@dataclass(frozen=True)
class Retained:
    """Changes are kept from `position` on; `made`: this call arranged it."""

    position: Position
    made: bool


class Alteration(Protocol):
    """One change of what the source sends, made or still to be made."""

    @property
    def doing(self) -> str:
        """A log clause: `adding tables to the publication`."""
        ...

    @property
    def done(self) -> str:
        """A log clause: `tables added to the publication`."""
        ...

    @property
    def text(self) -> str:
        """The statement."""
        ...

    @property
    def tables(self) -> tuple[TableId, ...]: ...

    @property
    def adds_tables(self) -> bool:
        """Whether changes of its tables were not sent before it."""
        ...

    def about(self, table: TableId | None) -> str:
        """Say what it means for one of its tables; None: as a whole."""
        ...


class Following(Protocol):
    """What `follow` found and did.

    Of `inserts_only` no update and no delete is sent. `staying` are tables that nothing matches any more and whose
    changes are still sent.
    """

    @property
    def done(self) -> Sequence[Alteration]: ...

    @property
    def troubles(self) -> Mapping[TableId, TableError]: ...

    @property
    def inserts_only(self) -> frozenset[TableId]: ...

    @property
    def staying(self) -> Sequence[Alteration]: ...


class Session(CatalogueReader, Protocol):
    """A connection to the source. Not for several threads at once."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def close(self) -> None: ...

    @property
    def version(self) -> str:
        """Name product and version: `Postgres 17.2`."""
        ...

    def check(self, wanted: WantedTables) -> list[Finding]:
        """Return what must be fixed before the pipeline can follow the source. Changes nothing."""
        ...

    def discover(self, wanted: WantedTables) -> list[TableSchema]:
        """Return the wanted tables with the columns that are sent, by name."""
        ...

    def head(self) -> Position:
        """Return the position up to which the source's changes are durable."""
        ...

    def health(self) -> SourceHealth: ...

    def find_gap(self, end: Position, origin: Origin) -> GapError | None:
        """Return the gap between a log that ends there and the source, as far as one shows without reading."""
        ...

    def install(self) -> None:
        """Install what the file allows penstock to install by itself. The pipeline runs without it too."""
        ...

    def readable(self) -> frozenset[str]:
        """Return what capture will read from its next start on, in the source's own names."""
        ...

    def follow(
        self,
        wanted: WantedTables,
        schemas: Sequence[TableSchema],
        *,
        reading: frozenset[str],
        may_leave: bool,
        before: Callable[[Alteration], None],
    ) -> Following:
        """Make the source send the changes of these tables, as far as the role may.

        `reading` is what capture reads, or will (`readable`). With `may_leave`, tables that nothing matches any more
        are not sent any longer. `before` is called with each change that is about to be made.
        """
        ...

    def leaving(self, wanted: WantedTables) -> Sequence[Alteration]:
        """Return what `follow` with `may_leave` would take out. Changes nothing."""
        ...

    def retain(self, log_end: Position | None) -> Retained:
        """Have the source keep its changes, if it does not yet; may wait long.

        GapError when it has to begin again although the log has an end.
        """
        ...

    def retention(self) -> Retention | None:
        """Return what is kept for the pipeline. SourceMisconfigured when it is another's."""
        ...

    def release(self) -> None:
        """Let the source forget what it keeps for the pipeline; SlotBusy while somebody reads it."""
        ...

    def cut_off(self) -> str | None:
        """End the session that reads what is kept for the pipeline; return which that was, None if nobody reads.

        For whoever takes the pipeline over from a run that has not ended. SourceError when it may not.
        """
        ...

    def counters(self, schemas: Sequence[TableSchema]) -> dict[TableId, WriteCounters]:
        """Return how many rows of each table were updated and deleted so far."""
        ...

    def counts_writes(self) -> bool:
        """Return whether `counters` can be relied on."""
        ...

    def has_rows(self, partition: Partition) -> bool: ...

    def has_rows_before(self, partition: Partition, horizon: int) -> bool:
        """Return whether a row of the partition is older than a look with that horizon: it was not truncated since."""
        ...

    def links_since(self, before: Links, now: Links) -> Links:
        """Return `now`, with the links to partitions that were made or removed since `before` and that no look saw."""
        ...

    def why_events_missing(self, before: TableMarks, now: TableMarks) -> str:
        """Say why changes of a table that had the marks `before` may not have been sent; "" when all were."""
        ...

    def why_unsent(self, table: TableId, before: TableMarks, now: TableMarks) -> str:
        """Look at the table's rows where its marks alone do not tell whether changes were never sent; "" when all were.

        SourceLocked when the table cannot be looked at now; the same holds for `why_renamed`.
        """
        ...

    def why_renamed(self, table: TableId, before: TableMarks, now: TableMarks, *, partitioned: bool) -> str:
        """Say why rows may hold values under earlier names, although their marks are only new ones; "" if none do."""
        ...

    def with_additions(self, before: TableMarks, now: TableMarks) -> TableMarks:
        """Return `before` with what is only new in `now`, and no reason to copy the table again."""
        ...

    def first_rows(self, schema: TableSchema, most: int) -> pa.Table:
        """Return a few rows of a table as a copy reads them, whichever the server gives first.

        The columns are those of decode's `arrow_schema`, with RESCUED behind them where a cell does not fit.
        """
        ...

    def figures(self, schema: TableSchema) -> Figures:
        """Return the figures of a whole table at rest (model/row_digest.py)."""
        ...


class Advice(Protocol):
    """What an operator has to do at this database."""

    def whole_rows(self, table: TableId) -> str:
        """Return the statement after which the source sends whole old rows of the table."""
        ...

    def identity(self, table: TableId) -> str:
        """Return how updates and deletes of a table without a key can be followed."""
        ...

    def give_up(self) -> str:
        """Return how to free what the source keeps for the pipeline, by hand."""
        ...


class StructureTrigger(Protocol):
    """An optional trigger at the source that reports each new structure of a table in the stream itself."""

    @property
    def name(self) -> str: ...

    def statements(self, *, remove: bool) -> Sequence[str]: ...

    def install(self) -> None:
        """Install it; UsageError when it is not to be trusted after that."""
        ...

    def remove(self) -> bool:
        """Remove it; False when there was none."""
        ...


class Source(Protocol):
    """One source of a pipeline. Making it connects to nothing; it may be used by several threads."""

    @property
    def endpoint(self) -> str:
        """Where it is, for messages: `host:port/database`."""
        ...

    @property
    def advice(self) -> Advice: ...

    @property
    def structure_trigger(self) -> StructureTrigger | None:
        """None when this kind of source has no use for one."""
        ...

    @property
    def unknown_details(self) -> Mapping[str, object]:
        """`SourceHealth.details` of a source that does not answer."""
        ...

    def position_text(self, position: Position) -> str:
        """Write a position as operators of this database do."""
        ...

    def parse_position(self, text: str) -> Position:
        """Read a position as `position_text` writes it. ValueError says what one looks like."""
        ...

    def connect(self, *, purpose: str = "penstock") -> Session: ...

    def capture(
        self, wanted: WantedTables, settings: SegmentSettings, sink: SegmentSink, stop: StopFlag, report: Report
    ) -> None:
        """Fill the sink until stopped; then what is whole is sealed and confirmed.

        Changes of tables that are not `wanted` may be left out.
        `report` is given `started` (with `position` and `reading`), `verified`, `sealed`, `waiting` and `ignored`, as
        runtime/capture/process.py describes them.
        """
        ...

    def snapshot(self, *, timeout: float, waiting: Waiting) -> Snapshot:
        """Make a snapshot.

        About once a second of waiting for it, `waiting` is given what it waits for; SnapshotBlocked after `timeout`
        seconds.
        """
        ...

    def range_from_json(self, text: str) -> CopyRange:
        """Read a range as `CopyRange.to_json` wrote it, or raise UnreadableRecord (model/record.py)."""
        ...

    def why_void(self, recorded: Collection[OwnRange], planned: Collection[OwnRange]) -> str:
        """Say why a table that is planned as `planned` now cannot go on with an earlier plan; "" when it can."""
        ...

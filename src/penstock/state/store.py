"""The state store's contract, in small protocols by who reads them; `StateStore` is all of them together.

Everything in it is for people and for the next start's convenience. Positions live in the destinations: a lost store
loses no position, and nothing here is ever needed to decide what was applied; a copy that was under way starts again.
One process writes (the one that holds the pipeline's lock), but for requests and pins, by which others ask it to do
something; any number read while it does. `sql.py` is the real store, `memory.py` its twin; one behaviour suite
(tests/behaviour/test_state_store.py) holds for both. The pipeline writes it, `control/` reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from penstock.model.anomaly import AnomalyCount
from penstock.model.dead_letter import AskedLetter, DeadLetter, KeptLetter, LetterCount
from penstock.model.partitions import Partitions
from penstock.model.position import Position
from penstock.model.quarantine import Quarantined, RawMessage
from penstock.model.rescue import RescueCount
from penstock.model.schema_version import SchemaVersion
from penstock.model.table import TableId, TableSchema
from penstock.model.table_marks import TableMarks
from penstock.model.table_state import LEGAL_MOVES, State, TableProgress, TableStatus
from penstock.model.upkeep import Upkeep
from penstock.model.write_counters import WriteCounters
from penstock.state.pin import Pin

EVENTS_KEPT = 1000
SCHEMAS_KEPT = 20

HealthState = Literal["ok", "retrying", "paused", "stopped", "failed"]
RequestKind = Literal["resync", "retry", "drop"]


def component_of(destination: str) -> str:
    """Return the name under which a destination's health is kept."""
    return f"destination {destination}"


@dataclass(frozen=True)
class Health:
    """How a component (capture, a destination, …) fares. `attempts` counts failures in a row, while it is retried."""

    state: HealthState
    since: datetime
    message: str = ""
    solution: str = ""
    attempts: int = 0
    code: str = ""  # of the error, if there is one: see errors.py


@dataclass(frozen=True)
class Event:
    """Something an operator may want to know later."""

    at: datetime
    kind: str
    message: str
    table: TableId | None = None
    destination: str | None = None  # None: it concerns the source as a whole


@dataclass(frozen=True)
class RangeRecord:
    """One range of a copy.

    `content` and `part` are records (model/record.py) of the source and of the destination. `position` and `part` come
    when it is read.
    """

    number: int
    content: str
    position: Position | None
    part: str | None
    rows: int
    bytes: int

    @property
    def finished(self) -> bool:
        return self.position is not None


@dataclass(frozen=True)
class CopyRecord:
    """A copy under way, with all that is needed to go on with it. `attempts` counts how often it began from zero."""

    copy: str
    started: datetime
    fingerprint: str
    ranges: tuple[RangeRecord, ...]
    attempts: int
    note: str


@dataclass(frozen=True)
class CopyProgress:
    """A copy in figures, for people. `bytes` and `bytes_total` are the sizes of its ranges at the source.

    Not begun (`started` is None): there is only a note. Done (`ended` is set): the figures of the last whole copy.
    """

    started: datetime | None = None
    ended: datetime | None = None
    attempts: int = 0
    ranges: int = 0
    ranges_finished: int = 0
    rows: int = 0
    bytes: int = 0
    bytes_total: int = 0
    note: str = ""

    @property
    def rows_estimate(self) -> int | None:
        """Rows in all, by the size of what is left; None while no range says how large rows are."""
        if self.started is not None and self.ranges_finished == self.ranges:
            return self.rows
        return round(self.rows * self.bytes_total / self.bytes) if self.bytes else None

    @property
    def fraction(self) -> float | None:
        """From 0 to 1; None before the copy has begun."""
        if self.started is None:
            return None
        if self.ranges_finished == self.ranges:
            return 1.0
        return self.bytes / self.bytes_total if self.bytes_total else self.ranges_finished / self.ranges


@dataclass(frozen=True)
class Request:
    """What an operator asked a run to do with one table at one destination, until the run has taken it up."""

    id: int
    destination: str
    table: TableId
    kind: RequestKind
    at: datetime


@dataclass(frozen=True)
class Pause:
    """What an operator has paused: a table at a destination, a destination, or ("" and None) all of them."""

    destination: str
    table: TableId | None
    at: datetime

    def covers(self, destination: str) -> bool:
        """Whether it is a pause of this destination as a whole."""
        return self.table is None and self.destination in ("", destination)


class TableStates(Protocol):
    """Where each table stands at each destination."""

    def table_status(self, destination: str) -> dict[TableId, TableStatus]: ...

    def set_table_status(self, destination: str, table: TableId, status: TableStatus) -> None:
        """Set a table's state.

        Refuse moves that LEGAL_MOVES does not list; the same state again replaces reason and times.
        """

    def forget_table(self, destination: str, table: TableId) -> None:
        """Remove all that is kept of a table that is no longer followed, but for events and versions of its structure.

        One that is not known is fine.
        """

    def forget_destination(self, destination: str) -> None:
        """Remove all that is kept of a destination, its health and events too. One that is not known is fine."""


class Progress(Protocol):
    """How far each table, and the log, is processed: figures, not positions to go on from."""

    def record_progress(self, destination: str, progress: Mapping[TableId, TableProgress]) -> None:
        """Replace the progress of the tables named; all of them at once or none."""

    def progress(self, destination: str) -> dict[TableId, TableProgress]: ...

    def set_processed(self, destination: str, position: Position) -> None:
        """How far the destination has processed the log, for all of its tables that are not Errored."""

    def processed(self, destination: str) -> Position | None: ...


class Events(Protocol):
    """Events of note."""

    def add_event(
        self, kind: str, message: str, table: TableId | None = None, *, destination: str | None = None
    ) -> None:
        """Add an event of the present time.

        The newest EVENTS_KEPT are kept. Without a destination it concerns the source as a whole.
        """

    def events(self, limit: int = 20) -> list[Event]:
        """Return the newest events, the oldest of them first."""


class HealthReports(Protocol):
    """How the components fare."""

    def set_health(self, component: str, health: Health) -> None: ...

    def health(self) -> dict[str, Health]: ...


class CopyRecords(Protocol):
    """Copies under way, and the figures of those that ended."""

    def begin_copy(
        self, destination: str, table: TableId, copy: str, fingerprint: str, ranges: Sequence[tuple[str, int]]
    ) -> None:
        """Begin a copy from zero, of ranges given as (content, bytes) and numbered from 0.

        Replaces an earlier one, its note too; one that had not ended counts as an attempt.
        """

    def finish_range(
        self, destination: str, table: TableId, copy: str, number: int, position: Position, part: str, rows: int
    ) -> bool:
        """Finish a range; a range finished again replaces itself.

        False, and nothing kept, when `copy` is not the one under way.
        """

    def note_copy(self, destination: str, table: TableId, note: str) -> None:
        """Note what the copy waits for, also before it has begun; "" when it waits no longer."""

    def copy_of(self, destination: str, table: TableId) -> CopyRecord | None:
        """Return the copy under way, with its ranges in order."""

    def copy_progress(self, destination: str) -> dict[TableId, CopyProgress]:
        """Return every table's copy in figures: under way, waiting to begin, or the last whole one."""

    def end_copy(self, destination: str, table: TableId) -> None:
        """Forget ranges and note. The figures are kept if all ranges were finished. Nothing to end is fine."""


class CopyFacts(Protocol):
    """What the source and the rule were when a table was copied, to be compared with what they are later."""

    def set_partitions(self, destination: str, table: TableId, partitions: Partitions | None) -> None:
        """Set the last look at a table's partitions; None: it is not partitioned."""

    def partitions(self, destination: str) -> dict[TableId, Partitions]: ...

    def set_marks(self, destination: str, table: TableId, marks: TableMarks | None) -> None:
        """Keep what the catalogue said of the table when it was copied; None: nothing is known any more."""

    def marks(self, destination: str) -> dict[TableId, TableMarks]: ...

    def set_write_counters(self, destination: str, table: TableId, counters: WriteCounters) -> None:
        """Set what the source had counted before the snapshot that the table's last copy began with."""

    def write_counters(self, destination: str) -> dict[TableId, WriteCounters]: ...

    def set_rule(self, destination: str, table: TableId, rule: str) -> None:
        """Set what the table's rows are made under (`fold.rule.noted`).

        So `check` can foresee what a change of the file does. The destination has the rule that counts.
        """

    def rules(self, destination: str) -> dict[TableId, str]: ...


class RowFindings(Protocol):
    """Values and changes that did not suit their table, counted."""

    def add_rescued(self, destination: str, table: TableId, counts: Sequence[RescueCount]) -> None:
        """Add to what is counted of the table's columns since its copy began (`begin_copy` forgets it).

        Samples are replaced.
        """

    def rescued(self, destination: str) -> dict[TableId, tuple[RescueCount, ...]]:
        """Return, of each table with rescued cells, its columns by name."""

    def add_anomalies(self, destination: str, table: TableId, counts: Sequence[AnomalyCount]) -> None:
        """Add to what is counted of the table since its copy began (`begin_copy` forgets it); the first places stay."""

    def anomalies(self, destination: str) -> dict[TableId, tuple[AnomalyCount, ...]]:
        """Return, of each table with anomalies, its kinds by name."""


class UpkeepReports(Protocol):
    """How tables are kept quick to read."""

    def record_upkeep(self, destination: str, upkeep: Mapping[TableId, Upkeep]) -> None:
        """Replace what is known of how these tables are kept."""

    def upkeep(self, destination: str) -> dict[TableId, Upkeep]: ...


class Requests(Protocol):
    """What operators asked for."""

    def add_request(self, destination: str, table: TableId, kind: RequestKind) -> int:
        """Add a request, from any process, at any time. Return its id, which is never used again."""

    def requests(self, destination: str | None = None) -> list[Request]:
        """Oldest first; of one destination, or of all."""

    def drop_request(self, number: int) -> None:
        """When it was taken up. One that is gone already is fine."""


class Pauses(Protocol):
    """What operators have paused. Written from any process, and kept until it is taken back."""

    def set_pause(self, destination: str, table: TableId | None) -> bool:
        """Pause a destination ("": all of them) or one of its tables. False when it was paused already."""

    def lift_pause(self, destination: str, table: TableId | None) -> bool:
        """Take exactly this pause back. False when there was none."""

    def pauses(self) -> list[Pause]:
        """Return them by destination and table, those of whole destinations first."""


class SchemaVersions(Protocol):
    """The schema registry."""

    def record_schemas(
        self, found: Sequence[tuple[TableId, TableSchema, Position]], seen: Position | None = None
    ) -> None:
        """Add versions of structures, in stream order, each from its position on; all of them at once.

        One that says nothing new, or that lies before its table's newest, is passed over. `seen`: the log was looked at
        up to there, and the next look begins there.
        """

    def schemas_seen(self) -> Position | None:
        """None in a new store: then the registry is rebuilt from the log."""

    def schema_versions(self) -> list[SchemaVersion]:
        """Return those of all tables, by sequence number."""

    def prune_schemas(self, before: Position, tables: Collection[TableId]) -> int:
        """Forget versions of these tables that no position from `before` on is under, and return their number.

        The newest SCHEMAS_KEPT of each stay.
        """


class Quarantine(Protocol):
    """Messages that cannot be decoded."""

    def quarantine(self, destination: str, table: TableId, messages: Sequence[RawMessage]) -> None:
        """Keep messages that cannot be decoded, all or none. One that is there already gets its new reason."""

    def quarantined(self, destination: str) -> list[Quarantined]:
        """Return them by table, and in stream order."""

    def quarantined_counts(self, destination: str) -> dict[TableId, int]:
        """Return those of each table that has some."""

    def release(self, numbers: Collection[int]) -> None:
        """Forget messages by their ids. Those that are gone already are fine."""

    def release_before(self, destination: str, table: TableId, position: Position) -> int:
        """Forget the table's messages before the position and return their number."""


class DeadLetters(Protocol):
    """Events that streams went on without."""

    def keep_letters(
        self, destination: str, letters: Sequence[DeadLetter], *, most: int, drop_oldest: bool = False
    ) -> bool:
        """Keep letters, all or none; one that is there already (by table, place and shard) gets its new reason.

        `most` is how many the destination may have. Without room: False, and nothing kept; or with `drop_oldest` the
        oldest go, and are counted."""

    def letters(self, destination: str) -> list[KeptLetter]:
        """Return the letters, oldest first."""

    def letter_counts(self, destination: str) -> dict[TableId, LetterCount]:
        """Return those of each table that has letters, or had some that were dropped."""

    def release_letters(self, numbers: Collection[int]) -> None:
        """Forget letters by their ids, and what was asked for them. Those that are gone already are fine."""

    def expire_letters(self, destination: str, before: datetime) -> int:
        """Drop letters that are older, and count them as dropped; return their number."""

    def ask_letters(self, numbers: Collection[int]) -> list[int]:
        """Ask for letters to be sent again, from any process; return the ids of those newly asked for."""

    def asked_letters(self, destination: str) -> list[AskedLetter]:
        """Return the letters that are to be sent again, in the order in which they were asked for."""

    def fail_letter(self, number: int, code: str, reason: str) -> None:
        """Note that a letter was tried again in vain, and drop the request. One that is gone already is fine."""


class Pins(Protocol):
    """Pins (`pin.py`)."""

    def ask_pins(self, destination: str, tables: Sequence[TableId]) -> list[int]:
        """Ask for a pin of each table, all of them at once, and return their ids, which are never used again."""

    def pins(self, destination: str | None = None) -> list[Pin]:
        """Return the pins of one destination, or of all, oldest first."""

    def hold_pin(self, number: int) -> bool:
        """Note that the run holds the table. False when the pin is not, or no longer, asked for."""

    def place_pin(self, number: int, position: Position, repair: str = "") -> bool:
        """Say at which position to pin the table, and which file has the rows to repair. False unless it is held."""

    def answer_pin(
        self,
        number: int,
        *,
        snapshot: str | None,
        columns: Mapping[int, str] | None = None,
        reason: str = "",
        solution: str = "",
    ) -> None:
        """Answer a pin: it is made, or has failed when `snapshot` is None. One that is gone already is fine."""

    def renew_pins(self, numbers: Sequence[int]) -> None:
        """Note that the pins are still wanted."""

    def drop_pins(self, numbers: Sequence[int]) -> None:
        """When nobody needs them any more. Those that are gone already are fine."""


class StateStore(
    TableStates,
    Progress,
    Events,
    HealthReports,
    CopyRecords,
    CopyFacts,
    RowFindings,
    UpkeepReports,
    Requests,
    Pauses,
    SchemaVersions,
    Quarantine,
    DeadLetters,
    Pins,
    Protocol,
):
    """All of it, for whoever opens it; others take the protocols that they need.

    What a method wrote outlives the process, even by SIGKILL. Safe from several threads; StateError when it fails.
    Times are aware (UTC); a store gives back what it was given, to the microsecond.
    """

    def of_source(self, source: str | None) -> StateStore:
        """Return the store as one of several sources sees it: it reads and writes that source's rows only.

        None: the pipeline has one source, and the rows are of none in particular.
        """

    def close(self) -> None:
        """Close the store. Whoever opened it does; a source's view of it need not be closed."""


def require_legal(table: TableId, present: State | None, wanted: State) -> None:
    """Raise ValueError on a move that no part of penstock may make. An unknown table starts as if it were Init."""
    origin = State.INIT if present is None else present
    if wanted is not origin and wanted not in LEGAL_MOVES[origin]:
        raise ValueError(f"table {table} may not move from {origin} to {wanted}")

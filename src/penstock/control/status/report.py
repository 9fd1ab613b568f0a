"""What `status` reports: the source, the log, destinations, tables and events, as values.

`gather.py` fills these in, `view.py` and the demo's live view show them. What cannot be known is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from penstock.errors import PenstockError
from penstock.model.anomaly import AnomalyCount
from penstock.model.dead_letter import NO_LETTERS, LetterCount
from penstock.model.partitions import Remark
from penstock.model.position import Position
from penstock.model.rescue import RescueCount
from penstock.model.scoped_name import ScopedName
from penstock.model.table import TableId
from penstock.model.table_state import NOT_FOLLOWED, State
from penstock.model.upkeep import Upkeep
from penstock.source.contract import SourceHealth
from penstock.state.store import CopyProgress, Event, Health


@dataclass(frozen=True)
class Problem:
    """Why a part could not be looked at, and the way out."""

    what: str
    solution: str
    code: str

    @classmethod
    def of(cls, error: PenstockError) -> Problem:
        return cls(error.what, error.solution, error.code)


@dataclass(frozen=True)
class SourceReport:
    """`health` is None when the source does not answer; then `problem` says so. `details` are for programs."""

    endpoint: str
    health: SourceHealth | None = None
    details: Mapping[str, object] = field(default_factory=dict)
    problem: Problem | None = None

    @property
    def position(self) -> Position | None:
        return None if self.health is None else self.health.position


@dataclass(frozen=True)
class LogReport:
    uri: str
    segments: int | None = None
    bytes: int | None = None
    start: Position | None = None
    end: Position | None = None
    problem: Problem | None = None


@dataclass(frozen=True)
class TableReport:
    """One table at one destination. `rate` is of the last seconds, 0 when the table is idle."""

    destination: str
    table: ScopedName
    target: TableId
    state: State
    since: datetime | None
    position: Position | None
    lag_bytes: int | None
    lag_seconds: float | None
    changes: int
    rate: float
    newest: datetime | None
    fetched: int = 0  # values that the source left out of updates, read back from the destination
    advice: str = ""  # how to have them sent, where they are many
    error: str = ""
    solution: str = ""
    retry: str = ""
    code: str = ""
    copy: CopyProgress | None = None  # under way, or the last whole one; None: never copied
    rescued: tuple[RescueCount, ...] = ()  # cells that fit no column, since its copy began
    anomalies: tuple[AnomalyCount, ...] = ()  # the same of changes that did not suit what was there
    quarantined: int = 0  # messages that could not be decoded
    letters: LetterCount = NO_LETTERS  # events that the stream went on without
    upkeep: Upkeep | None = None  # how it is kept quick to read
    remarks: tuple[Remark, ...] = ()  # how it differs from the source, by partition
    followed: bool = True  # False: no rule of the file matches it any more
    paused: bool = False  # by an operator, alone or with its destination

    @property
    def shown_state(self) -> str:
        return self.state.value if self.followed else NOT_FOLLOWED


@dataclass(frozen=True)
class StatusEvent:
    """An event of note. Without a table it concerns a destination, or the source as a whole."""

    at: datetime
    kind: str
    message: str
    source: str | None
    table: ScopedName | None
    destination: str | None

    @classmethod
    def of(cls, event: Event, source: str | None) -> StatusEvent:
        table = None if event.table is None else ScopedName(source, event.table)
        return cls(event.at, event.kind, event.message, source, table, event.destination)


@dataclass(frozen=True)
class DestinationReport:
    """One destination of one source.

    `position`: everything before it is processed, but for tables that are Errored or being copied. Its lag in seconds
    is that of the Ready table which is furthest behind. `states` counts its tables by state. `holds_log`: it failed for
    good, and the log is kept for it.
    """

    source: str | None  # where there are several
    name: str
    type: str
    counts: bool  # for the commit policy
    position: Position | None
    lag_bytes: int | None
    lag_seconds: float | None
    states: dict[str, int]
    health: Health | None
    holds_log: bool = False

    @property
    def full_name(self) -> str:
        return self.name if self.source is None else f"{self.source}:{self.name}"


@dataclass(frozen=True)
class Delivery:
    """What the commit policy calls delivered of one source: everything before `position`.

    `among` and `least` are the policy. `waiting` says of each destination that has no position to count why that is.
    """

    source: str | None
    position: Position | None
    lag_bytes: int | None
    among: tuple[str, ...]
    least: int
    waiting: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceSection:
    """One of several sources, with its log."""

    name: str
    source: SourceReport
    log: LogReport


@dataclass(frozen=True)
class Status:
    """Of a pipeline, or of what one of several sources sees of it.

    With several sources `source_views` has them all, `source` and `log` are the first's, and tables, components and
    destinations carry the source's name.
    """

    pipeline: str
    file: str
    at: datetime
    pid: int | None  # of the run under way
    source: SourceReport
    log: LogReport
    tables: list[TableReport]
    destinations: list[DestinationReport]
    deliveries: list[Delivery]  # one for each source
    components: dict[str, Health]
    events: list[StatusEvent]
    has_run: bool
    problem: Problem | None  # of the state store
    source_views: tuple[SourceSection, ...] = ()

    def position_at(self, destination: str) -> Position:
        """Return how far a destination has processed the log; 0 while that is unknown."""
        return next((one.position or 0 for one in self.destinations if one.full_name == destination), 0)


def errored(tables: Iterable[TableReport]) -> list[TableReport]:
    return [table for table in tables if table.state is State.ERRORED and table.followed]

"""What an operator asks first: how far is each table, what is wrong, and what to do about it.

`gather` looks at state store, source, change log and lock, each on its own: one that does not answer is reported as
such, and what cannot be known without it is None. Shown by `view.py`; the demo's live view looks through one
`Observer` again and again, so that `status` and live view mean the same by lag.

Lag of a table in bytes: from what it has processed to the source's position. In seconds: the age of its oldest change
that the log holds and the table does not; 0 when there is none and the log is filled, None when nobody fills the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import TracebackType

from penstock.changelog.log import ChangeLog, TableSlice
from penstock.config.model import Pipeline
from penstock.control.delivery import is_paused_at
from penstock.control.fetching_advice import fetching_advice
from penstock.control.status.destinations import delivery, destination_reports
from penstock.control.status.report import (
    LogReport,
    Problem,
    SourceReport,
    SourceSection,
    Status,
    StatusEvent,
    TableReport,
)
from penstock.control.text.secrets import scrub
from penstock.errors import LogDamaged, PenstockError
from penstock.model.anomaly import AnomalyCount
from penstock.model.dead_letter import NO_LETTERS, LetterCount
from penstock.model.partitions import Partitions
from penstock.model.position import Position
from penstock.model.rescue import RescueCount
from penstock.model.scoped_name import ScopedName
from penstock.model.table import TableId
from penstock.model.table_state import State, TableProgress, TableStatus
from penstock.model.upkeep import Upkeep
from penstock.source.contract import Session, SourceHealth
from penstock.source.factory import source_of
from penstock.state.lock import holder
from penstock.state.opening import find_store
from penstock.state.store import CopyProgress, Event, Health, Pause, StateStore

EVENTS_SHOWN = 10
SEGMENTS_SEARCHED = 200  # when more are pending, the oldest change is among the first of them
RATE_SECONDS = 10.0  # a rate older than this is of a batch long past: the table is idle

Key = tuple[str, TableId]  # destination, table


@dataclass(frozen=True)
class StateReport:
    """What the state store holds. `exists` is False before the pipeline's first run."""

    exists: bool
    statuses: dict[Key, TableStatus]
    progress: dict[Key, TableProgress]
    copies: dict[Key, CopyProgress]
    rescued: dict[Key, tuple[RescueCount, ...]]
    anomalies: dict[Key, tuple[AnomalyCount, ...]]
    processed: dict[str, Position | None]
    health: dict[str, Health]
    events: list[Event]
    quarantined: dict[Key, int] = field(default_factory=dict)
    letters: dict[Key, LetterCount] = field(default_factory=dict)
    partitions: dict[Key, Partitions] = field(default_factory=dict)
    upkeep: dict[Key, Upkeep] = field(default_factory=dict)
    pauses: tuple[Pause, ...] = ()
    problem: Problem | None = None


class Observer:
    """Look at one pipeline, or at what one of several sources sees of it, as often as asked.

    It keeps its connections, and what it read of immutable segments.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._log = ChangeLog(pipeline.log_uri)
        self._store: StateStore | None = None
        self._source = source_of(pipeline.source)
        self._session: Session | None = None

    def look(self) -> Status:
        pipeline = self._pipeline
        pid = holder(pipeline.home / "lock")
        state = self._look_at_state()
        source = self._look_at_source()
        positions = {
            key: _effective_position(state, *key) for key in sorted({*state.statuses, *state.progress, *state.copies})
        }
        log, pending = self._look_at_log(positions)
        captured = log.problem is None and _is_captured(source.health, state.health if pid is not None else {})
        health = _as_of_now(state.health, running=pid is not None)
        processed, head = state.processed, source.position
        tables = [
            self._table(key, state, source.position, position, pending.get(key), captured)
            for key, position in positions.items()
        ]
        return Status(
            pipeline=pipeline.name,
            file=str(pipeline.file),
            at=datetime.now(UTC),
            pid=pid,
            source=source,
            log=log,
            tables=tables,
            destinations=destination_reports(pipeline, tables, processed=processed, health=health, head=head),
            deliveries=[delivery(pipeline, tables, processed=processed, head=head)],
            components=health,
            events=[StatusEvent.of(event, self._pipeline.scope) for event in state.events],
            has_run=state.exists,
            problem=state.problem,
        )

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
        self._disconnect()

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _look_at_state(self) -> StateReport:
        empty = StateReport(False, {}, {}, {}, {}, {}, {}, {}, [])
        try:
            self._store = self._store or find_store(self._pipeline.state_url)
            if self._store is None:
                return empty
            names = [destination.name for destination in self._pipeline.destinations]
            store = self._store.of_source(self._pipeline.scope)
            return StateReport(
                exists=True,
                statuses={(n, t): status for n in names for t, status in store.table_status(n).items()},
                progress={(n, t): made for n in names for t, made in store.progress(n).items()},
                copies={(n, t): copy for n in names for t, copy in store.copy_progress(n).items()},
                rescued={(n, t): counts for n in names for t, counts in store.rescued(n).items()},
                anomalies={(n, t): counts for n in names for t, counts in store.anomalies(n).items()},
                processed={name: store.processed(name) for name in names},
                health=store.health(),
                pauses=tuple(store.pauses()),
                events=store.events(EVENTS_SHOWN),
                upkeep={(n, t): kept for n in names for t, kept in store.upkeep(n).items()},
                partitions={(n, t): seen for n in names for t, seen in store.partitions(n).items()},
                quarantined={(n, t): kept for n in names for t, kept in store.quarantined_counts(n).items()},
                letters={(n, t): kept for n in names for t, kept in store.letter_counts(n).items()},
            )
        except PenstockError as error:
            return replace(empty, problem=Problem.of(error))

    def _look_at_source(self) -> SourceReport:
        report = SourceReport("", details=self._source.unknown_details)
        try:
            report = replace(report, endpoint=self._source.endpoint)
            self._session = self._session or self._source.connect(purpose="penstock status")
            health = self._session.health()
            return replace(report, health=health, details=health.details)
        except PenstockError as error:
            self._disconnect()
            return replace(report, problem=Problem.of(error))

    def _look_at_log(self, positions: Mapping[Key, Position | None]) -> tuple[LogReport, dict[Key, datetime]]:
        """Return the log, and for each table the commit time of its oldest change in it that it has not processed."""
        uri = scrub(self._pipeline.log_uri)
        pending: dict[Key, datetime] = {}
        try:
            segments = self._log.segments()
            report = LogReport(
                uri=uri,
                segments=len(segments),
                bytes=self._log.bytes(),
                start=segments[0].start if segments else None,
                end=segments[-1].end if segments else None,
            )
            known = {key: position for key, position in positions.items() if position is not None}
            behind = min(known.values(), default=None)
            for name in [name for name in segments if behind is not None and name.end > behind][:SEGMENTS_SEARCHED]:
                try:
                    slices = self._log.slices(name)
                except LogDamaged:
                    if name in self._log.segments():
                        raise
                    continue  # retention removed it since it was listed
                _note_pending(slices, known, self._sources(known), pending)
            return report, pending
        except PenstockError as error:
            return LogReport(uri, problem=Problem.of(error)), pending

    def _sources(self, keys: Iterable[Key]) -> dict[Key, TableId]:
        """Return the source table of each feed."""
        feeds = {key: self._pipeline.destination_view(key[0]).feed(key[1]) for key in keys}
        return {key: feed.table if feed else key[1] for key, feed in feeds.items()}

    def _table(
        self,
        key: Key,
        state: StateReport,
        source_position: Position | None,
        position: Position | None,
        oldest_pending: datetime | None,
        captured: bool,
    ) -> TableReport:
        destination, table = key
        feed = self._pipeline.destination_view(destination).feed(table)
        status, made = state.statuses.get(key), state.progress.get(key)
        now = datetime.now(UTC)
        lag_bytes = None
        if source_position is not None and position is not None:
            lag_bytes = max(source_position - position, 0)
        lag_seconds = None
        if oldest_pending is not None:
            lag_seconds = max((now - oldest_pending).total_seconds(), 0.0)
        elif position is not None and (captured or lag_bytes == 0):
            lag_seconds = 0.0
        if feed is None:
            lag_bytes = lag_seconds = None
        return TableReport(
            destination=destination,
            table=ScopedName(self._pipeline.scope, table),
            target=feed.target if feed else table,
            state=status.state if status else State.INIT,
            since=status.since if status else None,
            position=position,
            lag_bytes=lag_bytes,
            lag_seconds=lag_seconds,
            changes=made.changes if made else 0,
            rate=made.rate if made and (now - made.updated_at).total_seconds() < RATE_SECONDS else 0.0,
            newest=made.commit_time if made else None,
            fetched=made.fetched if made else 0,
            advice=fetching_advice(self._pipeline.source.type, feed, made),
            error=status.reason if status else "",
            solution=status.solution if status else "",
            retry=status.retry_text if status else "",
            code=status.code if status else "",
            copy=state.copies.get(key),
            rescued=state.rescued.get(key, ()),
            anomalies=state.anomalies.get(key, ()),
            quarantined=state.quarantined.get(key, 0),
            letters=state.letters.get(key, NO_LETTERS),
            upkeep=state.upkeep.get(key),
            remarks=state.partitions[key].remarks if key in state.partitions else (),
            followed=feed is not None,
            paused=is_paused_at(state.pauses, destination, table),
        )

    def _disconnect(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def gather(pipeline: Pipeline) -> Status:
    """Take one look. Raises only what no report can be made without."""
    found = []
    for source_view in pipeline.source_views:
        with Observer(source_view) as observer:
            found.append(observer.look())
    return together(pipeline, found) if pipeline.is_scoped else found[0]


def together(pipeline: Pipeline, found: Sequence[Status]) -> Status:
    """Combine the statuses of several sources into one."""
    named = list(zip([source_view.source.name for source_view in pipeline.source_views], found, strict=True))
    events = [event for _, one in named for event in one.events]
    return replace(
        found[0],
        source_views=tuple(SourceSection(name, one.source, one.log) for name, one in named),
        tables=[table for _, one in named for table in one.tables],
        destinations=[destination for _, one in named for destination in one.destinations],
        deliveries=[delivery for _, one in named for delivery in one.deliveries],
        components={f"{name}:{key}": health for name, one in named for key, health in one.components.items()},
        events=sorted(events, key=lambda event: event.at)[-EVENTS_SHOWN:],
    )


def _note_pending(
    slices: Iterable[TableSlice],
    known: Mapping[Key, Position],
    sources: Mapping[Key, TableId],
    pending: dict[Key, datetime],
) -> None:
    for piece in slices:
        for key, position in known.items():
            unprocessed = sources[key] == piece.table_schema.table and piece.slice.last_commit >= position
            if unprocessed and key not in pending:
                pending[key] = datetime.fromtimestamp(piece.slice.last_commit_time / 1e6, UTC)


def _effective_position(state: StateReport, destination: str, table: TableId) -> Position | None:
    """Return how far a table is.

    One in good order has processed all that its destination has, also without changes of its own.
    """
    key = destination, table
    made, status, processed = state.progress.get(key), state.statuses.get(key), state.processed.get(destination)
    own = made.position if made else None
    if status is None or status.state is not State.READY or processed is None:
        return own
    if any((one.destination, one.table) == key for one in state.pauses):
        return own
    return processed if own is None else max(own, processed)


def _is_captured(source: SourceHealth | None, health: Mapping[str, Health]) -> bool:
    """Whether somebody, `run` or `capture` alone, reads the source's changes and does not say that it has to wait."""
    capture = health.get("capture")
    return source is not None and source.is_read and (capture is None or capture.state == "ok")


def _as_of_now(health: dict[str, Health], running: bool) -> dict[str, Health]:
    """Return the components as they are now: a run that was killed could not say that its components stopped."""
    if running:
        return health
    return {
        name: replace(seen, state="stopped") if seen.state in ("ok", "retrying") else seen
        for name, seen in health.items()
    }

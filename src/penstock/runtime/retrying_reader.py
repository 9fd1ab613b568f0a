"""Run a destination through outages: retry what may pass, record its health, and give in to what the log demands.

`RetryingReader` is what readers of tables (`destination_pipeline.py`) and of streams (`publish/stream_pipeline.py`)
have in common. Each opens its destination as a `Reading`; when that fails it is opened again, after a while, from the
beginning. One that fails for good holds the log only up to its limits. In the state store a reader is the component
`destination NAME`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from typing import Protocol

import structlog

from penstock.config.model import Pipeline
from penstock.errors import CheckFailed, GapError, LogDamaged, PenstockError
from penstock.model.position import Position, position_text
from penstock.runtime.log_reader import EVERYTHING, LogNeed, Observe
from penstock.runtime.pause_watch import PauseWatch
from penstock.runtime.process.backoff import Backoff
from penstock.runtime.process.health import record_health
from penstock.runtime.process.outage import Outage
from penstock.runtime.process.signals import SignalFlag
from penstock.runtime.source_side import SourceSide
from penstock.state.store import HealthReports, HealthState, Pauses, component_of

LOG = structlog.get_logger("pipeline")
POLL_SECONDS = 0.05
LONGEST_WAIT = 30.0


class Reading(Protocol):
    """A destination that is open, with its tables taken in.

    All calls come from the reader's own thread, but for `processed`.
    """

    @property
    def processed(self) -> Position: ...

    @property
    def errored(self) -> list[str]:
        """The names of Errored tables."""

    @property
    def followed(self) -> int:
        """How many tables there are."""

    @property
    def failure(self) -> BaseException | None:
        """What ended work in the background, if anything did: the destination is opened again, or fails."""

    @property
    def wants_look(self) -> bool:
        """Whether the source's catalogue should be looked at soon, because the last look could not judge a table."""

    def log_need(self) -> LogNeed | None:
        """None while nothing is known yet."""

    def step(self, *, now: bool, stopping: Callable[[], bool]) -> bool:
        """Do the next piece of work. False when there was nothing to do. `now`: do not wait for more changes."""

    def is_drained(self, until: Position) -> bool:
        """Return whether everything before this position has arrived, and nothing else is under way."""

    def pass_over(self, before: Position) -> None:
        """Do without the log before this position."""

    def mark_all_errored(self, error: PenstockError) -> None:
        """Make every table Errored: a gap, a damaged log."""

    def end(self) -> None:
        """Finish what is under way; the destination is closed next."""


class ReaderState(HealthReports, Pauses, Protocol):
    """What readers need of the state store themselves."""


class RetryingReader(ABC):
    """A LogReader (log_reader.py), but for `begin_look`. `pipeline` is as the source and the destination see it."""

    def __init__(
        self,
        pipeline: Pipeline,
        state: ReaderState,
        side: SourceSide,
        *,
        alone: bool,
        backoff: Backoff | None = None,
        tries: int = 0,
    ) -> None:
        """Set up a reader of the log.

        `alone`: without this destination there is nothing to run for, so a failure to open it is raised, not retried.
        `tries`: how often to try again before it has failed for good; 0: no matter how often.
        """
        self.name = pipeline.destination.name
        self._file, self._health, self._side, self._alone = pipeline.file.name, state, side, alone
        self._pauses = PauseWatch(state, self.name)
        self._was_paused = False
        self._reading: Reading | None = None
        self._backoff, self._tries = backoff or Backoff(longest=LONGEST_WAIT), tries
        self._outage = Outage("destination", "pipeline")
        self._given_up: BaseException | None = None
        self._let_go: Position = 0
        self.log_need: LogNeed = EVERYTHING

    @abstractmethod
    def _open(self, cleanup: ExitStack) -> Reading:
        """Open the destination and take its tables in. What is to be closed goes to `cleanup`."""

    @abstractmethod
    def begin_look(self) -> Observe:
        """See LogReader."""

    @property
    def processed(self) -> Position:
        reading = self._reading
        return reading.processed if reading is not None else 0

    @property
    def is_retrying(self) -> bool:
        return self._backoff.attempts > 0

    def let_go(self, before: Position) -> bool:
        self._let_go = max(self._let_go, before)
        return self._reading is None or self.log_need.needed_from >= before

    def give_up(self, error: BaseException) -> None:
        self._given_up = error

    def run(self, stop: SignalFlag) -> None:
        try:
            self._run(stop)
        except BaseException:
            self._reading, self.log_need = None, self.log_need.only_held()
            raise

    def _run(self, stop: SignalFlag) -> None:
        while not stop.is_set():
            try:
                self._wait_while_paused(stop)
                if stop.is_set():
                    return
                with ExitStack() as cleanup:
                    reading = self._begin(cleanup)
                    self._drive(reading, stop)
                    errored, followed = reading.errored, reading.followed
                LOG.info("stopped", position=position_text(reading.processed))
                self._record("stopped")
            except PenstockError as error:
                self._reading = None
                if self._alone or self._side.end.until is not None or not self._may_pass(error):
                    if error is not self._given_up:
                        self._record("failed", error)
                    raise
                self._retry(error, stop)
                continue
            if self._side.end.until is not None and errored:
                raise CheckFailed(
                    f"{len(errored)} of {followed} tables are Errored: {', '.join(errored)}",
                    f"`penstock status {self._file}` says why and what to do",
                )
            return

    def _begin(self, cleanup: ExitStack) -> Reading:
        if self._given_up is not None:
            raise self._given_up
        self._let_go = 0  # before the log's start is read: what goes from now on is passed over
        self._reading = reading = self._open(cleanup)
        self._works()
        self._record("ok")
        LOG.info("streaming", tables=reading.followed, position=position_text(reading.processed))
        return reading

    def _drive(self, reading: Reading, stop: SignalFlag) -> None:
        end = self._side.end
        while not stop.is_set() and not ((until := end.until) is not None and self._is_drained(reading, until)):
            if reading.failure is not None:
                raise reading.failure
            try:
                self._require_log(reading)
                if self._stands_still():
                    stop.wait(POLL_SECONDS)
                    continue
                worked = reading.step(now=until is not None or self.is_retrying, stopping=stop.is_set)
                self.log_need = reading.log_need() or self.log_need
                if reading.wants_look:
                    self._side.look_soon()
            except PenstockError as error:
                if self._lost_log(reading, error):
                    continue
                if not self._may_pass(error):
                    raise
                self._retry(error, stop)
                continue
            self._works()
            if not worked:
                stop.wait(POLL_SECONDS)
        reading.end()

    def _wait_while_paused(self, stop: SignalFlag) -> None:
        """Open no destination while it is paused: perhaps that is why."""
        while self._given_up is None and not stop.is_set() and self._stands_still():
            stop.wait(POLL_SECONDS)

    def _stands_still(self) -> bool:
        """Return whether the destination is paused, and record it when that changes."""
        paused = self._pauses.is_paused
        if paused and self._side.end.until is not None:
            raise CheckFailed(
                f"destination {self.name} is paused, so it cannot be drained",
                f"penstock resume {self._file}, or with --destination {self.name} if that alone is paused",
            )
        if paused != self._was_paused:
            self._was_paused = paused
            LOG.info("destination paused" if paused else "destination resumed", destination=self.name)
            self._record("paused" if paused else "ok")
        return paused

    def _is_drained(self, reading: Reading, until: Position) -> bool:
        if not reading.is_drained(until):
            return False
        return self._side.verified()  # else the log may go on from a history that is no more

    def _require_log(self, reading: Reading) -> None:
        """Raise what makes the whole log useless, and do without what the log is letting go of."""
        if self._given_up is not None:
            if isinstance(self._given_up, GapError | LogDamaged):
                reading.mark_all_errored(self._given_up)
            raise self._given_up
        if self._let_go:
            before, self._let_go = self._let_go, 0
            reading.pass_over(before)

    def _lost_log(self, reading: Reading, error: PenstockError) -> bool:
        """Return whether a step failed because the log let go of what it read, which the next try puts right."""
        if self._let_go > reading.processed:
            LOG.warning("batch lost to the log's limits", what=error.what)
            return True
        if isinstance(error, LogDamaged):
            reading.mark_all_errored(error)
        return False

    def _retry(self, error: PenstockError, stop: SignalFlag) -> None:
        since = self._outage.note(error.what, error.solution)
        self._record("retrying", error, since=since)
        self._backoff.wait(stop)

    def _works(self) -> None:
        if self._backoff.attempts:
            self._backoff.reset()
            self._outage.end()
            self._record("ok")

    def _record(self, health: HealthState, error: PenstockError | None = None, since: datetime | None = None) -> None:
        attempts = self._backoff.attempts + 1 if health == "retrying" else 0
        record_health(self._health, component_of(self.name), health, error, attempts, since)

    def _may_pass(self, error: PenstockError) -> bool:
        return error.retry.is_automatic and (self._tries == 0 or self._backoff.attempts < self._tries)

"""Look at the source's catalogue again and again, in a thread of its own, and show every destination what was found.

One look serves all destinations: the source is asked once to send what is wanted, then each compares the catalogue with
what it holds. A slow catalogue delays no batch; what cannot be reached now is looked at next time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import structlog

from penstock.config.model import Pipeline
from penstock.errors import PenstockError, StateError
from penstock.runtime.capture.publisher import Publisher
from penstock.runtime.log_reader import LogReader, Observe
from penstock.runtime.process.log_context import inherited
from penstock.runtime.process.outage import Outage
from penstock.source.factory import source_of
from penstock.state.store import Health, HealthReports

LOG = structlog.get_logger("tables")
COMPONENT = "source tables"
SOON_SECONDS = 1.0


class SourceWatch:
    def __init__(
        self,
        pipeline: Pipeline,
        state: HealthReports,
        publisher: Publisher,
        readers: Sequence[LogReader],
        reading: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        """Set up the watch of one source. `reading` gives what capture reads, in the source's own names."""
        self._pipeline, self._state, self._publisher, self._readers = pipeline, state, publisher, readers
        self._reading, self._source = reading, source_of(pipeline.source)
        self._looking = threading.Lock()
        self._stopping, self._wanted = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=inherited(self._watch), name="table-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self, observers: Sequence[Observe]) -> None:
        """Look once, for these. May be called from any thread. Raises what the source, or an observer, raises."""
        with self._looking, self._source.connect() as session:
            catalogue = self._publisher.look(session, reading=self._reading())
            for observe in observers:
                observe(session, catalogue)

    def look_soon(self) -> None:
        """Have the thread look now, but no more than once a second. May be called from any thread."""
        self._wanted.set()

    def _is_due(self) -> bool:
        """Wait for the next look. False when there is none, because the watch is stopped."""
        every = self._pipeline.copying.discover_every
        least = min(every, SOON_SECONDS)
        if not self._stopping.wait(least):
            self._wanted.wait(every - least)
            self._wanted.clear()
        return not self._stopping.is_set()

    def _watch(self) -> None:
        failures, outage = 0, Outage(COMPONENT, "pipeline")
        self._tell(Health("ok", datetime.now(UTC)))
        while self._is_due():
            try:
                self.look([reader.begin_look() for reader in self._readers])
            except PenstockError as error:
                what, solution, code = error.what, error.solution, error.code
            except Exception as error:
                what, solution, code = f"looking at the source's tables failed: {error!r}", "Report it; see the log", ""
                LOG.exception("source tables not checked")
            else:
                if failures:
                    outage.end()
                    self._tell(Health("ok", datetime.now(UTC)))
                failures = 0
                continue
            since = outage.note(what, solution)
            failures += 1
            self._tell(Health("retrying", since, what, solution, failures, code))
        self._tell(Health("stopped", datetime.now(UTC)))

    def _tell(self, health: Health) -> None:
        try:
            self._state.set_health(COMPONENT, health)
        except StateError as away:
            LOG.warning("health not recorded", what=away.what)

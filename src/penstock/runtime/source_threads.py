"""Run the pipelines of several sources side by side, each in a thread of its own: none holds another up.

What may pass (a source or a destination that cannot be reached at the start) is tried again and again. A source that
ends by an error that no retry can fix (a gap, a setting that an operator must change) is shown in its state as
component `source`, and the others go on. The run ends when it is stopped, or when all have ended, and then raises what
made them fail. Only what takes away what all share (Spark's Java process) ends them all at once. With `once` nothing
waits for a source that cannot be reached.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import structlog

from penstock.destinations.contract import PooledRunner
from penstock.errors import EnvironmentMissing, PenstockError
from penstock.runtime.process.backoff import Backoff
from penstock.runtime.process.failures import failures_as_one
from penstock.runtime.process.outage import Outage
from penstock.runtime.process.signals import SignalFlag
from penstock.runtime.source_pipeline import Opened, SourcePipeline

LOG = structlog.get_logger("pipeline")
LOOK_EVERY = 0.05
LONGEST_WAIT = 30.0
COMPONENT = "source"


class SourceThread:
    """Run one source's pipeline to its end; `make` makes it again for each try.

    `failure` is what ended it, if anything did but the stop or the end of `once`."""

    def __init__(
        self,
        name: str,
        make: Callable[[], SourcePipeline],
        destinations: Opened,
        runner: PooledRunner,
        stop: SignalFlag,
        *,
        once: bool,
    ) -> None:
        self.name, self._make, self._once = name, make, once
        self._destinations, self._runner, self._stop = destinations, runner, stop
        self._thread = threading.Thread(target=self._run, name=f"source {self.name}", daemon=True)
        self._preparing = True
        self._outage = Outage(COMPONENT, "pipeline")
        self.failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    @property
    def may_be_left(self) -> bool:
        """Whether nothing of it is in flight: it has ended, or waits for its source and will begin nothing more."""
        return self.has_ended or (self._preparing and self._stop.is_set())

    def _run(self) -> None:
        structlog.contextvars.bind_contextvars(source=self.name)
        backoff = Backoff(longest=LONGEST_WAIT)
        while self._try_once(backoff):
            backoff.wait(self._stop)

    def _try_once(self, backoff: Backoff) -> bool:
        """Return whether it has to be tried again."""
        pipeline = self._make()
        try:
            self._preparing = True
            pipeline.prepare()
            self._preparing = False
            if not self._stop.is_set():
                self._stream(pipeline)
        except BaseException as error:  # noqa: BLE001 - kept for the pipeline's thread, which raises it at the end
            told = error if isinstance(error, PenstockError) else PenstockError(f"unexpected {error!r}", "Report it")
            if told.retry.is_automatic and not self._once and not self._stop.is_set():
                since = self._outage.note(told.what, told.solution)
                pipeline.tell(COMPONENT, "retrying", told, backoff.attempts + 1, since)
                return True
            self.failure = error
            LOG.error("source failed", what=told.what, solution=told.solution)
            pipeline.tell(COMPONENT, "failed", told)
        return False

    def _stream(self, pipeline: SourcePipeline) -> None:
        self._outage.end()
        pipeline.tell(COMPONENT, "ok")
        with ExitStack() as cleanup:
            cleanup.push(pipeline.ended)
            pipeline.start_capture()
            pipeline.stream(self._destinations, self._runner, self._stop)
        pipeline.tell(COMPONENT, "stopped")


def run_sources(
    pipelines: Mapping[str, Callable[[], SourcePipeline]],
    destinations: Opened,
    runner: PooledRunner,
    stop: SignalFlag,
    *,
    once: bool,
) -> None:
    """Run until stopped or, with `once`, until all have drained; then raise what made any fail.

    `pipelines` makes each source's."""
    threads = [SourceThread(name, make, destinations, runner, stop, once=once) for name, make in pipelines.items()]
    for thread in threads:
        thread.start()
    while not all(thread.may_be_left for thread in threads):
        if any(isinstance(thread.failure, EnvironmentMissing) for thread in threads):
            stop.set()
        threading.Event().wait(LOOK_EVERY)
    failed = {thread.name: thread.failure for thread in threads if thread.failure is not None}
    if failed:
        raise failures_as_one("source", failed, len(threads))

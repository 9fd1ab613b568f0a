"""Run one reader of the change log to its end, in a thread of its own."""

from __future__ import annotations

import threading

import structlog

from penstock.errors import PenstockError
from penstock.runtime.log_reader import LogReader
from penstock.runtime.process.log_context import inheriting
from penstock.runtime.process.signals import SignalFlag

LOG = structlog.get_logger("pipeline")


class ReaderThread:
    """`failure` is what ended the reader, if anything did but the stop or the end of the run."""

    def __init__(self, reader: LogReader, stop: SignalFlag, *, alone: bool) -> None:
        """`alone`: the reader is the only one, so log lines need not say which destination they are about."""
        self.reader, self._stop, self._alone = reader, stop, alone
        self.failure: BaseException | None = None
        self._inherit = inheriting()
        self._thread = threading.Thread(target=self._run, name=f"destination {reader.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    @property
    def has_drained(self) -> bool:
        """Whether it came to its end without a failure."""
        return self.has_ended and self.failure is None

    def _run(self) -> None:
        self._inherit()
        if not self._alone:
            structlog.contextvars.bind_contextvars(destination=self.reader.name)
        try:
            self.reader.run(self._stop)
        except BaseException as error:  # noqa: BLE001 - kept for the source's thread, which raises it
            self.failure = error
            if not self._alone:
                self._tell(error)

    @staticmethod
    def _tell(error: BaseException) -> None:
        if isinstance(error, PenstockError):
            LOG.error("destination failed", what=error.what, solution=error.solution)
        else:
            LOG.error("destination failed", what=f"unexpected {error!r}", exc_info=error)

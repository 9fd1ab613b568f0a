"""Stopping on SIGTERM and Ctrl-C: a flag that handlers may set at any moment, and the handlers that set it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import structlog

LOG = structlog.get_logger("pipeline")
LOOK_EVERY = 0.02


class SignalFlag:
    """A stop flag for signal handlers: unlike a threading.Event, it may be set amid its own `wait`.

    One with a `parent` is set when that is, and may be set alone.
    """

    def __init__(self, parent: SignalFlag | None = None) -> None:
        self._set, self._parent = False, parent

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set or (self._parent is not None and self._parent.is_set())

    def wait(self, timeout: float | None = None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.is_set() and (deadline is None or time.monotonic() < deadline):
            time.sleep(LOOK_EVERY if deadline is None else max(0.0, min(LOOK_EVERY, deadline - time.monotonic())))
        return self.is_set()


def stop_on_signals(stop: SignalFlag, at_once: Callable[[], bool] = lambda: False) -> None:
    """From now on SIGTERM and Ctrl-C set the flag; while `at_once` holds, they end the process instead, with exit 0."""

    def ask_to_stop(number: int, _frame: object) -> None:
        LOG.info("stopping", signal=signal.Signals(number).name)
        stop.set()
        if at_once():
            raise SystemExit(0)

    signal.signal(signal.SIGTERM, ask_to_stop)
    signal.signal(signal.SIGINT, ask_to_stop)

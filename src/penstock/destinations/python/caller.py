"""Call a user's destination: one call at a time, all in one thread of its own, each for a limited time.

One thread, because many libraries want to be used by the thread that opened them. A call that takes too long is given
up: penstock shows that the destination does not answer, and no other destination waits for it. Python cannot end a
thread from outside; the call is asked to end by an exception, and until it does nothing else is called.
"""

from __future__ import annotations

import ctypes
import queue
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from penstock.destinations.python.destination import Destination
from penstock.errors import DestinationUnreachable, PenstockError

Result = TypeVar("Result")


class GivenUp(Exception):
    """Raised inside a call of a user's destination that has taken too long."""


class Raised(Exception):
    """A user's destination has raised an exception that is neither ours nor says that nobody answers."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {' '.join(str(error).split())[:500] or 'no reason given'}")
        self.trace = "".join(traceback.format_exception(error))


class Caller:
    """Make the destination in its thread, and call it there. `name` is the destination's in the pipeline file."""

    def __init__(self, name: str, make: Callable[[], Destination], seconds: float) -> None:
        self._name, self._make, self._seconds = name, make, seconds
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[Destination], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._running: tuple[Future[Any], float] | None = None
        self._made: Destination | None = None

    def call(self, function: Callable[[Destination], Result]) -> Result:
        """Return what the function gives.

        DestinationUnreachable when the destination cannot be made, says that nobody answers, or takes too long; Raised
        for other exceptions of the user's.
        """
        with self._lock:
            self._require_idle()
            self._start()
            future: Future[Result] = Future()
            self._running = future, time.monotonic()
            self._calls.put((future, function))
            try:
                return future.result(self._seconds)
            except TimeoutError:
                if future.done():
                    raise
                self._give_up()
                raise self._slow(self._seconds) from None

    def close(self) -> None:
        """Shut the destination down, if it was made. One that does not answer is left alone."""
        if self._made is None:
            return
        self.call(lambda destination: destination.shutdown())
        self._made = None
        with self._lock:
            self._calls.put(None)
            if self._thread is not None:
                self._thread.join(self._seconds)
            self._thread = None

    def _require_idle(self) -> None:
        """Wait for a call that was given up: what it still does must not run beside the next."""
        if self._running is None or self._running[0].done():
            return
        future, began = self._running
        try:
            future.exception(self._seconds)
        except TimeoutError:
            raise self._slow(time.monotonic() - began) from None

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name=f"destination {self._name}", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            try:
                asked = self._calls.get()
            except GivenUp:  # too late: the call has just ended
                continue
            if asked is None:
                return
            future, function = asked
            try:
                future.set_result(self._called(function))
            except BaseException as error:  # noqa: BLE001 - raised by whoever waits
                if not future.done():
                    future.set_exception(error)

    def _called(self, function: Callable[[Destination], Result]) -> Result:
        try:
            if self._made is None:
                made = self._make()
                made.startup()
                self._made = made
            return function(self._made)
        except PenstockError:
            raise
        except GivenUp:
            raise self._slow(self._seconds) from None
        except OSError as error:
            raise DestinationUnreachable(
                f"destination {self._name}: {type(error).__name__}: {' '.join(str(error).split())[:500]}",
                "It is tried again",
            ) from error
        except Exception as error:
            if self._made is None:
                raise DestinationUnreachable(
                    f"destination {self._name} cannot be made: {Raised(error)}",
                    "Check `class`, `config` and `startup`: it is tried again",
                ) from error
            raise Raised(error) from error

    def _give_up(self) -> None:
        if self._thread is not None and self._thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(GivenUp))

    def _slow(self, seconds: float) -> DestinationUnreachable:
        return DestinationUnreachable(
            f"destination {self._name} has not answered for {seconds:.3g} s",
            "It is tried again once the call ends; see what it waits for, or raise `timeout`",
        )

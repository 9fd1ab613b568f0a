"""Run a pipeline from a program or a notebook, with destinations and a state store that the program has made.

The run has a thread of its own. It is the same run that `penstock run` makes, with the same lock, log and state: a
program that is killed is followed by another, or by `penstock run`, where it ended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import structlog

from penstock.config import model
from penstock.config.load import load
from penstock.config.python_destination import PythonDestination
from penstock.destinations.python.destination import Destination
from penstock.errors import UsageError
from penstock.runtime.copy.progress_view import Unseen
from penstock.runtime.pipeline import run
from penstock.runtime.process.signals import SignalFlag
from penstock.runtime.run_end import RunEnd
from penstock.state.store import StateStore


class Pipeline:
    """A pipeline file, run by this program. A context manager: it starts on entry and is shut down on exit.

    `destination` takes the place of the file's destination of `type: python` that names no class; with several of
    them, `destinations` has one by each name. `store` is an open state store in place of the file's; the program closes
    it. `spark` is a Spark session to use, where the file's destinations need one; it is left running.
    """

    def __init__(
        self,
        file: str | Path,
        *,
        destination: Destination | None = None,
        destinations: Mapping[str, Destination] | None = None,
        store: StateStore | None = None,
        spark: Any = None,
    ) -> None:
        """Read the file. ConfigError when it is not valid, UsageError when a destination has no place in it."""
        self._pipeline = _holding(load(Path(file)), destination, dict(destinations or {}))
        self._store, self._spark = store, spark
        self._stop: SignalFlag | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def name(self) -> str:
        """Return the pipeline's name in its file."""
        return self._pipeline.name

    @property
    def is_running(self) -> bool:
        """Return whether the run has begun and has not ended."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, *, once: bool = False) -> Pipeline:
        """Begin to run, and return at once.

        With `once` the run ends when everything is delivered that the source had at the start. UsageError when it is
        running already.
        """
        if self.is_running:
            raise UsageError(f"pipeline {self.name} is running already", "Call `shutdown` first")
        _log_by_logging()
        stop = self._stop = SignalFlag()
        self._failure = None

        def work() -> None:
            try:
                run(
                    self._pipeline,
                    progress=Unseen(),
                    end=RunEnd(once=once),
                    stop=stop,
                    store=self._store,
                    spark=self._spark,
                )
            except BaseException as error:  # noqa: BLE001 - raised by `wait` and `shutdown`
                self._failure = error

        self._thread = threading.Thread(target=work, name=f"penstock {self.name}", daemon=True)
        self._thread.start()
        return self

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run has ended, or for so many seconds; return whether it has. Raise what made it fail."""
        if self._thread is None:
            raise UsageError(f"pipeline {self.name} is not started", "Call `start` first")
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        if self._failure is not None:
            raise self._failure
        return True

    def shutdown(self, timeout: float | None = None) -> bool:
        """Finish the batch in flight and end the run; return whether it has ended. Raise what made it fail."""
        if self._thread is None or self._stop is None:
            return True
        self._stop.set()
        return self.wait(timeout)

    def __enter__(self) -> Pipeline:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.shutdown()
        elif self._stop is not None and self._thread is not None:  # the program's own exception comes first
            self._stop.set()
            self._thread.join()


def _holding(
    pipeline: model.Pipeline, destination: Destination | None, destinations: dict[str, Destination]
) -> model.Pipeline:
    """Return the pipeline with objects in the places of destinations that name no class."""
    empty = [one.name for one in pipeline.destinations if isinstance(one, PythonDestination) and one.found_at is None]
    if destination is not None:
        if len(empty) != 1 or destinations:
            raise UsageError(
                f"{pipeline.file} has {len(empty)} destinations for `destination=` to be",
                "Have one `{name: …, type: python}` without `class` in the file, or give `destinations=` by name",
            )
        destinations = {empty[0]: destination}
    unknown = sorted(destinations.keys() - set(empty))
    if unknown:
        raise UsageError(
            f"{pipeline.file} has no place for destination {unknown[0]}",
            f"Add {{name: {unknown[0]}, type: python}} to `destinations`, without `class`",
        )
    lacking = [name for name in empty if name not in destinations]
    if lacking:
        raise UsageError(
            f"destination {lacking[0]} in {pipeline.file} names no `class`, and none was given",
            "Name its class in the file, or give an object of it to penstock.Pipeline",
        )
    for name, one in destinations.items():
        if not isinstance(one, Destination):
            raise UsageError(
                f"destination {name} is a {type(one).__name__}", "Give an object of a class that extends it"
            )
    return pipeline.with_destinations(
        [
            one.holding(destinations[one.name])
            if isinstance(one, PythonDestination) and one.name in destinations
            else one
            for one in pipeline.destinations
        ]
    )


def _log_by_logging() -> None:
    """Log by Python's own `logging`, unless the program has said how structlog should log."""
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.render_to_log_kwargs,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=lambda *names: logging.getLogger(".".join(["penstock", *map(str, names)])),
    )

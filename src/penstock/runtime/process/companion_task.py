"""Something that is done beside a pipeline, in a thread of its own; the pipeline stops when it is done.

See `pipeline.run`. Whoever does it speaks to the pipeline through the state store, like any other process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pyspark.sql import SparkSession

from penstock.runtime.process.signals import SignalFlag


class CompanionTask:
    def __init__(self, function: Callable[[SparkSession], None], spark: SparkSession, stop: SignalFlag) -> None:
        self._function, self._spark, self._stop = function, spark, stop
        self._failure: BaseException | None = None
        self._done = False
        self._thread = threading.Thread(target=self._work, name="errand", daemon=True)
        self._thread.start()

    def outlast(self) -> None:
        """Wait until it is done, or the pipeline is asked to stop."""
        self._stop.wait()

    def end(self) -> None:
        """Raise what the task raised; KeyboardInterrupt when it is not done: the pipeline was asked to stop."""
        if self._failure is not None:
            raise self._failure
        if not self._done:
            raise KeyboardInterrupt

    def _work(self) -> None:
        try:
            self._function(self._spark)
            self._done = True
        except BaseException as error:  # noqa: BLE001 - handed to the pipeline's thread, which raises it
            self._failure = error
        self._stop.set()

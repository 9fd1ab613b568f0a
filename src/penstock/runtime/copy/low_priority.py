"""Work that gives way: on an executor whose processor is wanted by batches too, the ranges of a copy come second.

Spark shares task slots, not processors: four ranges at once would leave a batch a fifth of one, and the tables that
stream would fall behind. On Linux a priority belongs to a thread, and only the privileged may raise one again; so the
work gets a thread of its own, and the worker that Spark will give other tasks keeps its own priority.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")

NICENESS = 10  # about a tenth of the share of a thread that is not nice


def at_low_priority(work: Callable[[], Result]) -> Result:
    """Return what the work gives; it runs at a lower priority where that can be had for it alone."""
    if sys.platform != "linux":
        return work()
    outcome: Future[Result] = Future()

    def run() -> None:
        own = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, own, min(19, os.getpriority(os.PRIO_PROCESS, own) + NICENESS))
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="background")
    thread.start()
    thread.join()
    return outcome.result()

"""What runs inside a Spark task: the tasks of one partition, one after another, errors as values.

Whatever a task raises reaches the driver whole, and not as text inside a Java exception, and fails no other task; what
Spark itself fails, a lost executor, is for Spark to run again.
With the outcomes comes where they were made, by which process and at which try: on a cluster that is what an operator
looks for. Imported by every worker, so it imports little. Neighbour: `runner`.
"""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyspark.taskcontext import TaskContext

from penstock.errors import PenstockError, TaskFailed
from penstock.runtime.spark.worker_daemon import EXECUTOR_PID

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Done(Generic[Result]):
    number: int  # of the task in the job
    result: Result


@dataclass(frozen=True)
class Failed:
    number: int
    error: PenstockError


@dataclass(frozen=True, order=True)
class Executor:
    """A Java process of Spark's that runs tasks, by its host and process id; in local mode the driver's."""

    host: str
    pid: int

    def __str__(self) -> str:
        return f"{self.host}/{self.pid}"


@dataclass(frozen=True)
class Ran(Generic[Result]):
    """What a partition's tasks gave, and where. `attempt` counts from 0: more says that Spark ran it again."""

    outcomes: list[Done[Result] | Failed]
    executor: Executor
    worker: int  # the Python process, of that executor
    attempt: int


def run_there(function: Callable[[Task], Result], work: list[tuple[int, Task]]) -> Ran[Result]:
    context = TaskContext.get()
    executor = Executor(socket.gethostname(), int(os.environ.get(EXECUTOR_PID, "0")))
    attempt = context.attemptNumber() if context is not None else 0
    return Ran(run_partition(function, work), executor, os.getpid(), attempt)


def run_partition(function: Callable[[Task], Result], work: list[tuple[int, Task]]) -> list[Done[Result] | Failed]:
    return [_run_one(function, number, task) for number, task in work]


def _run_one(function: Callable[[Task], Result], number: int, task: Task) -> Done[Result] | Failed:
    try:
        return Done(number, function(task))
    except PenstockError as error:
        return Failed(number, error)
    except Exception as error:  # noqa: BLE001 - raised on the driver, with the traceback
        failed = TaskFailed(f"unexpected {type(error).__name__} in a task: {' '.join(str(error).split())[:300]}")
        failed.trace = "".join(traceback.format_exception(error))
        return Failed(number, failed)

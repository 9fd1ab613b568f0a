"""What runs inside a Spark task: the tasks of one partition, one after another, errors as values.

An error of ours reaches the driver whole, and not as text inside a Java exception; all tasks run even if one fails.
Imported by every worker, so it imports little. Neighbour: `spark.SparkRunner`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.errors import PenstockError

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


def run_partition(function: Callable[[Task], Result], work: list[tuple[int, Task]]) -> list[Done[Result] | Failed]:
    return [_run_one(function, number, task) for number, task in work]


def _run_one(function: Callable[[Task], Result], number: int, task: Task) -> Done[Result] | Failed:
    try:
        return Done(number, function(task))
    except PenstockError as error:
        return Failed(number, error)

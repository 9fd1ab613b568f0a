"""Run tasks in threads of this process: for destinations that live in the driver, and cannot be sent to executors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from penstock.destinations.contract import JobRunner, PooledRunner
from penstock.runtime.spark.worker_entry import Failed, run_partition

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class LocalRunner:
    """Run up to `slots` tasks of a job side by side."""

    slots: int

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """Return results in the order of the tasks. The first error is raised, after all are done."""
        if not tasks:
            return []
        with ThreadPoolExecutor(min(self.slots, len(tasks)), thread_name_prefix="task") as pool:
            done = pool.map(lambda numbered: run_partition(function, [numbered]), enumerate(tasks))
            outcomes = [outcome for part in done for outcome in part]
        results = []
        for outcome in outcomes:
            if isinstance(outcome, Failed):
                raise outcome.error
            results.append(outcome.result)
        return results

    def for_destination(self, name: str) -> LocalRunner:
        return self


@dataclass(frozen=True)
class DividedRunner:
    """Run the jobs of some destinations here, and all others elsewhere."""

    here: LocalRunner
    elsewhere: PooledRunner
    names: Collection[str]  # of destinations that live in the driver

    @property
    def slots(self) -> int:
        return self.elsewhere.slots

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        return self.elsewhere.run(function, tasks)

    def for_destination(self, name: str) -> JobRunner:
        return self.here if name in self.names else self.elsewhere.for_destination(name)

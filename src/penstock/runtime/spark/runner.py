"""Jobs of plain tasks, on Spark: no SQL, no shuffle, results in the order of the tasks.

On a cluster it says in the run's log which executors (host and process) have come to do which kind of work, which tasks
had to be run again because an executor was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from copy import copy
from functools import partial
from typing import TypeVar

import structlog
from py4j.protocol import Py4JError, Py4JJavaError

from penstock.destinations.spark_session import Session
from penstock.errors import DestinationUnreachable, EnvironmentMissing
from penstock.java_error import java_reason
from penstock.runtime.spark.cluster_watch import ClusterWatch
from penstock.runtime.spark.worker_entry import Executor, Failed, Ran, run_there

LOG = structlog.get_logger("spark")
BYTES_WORTH_A_PARTITION = 1 << 20
MOST_REMEMBERED = 10_000

Task = TypeVar("Task")
Result = TypeVar("Result")


class SparkRunner:
    """Run tasks as one RDD job, in as few partitions as there is work for, evenly filled by `weight` in bytes.

    May be called from several threads at once: each has its own thread in Java. Jobs of one function and destination
    are one pool of Spark's scheduler, in which they take turns; pools share the cores evenly, so that a batch does not
    wait behind all ranges of a copy, nor behind another destination. A task that runs is never interrupted; one whose
    executor is lost is run again by Spark. `slots` is how many tasks run side by side, as far as is known. With a
    `watch` a job that nobody will ever run fails.
    """

    def __init__(self, spark: Session, watch: ClusterWatch | None = None) -> None:
        self._context, self._watch = spark.sparkContext, watch
        self._local = (self._context.master or "local").startswith("local")
        self.slots = self._context.defaultParallelism
        self._prefix = ""
        self._seen: set[tuple[Executor, str]] = set()

    def for_destination(self, name: str) -> SparkRunner:
        """Return the same runner, with pools of its own: jobs of one destination wait behind those of no other."""
        one = copy(self)
        one._prefix = f"{name} "
        return one

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """Return results in the order of the tasks. The first error is raised, after all are done."""
        if not tasks:
            return []
        kind = self._prefix + _pool(function)
        try:
            if not self._local:
                self.slots = self._context.defaultParallelism  # executors come and go
            partitions = spread([getattr(task, "weight", BYTES_WORTH_A_PARTITION) for task in tasks], self.slots)
            work = [[(number, tasks[number]) for number in partition] for partition in partitions]
            self._context.setLocalProperty("spark.scheduler.pool", kind)  # of this thread's next job
            with self._watch.job() if self._watch is not None else nullcontext():
                ran = self._context.parallelize(work, len(work)).map(partial(run_there, function)).collect()
        except Py4JJavaError as error:
            raise self._failed(error) from error
        except (Py4JError, ConnectionError) as error:
            raise EnvironmentMissing(
                "Spark's Java process has ended", "Start penstock again; spark.log in the pipeline's folder may say why"
            ) from error
        self._tell(kind, ran)
        results = []
        for outcome in sorted((one for part in ran for one in part.outcomes), key=lambda outcome: outcome.number):
            if isinstance(outcome, Failed):
                raise outcome.error
            results.append(outcome.result)
        return results

    def _failed(self, error: Py4JJavaError) -> DestinationUnreachable | EnvironmentMissing:
        """Return the error of a failed job: it may go better next time, unless the cluster ended the application."""
        said = java_reason(error.java_exception)
        ended = self._watch.ended(said) if self._watch is not None else None
        if ended is not None:
            return ended
        return DestinationUnreachable(
            f"a Spark job failed: {said}",
            "It is tried again; if it goes on, read spark.log in the pipeline's folder",
        )

    def _tell(self, kind: str, ran: Sequence[Ran[Result]]) -> None:
        again = [one for one in ran if one.attempt]
        if again:
            LOG.warning("tasks ran again", job=kind, tasks=len(again), on=_listed(one.executor for one in again))
        if self._local:
            return
        for one in ran:
            if (one.executor, kind) not in self._seen:
                if len(self._seen) >= MOST_REMEMBERED:
                    self._seen.clear()
                self._seen.add((one.executor, kind))
                LOG.info("tasks run on", job=kind, executor=str(one.executor), worker=one.worker)


def spread(weights: Sequence[int], slots: int) -> list[list[int]]:
    """Task numbers by partition: heaviest first, each to the lightest partition."""
    count = max(1, min(len(weights), slots, sum(weights) // BYTES_WORTH_A_PARTITION))
    partitions: list[list[int]] = [[] for _ in range(count)]
    filled = [0] * count
    for number in sorted(range(len(weights)), key=lambda number: -weights[number]):
        lightest = filled.index(min(filled))
        partitions[lightest].append(number)
        filled[lightest] += weights[number] + 1
    return partitions


def _pool(function: Callable[[Task], Result]) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def _listed(executors: Iterator[Executor]) -> str:
    return ", ".join(sorted({str(executor) for executor in executors}))

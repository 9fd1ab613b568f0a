"""The work of one copy task, on an executor: read one range of a table under the snapshot, write it as a file.

Like `apply_task`, it returns what went wrong as its result. Neighbour: `copier` runs one job a range.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.destinations.contract import CopyPlan, WrittenPart
from penstock.errors import PenstockError
from penstock.source.postgres.copy_ranges import CopyRange
from penstock.source.postgres.copy_read import CopySource, read_range


@dataclass(frozen=True)
class CopyTask:
    source: CopySource
    range: CopyRange
    plan: CopyPlan
    statement_timeout: float
    max_rows_per_second: float | None

    @property
    def weight(self) -> int:
        return self.range.bytes


@dataclass(frozen=True)
class Copied:
    """A range that was written, or the error that kept it from being so."""

    part: WrittenPart | None = None
    error: PenstockError | None = None


def copy_range(task: CopyTask) -> Copied:
    batches = read_range(
        task.source,
        task.range,
        max_rows_per_second=task.max_rows_per_second,
        statement_timeout=task.statement_timeout,
    )
    try:
        return Copied(task.plan.write_rows(batches))
    except PenstockError as error:
        return Copied(error=error)

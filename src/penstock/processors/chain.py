"""Run the processors of a feed, one after the other, and find the events that they fail on.

A processor answers for a whole batch. When it fails, the batch is halved until single events are to blame, and each of
those is taken out as `on_error` says; the others go on. That is right only if a processor treats every event by itself
and always alike, which is its contract. One that fails on very many events, or that takes too long again and again, is
itself to blame: then it is the table's error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ProcessorFailed
from penstock.model.processor import OnError, ProcessorSpec
from penstock.model.table import TableId
from penstock.processors.batch import EventBatch, StepFailed, columns_of, image_of_row
from penstock.processors.factory import step_of

MOST_FAILURES = 20_000  # calls that fail, per batch
MOST_TIMEOUTS = 40
MOST_MADE = 40  # events that one may be made into


class Step(Protocol):
    """One processor, ready to run.

    Stateless: a batch may be given again, and in other parts. `most`, where it has one, is how many events it is given
    at once.
    """

    def run(self, batch: EventBatch) -> EventBatch:
        """Return what becomes of the events. StepFailed when that cannot be said."""


@dataclass(frozen=True)
class Failure:
    """Why an event was taken out. `code` is a short word for the kind of trouble."""

    code: str
    reason: str


@dataclass
class Processed:
    """`parts` are what became of the events, in order; each part has columns of its own types.

    `failed` are events, by their number, that are to be dead letters; `dropped` counts those that are to be forgotten.
    """

    parts: list[EventBatch]
    failed: dict[int, Failure] = field(default_factory=dict)
    dropped: int = 0


def run_chain(specs: Sequence[ProcessorSpec], batch: EventBatch, table: TableId) -> Processed:
    """Run processors in order. ProcessorFailed when the table must stop."""
    done = Processed([batch] if len(batch) else [])
    for spec in specs:
        runner = _Runner(_step(spec), spec, table)
        done.parts = [made for part in done.parts for made in runner.run(part)]
        _take(done, runner.failed, spec.on_error)
        _leave_out(done, runner.failed)
    if not any(spec.changes_key for spec in specs):
        _require_keys(done, batch, table, specs[-1].on_error if specs else "dlq")
    _require_few(done, table)
    return done


@lru_cache(maxsize=64)
def _step(spec: ProcessorSpec) -> Step:
    return step_of(spec)


class _Runner:
    """One processor over all parts of a batch."""

    def __init__(self, step: Step, spec: ProcessorSpec, table: TableId) -> None:
        self._step, self._spec, self._table = step, spec, table
        self.failed: dict[int, Failure] = {}
        self._calls = self._slow = 0

    def run(self, batch: EventBatch) -> list[EventBatch]:
        most: int = getattr(self._step, "most", 0) or len(batch)
        if len(batch) > most:
            rows = np.arange(len(batch))
            return [made for first in rows[::most] for made in self.run(batch.take(rows[first : first + most]))]
        if not len(batch):
            return []
        try:
            made = self._step.run(batch)
        except StepFailed as error:
            return self._halved(batch, error)
        return [made] if len(made) else []

    def _halved(self, batch: EventBatch, error: StepFailed) -> list[EventBatch]:
        self._calls, self._slow = self._calls + 1, self._slow + error.slow
        if self._spec.on_error == "stop" and len(batch) == 1:
            raise self._stopped(batch, error)
        if self._calls > MOST_FAILURES or self._slow > MOST_TIMEOUTS:
            raise ProcessorFailed(
                f"table {self._table}: processor {self._spec.type} fails on too many events; the last one: "
                f"{error.reason}",
                f"Correct the processor, start again, and `penstock retry FILE {self._table}`",
            )
        if len(batch) == 1:
            self.failed[int(batch.origin[0])] = Failure(error.code, f"processor {self._spec.type}: {error.reason}")
            return []
        rows, middle = np.arange(len(batch)), len(batch) // 2
        return [*self.run(batch.take(rows[:middle])), *self.run(batch.take(rows[middle:]))]

    def _stopped(self, batch: EventBatch, error: StepFailed) -> ProcessorFailed:
        place = batch.facts.places[int(batch.origin[0])].as_py()
        return ProcessorFailed(
            f"table {self._table}: processor {self._spec.type} fails on the event at {place}: {error.reason}",
            f"Correct the processor, start again, and `penstock retry FILE {self._table}`; `on_error: dlq` lets the "
            "others go on",
        )


def _take(done: Processed, failed: dict[int, Failure], on_error: OnError) -> None:
    if on_error == "drop":
        done.dropped += len(failed)
    else:
        done.failed |= failed


def _leave_out(done: Processed, failed: dict[int, Failure]) -> None:
    """Leave out all that was made of events that failed."""
    if failed:
        gone = np.array(sorted(failed), np.int64)
        kept = [part.take(np.flatnonzero(~np.isin(part.origin, gone))) for part in done.parts]
        done.parts = [part for part in kept if len(part)]


def _require_keys(done: Processed, given: EventBatch, table: TableId, on_error: OnError) -> None:
    """Take out events whose key a processor has changed without saying so."""
    was = columns_of(image_of_row(given))
    failed: dict[int, Failure] = {}
    for part in done.parts:
        now = columns_of(image_of_row(part))
        for name in part.facts.key:
            if name not in was:
                continue
            old = was[name].take(pa.array(part.origin))
            if name not in now:
                changed = np.asarray(old.is_valid())
            elif now[name].type != old.type:
                changed = np.ones(len(part), np.bool_)
            else:
                same = pc.fill_null(pc.equal(now[name], old), False)
                changed = ~np.asarray(pc.or_(same, pc.and_(now[name].is_null(), old.is_null())))
            for origin in part.origin[changed].tolist():
                reason = f"a processor changed column {name} of the key; if that is meant, say `changes_key: true`"
                failed.setdefault(origin, Failure("key-changed", reason))
    if failed and on_error == "stop":
        first = min(failed)
        raise ProcessorFailed(f"table {table}: {failed[first].reason}", "Correct the processor, and start again")
    _take(done, failed, on_error)
    _leave_out(done, failed)


def _require_few(done: Processed, table: TableId) -> None:
    for part in done.parts:
        origins, counts = np.unique(part.origin, return_counts=True)
        if len(counts) and counts.max() > MOST_MADE:
            place = part.facts.places[int(origins[counts.argmax()])].as_py()
            raise ProcessorFailed(
                f"table {table}: processors make {counts.max()} events of the one at {place}; {MOST_MADE} are allowed",
                "Correct the processor, and start again",
            )

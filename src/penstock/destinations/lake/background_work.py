"""Run work beside batches that takes too long for them to wait: merges, sweeps, counting entries of large delete files.

One thing is done at a time. A merge is committed between two batches. They go on while it runs, and end rows of the
very files that are merged. The merge keeps the order of rows and leaves out those that were dead when it began, so it
can be told where such a row is now: the delete files that came meanwhile are written again, in the commit that puts the
merged file in place; if they are large, beside batches too, and then those that came meanwhile. The merged file counts
as old as the snapshot that it was made from, so whatever came later stays newer, for readers and for the key index. If
a file of the merge is gone by then (a truncate, a new copy, somebody else's rewrite), or leftovers have been removed
meanwhile (the fence has changed), the merge is void. A killed one leaves files behind, which are found when the table
is opened or, if batches were committed after them, by a sweep.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from penstock.destinations.contract import JobRunner
from penstock.destinations.lake.compaction import Merged, MergeData, MergeDeletes, MoveDeletes, merge
from penstock.destinations.lake.compaction_choice import Choice
from penstock.destinations.lake.data_files import WrittenFile
from penstock.destinations.lake.file_list import LiveFile, TableState
from penstock.destinations.lake.storage import remove
from penstock.errors import DestinationError
from penstock.failpoints import reach

Result = TypeVar("Result")
Tasks = Sequence[MergeData | MergeDeletes | MoveDeletes]
Made = Future[list[WrittenFile | None]]


@dataclass(frozen=True)
class Moving:
    """Delete files that came during a merge, and what takes their place."""

    files: tuple[LiveFile, ...]
    written: Made


@dataclass(frozen=True)
class Merging:
    """A merge under way. `base` is the state that it was chosen from, `fence` the table's at that moment."""

    base: TableState
    fence: str | None
    choice: Choice
    tasks: Tasks
    written: Made
    beside: bool  # batches; else between two of them
    moves: tuple[Moving, ...] = ()

    @property
    def is_done(self) -> bool:
        return all(made.done() for made in self._made)

    @property
    def removed(self) -> list[LiveFile]:
        return [*self.choice.data, *self.choice.deletes, *(file for move in self.moves for file in move.files)]

    @property
    def moved(self) -> list[WrittenFile]:
        return [file for move in self.moves for file in move.written.result() if file is not None]

    @property
    def _made(self) -> list[Made]:
        return [self.written, *(move.written for move in self.moves)]

    def discard(self) -> None:
        """Remove what a task that is done has written."""
        for made in self._made:
            if made.exception() is None:
                discard(made.result())

    def is_valid(self, state: TableState) -> bool:
        """Return whether all that it replaces is still there."""
        there = {file.path for file in (*state.data, *state.deletes)}
        return all(file.path in there for file in self.removed)

    def late(self, state: TableState) -> list[LiveFile]:
        """Delete files that have come since it began, end rows of merged files and have not been moved.

        Every delete file's hits must have been counted.
        """
        before = {file.path for file in (*self.base.deletes, *self.removed)}
        gone = [file.path for file in self.choice.data]
        return [
            file for file in state.deletes if file.path not in before and not (file.hits or {}).keys().isdisjoint(gone)
        ]

    def move(self, state: TableState, late: Sequence[LiveFile]) -> MoveDeletes:
        """Return what takes these delete files over."""
        records = {file.path: file.records for file in self.choice.data}
        made = zip(self.tasks, self.written.result(), strict=True)
        task = self.tasks[0]
        merged = tuple(
            Merged(
                into=None if into is None else into.path,
                files=task.files,
                records=tuple(records[path] for path in task.files),
                delete_files=task.delete_files,
            )
            for task, into in made
            if isinstance(task, MergeData)
        )
        return MoveDeletes(
            table_format=task.table_format,
            target=task.target,
            folder=task.folder,
            merged=merged,
            files=tuple(file.path for file in late),
            data_files=tuple(file.path for file in state.data if file.path not in records),
            weight=sum(file.size for file in late),
        )


@dataclass(frozen=True)
class Counting:
    """Delete files whose entries are counted: by file, how many point to which data file."""

    files: tuple[str, ...]
    hits: Future[dict[str, dict[str, int]]]


@dataclass
class Sweeping:
    """A sweep under way: the files that it found, once writers are shut out those that are still to be removed."""

    found: Future[list[str]]
    is_shut: bool = False
    left: list[str] = field(default_factory=list)


class BackgroundWork:
    """The thread beside batches: one merge, or whatever else takes long, at a time."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="upkeep")
        self._running: Future[Any] | None = None
        self._closing = threading.Event()

    @property
    def busy(self) -> bool:
        return self._closing.is_set() or (self._running is not None and not self._running.done())

    def submit(self, function: Callable[[], Result]) -> Future[Result]:
        running = self._threads.submit(function)
        self._running = running
        return running

    def merge(self, run: JobRunner, tasks: Tasks) -> Made:
        """One task after the other, so that batches keep the other cores. Nothing stays of a merge that fails."""
        return self.submit(partial(self._merge, run, tasks))

    def close(self) -> None:
        """Wait for the task that runs, and remove what an unfinished merge has written."""
        self._closing.set()
        self._threads.shutdown()

    def _merge(self, run: JobRunner, tasks: Tasks) -> list[WrittenFile | None]:
        written: list[WrittenFile | None] = []
        try:
            for task in tasks:
                if self._closing.is_set():
                    raise DestinationError("a merge was ended by the run's end", "It is begun again by the next run")
                written += run.run(merge, [task])
                reach("merge.part_written")
        except BaseException:
            discard(written)
            raise
        reach("merge.written")
        return written


def discard(written: Sequence[WrittenFile | None]) -> None:
    for file in written:
        if file is not None:
            remove(file.path)

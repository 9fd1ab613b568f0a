"""Run the tasks of a batch: one job, or two where a table's part of it is huge and must be split by key first.

Called by `batch_writer.py` and `copy/replay.py`; `key_split.py` and `task.py` are what runs on executors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import structlog

from penstock.changelog.log import ChangeLog
from penstock.changelog.scratch import Scratch
from penstock.decode.sift import limited
from penstock.decode.undecodable import Undecodable
from penstock.destinations.contract import JobRunner
from penstock.errors import LogError, TableError
from penstock.failpoints import reach
from penstock.fold.sharing import ByRow
from penstock.model.quarantine import RawMessage
from penstock.model.table import TableId
from penstock.runtime.apply.key_split import (
    MOST_BYTES_KEPT,
    MOST_MESSAGES_KEPT,
    SHARED_AT_ONCE,
    Share,
    Shared,
    SharedFile,
    ShareTask,
    grouped,
    pieces_of,
    share,
)
from penstock.runtime.apply.task import Applied, ApplyTask, apply, too_many, whole
from penstock.runtime.apply.task import by_row as followed_by_row

LOG = structlog.get_logger("apply")
MOST_SHARED_BY_A_TASK = 256 << 20  # what has to be done again if its executor is lost


def run_tasks(log: ChangeLog, runner: JobRunner, tasks: Sequence[ApplyTask]) -> list[Applied]:
    """Run the tasks of one batch, and return what they did.

    Of a table that cannot take its changes one result at least has the error, and the first that has one has all
    messages to be kept. Scratch is gone when this returns or raises.
    """
    waiting: dict[TableId, list[ApplyTask]] = {}
    for task in tasks:
        if task.shared and not task.pieces:
            waiting.setdefault(task.feed.name, []).append(task)
    if not waiting:
        return _told_once(runner.run(apply, tasks))
    scratch = Scratch(log)
    try:
        scratch.create()
        first = [one for group in waiting.values() for one in _share_tasks(group[0], scratch, runner.slots)]
        results = runner.run(share, first)
        reach("share.written")
        failed = [Applied(result.table, error=result.error) for result in results if result.error is not None]
        if any(not isinstance(result.error, TableError) for result in failed):
            return failed  # it concerns the batch as a whole
        shares = _shares(results, scratch)
        unable = {result.table for result in failed}
        ready = [task for task in tasks if task.feed.name not in {*waiting, *unable}]
        for table, group in waiting.items():
            if table in shares:
                ready += [replace(task, share=shares[table]) for task in group]
            elif table not in unable:
                LOG.info(
                    "table not split, one task holds its part",
                    table=str(table),
                    why="rows change their keys, and large values were not sent",
                )
                ready.append(whole(group))
        return _told_once([*failed, *runner.run(apply, ready)])
    finally:
        _remove(scratch)


def _share_tasks(task: ApplyTask, scratch: Scratch, slots: int) -> list[ShareTask]:
    pieces = pieces_of(task.log, task.slices, SHARED_AT_ONCE)
    by_row = ByRow(task.schema, task.feed.projection) if followed_by_row(task.feed, task.schema) else None
    for_speed = math.ceil(sum(piece.bytes for piece in pieces) / slots)
    return [
        ShareTask(
            task.log,
            task.feed,
            group,
            task.versions,
            task.position,
            task.until,
            task.buckets,
            scratch,
            sum(piece.bytes for piece in group),
            by_row,
        )
        for group in grouped(pieces, min(for_speed, MOST_SHARED_BY_A_TASK))
    ]


def _shares(results: Iterable[Shared], scratch: Scratch) -> dict[TableId, Share]:
    """Return those of the tables of which every task has shared out its part.

    Results are in the order of the tasks, and those in stream order.
    """
    files: dict[TableId, list[SharedFile | None]] = {}
    for result in results:
        files.setdefault(result.table, []).append(result.file)
    found = {table: tuple(file for file in some if file is not None) for table, some in files.items()}
    return {table: Share(scratch, some) for table, some in found.items() if len(some) == len(files[table])}


def _told_once(results: list[Applied]) -> list[Applied]:
    """Put all that the tasks of one table could not decode into the first of its errors.

    Tasks report the same messages, or each their own. If so many were skipped that they cannot be kept, that is an
    error too.
    """
    kept: dict[TableId, dict[str, RawMessage]] = {}
    skipped: dict[TableId, list[RawMessage]] = {}
    for result in results:
        if isinstance(result.error, Undecodable):
            kept.setdefault(result.table, {}).update({message.order: message for message in result.error.messages})
        skipped.setdefault(result.table, []).extend(result.skipped)
    told = []
    for result in results:
        if isinstance(result.error, Undecodable) and result.table in kept:
            result = replace(result, error=result.error.keeping(_first(kept.pop(result.table).values())))
        told.append(result)
    return told + [
        Applied(table, error=too_many(table, len(messages)).keeping(_first(messages)))
        for table, messages in skipped.items()
        if len(messages) > MOST_MESSAGES_KEPT
    ]


def _first(messages: Iterable[RawMessage]) -> list[RawMessage]:
    in_order = sorted(messages, key=lambda message: (message.commit_position, message.ordinal))
    return limited(in_order, MOST_MESSAGES_KEPT, MOST_BYTES_KEPT)


def _remove(scratch: Scratch) -> None:
    try:
        scratch.remove()
    except LogError as error:
        LOG.warning("scratch left behind", what=error.what, solution="It is removed at the next start")

"""Hands a copied table to the stream: replays the log over the copy's files, unseen by readers, then commits them all.

Each range was read under a snapshot of its own position C. The log is replayed from the lowest C until every C has been
passed: a key that has not changed since then has not moved and was read once; a changed key is replaced by its last
image, however often it was read. So in between the files hold a state that never was, and nobody sees it; once the
replay has passed every C they hold the table as it was at the replay's position. docs/copy.md says why that is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event

from penstock.changelog.log import ChangeLog
from penstock.config.model import BatchConfig
from penstock.destinations.contract import Destination, JobRunner, WrittenPart
from penstock.errors import CommitUnknown, PositionLost
from penstock.model.feed import Feed
from penstock.model.position import Position, position_text
from penstock.model.table import TableSchema
from penstock.runtime.apply_task import apply, tasks_for
from penstock.runtime.batch import TableWork, gather, require_same_structure

FEW_CHANGES = 10_000  # what is left to replay when a table joins the stream: it is applied between two batches
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class FinishedRange:
    part: WrittenPart
    position: Position


class Unresolved(Exception):
    """A changed row has cells that were not sent, and the copy is not sure to have them; see `_doubtful`."""


def _doubtful(work: TableWork, written: Sequence[WrittenPart], *, settled: bool) -> bool:
    """Whether cells that were not sent may be missing or another row's. Only when ranges have different positions.

    Until the replay has passed all of them (`settled`), a row that changed its key may be in no range, and another row
    that took that key be in one.
    """
    missing = any(part.unresolved for part in written)
    return missing or (not settled and bool(work.moved_keys) and any(part.fetched for part in written))


def catch_up(
    destination: Destination,
    runner: JobRunner,
    log: ChangeLog,
    limits: BatchConfig,
    source: str,
    feed: Feed,
    schema: TableSchema,
    ranges: Sequence[FinishedRange],
    taken_at: Position,
    stop: Event,
) -> Position | None:
    """Brings the copy to a position near the log's end and commits it; gives that position, None when told to stop.

    `taken_at` is the position of the newest snapshot, which counts even when the table had no range to read.
    """
    position = min([finished.position for finished in ranges], default=taken_at)
    passed = max([finished.position for finished in ranges], default=taken_at)
    parts = [finished.part for finished in ranges if not finished.part.empty]
    start = log.start()
    if start is not None and position < start:
        raise PositionLost(
            f"table {feed.name}: the change log begins at {position_text(start)}, after its copy's position "
            f"{position_text(position)}",
            "Its copy starts again by itself; raise log.max_bytes if this repeats",
        )
    while True:
        if stop.is_set():
            return None
        batch = gather(log, log.segments(after=position), {feed: position}, limits)
        if batch is None:
            if position >= passed:
                break
            stop.wait(POLL_SECONDS)  # capture has not come that far yet
            continue
        work = batch.tables.get(feed.name)
        if work is not None:
            for seen in work.schemas.values():
                require_same_structure(schema, seen)
            plan = destination.plan_catchup(feed.target, source, parts, position)
            results = runner.run(apply, tasks_for(log, work, position, plan))
            error = next((result.error for result in results if result.error), None)
            if error is not None:
                raise error
            written = [result.part for result in results if result.part is not None]
            if _doubtful(work, written, settled=position >= passed):
                destination.discard(written)
                raise Unresolved
            if any(result.truncated for result in results):
                parts = []  # nothing of what was copied is left; the files are garbage once the copy is committed
            parts += [part for part in written if not part.empty]
        position = batch.end
        if position >= passed and batch.changes < FEW_CHANGES:
            break
    try:
        destination.commit_copy(feed.target, source, parts, position)
    except CommitUnknown:
        if destination.position(feed.target, source) != position:
            raise
    return position

"""Named places at which a test may kill the process, one at every durability step.

A test writes `NAME [NTH [SIGNAL]]` into a file and names that file in PENSTOCK_FAILPOINT_FILE. The NTH time (default 1)
that any process of the pipeline reaches NAME, it removes the file and kills itself with SIGKILL, or sends itself the
signal: one that was stopped there can be killed later, in the middle of what follows. Without the variable a failpoint
costs one dictionary lookup.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

FAILPOINTS = (
    "capture.segment_written",  # the temporary file is complete, not yet renamed
    "capture.segment_sealed",  # the segment is in the chain, the slot not yet advanced
    "capture.part_written",  # a part of a huge transaction is durable, its last part not yet
    "capture.slot_advanced",  # the flush position has been sent
    "capture.idle_sealed",  # an empty segment took the idle position, its predecessor not yet removed
    "copy.begun",  # a table's ranges are planned and recorded, nothing is read
    "copy.range_finished",  # a range is written and recorded
    "copy.finished",  # all ranges are written, the log is not replayed over them yet
    "copy.catching_up",  # the state says that the log is replayed over the copy
    "copy.committed",  # the copy is visible with its position, the state store does not know
    "copy.done",  # the state store knows, the table is not part of the batches yet
    "share.written",  # a huge transaction is shared out in scratch, and not applied yet
    "apply.files_written",  # the batch's job is done, nothing committed
    "apply.written_beside",  # the job of the next batch is done, the commits of the one before are under way
    "apply.before_commit",  # of one table, or of all tables of a batch that are committed in one step
    "apply.staged",  # the metadata of all tables of a batch is written, the catalog does not name it
    "postgres.before_commit",  # all statements of a transaction are done at the destination, COMMIT is not sent
    "apply.after_commit",  # of one table, when others of the batch are not committed yet, or of all in one step
    "apply.batch_committed",  # all tables committed, nothing recorded
    "apply.position_advanced",  # an idle table's position was moved on
    "publish.file_written",  # a task of a stream: its records are durable, nothing is committed
    "publish.recorded",  # of a webhook: what will be sent is recorded, nothing is sent
    "publish.taken",  # of a webhook: a request was taken, nothing of it is recorded
    "publish.piece_out",  # a part of its records is published, with a place of its own, and not all of them
    "publish.committed",  # its place has moved, its file has not got its name
    "publish.rows_published",  # a shard has pieces of a copy, the driver does not know
    "publish.rows_complete",  # every shard has all rows of a copy, the state store does not know
    "publish.visible",  # readers see its file, the driver does not know
    "publish.batch_done",  # all shards are published, nothing is recorded
    "log.segment_removed",  # retention removed one segment of several
    "maintain.before_expiry",
    "maintain.after_expiry",
    "leaving.listed",  # what an expiry let go is noted, the snapshots are gone
    "leaving.file_removed",  # one of those whose time has come
    "maintain.compaction_written",  # a merge between batches: new files written, not committed
    "maintain.compaction_committed",  # committed, old files still on disk
    "merge.writing",  # a merge beside batches: an executor has opened the new file, and read some of its rows
    "merge.part_written",  # one of its files is written, perhaps not all
    "merge.written",  # all are, and batches go on; nothing committed
    "merge.committing",  # its manifests are written, the table's metadata is not
    "merge.committed",  # committed, old files and their key index still on disk
    "sweep.found",  # the folder has been searched, nothing removed
    "sweep.shut",  # slow writers are shut out, nothing removed
    "sweep.file_removed",  # one of those found
    "reset.slot_dropped",  # the slot is gone, the log is still there
    "reset.log_removed",  # both are gone, the state store does not know
)

_seen: Counter[str] = Counter()


def reach(name: str) -> None:
    """Dies here if a test asked for it."""
    path = os.environ.get("PENSTOCK_FAILPOINT_FILE")
    if path is None:
        return
    if name not in FAILPOINTS:
        raise ValueError(f"{name} is not in FAILPOINTS")
    try:
        wanted, nth, name_of_signal, *_ = [*Path(path).read_text().split(), "", "", ""]
    except FileNotFoundError:
        return
    if wanted != name:
        return
    _seen[name] += 1
    if _seen[name] >= int(nth or 1):
        Path(path).unlink(missing_ok=True)
        os.kill(os.getpid(), signal.Signals[name_of_signal or "SIGKILL"])

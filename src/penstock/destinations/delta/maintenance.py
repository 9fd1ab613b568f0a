"""What is due for a table between batches: compaction, checkpoints, and what no reader needs any more.

Commits of compaction and batches take turns, so a refusal means that somebody else touched the table: what was written
is removed, and the next call looks again. What takes long runs beside batches (`lake.background_work`). Rows that die
in the files of a merge while it runs are dead in the merged file from its first entry on. Every vector that is replaced
leaves a tombstone, so these are let go as soon as no version that is kept needs them; their files leave later. A call
that finds nothing to do costs no I/O.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import structlog
from pyroaring import BitMap

from penstock.destinations.contract import BOOKMARKS_LAST, InProcessRunner, JobRunner
from penstock.destinations.delta.checkpoint import cut, write_checkpoint
from penstock.destinations.delta.columns import rescued_column
from penstock.destinations.delta.commit import Entry, require_base
from penstock.destinations.delta.open_table import OpenTable, entry_app, sources_of
from penstock.destinations.delta.vectors import bitmap_of
from penstock.destinations.lake.background_work import BackgroundWork, Merging, discard
from penstock.destinations.lake.compaction import Merged, MergeData, merge, moved_rows
from penstock.destinations.lake.compaction_choice import Choice, choose
from penstock.destinations.lake.compaction_tasks import NOTHING, data_merges, takes_long
from penstock.destinations.lake.data_files import WrittenFile
from penstock.destinations.lake.file_list import LiveFile, TableState
from penstock.destinations.lake.key_index import KeyIndex
from penstock.destinations.lake.settings import MaintenanceSettings
from penstock.destinations.lake.storage import reaching
from penstock.errors import DestinationError, StaleBase
from penstock.failpoints import reach

LOG = structlog.get_logger("delta")


def compact(
    opened: OpenTable, *, index: KeyIndex, settings: MaintenanceSettings, run: JobRunner, background: BackgroundWork
) -> Choice:
    """Merge what is due, here and now if it is little, or beside batches, and return what has been merged.

    StaleBase if somebody else has changed the table.
    """
    state = opened.state
    if state is None or opened.strayed:
        return NOTHING
    merging = opened.upkeep.merging
    if merging is not None:
        return _finished(opened, merging) if merging.is_done else NOTHING
    if state is opened.upkeep.settled or opened.others is None:
        return NOTHING  # or there is a user's column that we could not carry over
    versions = opened.layout.period is not None
    chosen = choose(
        as_read(state),
        0,
        settings.compact_files,
        versions=versions,
        limit=settings.read_cost,
        at_once=settings.merge_at_once,
    )
    choice = Choice(chosen.groups, ())
    if not choice:
        opened.upkeep.settled = state
        return NOTHING
    is_long = takes_long(choice)
    tasks = _tasks(opened, state, choice, index, beside=is_long)
    fence = str(opened.log.state.transaction(opened.fence))
    if is_long:
        if not background.busy:
            opened.upkeep.merging = Merging(state, fence, choice, tasks, background.merge(run, tasks), beside=True)
        return NOTHING
    done: Future[list[WrittenFile | None]] = Future()
    done.set_result(InProcessRunner().run(merge, tasks))
    return _finished(opened, Merging(state, fence, choice, tasks, done, beside=False))


def as_read(state: TableState) -> TableState:
    """Return the state as it counts for what a read costs: vectors are not files that are opened one by one."""
    if not state.deletes:
        return state
    hits = {path: count for file in state.deletes for path, count in (file.hits or {}).items()}
    size = sum(file.size for file in state.deletes)
    return replace(state, deletes=(LiveFile("", sum(hits.values()), size, 0, "position-deletes", 0, hits),))


def _tasks(opened: OpenTable, state: TableState, choice: Choice, index: KeyIndex, *, beside: bool) -> list[MergeData]:
    rescued = rescued_column(opened.structure.fields)
    columns = (*opened.stored, *(opened.others or ()), *(() if rescued is None else (rescued,)))
    table_format, deletes = opened.table_format, [file.path for file in state.deletes]
    return data_merges(
        opened,
        choice,
        table_format=table_format,
        columns=columns,
        index=index,
        deletes_of=lambda group: table_format.concerning(deletes, [file.path for file in group]),
        beside=beside,
    )


def _finished(opened: OpenTable, merging: Merging) -> Choice:
    """Commit a merge that is done, and return what was merged: nothing, if it is void by now."""
    opened.upkeep.merging = None
    what = f"table {opened.target}: its compaction"
    with opened.turns.lock:
        state = opened.read_state()
        try:
            written = merging.written.result()
        except DestinationError:
            _discard(opened, merging)
            if not merging.is_valid(state):
                return NOTHING  # its files went away under it
            raise
        if not merging.beside:
            reach("maintain.compaction_written")
        fence = str(opened.log.state.transaction(opened.fence))
        if not merging.is_valid(state) or fence != merging.fence or opened.state is None:
            _discard(opened, merging)
            return NOTHING
        try:
            require_base(opened, opened.state.metadata, what)
            gone = {file.path for file in merging.choice.data}
            entry = Entry(opened)
            removed = [file for file in opened.files() if file.location in gone]
            added = [file for file in written if file is not None]
            entry.rewrite(removed, added, _dead_since(merging, written, state))
            entry.stand()
            if merging.beside:
                reach("merge.committing")
            entry.put("OPTIMIZE", what)
        except StaleBase:
            opened.state = None
            _discard(opened, merging)
            raise
        reach("merge.committed" if merging.beside else "maintain.compaction_committed")
        opened.upkeep.commits_since_expiry += 1
        opened.state = opened.read_state()
    return merging.choice


def _dead_since(merging: Merging, written: Sequence[WrittenFile | None], state: TableState) -> Mapping[str, BitMap]:
    """Return the rows of merged files that have died since the merge began."""
    records = {file.path: file.records for file in merging.choice.data}
    now, dead = [file.path for file in state.deletes], {}
    for task, into in zip(merging.tasks, written, strict=True):
        if into is None or not isinstance(task, MergeData):
            continue
        merged = Merged(
            into=into.path,
            files=task.files,
            records=tuple(records[path] for path in task.files),
            delete_files=task.delete_files,
        )
        ended = task.table_format.deleted_rows(now, task.files)
        rows = moved_rows(task.table_format, merged, ended)
        if len(rows):
            dead[into.path] = bitmap_of(rows)
    return dead


def _discard(opened: OpenTable, merging: Merging) -> None:
    with reaching(f"table {opened.target}: merged files cannot be removed"):
        if merging.written.exception() is None:
            discard(merging.written.result())


def expire(opened: OpenTable, settings: MaintenanceSettings, bookmarks: Path) -> int:
    """Remove files whose time has come, write a checkpoint when it is due, and cut the log.

    Once enough commits have been made, what no version that is kept needs is let go. Return how many entries were
    removed.
    """
    with reaching(f"table {opened.target}: old files cannot be removed"):
        opened.upkeep.deferred.remove_due(lambda: _needed(opened))
    if opened.state is None or opened.upkeep.commits_since_expiry < settings.expire_every:
        return 0
    if opened.upkeep.sweeping is not None and not opened.upkeep.sweeping.found.done():
        return 0
    reach("maintain.before_expiry")
    with opened.turns.lock, reaching(f"table {opened.target}: its log cannot be cut"):
        log = opened.log
        if not log.is_ours:
            return 0  # somebody replaced what we know: it is read again first
        oldest = min([log.version - settings.keep_snapshots + 1, *bookmarked(bookmarks)])
        before = time.time() - settings.time_travel
        kept = {one: told for one, told in log.state.removed.items() if told.version > oldest or told.at > before}
        gone = [told for one, told in log.state.removed.items() if one not in kept]
        let_go = log.state.removed_locations(gone) - log.state.removed_locations(kept.values())
        opened.upkeep.deferred.put(sorted(let_go), time.time() + settings.keep_for)
        reach("leaving.listed")
        log.state.removed = kept
        write_checkpoint(log.root, log.state)
        ours = [log.state.transaction(entry_app(source)) or 0 for source in sources_of(log.state)]
        entries = cut(log.root, min([oldest, *ours]), settings.keep_for)
    reach("maintain.after_expiry")
    opened.upkeep.commits_since_expiry = 0
    return entries


def _needed(opened: OpenTable) -> set[str]:
    """Return the files of the table as it is now: somebody may have restored a version whose files were to leave."""
    with opened.turns.lock:
        known = opened.log.name
        opened.log.refresh()
        if opened.log.name != known:
            opened.look_again = True
        return opened.log.state.locations()


def bookmarked(folder: Path) -> list[int]:
    """Return the versions that bookmarks name, but for those that were left behind long ago."""
    versions = []
    for place in folder.iterdir() if folder.is_dir() else ():
        try:
            told = json.loads(place.read_text())
            if time.time() - told["at"] < BOOKMARKS_LAST:
                versions.append(int(told["version"]))
            else:
                place.unlink(missing_ok=True)
        except (OSError, ValueError, KeyError, TypeError):
            LOG.warning("bookmark cannot be read", place=str(place))
    return versions

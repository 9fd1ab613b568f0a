"""What is due for a table between batches: compaction and expiry, committed by the driver.

Commits of compaction and batches take turns, so a refusal means that somebody else touched the table: what was written
is removed, and the next call looks again. What takes long runs beside batches (`background_work`), so that they wait
for a commit and no longer. A call that finds nothing to do costs no I/O: it may come many times a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import structlog

from penstock.destinations.contract import InProcessRunner, JobRunner
from penstock.destinations.iceberg.commit import carried_on, strict
from penstock.destinations.iceberg.data_files import ICEBERG
from penstock.destinations.iceberg.java import Java, JavaObject, present, translated
from penstock.destinations.iceberg.open_table import OpenTable, look_for_rescued, read_state
from penstock.destinations.iceberg.snapshot_expiry import expire_snapshots, keeps_history
from penstock.destinations.lake.background_work import BackgroundWork, Counting, Merging, Moving, discard
from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.compaction import CountHits, MergeData, MergeDeletes, count_hits, merge
from penstock.destinations.lake.compaction_choice import Choice, choose
from penstock.destinations.lake.compaction_tasks import NOTHING, data_merges, takes_long, worth_a_job
from penstock.destinations.lake.data_files import WrittenFile
from penstock.destinations.lake.file_list import LiveFile, TableState
from penstock.destinations.lake.key_index import KeyIndex
from penstock.destinations.lake.settings import MaintenanceSettings
from penstock.destinations.lake.storage import reaching
from penstock.errors import DestinationError, FileUnreadable, StaleBase
from penstock.failpoints import reach

LOG = structlog.get_logger("iceberg")
MOST_MOVES = 4  # of delete files that came during a merge, beside batches; what is left then, they wait for


def compact(
    java: Java,
    opened: OpenTable,
    *,
    index: KeyIndex,
    settings: MaintenanceSettings,
    run: JobRunner,
    background: BackgroundWork,
) -> Choice:
    """Merge what is due, here and now if it is little, or beside batches, and return what has been merged.

    StaleBase if somebody else has changed the table.
    """
    state = opened.state
    if state is None or state.snapshot is None or not state.only_positional:
        return NOTHING
    merging = opened.upkeep.merging
    if merging is not None:
        return _finished(java, opened, merging, run, background) if merging.is_done else NOTHING
    if state is opened.upkeep.settled or opened.others is None:
        return NOTHING  # or there is a user's column that we could not carry over
    counted = _counted_in_time(state, opened, run, background)
    if counted is None:
        return NOTHING
    state = opened.state = counted
    versions = opened.layout.period is not None
    choice = choose(
        state,
        opened.spec,
        settings.compact_files,
        versions=versions,
        limit=settings.read_cost,
        at_once=settings.merge_at_once,
    )
    if not choice:
        opened.upkeep.settled = state
        return NOTHING
    with translated(f"table {opened.target}: its columns cannot be read"):
        rescued = look_for_rescued(java, opened)
        fence = present(opened.operations.current(), opened.target).properties().get(opened.fence)
    is_long = takes_long(choice, is_local=opened.is_local)
    tasks = _tasks(
        opened,
        state,
        choice,
        index,
        () if rescued is None else (rescued,),
        beside=is_long,
    )
    if is_long:
        if not background.busy:
            opened.upkeep.merging = Merging(state, fence, choice, tasks, background.merge(run, tasks), beside=True)
        return NOTHING
    done: Future[list[WrittenFile | None]] = Future()
    done.set_result(InProcessRunner().run(merge, tasks))
    return _finished(java, opened, Merging(state, fence, choice, tasks, done, beside=False), run, background)


def _tasks(
    opened: OpenTable,
    state: TableState,
    choice: Choice,
    index: KeyIndex,
    rescued: tuple[LakeColumn, ...],
    *,
    beside: bool,
) -> list[MergeData | MergeDeletes]:
    columns = (*opened.stored, *(opened.others or ()), *rescued)
    merges = data_merges(
        opened,
        choice,
        table_format=ICEBERG,
        columns=columns,
        index=index,
        deletes_of=lambda group: _concerning(state, group),
        beside=beside,
    )
    tasks: list[MergeData | MergeDeletes] = [*merges]
    if choice.deletes:
        gone = {file.path for file in choice.data}
        staying = tuple(file.path for file in state.data if file.path not in gone)
        paths, weight = tuple(file.path for file in choice.deletes), sum(file.size for file in choice.deletes)
        tasks.append(
            MergeDeletes(
                table_format=ICEBERG,
                target=opened.target,
                folder=opened.folder,
                files=paths,
                data_files=staying,
                weight=weight,
            )
        )
    return tasks


def _concerning(state: TableState, group: Sequence[LiveFile]) -> list[str]:
    """Return the delete files with entries for a file of the group."""
    paths = [file.path for file in group]
    return [file.path for file in state.deletes if not (file.hits or {}).keys().isdisjoint(paths)]


def _finished(java: Java, opened: OpenTable, merging: Merging, run: JobRunner, background: BackgroundWork) -> Choice:
    """Commit a merge that is done, and return what was merged.

    That is nothing if the merge is void by now, or if so much has come meanwhile that it has to be followed up first.
    """
    opened.upkeep.merging = None
    assert opened.state is not None
    state = opened.state = _counted(opened.state, opened, run)
    try:
        written = [file for file in merging.written.result() if file is not None]
        moved = merging.moved
    except DestinationError:
        _discard(opened, merging)
        if not merging.is_valid(state):
            return NOTHING  # its files went away under it
        raise
    if not merging.beside:
        reach("maintain.compaction_written")
    if not merging.is_valid(state):
        _discard(opened, merging)
        return NOTHING
    late = merging.late(state)
    if late and worth_a_job(sum(file.size for file in late)) and len(merging.moves) < MOST_MOVES:
        opened.upkeep.merging = merging
        if not background.busy:
            moving = Moving(tuple(late), background.merge(run, [merging.move(state, late)]))
            opened.upkeep.merging = replace(merging, moves=(*merging.moves, moving))
        return NOTHING
    removed = [*merging.removed, *late]
    opened.state = None
    try:
        if late:
            move = merging.move(state, late)
            runner = run if worth_a_job(move.weight) else InProcessRunner()
            moved += [file for file in runner.run(merge, [move]) if file is not None]
        with strict(java, opened, state.metadata, f"table {opened.target}: its compaction") as transaction:
            if transaction.base_property(opened.fence) != merging.fence:
                raise StaleBase(
                    f"table {opened.target}: its compaction: leftovers have been removed since it began",
                    "It is begun again",
                )
            transaction.rewrite(removed, written, merging.base.sequence, moved)
            transaction.stand({})
            if merging.beside:
                reach("merge.committing")
    except StaleBase:
        _remove(opened, [*written, *moved])
        raise
    reach("merge.committed" if merging.beside else "maintain.compaction_committed")
    opened.upkeep.commits_since_expiry += 1
    gone = frozenset(file.path for file in removed)
    opened.state = carried_on(java, opened, state, [*written, *moved], gone, aged=merging.base.sequence)
    return merging.choice


def _discard(opened: OpenTable, merging: Merging) -> None:
    with reaching(f"table {opened.target}: merged files cannot be removed"):
        merging.discard()


def _remove(opened: OpenTable, written: Sequence[WrittenFile]) -> None:
    with reaching(f"table {opened.target}: merged files cannot be removed"):
        discard(written)


def expire(java: Java, opened: OpenTable, settings: MaintenanceSettings) -> int:
    """Remove files whose time has come, and expire old snapshots; return how many.

    Snapshots expire once enough commits have been made, but not while a sweep reads them. StaleBase if somebody else
    has changed the table.
    """
    with reaching(f"table {opened.target}: files of old snapshots cannot be removed"):
        opened.upkeep.deferred.remove_due()
    state, sweeping = opened.state, opened.upkeep.sweeping
    if state is None or opened.upkeep.commits_since_expiry < settings.expire_every:
        return 0
    if sweeping is not None and not sweeping.found.done():
        return 0
    if keeps_history(opened):
        opened.upkeep.commits_since_expiry = 0
        return 0
    reach("maintain.before_expiry")
    opened.state = None  # unless it is known what the expiry was made of: what others did must be looked at
    try:
        expire_snapshots(java, opened, state, settings)
    except FileUnreadable as error:  # of what expires: the snapshots are gone all the same
        LOG.warning("files of old snapshots not found", table=str(opened.target), what=error.what)
    reach("maintain.after_expiry")
    opened.upkeep.commits_since_expiry = 0
    with translated(f"table {opened.target}: its state cannot be read"):
        metadata = present(opened.operations.refresh(), opened.target)
        if not _is_our_expiry(java, opened, state, metadata):
            return 0
        opened.state = read_state(java, opened.table, metadata, state, opened.slice, opened.leading)
    return max(0, state.snapshots - opened.state.snapshots)


def _is_our_expiry(java: Java, opened: OpenTable, before: TableState, metadata: JavaObject) -> bool:
    """Return whether the table is what our expiry made of `before`, or `before` itself if nothing expired."""
    if opened.turns.spans(before.metadata, metadata.metadataFileLocation(), opened.source):
        return True
    earlier = metadata.previousFiles()
    return bool(earlier.size()) and opened.turns.spans(before.metadata, java.last(earlier).file(), opened.source)


def _counted(state: TableState, opened: OpenTable, run: JobRunner) -> TableState:
    """With the hits of delete files that were read from the table, and not written by this driver."""
    tasks = _uncounted(state, opened)
    return state.counted(_hits(run, tasks)) if tasks else state


def _counted_in_time(
    state: TableState, opened: OpenTable, run: JobRunner, background: BackgroundWork
) -> TableState | None:
    """Return the state with its dead rows counted; None while many are counted beside batches."""
    counting = opened.upkeep.counting
    if counting is not None:
        if not counting.hits.done():
            return None
        opened.upkeep.counting = None
        try:
            state = opened.state = state.counted(counting.hits.result())
        except DestinationError:
            if {file.path for file in state.deletes}.issuperset(counting.files):
                raise
    tasks = _uncounted(state, opened)
    if not tasks:
        return state
    if not worth_a_job(sum(task.weight for task in tasks)):
        return state.counted(_hits(run, tasks))
    if not background.busy:
        opened.upkeep.counting = Counting(
            tuple(task.file for task in tasks), background.submit(partial(_hits, run, tasks))
        )
    return None


def _uncounted(state: TableState, opened: OpenTable) -> list[CountHits]:
    return [CountHits(ICEBERG, opened.target, file.path, file.size) for file in state.deletes if file.hits is None]


def _hits(run: JobRunner, tasks: Sequence[CountHits]) -> dict[str, dict[str, int]]:
    runner = run if worth_a_job(sum(task.weight for task in tasks)) else InProcessRunner()
    return {task.file: hits for task, hits in zip(tasks, runner.run(count_hits, tasks), strict=True)}

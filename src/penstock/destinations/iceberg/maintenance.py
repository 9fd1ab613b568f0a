"""What is due for a table between batches: compaction and expiry, committed by the driver.

Compaction and batches take turns, so a refusal means that somebody else touched the table: what was written is
removed, and the next call looks again. A call that finds nothing to do costs no I/O: it may come many times a second.
Neighbours: `compaction` chooses and merges, `expiry` expires, `commit` commits, `destination` calls.
"""

from __future__ import annotations

from penstock.destinations.contract import InProcessRunner, JobRunner
from penstock.destinations.iceberg.catalog import MaintenanceSettings
from penstock.destinations.iceberg.commit import carried_on, strict
from penstock.destinations.iceberg.compaction import (
    Choice,
    CountHits,
    MergeData,
    MergeDeletes,
    choose,
    count_hits,
    merge,
)
from penstock.destinations.iceberg.data_files import PREFIX
from penstock.destinations.iceberg.expiry import expire_snapshots
from penstock.destinations.iceberg.java import Java, translated
from penstock.destinations.iceberg.key_index import KeyIndex
from penstock.destinations.iceberg.live_files import TableState
from penstock.destinations.iceberg.storage import reaching, remove
from penstock.destinations.iceberg.table_state import OpenTable, look_for_rescued, read_state
from penstock.destinations.iceberg.version_files import kind_index, kind_prefix
from penstock.errors import StaleBase
from penstock.failpoints import reach

WORTH_A_JOB = 1 << 20  # bytes; less is merged here before Spark has started a task
NOTHING = Choice((), ())


def compact(java: Java, opened: OpenTable, index: KeyIndex, settings: MaintenanceSettings, run: JobRunner) -> Choice:
    """Merges what is due; gives what was merged. StaleBase if somebody else has changed the table."""
    state = opened.state
    if state is None or state is opened.settled or state.snapshot is None or not state.only_positional:
        return NOTHING
    if opened.others is None:
        return NOTHING  # a person's column that we could not carry over
    state = opened.state = _counted(state, opened, run)
    versions = opened.layout.period is not None
    choice = choose(state, opened.spec, settings.compact_files, versions=versions)
    if not choice:
        opened.settled = state
        return NOTHING
    gone = {file.path for file in choice.data}
    with translated(f"table {opened.target}: its columns cannot be read"):
        rescued = look_for_rescued(java, opened)
    columns = (*opened.stored, *opened.others, *([] if rescued is None else [rescued]))
    tasks: list[MergeData | MergeDeletes] = [
        MergeData(
            opened.target,
            opened.folder,
            columns,
            kind_index(index, group[0].path) if versions else index,
            tuple(file.path for file in group),
            tuple(
                file.path for file in state.deletes if not (file.hits or {}).keys().isdisjoint(f.path for f in group)
            ),
            sum(file.size for file in group),
            kind_prefix(group[0].path) if versions else PREFIX,
        )
        for group in choice.groups
    ]
    if choice.deletes:
        staying = tuple(file.path for file in state.data if file.path not in gone)
        paths, weight = tuple(file.path for file in choice.deletes), sum(file.size for file in choice.deletes)
        tasks.append(MergeDeletes(opened.target, opened.folder, paths, staying, weight))
    runner = run if sum(task.weight for task in tasks) >= WORTH_A_JOB else InProcessRunner()
    written = [file for file in runner.run(merge, tasks) if file is not None]
    reach("maintain.compaction_written")
    removed = [*choice.data, *choice.deletes]
    opened.state = None
    try:
        with strict(java, opened, state.metadata, f"table {opened.target}: its compaction") as transaction:
            transaction.rewrite(removed, written, state)
    except StaleBase:
        with reaching(f"table {opened.target}: merged files cannot be removed"):
            for file in written:
                remove(file.path)
        raise
    reach("maintain.compaction_committed")
    opened.commits_since_expiry += 1
    opened.state = carried_on(opened, state, written, frozenset(file.path for file in removed), old=True)
    return choice


def expire(java: Java, opened: OpenTable, settings: MaintenanceSettings) -> int:
    """Removes old snapshots once enough commits have been made; gives how many."""
    state = opened.state
    if state is None or opened.commits_since_expiry < settings.expire_every:
        return 0
    reach("maintain.before_expiry")
    expire_snapshots(java, opened, settings)
    reach("maintain.after_expiry")
    opened.commits_since_expiry = 0
    with translated(f"table {opened.target}: its state cannot be read"):
        opened.state = read_state(java, opened.table, opened.table.operations().refresh(), state, opened.slice)
    return max(0, state.snapshots - opened.state.snapshots)


def _counted(state: TableState, opened: OpenTable, run: JobRunner) -> TableState:
    """With the hits of delete files that were read from the table, and not written by this driver."""
    tasks = [CountHits(opened.target, file.path, file.size) for file in state.deletes if file.hits is None]
    if not tasks:
        return state
    runner = run if sum(task.weight for task in tasks) >= WORTH_A_JOB else InProcessRunner()
    return state.counted({task.file: hits for task, hits in zip(tasks, runner.run(count_hits, tasks), strict=True)})

"""The work of one task of a batch, on an executor: read the table's slices, decode and fold them, write the net effect.

A task never fails the job, which has tasks of other tables: whatever it meets is its result. Rows never leave the task
but as files of the destination.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from penstock.changelog.log import ChangeLog
from penstock.decode.sift import sift, unfit
from penstock.decode.undecodable import Undecodable
from penstock.destinations.contract import WritePlan, WrittenPart
from penstock.errors import CopyNeeded, PenstockError, TableError
from penstock.fold.anomalies import find_anomalies
from penstock.fold.clone import fold_append, fold_clone
from penstock.fold.envelope import fold_events
from penstock.fold.evolution import Followed
from penstock.fold.history import fold_history
from penstock.fold.net_effect import NetEffect
from penstock.fold.projection import let_in_without_values, project_effect
from penstock.fold.whole_rows import fold_rows
from penstock.model.anomaly import AnomalyCount
from penstock.model.change import RawChanges
from penstock.model.dead_letter import DeadLetter
from penstock.model.feed import Feed, Mode
from penstock.model.position import Position
from penstock.model.quarantine import RawMessage
from penstock.model.rescue import RescueCount
from penstock.model.table import TableId, TableSchema
from penstock.runtime.apply.batch_planner import TableWork
from penstock.runtime.apply.key_split import (
    MOST_BYTES_KEPT,
    MOST_MESSAGES_KEPT,
    Piece,
    Share,
    grouped,
    pieces_of,
    read_pieces,
    read_share,
    versioned,
)
from penstock.runtime.apply.processed import Keep, LetterList, processed_effect
from penstock.runtime.apply.table_boundary import unexpected
from penstock.runtime.copy.uncertain_rows import Doubted, UncertainRow


@dataclass(frozen=True)
class ApplyTask:
    log: ChangeLog
    feed: Feed
    slices: tuple[tuple[str, str], ...]  # segment name, schema fingerprint
    position: Position
    bucket: int
    buckets: int
    plan: WritePlan
    schema: TableSchema  # of the outcome
    versions: Mapping[str, TableSchema]  # by fingerprint: those of the slices, with their columns numbered
    weight: int  # bytes to read, for an even spread over partitions
    doubt: UncertainRow | None = None  # of a copy that is caught up
    until: Position | None = None  # what commits there or later is not for this batch
    shared: bool = False  # the table's part of the batch is too large to be held whole by each of its tasks
    pieces: tuple[Piece, ...] = ()  # of the log: what it takes when it is shared, and any rows will do
    share: Share | None = None  # what it takes when it is shared by key, once that is done


@dataclass(frozen=True)
class Applied:
    """What one task did; `error` instead of `part` when the table cannot take its changes."""

    table: TableId  # the feed's name
    part: WrittenPart | None = None
    changes: int = 0
    truncated: bool = False
    last_commit_time: int = 0  # µs
    error: PenstockError | None = None
    doubted: Doubted | None = None
    rescues: tuple[RescueCount, ...] = ()
    anomalies: tuple[AnomalyCount, ...] = ()
    fetched: int = 0  # values read back from the destination
    skipped: tuple[RawMessage, ...] = ()  # what could not be decoded, and the table went on without
    letters: tuple[DeadLetter, ...] = ()  # rows that processors failed on, and the table goes on without


def tasks_for(
    log: ChangeLog,
    work: TableWork,
    position: Position,
    plan: WritePlan,
    followed: Followed,
    *,
    doubt: UncertainRow | None = None,
    until: Position | None = None,
    slots: int = 1,
) -> list[ApplyTask]:
    """Return one table's tasks of a batch: one for each of its key buckets. `slots` is how many run side by side."""
    shared, slices = work.shared(slots), tuple(work.slices)
    pieces: list[tuple[Piece, ...]] = []
    buckets = work.buckets(slots)
    any_rows = plan.layout.events or not (work.truncates or has_key(work.feed, followed.schema))
    if shared and any_rows:
        pieces = grouped(pieces_of(log, slices, work.bytes // buckets), math.ceil(work.bytes / buckets))
        buckets = len(pieces)
    return [
        ApplyTask(
            log,
            work.feed,
            slices,
            position,
            bucket,
            buckets,
            plan,
            followed.schema,
            followed.versions,
            work.bytes // buckets,
            doubt,
            until,
            shared,
            pieces[bucket] if pieces else (),
        )
        for bucket in range(buckets)
    ]


def has_key(feed: Feed, schema: TableSchema) -> bool:
    """Return whether a table's rows are told apart: by a key, or, in a clone, by the whole row."""
    return bool(schema.key) or by_row(feed, schema)


def by_row(feed: Feed, schema: TableSchema) -> bool:
    return schema.by_row and feed.mode is Mode.CLONE


def whole(tasks: Sequence[ApplyTask]) -> ApplyTask:
    """Return one task for what all these of one table would have done."""
    return replace(tasks[0], bucket=0, buckets=1, shared=False, weight=sum(task.weight for task in tasks))


def apply(task: ApplyTask) -> Applied:
    letters = LetterList(task.feed.name)
    try:
        changes, skipped = _fit(task) if task.plan.layout.events else (_changes(task), ())
        net = _folded(task, changes, letters.keep)
        part = task.plan.write(net)
        if part.unresolved and task.doubt is None:
            raise _lacking(task, part)
        doubted = task.doubt.after(net, part) if task.doubt is not None else None
        anomalies = _anomalies(task)
    except Undecodable as error:
        messages = unfit(
            _changes(task), position=task.position, most=MOST_MESSAGES_KEPT, most_bytes=MOST_BYTES_KEPT // task.buckets
        )
        return Applied(task.feed.name, error=error.keeping(messages or error.messages))
    except PenstockError as error:
        return Applied(task.feed.name, error=error)
    except Exception as error:  # noqa: BLE001 - an error is the task's result: the job has other tables' tasks
        return Applied(task.feed.name, error=unexpected(task.feed.name, error))
    return Applied(
        task.feed.name,
        part,
        net.changes,
        net.truncated,
        net.last_commit_time,
        doubted=doubted,
        rescues=net.rescues,
        anomalies=anomalies,
        fetched=part.fetched,
        skipped=skipped,
        letters=tuple(letters.letters),
    )


def _lacking(task: ApplyTask, part: WrittenPart) -> TableError:
    """Return the error of an update whose row the table lacks, and of which large values were not sent.

    Nobody but the source has those values.
    """
    if task.feed.projection.where or task.feed.processors:
        return let_in_without_values(task.schema)
    rows = "1 updated row is" if len(part.unresolved_rows) == 1 else f"{len(part.unresolved_rows)} updated rows are"
    cells = "1 unchanged large value" if part.unresolved == 1 else f"{part.unresolved} unchanged large values"
    return CopyNeeded(
        f"table {task.feed.name}: {rows} missing in {task.plan.target}, and the source did not send {cells} of theirs; "
        "somebody may have deleted rows there",
        "Nothing: it is copied again by itself",
    )


def _fit(task: ApplyTask) -> tuple[list[RawChanges], tuple[RawMessage, ...]]:
    """Return the changes that can be decoded, and those that cannot.

    Buckets that are given the same must leave out the same, so each looks at all, and the first of them reports. If
    there are so many that they cannot be kept, that is an error, as in every other mode.
    """
    wanted = range(task.position, 2**64 if task.until is None else task.until)
    most_bytes = MOST_BYTES_KEPT // (task.buckets if task.shared else 1)
    fit: list[RawChanges] = []
    bad: list[RawMessage] = []
    for changes in _changes(task):
        sound, some = sift(changes)
        fit.append(sound)
        bad += [message for message in some if message.commit_position in wanted]
        if len(bad) > MOST_MESSAGES_KEPT or sum(len(message.data) for message in bad) > most_bytes:
            raise too_many(task.feed.name, len(bad)).keeping(bad)
    return fit, tuple(bad) if task.shared or task.bucket == 0 else ()


def too_many(table: TableId, count: int) -> Undecodable:
    return Undecodable(
        f"table {table}: {count} messages and more of one batch cannot be decoded",
        "Too many to go on without: look at them with `penstock quarantine`, and report this",
    )


def _anomalies(task: ApplyTask) -> tuple[AnomalyCount, ...]:
    """Of a table that is not being copied, if they are to be counted."""
    if not task.feed.anomalies or task.doubt is not None:
        return ()
    return find_anomalies(
        _changes(task),
        task.plan.has,
        position=task.position,
        until=task.until,
        bucket=task.bucket,
        buckets=task.buckets,
        examples=task.feed.logs_anomalies,
    )


def _folded(task: ApplyTask, changes: Iterable[RawChanges], keep: Keep) -> NetEffect:
    """Return it as the plan's table takes it: a copy that is caught up takes rows, whatever will become of it."""
    feed, layout = task.feed, task.plan.layout
    projects = layout.events or by_row(feed, task.schema)  # the fold does so itself
    if layout.events:
        fold: Callable[..., NetEffect] = partial(fold_events, projection=feed.projection, markers=feed.markers)
    elif by_row(feed, task.schema):
        fold = partial(fold_rows, projection=feed.projection)
    elif layout.period is not None:
        fold = partial(fold_history, since=task.plan.moment)
    else:
        fold = fold_append if feed.mode is Mode.APPEND else fold_clone
    # Its rows are shared out already
    by_number = task.shared and (layout.events or not has_key(feed, task.schema))
    net = fold(
        changes,
        position=task.position,
        until=task.until,
        bucket=0 if by_number else task.bucket,
        buckets=1 if by_number else task.buckets,
        schema=task.schema,
        strict=feed.strict,
    )
    net = net if projects else project_effect(feed.projection, task.schema, net)
    if not feed.processors:
        return net
    return processed_effect(feed, task.schema, net, events=layout.events, keep=keep)


def _changes(task: ApplyTask) -> Iterator[RawChanges]:
    """Yield all changes of the table, or what the task needs of them when they are too many to be held."""
    if task.share is not None:
        return read_share(task.share, task.bucket, task.buckets, task.versions)
    if task.pieces:
        return read_pieces(task.log, task.feed, task.pieces, task.versions)
    return _all_changes(task)


def _all_changes(task: ApplyTask) -> Iterator[RawChanges]:
    wanted: dict[str, list[str]] = {}
    for segment, fingerprint in task.slices:
        wanted.setdefault(segment, []).append(fingerprint)
    for segment, fingerprints in wanted.items():
        for changes in task.log.read(segment, fingerprints):
            yield versioned(changes, task.feed, task.versions)


def loaded(number: int) -> int:
    """Do nothing on an executor, which then has the modules that tasks need."""
    return number

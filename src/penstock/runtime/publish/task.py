"""The work of one task of a batch, on an executor: open a shard, read the log, render events in order, publish them.

The task commits, not the driver: shards are independent of one another, and a destination's transaction cannot be left
open for somebody else. A task that is run again finds in the shard's place what it has to do, if anything.

A table that cannot be rendered stands behind from the part of the log that holds the trouble, and the others go on.
Errors of the destination and of the log are raised: they concern every table.

Two things are the driver's to do before the shard can move: dead letters must be kept, and topics must be looked up.
The task then publishes nothing and returns them all (`ShardOutcome.stays`); the driver does it and runs the task again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.changelog.log import ChangeLog
from penstock.decode.choices import chosen, unchosen
from penstock.decode.sift import limited, sift
from penstock.decode.undecodable import Undecodable
from penstock.destinations.stream_contract import Layout, Publisher, Records, ShardPlace
from penstock.errors import Overtaken, PenstockError, RecordRefused, TableError, TablesRefused, UnknownTopics
from penstock.fold.envelope import OPERATIONS
from penstock.model.change import RawChanges
from penstock.model.dead_letter import DeadLetter
from penstock.model.feed import Feed
from penstock.model.place import Place, parts_of, place_at
from penstock.model.position import Position
from penstock.model.quarantine import raw_message
from penstock.model.rescue import RescueCount, merged
from penstock.model.table import TableId
from penstock.render.event import Origin
from penstock.render.events import Rendered, in_stream_order, render_changes
from penstock.render.format import EventFormat
from penstock.runtime.apply.key_split import MOST_BYTES_KEPT, MOST_MESSAGES_KEPT
from penstock.runtime.apply.table_boundary import unexpected
from penstock.runtime.apply.task import too_many
from penstock.runtime.publish.transaction_order import changes_before

RENDERING = "its events were rendered"
MOST_LETTERS = 10_000  # that a task returns at once
PLACE_LENGTH = len(place_at(0))


def place_name(table: TableId) -> str:
    """Return the name under which a shard's place lists a table: no two tables have the same."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in (table.schema, table.name))


@dataclass(frozen=True)
class TablePart:
    """One table's part of a batch.

    `tolerated` are messages, by their place, that are in quarantine: they cannot be decoded, and the stream goes on
    without them. `letters` are records, by their name (`DeadLetter.name`), that are kept as dead letters: it goes on
    without these as well.
    """

    feed: Feed
    slices: tuple[tuple[str, str], ...]  # segment name, schema fingerprint
    tolerated: frozenset[str] = frozenset()
    letters: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return place_name(self.feed.name)


@dataclass(frozen=True)
class PublishTask:
    """One shard's part of a batch that ends at `until`.

    `followed` are all tables of the stream, by `place_name`; those of them that `waiting` names take no part. `alone`:
    the one table in `tables` stands behind, and is brought on up to where the others are, at most. `known` is where the
    driver has seen the shard: a batch has nothing from before that.
    """

    log: ChangeLog
    publisher: Publisher
    origin: Origin
    format: EventFormat
    shard: int
    layout: Layout
    tables: tuple[TablePart, ...]
    until: Position
    followed: frozenset[str]
    waiting: frozenset[str] = frozenset()
    alone: bool = False
    known: ShardPlace | None = None
    weight: int = 0


@dataclass
class TableOutcome:
    """What a task did for one table.

    With an `error` the table stands behind from `place` on; messages that are `undecodable` are to be kept, and then
    the table can go on without them.

    `letters` are to be kept as dead letters, and `unknown_topics` to be looked up, before the shard can move.
    """

    events: int = 0
    last_commit_time: int = 0  # µs
    rescues: tuple[RescueCount, ...] = ()
    place: Place = ""
    error: TableError | None = None
    undecodable: bool = False
    letters: tuple[DeadLetter, ...] = ()
    unknown_topics: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ShardOutcome:
    """How far the shard is after the task, and what the task did for each table.

    `stays`: nothing was published, since there are letters to keep or topics to look up.
    """

    at: ShardPlace
    tables: dict[TableId, TableOutcome] = field(default_factory=dict)
    stays: bool = False


class _NotKept(Exception):
    """Messages that cannot be decoded, and are not in quarantine yet."""

    def __init__(self, error: Undecodable) -> None:
        super().__init__(error.what)
        self.error = error


class MustStay(Exception):
    """Letters that are not kept yet, or topics that are not known yet."""


def publish(task: PublishTask) -> ShardOutcome:
    """Publish what the shard lacks of the batch, and return how far it is."""
    left_out: dict[TableId, TableError] = {}
    while True:
        try:
            return _publish(task, left_out)
        except TablesRefused as refused:
            found = {TableId(*name): error for name, error in refused.errors.items()}
            if not found.keys() & {part.feed.name for part in task.tables} - left_out.keys():
                raise  # none of them is ours: the same would happen again
            left_out |= found


def _publish(task: PublishTask, left_out: Mapping[TableId, TableError]) -> ShardOutcome:
    """Publish without the tables that the destination has refused: they stand behind, from where the shard is."""
    at = task.publisher.open()
    _require_not_behind(task, at)
    work = _Work(task, at, left_out=left_out)
    if work.is_done:
        return ShardOutcome(at, work.outcomes)
    try:
        task.publisher.publish(work.records(), work.upto)
    except MustStay:
        return ShardOutcome(at, work.waiting_outcomes(), stays=True)
    except RecordRefused as refused:
        return _refused(task, at, refused, left_out)
    except UnknownTopics as changed:  # the layout knows them, and they are no longer as it says
        lacking = work.lacking(changed.names)
        if not lacking:
            raise
        return ShardOutcome(at, lacking, stays=True)
    return ShardOutcome(work.upto(), work.outcomes)


def _require_not_behind(task: PublishTask, at: ShardPlace) -> None:
    """Raise Overtaken when the shard has gone back: its server was restored, or lost what it had acknowledged."""
    known = task.known
    if known is None:
        return
    if at.place < known.place or any(at.of(part.name) < known.of(part.name) for part in task.tables):
        raise Overtaken(
            f"shard {task.shard} was published up to {known.place}, and is at {at.place} now: the destination lost "
            "what it had acknowledged",
            "Nothing: what is missing is published again from the change log. Its consumers may see events twice",
        )


def _refused(
    task: PublishTask, at: ShardPlace, refused: RecordRefused, left_out: Mapping[TableId, TableError]
) -> ShardOutcome:
    """Find the records that were refused, to be kept as dead letters: they are known by their place only."""
    work = _Work(task, at, refused, left_out)
    try:
        for _ in work.records():
            pass
    except MustStay:
        return ShardOutcome(at, work.waiting_outcomes(), stays=True)
    raise refused  # none of them is ours: the same would happen again


class _Work:
    """What one shard lacks of a batch."""

    def __init__(
        self,
        task: PublishTask,
        at: ShardPlace,
        refused: RecordRefused | None = None,
        left_out: Mapping[TableId, TableError] = MappingProxyType({}),
    ) -> None:
        """`refused`: what the destination has said of some of the records; `left_out`: of whole tables."""
        self._task, self._at = task, at
        self._refused = refused
        self._select = partial(task.layout.select, task.shard)
        end = place_at(task.until)
        self._limit = min(end, at.place) if task.alone else end
        self._parts = [part for part in task.tables if (part.name in at.behind) is task.alone]
        self.outcomes: dict[TableId, TableOutcome] = {
            part.feed.name: TableOutcome(place=at.of(part.name), error=left_out[part.feed.name])
            for part in self._parts
            if part.feed.name in left_out
        }
        self._topics: dict[TableId, set[str]] = {}  # those that a table has records in
        self._letters = self._letter_bytes = 0
        self._file: tuple[str, range] = ("", range(0))  # what is rendered now: a segment, and slices of it

    @property
    def is_done(self) -> bool:
        if self._task.alone:
            return all(self._at.of(part.name) >= self._limit for part in self._parts)
        return self._at.place >= self._limit

    def upto(self) -> ShardPlace:
        """Return how far the shard is once this work is published."""
        failed = {place_name(name): one.place for name, one in self.outcomes.items() if one.error is not None}
        behind = {name: place for name, place in self._at.behind.items() if name in self._task.followed}
        if self._task.alone:
            behind |= {part.name: failed.get(part.name, self._limit) for part in self._parts}
            still = {name: place for name, place in behind.items() if place < self._at.place}
            copies = {name: copy for name, copy in self._at.copies.items() if name in still}
            return replace(self._at, behind=still, copies=copies)
        waiting = dict.fromkeys(self._task.waiting, self._at.place)
        return replace(self._at, place=self._limit, behind={**waiting, **behind, **failed})

    def waiting_outcomes(self) -> dict[TableId, TableOutcome]:
        """Return what is to be kept and looked up; nothing else was done."""
        return {
            name: TableOutcome(letters=one.letters, unknown_topics=one.unknown_topics)
            for name, one in self.outcomes.items()
            if one.letters or one.unknown_topics
        }

    def lacking(self, topics: frozenset[str]) -> dict[TableId, TableOutcome]:
        """Return the tables that have records in these topics, to look them up again."""
        found = {name: frozenset(used & topics) for name, used in self._topics.items()}
        return {name: TableOutcome(unknown_topics=names) for name, names in found.items() if names}

    def records(self) -> Iterator[Records]:
        """Yield the shard's records in stream order, one file of the log at a time.

        At the end, MustStay when there is something to keep or to look up first: the whole batch is gone through, so
        that it is known all at once.
        """
        wanted: dict[str, dict[str, TablePart]] = {}  # by segment and fingerprint
        for part in self._parts:
            for segment, fingerprint in part.slices:
                wanted.setdefault(segment, {})[fingerprint] = part
        for segment in sorted(wanted):  # the order of names is the order of the stream
            for numbers in self._files(segment):
                pieces = self._pieces(segment, wanted[segment], numbers)
                if any(len(piece) for piece in pieces):
                    yield records_of(in_stream_order(pieces))
        if self.waiting_outcomes():
            raise MustStay

    def _files(self, segment: str) -> Iterator[range]:
        """Yield the numbers of the slices of each file: a huge transaction has many, in stream order."""
        header = self._task.log.header(segment)
        first = 0
        for slices in (*(part.slices for part in header.parts), header.slices):
            yield range(first, first + len(slices))
            first += len(slices)

    def _pieces(self, segment: str, wanted: dict[str, TablePart], numbers: range) -> list[Rendered]:
        found: dict[TableId, tuple[TablePart, list[RawChanges]]] = {}
        self._file = segment, numbers
        for changes in self._task.log.read(segment, wanted, numbers):
            part = wanted[changes.schema.fingerprint]
            outcome = self.outcomes.get(part.feed.name)
            if outcome is not None and outcome.error is not None:
                continue
            batch = _between(changes.batch, self._at.of(part.name), self._limit)
            if batch.num_rows:
                carried = RawChanges(chosen(changes.schema, part.feed.types, part.feed.type_map), batch)
                found.setdefault(part.feed.name, (part, []))[1].append(carried)
        return [piece for part, some in found.values() for piece in self._rendered(part, some)]

    def _rendered(self, part: TablePart, some: list[RawChanges]) -> list[Rendered]:
        """Render one table's changes of one file; nothing of it when they cannot be, from here on."""
        outcome = self.outcomes.setdefault(part.feed.name, TableOutcome())
        try:
            pieces = [self._sound(part, changes, self._render(part, changes)) for changes in some]
        except UnknownTopics as found:
            outcome.unknown_topics |= found.names
            return []
        except MustStay:
            raise
        except _NotKept as found:
            outcome.error, outcome.undecodable = found.error, True
        except TableError as error:
            outcome.error = error
        except PenstockError:
            raise
        except Exception as error:  # noqa: BLE001 - it is the table's: the task has other tables
            outcome.error = unexpected(part.feed.name, error, RENDERING)
        else:
            outcome.events += sum(map(len, pieces))
            used = self._topics.setdefault(part.feed.name, set())
            used.update(*(piece.topics.dictionary.to_pylist() for piece in pieces))
            outcome.last_commit_time = max(outcome.last_commit_time, *(piece.last_commit_time for piece in pieces))
            counted = [piece for piece in pieces if piece.counts_own or self._task.shard == 0]
            outcome.rescues = merged([*outcome.rescues, *(one for piece in counted for one in piece.rescues)])
            return pieces
        outcome.place = min(_first_place(changes.batch) for changes in some)
        return []

    def _render(self, part: TablePart, changes: RawChanges) -> Rendered:
        task, before = self._task, 0
        if task.format.transactions:
            before = changes_before(task.log, *self._file, part.feed.table, changes.batch)
        render = partial(
            render_changes,
            feed=part.feed,
            origin=replace(task.origin, log_state=task.log.header(self._file[0]).state),
            format=task.format,
            select=self._select,
            before=before,
            shared=task.layout.shards > 1,
        )
        try:
            return render(changes)
        except Undecodable as error:
            sound, bad = sift(changes)
            if not bad:
                raise
            if len(bad) > MOST_MESSAGES_KEPT:
                kept = limited(bad, MOST_MESSAGES_KEPT, MOST_BYTES_KEPT)
                raise too_many(part.feed.name, len(bad)).keeping(kept) from None
            if any(message.order not in part.tolerated for message in bad):
                raise _NotKept(error.keeping(bad)) from None
        return render(sound)

    def _sound(self, part: TablePart, changes: RawChanges, piece: Rendered) -> Rendered:
        """Return the piece without dead letters; those that are not kept yet are noted."""
        piece, letters = without_letters(piece, part.feed.name, self._task.shard, part.letters, self._refused)
        fresh = [_with_message(changes, letter) for letter in letters]
        if fresh:
            self.outcomes[part.feed.name].letters += tuple(fresh)
            self._letters += len(fresh)
            self._letter_bytes += sum(len(one.message.data) for one in fresh if one.message is not None)
            if self._letters > MOST_LETTERS or self._letter_bytes > MOST_BYTES_KEPT:
                raise MustStay  # these first: the others are found the next time
        return piece


def without_letters(
    piece: Rendered, table: TableId, shard: int, kept: frozenset[str], refused: RecordRefused | None
) -> tuple[Rendered, list[DeadLetter]]:
    """Return records without those that are kept as dead letters or were refused, and letters that are not kept yet."""
    letters, taken_out = list(piece.failed), np.zeros(len(piece), np.bool_)
    reasons = refused.reasons if refused is not None else {}
    if reasons or kept:
        for row, place in enumerate(piece.places.to_pylist()):
            if place in kept or f"{place}@{shard}" in kept:
                taken_out[row] = True
            elif refused is not None and place in reasons:
                taken_out[row] = True
                letters.append(_refused_letter(piece, row, table, shard, refused))
    sound = piece.take(np.flatnonzero(~taken_out)) if taken_out.any() else piece
    return sound, [letter for letter in letters if letter.name not in kept]


def _refused_letter(piece: Rendered, row: int, table: TableId, shard: int, refused: RecordRefused) -> DeadLetter:
    place = piece.places[row].as_py()
    headers = tuple((name, values[row].as_py()) for name, values in piece.headers if values[row].is_valid)
    return DeadLetter(
        table=table,
        place=place,
        key=piece.keys[row].as_py(),
        value=piece.values[row].as_py(),
        code=refused.reason_code,
        reason=refused.reasons[place],
        topic=piece.topics[row].as_py(),
        shard=shard,
        headers=headers,
    )


def _with_message(changes: RawChanges, letter: DeadLetter) -> DeadLetter:
    """Return the letter with the change that its event is made of, from which it can be made again."""
    commit, ordinal = parts_of(letter.place[:PLACE_LENGTH])
    batch = changes.batch
    is_it = (np.asarray(batch.column("commit_position")) == np.uint64(commit)) & (
        np.asarray(batch.column("ordinal")) == ordinal
    )
    (row,) = np.flatnonzero(is_it).tolist()
    message = raw_message(RawChanges(unchosen(changes.schema), batch), row, letter.reason)
    return replace(letter, op=OPERATIONS[message.op], message=message, value=None, headers=())


def records_of(rendered: Rendered) -> Records:
    """Return rendered events as a destination takes them."""
    return Records(
        rendered.places,
        rendered.keys,
        rendered.values,
        rendered.topics,
        rendered.partitions,
        rendered.headers,
        rendered.schemas,
    )


def _between(batch: pa.RecordBatch, begin: Place, end: Place) -> pa.RecordBatch:
    """Return the changes of begin <= place < end."""
    wanted = ~_is_before(batch, begin) & _is_before(batch, end)
    return batch if wanted.all() else batch.filter(pa.array(wanted))


def _is_before(batch: pa.RecordBatch, place: Place) -> npt.NDArray[np.bool_]:
    commit, ordinal = np.asarray(batch.column("commit_position")), np.asarray(batch.column("ordinal"))
    position, number = (np.uint64(one) for one in parts_of(place))
    before: npt.NDArray[np.bool_] = (commit < position) | ((commit == position) & (ordinal < number))
    return before


def _first_place(batch: pa.RecordBatch) -> Place:
    return place_at(batch.column("commit_position")[0].as_py(), batch.column("ordinal")[0].as_py())

"""Commit all tables of a batch in one step, where the catalog can: a JDBC one, or a REST one that offers it.

Each table's change is put into a strict transaction whose commit is staged: its metadata file is written, and nobody
sees it. Then one transaction of SQL, or one request, moves the pointers of all tables, each only if it is what the
change was made of (`group_operations`). A reader who asks the catalog once sees all tables before the batch or all
after it. A table that somebody else touched refuses the whole group. Ordinary changes are staged together by Java, all
others each by calls from here, in several threads. Whoever stages a change keeps the turn of its table until the
outcome is known.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import NoReturn, Protocol

from penstock.destinations.iceberg.batch_change import BatchChange
from penstock.destinations.iceberg.commit import Found, StrictTransaction, note_turn, refused_base, strict
from penstock.destinations.iceberg.java import Java, JavaObject, translated
from penstock.destinations.iceberg.tables import Tables
from penstock.errors import (
    CommitUnknown,
    DestinationError,
    DestinationUnreachable,
    EnvironmentMissing,
    FileUnreadable,
    PenstockError,
    StaleBase,
    TableDropped,
    TableError,
)
from penstock.failpoints import reach

THREADS = 4
FAILED = "!"  # what `GroupOperations.Batch` says of a change that it could not stage

OwnError = TableError | FileUnreadable  # of one table: the others are committed without it


@dataclass(frozen=True)
class StagedChange:
    """A change whose metadata file is written and not yet named by the catalog."""

    change: BatchChange
    base: str
    location: str

    @property
    def fields(self) -> tuple[str, str, str, str]:
        """Return what `GroupOperations.move` needs to know of the table."""
        target = self.change.plan.target
        return target.schema, target.name, self.base, self.location


class Share(Protocol):
    """Some changes of a group, of different tables. What it stages is settled or given up afterwards."""

    @property
    def changes(self) -> Sequence[BatchChange]: ...

    def stage(self, turns: ExitStack) -> list[StagedChange | OwnError]:
        """Write the changes' metadata files, in the order of the changes; take the turns of their tables."""

    def settle(self) -> None:
        """Take note that the pointers are moved.

        What cannot be read back now is read again before the table's next commit.
        """

    def give_up(self) -> None:
        """Remove what was written: the pointers stay."""

    def doubt(self) -> None:
        """Nobody can say: have the tables read again."""


class StagedByJava:
    """Ordinary changes, which Java makes ready, settles and gives up in a call for all of them."""

    def __init__(self, changes: Sequence[BatchChange], operations: JavaObject) -> None:
        self.changes, self._batch = changes, operations.batch()
        self._ready: dict[int, BatchChange] = {}

    def stage(self, turns: ExitStack) -> list[StagedChange | OwnError]:
        for change in self.changes:
            turns.enter_context(change.opened.turns.lock)
            with translated(change.what, shared=True):
                self._batch.add(change.opened.operations, change.described())
        with translated("the commit of several tables", shared=True):
            lines = self._batch.stage().split("\n")
        return [self._staged(number, line) for number, line in enumerate(lines)]

    def _staged(self, number: int, line: str) -> StagedChange | OwnError:
        change = self.changes[number]
        if line == FAILED:
            try:
                self._raise_why(number)
            except (TableError, FileUnreadable) as error:
                return error
            except TableDropped as error:
                raise StaleBase(f"{change.what}: the table is gone: {error}", "It is looked for again") from error
        if not line:
            raise refused_base(change.opened, change.what)
        self._ready[number] = change
        return StagedChange(change, change.base, line)

    def _raise_why(self, number: int) -> NoReturn:
        what = self.changes[number].what
        with translated(what):
            self._batch.fail(number)
        raise DestinationUnreachable(f"{what}: it failed without an error", "The work is redone")

    def settle(self) -> None:
        found: list[Found | None] = [None] * len(self.changes)
        with suppress(PenstockError), translated("what the commit of several tables has made", shared=True):
            found = [None if one is None else Found(**one) for one in json.loads(self._batch.moved())]
        for number, change in self._ready.items():
            change.settle_ordinary(found[number])

    def give_up(self) -> None:
        # What is left behind the sweep finds
        with suppress(DestinationError), translated("the commit of several tables", shared=True):
            self._batch.discard()

    def doubt(self) -> None:
        for change in self._ready.values():
            change.opened.state = None  # the staged file may be the table's


class StagedOneByOne:
    """Changes of any kind, each staged by calls into Java."""

    def __init__(self, changes: Sequence[BatchChange], java: Java, tables: Tables, operations: JavaObject) -> None:
        self.changes, self._java, self._tables, self._operations = changes, java, tables, operations
        self._ready: list[tuple[BatchChange, StrictTransaction, JavaObject]] = []

    def stage(self, turns: ExitStack) -> list[StagedChange | OwnError]:
        made = []
        for change in self.changes:
            turns.enter_context(change.opened.turns.lock)
            made.append(self._staged(change))
        return made

    def _staged(self, change: BatchChange) -> StagedChange | OwnError:
        operations = self._operations.staged(change.opened.operations)
        staging = strict(
            self._java, change.opened, change.base, change.what, same_columns=change.same_columns, staged=operations
        )
        try:
            with staging as transaction:
                change.fill(transaction, mark=self._tables.mark)
        except (TableError, FileUnreadable) as error:
            return error
        self._ready.append((change, transaction, operations))
        return StagedChange(change, transaction.base, operations.location())

    def settle(self) -> None:
        for change, transaction, operations in self._ready:
            opened = change.opened
            try:
                with translated(change.what):
                    operations.moved()
            except PenstockError:
                opened.state, opened.look_again = None, True
            note_turn(opened, transaction.base, columns=transaction.columns_changed)
            change.settle(self._java, self._tables, columns_changed=transaction.columns_changed)

    def give_up(self) -> None:
        for change, _, operations in self._ready:
            with suppress(DestinationError), translated(change.what):  # the sweep finds the file
                operations.discard()

    def doubt(self) -> None:
        for change, _, _ in self._ready:
            change.opened.state = None  # the staged file may be the table's


class _Outcome:
    """Whether the pointers were moved; None if nobody can say. Threads that hold turns of tables wait for it."""

    def __init__(self) -> None:
        self._known = threading.Event()
        self._moved: bool | None = False

    def tell(self, moved: bool | None) -> None:
        self._moved = moved
        self._known.set()

    def wait(self) -> bool | None:
        self._known.wait()
        return self._moved


class GroupCommit:
    """Commits groups of tables of one catalog, one group at a time."""

    def __init__(self, java: Java, tables: Tables, operations: JavaObject) -> None:
        self._java, self._tables, self._operations = java, tables, operations
        self.least = 1 if tables.mark else 2  # a REST catalog may keep nothing by which a commit of one is known after
        self._one_at_a_time = threading.Lock()
        self._threads = ThreadPoolExecutor(THREADS + 1, thread_name_prefix="group-commit")

    def close(self) -> None:
        """Let go of the database. Where Java has ended, its connection went with it, and whoever noticed says so."""
        self._threads.shutdown()
        with suppress(EnvironmentMissing), translated("the catalog's database cannot be closed", shared=True):
            self._operations.close()

    def commit(self, changes: Sequence[BatchChange]) -> list[OwnError | None]:
        """Make all changes visible in one step, but for those that their own table cannot take.

        Return the errors of these, in the order of the changes.

        StaleBase, DestinationUnreachable: nothing has changed. CommitUnknown: all were committed, or none.
        """
        with self._one_at_a_time:
            outcome, shares = _Outcome(), self._shares(changes)
            staged: list[Future[list[StagedChange | OwnError]]] = [Future() for _ in shares]
            settled = [
                self._threads.submit(_take, share, future, outcome)
                for share, future in zip(shares, staged, strict=True)
            ]
            moved: bool | None = False
            try:
                found = [future.result() for future in staged]
                self._move([one for share in found for one in share if isinstance(one, StagedChange)])
                moved = True
            except CommitUnknown:
                moved = None
                raise
            finally:
                outcome.tell(moved)
                for done in settled:
                    done.result()
        errors = {
            id(change): one
            for share, results in zip(shares, found, strict=True)
            for change, one in zip(share.changes, results, strict=True)
            if not isinstance(one, StagedChange)
        }
        return [errors.get(id(change)) for change in changes]

    def _shares(self, changes: Sequence[BatchChange]) -> list[Share]:
        ordinary: list[BatchChange] = []
        others: list[BatchChange] = []
        for change in changes:
            (ordinary if change.is_ordinary(mark=self._tables.mark) else others).append(change)
        parts = [others[number::THREADS] for number in range(min(THREADS, len(others)))]
        shares: list[Share] = [StagedOneByOne(part, self._java, self._tables, self._operations) for part in parts]
        return [*shares, StagedByJava(ordinary, self._operations)] if ordinary else shares

    def _move(self, staged: Sequence[StagedChange]) -> None:
        if not staged:
            return
        reach("apply.staged")
        what = "the commit of several tables"
        with translated(what, shared=True):
            stranger = self._operations.move("\0".join(field for one in staged for field in one.fields))
        if stranger:
            raise StaleBase(f"{what}: table {stranger} has changed since its state was read", "The work is redone")


def _take(share: Share, staged: Future[list[StagedChange | OwnError]], outcome: _Outcome) -> None:
    """Stage these changes, wait for the outcome of the whole group, and settle them.

    All of it happens in one thread, which has the turns of their tables until then.
    """
    with ExitStack() as turns:
        try:
            made = share.stage(turns)
        except BaseException as error:  # noqa: BLE001 - it is raised where the staged changes are awaited
            staged.set_exception(error)
        else:
            staged.set_result(made)
        moved = outcome.wait()
        if moved:
            share.settle()
        elif moved is None:
            share.doubt()
        else:
            share.give_up()

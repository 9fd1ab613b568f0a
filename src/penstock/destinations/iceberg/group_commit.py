"""Commit all tables of a batch in one step, where the catalog's pointers are rows of one database.

Each table's change is put into a strict transaction whose commit is staged: its metadata file is written, and nobody
sees it. Then one transaction of SQL moves the pointers of all tables, each only if it is what the change was made of
(`group_operations`). A reader who asks the catalog once sees all tables before the batch or all after it. A table
that somebody else touched refuses the whole group. Changes are staged by several threads; each keeps the turns of its
tables until the outcome is known.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from penstock.destinations.iceberg.batch_change import BatchChange
from penstock.destinations.iceberg.commit import StrictTransaction, note_turn, strict
from penstock.destinations.iceberg.java import Java, JavaObject, translated
from penstock.destinations.iceberg.tables import Tables
from penstock.errors import (
    CommitUnknown,
    DestinationError,
    EnvironmentMissing,
    FileUnreadable,
    PenstockError,
    StaleBase,
    TableError,
)
from penstock.failpoints import reach

THREADS = 4

OwnError = TableError | FileUnreadable  # of one table: the others are committed without it


@dataclass(frozen=True)
class StagedChange:
    """A change whose metadata file is written and not yet named by the catalog."""

    change: BatchChange
    transaction: StrictTransaction
    operations: JavaObject

    @property
    def fields(self) -> tuple[str, str, str, str]:
        """Return what `GroupOperations.move` needs to know of the table."""
        target = self.change.plan.target
        return target.schema, target.name, self.transaction.base, self.operations.location()


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
        self._one_at_a_time = threading.Lock()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="group-commit")

    def close(self) -> None:
        """Let go of the database. Where Java has ended, its connection went with it, and whoever noticed says so."""
        self._threads.shutdown()
        with suppress(EnvironmentMissing), translated("the catalog's database cannot be closed"):
            self._operations.close()

    def commit(self, changes: Sequence[BatchChange]) -> list[OwnError | None]:
        """Make all changes visible in one step, but for those that their own table cannot take. Return the errors of
        these, in the order of the changes.

        StaleBase, DestinationUnreachable: nothing has changed. CommitUnknown: all were committed, or none."""
        with self._one_at_a_time:
            outcome = _Outcome()
            shares = [changes[number::THREADS] for number in range(min(THREADS, len(changes)))]
            staged: list[Future[list[StagedChange | OwnError]]] = [Future() for _ in shares]
            settled = [
                self._threads.submit(self._take, share, future, outcome)
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
            for change, one in zip(share, results, strict=True)
            if not isinstance(one, StagedChange)
        }
        return [errors.get(id(change)) for change in changes]

    def _take(
        self,
        changes: Sequence[BatchChange],
        staged: Future[list[StagedChange | OwnError]],
        outcome: _Outcome,
    ) -> None:
        """Stage these changes, wait for the outcome of the whole group, and settle them: all in one thread, which has
        the turns of their tables until then."""
        with ExitStack() as turns:
            made: list[StagedChange | OwnError] = []
            try:
                for change in changes:
                    turns.enter_context(change.opened.turns.lock)
                    made.append(self._staged(change))
            except BaseException as error:  # noqa: BLE001 - it is raised where the staged changes are awaited
                staged.set_exception(error)
            else:
                staged.set_result(made)
            moved = outcome.wait()
            for one in made:
                if not isinstance(one, StagedChange):
                    continue
                if moved:
                    self._settle(one)
                elif moved is None:
                    one.change.opened.state = None  # it is read again; the staged file may be the table's
                else:
                    self._give_up(one)

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
        return StagedChange(change, transaction, operations)

    def _move(self, staged: Sequence[StagedChange]) -> None:
        if not staged:
            return
        reach("apply.staged")
        what = "the commit of several tables"
        with translated(what):
            stranger = self._operations.move("\0".join(field for one in staged for field in one.fields))
        if stranger:
            raise StaleBase(f"{what}: table {stranger} has changed since its state was read", "The work is redone")

    def _settle(self, one: StagedChange) -> None:
        """The pointers are moved. What cannot be read back now is read again before the table's next commit."""
        opened = one.change.opened
        try:
            with translated(one.change.what):
                one.operations.moved()
        except PenstockError:
            opened.state, opened.look_again = None, True
        note_turn(opened, one.transaction.base, columns=one.transaction.columns_changed)
        one.change.settle(self._java, self._tables, one.transaction)

    def _give_up(self, one: StagedChange) -> None:
        try:
            with translated(one.change.what):
                one.operations.discard()
        except DestinationError:
            return  # the sweep finds the file

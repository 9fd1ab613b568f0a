"""Ask a run for pins (state/pin.py): tables of the lake at exactly the position of a snapshot of the source.

The order is what makes it exact: the tables are held first, then the snapshot is made, so that its position is not
behind them; then the run brings each to that position and says what its contents are called. A table is held only for
as long as a snapshot takes when nothing stands in its way; when an old transaction does, the tables are let go
until it has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType

from penstock.errors import NoAnswer, PenstockError, SnapshotBlocked, StateError, TableError
from penstock.model.position import position_text
from penstock.model.table import TableId
from penstock.source.contract import Source
from penstock.source.snapshot_contract import Snapshot
from penstock.state.pin import RENEW_EVERY, Pin
from penstock.state.store import Pins

HOLD_SECONDS = 10.0  # how long tables wait for a snapshot
POLL_SECONDS = 0.05
TELL_EVERY = 5.0

Repairs = Callable[[Snapshot, TableId], str]


@dataclass(frozen=True)
class Asking:
    """What all that ask have in common.

    `tell` is for people; `run_is_up` says whether somebody can answer, and `failure` why this source's part of the run
    will not.
    """

    store: Pins
    destination: str
    source: Source
    timeout: float
    snapshot_timeout: float
    tell: Callable[[str], None]
    run_is_up: Callable[[], bool]
    failure: Callable[[], PenstockError | None] = lambda: None


@contextmanager
def pin_tables(
    asking: Asking, tables: Sequence[TableId], repairs: Repairs | None = None
) -> Iterator[tuple[Snapshot, Mapping[TableId, Pin]]]:
    """Give the snapshot and each table's pin, made or failed; both last until the end of the block.

    `repairs` gives the file with the rows to put right, read in the snapshot while the table is held.
    """
    with _held_and_snapshot(asking, tables) as (snapshot, holding):
        for pin in holding.pins():
            if pin.state != "held":
                continue
            try:
                repair = repairs(snapshot, pin.table) if repairs is not None else ""
                asking.store.place_pin(pin.id, snapshot.position, repair)
            except TableError as error:
                asking.store.answer_pin(pin.id, snapshot=None, reason=error.what, solution=error.solution)
        where = position_text(snapshot.position)
        holding.wait(lambda pin: pin.answered, f"the run to bring {{}} to {where}")
        yield snapshot, {pin.table: pin for pin in holding.pins()}


@contextmanager
def _held_and_snapshot(asking: Asking, tables: Sequence[TableId]) -> Iterator[tuple[Snapshot, _Holding]]:
    while True:
        with _Holding(asking, tables) as holding:
            holding.wait(lambda pin: pin.state != "asked", "the run to hold {} for a moment")
            try:
                snapshot = asking.source.snapshot(timeout=HOLD_SECONDS, waiting=lambda _: None)
            except SnapshotBlocked:
                pass
            else:
                with snapshot:
                    yield snapshot, holding
                return
        asking.source.snapshot(timeout=asking.snapshot_timeout, waiting=_telling(asking.tell)).close()


def _telling(tell: Callable[[str], None]) -> Callable[[Sequence[str]], None]:
    return lambda who: tell(f"a snapshot has to wait for {'; '.join(who) or 'old transactions'}")


class _Holding:
    """Pins that are asked for at the beginning, renewed all the while, and dropped at the end."""

    def __init__(self, asking: Asking, tables: Sequence[TableId]) -> None:
        self._asking, self._tables = asking, tables
        self._numbers: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="pins", daemon=True)

    def __enter__(self) -> _Holding:
        self._numbers = self._asking.store.ask_pins(self._asking.destination, self._tables)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        with suppress(StateError):  # the run drops what is not renewed
            self._asking.store.drop_pins(self._numbers)

    def pins(self) -> list[Pin]:
        own = [pin for pin in self._asking.store.pins(self._asking.destination) if pin.id in self._numbers]
        if len(own) < len(self._numbers):
            raise NoAnswer("the run has dropped what was asked of it", "Is this machine's clock right? Run it again")
        return own

    def wait(self, done: Callable[[Pin], bool], what: str) -> None:
        """Wait until it holds for every pin. `what` is waited for, of the tables that stand for its braces."""
        began = told = time.monotonic()
        while left := [str(pin.table) for pin in self.pins() if not (done(pin) or pin.answered)]:
            now = time.monotonic()
            waiting = what.format(", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else ""))
            if not self._asking.run_is_up():
                raise NoAnswer(f"the run has ended while waiting for {waiting}", "Run it again")
            if (failure := self._asking.failure()) is not None:
                raise failure
            if now - began > self._asking.timeout:
                raise NoAnswer(
                    f"waited {self._asking.timeout:g} s for {waiting}",
                    "See `penstock status`: the run may be far behind or its destination away; or give it more time "
                    "with --timeout",
                )
            if now - told > TELL_EVERY:
                told = now
                self._asking.tell(f"waiting for {waiting}")
            time.sleep(POLL_SECONDS)

    def _renew(self) -> None:
        while not self._over.wait(RENEW_EVERY):
            with suppress(StateError):  # tried again; a run waits longer than once
                self._asking.store.renew_pins(self._numbers)

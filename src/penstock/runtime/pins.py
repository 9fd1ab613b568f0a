"""Make pins (state/pin.py): bring a table to exactly one position, repair rows there, and keep it readable.

Acted on between two batches. A table that is held falls behind alone; when its position is known it is brought there,
by ordinary batches that are ended within a segment. Then its contents are bookmarked, and it joins the others
again.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import structlog

from penstock.decode.dialect import dialect_of
from penstock.decode.schema import arrow_schema
from penstock.errors import CommitUnknown, PenstockError, StaleBase, StateError
from penstock.model.position import Position, position_text
from penstock.model.record import UnreadableRecord
from penstock.model.table import TableId
from penstock.model.table_state import State
from penstock.runtime.apply.batch_writer import REDOS
from penstock.runtime.apply.followed_table import FollowedTable
from penstock.runtime.apply.loop import ApplyLoop
from penstock.runtime.repair_file import read_repair
from penstock.state.pin import EXPIRES_AFTER, Pin
from penstock.state.store import Events, TableStates
from penstock.state.store import Pins as KeptPins

LOG = structlog.get_logger("pins")
LOOK_EVERY = 0.5
PASSED = "the table was past the position already: the run was started again meanwhile"


class PinState(KeptPins, Events, TableStates, Protocol):
    """What pins need of the state store."""


class Refused(PenstockError):
    """A pin that cannot be made, which says nothing against its table."""


class Pins:
    def __init__(self, loop: ApplyLoop, state: PinState) -> None:
        self._loop, self._state = loop, state
        self._holding: dict[int, TableId] = {}
        self._kept: dict[int, tuple[TableId, str]] = {}  # bookmarks: target and name
        self._looked_at = 0.0

    def tend(self) -> None:
        """Move pins on. Raise what concerns the destination as a whole; then call again."""
        if not self._holding and time.monotonic() - self._looked_at < LOOK_EVERY:
            return
        self._looked_at = time.monotonic()
        try:
            pins = self._wanted(self._state.pins(self._loop.destination.name))
            self._let_go({pin.id for pin in pins})
            for pin in pins:
                self._advance(pin)
        except StateError as error:
            LOG.warning("pins not read", what=error.what)

    def end(self) -> None:
        """End the run in order: release bookmarks that nobody needs any more; those still needed outlive the run."""
        try:
            self._let_go({pin.id for pin in self._wanted(self._state.pins(self._loop.destination.name))})
        except PenstockError as error:
            LOG.warning("bookmarks not released", what=error.what)

    def _wanted(self, pins: Iterable[Pin]) -> list[Pin]:
        now, every = datetime.now(UTC), list(pins)
        expired = [pin for pin in every if (now - pin.renewed).total_seconds() > EXPIRES_AFTER]
        if expired:
            self._state.drop_pins([pin.id for pin in expired])
            LOG.warning("pins dropped, nobody waits for them", pins=len(expired), first=str(expired[0].table))
        return [pin for pin in every if pin not in expired]

    def _let_go(self, wanted: set[int]) -> None:
        for number in [number for number in self._holding if number not in wanted]:
            self._go_on(number)
        for number in [number for number in self._kept if number not in wanted]:
            target, name = self._kept[number]
            self._loop.destination.release(target, self._loop.source, name)
            del self._kept[number]

    def _advance(self, pin: Pin) -> None:
        if pin.answered:
            self._go_on(pin.id)
            return
        destination = self._loop.destination
        if not destination.capabilities.bookmarks:
            without = f"table {pin.table}: destination {destination.name} cannot keep its contents for a comparison"
            self._refuse(pin, Refused(without, "Verify the table at another destination"))
            return
        tracked = self._loop.tables.get(pin.table)
        if tracked is None or tracked.errored:
            self._refuse(pin, self._not_followed(pin.table))
            return
        if pin.id not in self._holding:
            if tracked.paused:
                self._refuse(pin, Refused(f"table {pin.table} is paused", f"penstock resume FILE --table {pin.table}"))
                return
            if tracked.held:
                return  # for another pin: this one comes next
            self._hold(pin, tracked)
        if pin.position is None:
            return
        failed = True
        with self._loop.containing(tracked, "it was held for a comparison"):
            try:
                self._bring(pin, tracked, pin.position)
            except Refused as error:
                self._refuse(pin, error)
            failed = False
        if failed:
            self._refuse(pin, self._not_followed(pin.table))

    def _refuse(self, pin: Pin, why: Refused) -> None:
        self._state.answer_pin(pin.id, snapshot=None, reason=why.what, solution=why.solution)
        self._go_on(pin.id)

    def _hold(self, pin: Pin, tracked: FollowedTable) -> None:
        self._holding[pin.id] = pin.table
        level = self._loop.hold(tracked)
        if pin.state == "asked" and self._state.hold_pin(pin.id):
            LOG.info("table frozen for a pin", table=str(pin.table), position=position_text(level))

    def _bring(self, pin: Pin, tracked: FollowedTable, position: Position) -> None:
        at = self._loop.hold(tracked, position)
        if at > position:
            raise Refused(f"table {pin.table}: {PASSED}", "Ask again")
        if tracked.level is None or tracked.level < position:
            return  # the loop brings it there
        if pin.repair:
            self._repair(pin, tracked, position)
        name = f"penstock_pin_{uuid.uuid4().hex}"
        snapshot = self._loop.destination.bookmark(tracked.target, self._loop.source, name)
        self._kept[pin.id] = tracked.target, name
        numbered = dialect_of(tracked.schema).numbers_columns
        names = {column.number: column.name for column in tracked.schema.columns if numbered and column.number}
        self._state.answer_pin(pin.id, snapshot=snapshot, columns=names)
        self._go_on(pin.id)
        LOG.info("table pinned", table=str(pin.table), position=position_text(position), repaired=bool(pin.repair))

    def _repair(self, pin: Pin, tracked: FollowedTable, position: Position) -> None:
        """Commit the rows that were read at this very position. Done twice it changes nothing more."""
        destination = self._loop.destination
        try:
            net = read_repair(Path(pin.repair))
        except (OSError, UnreadableRecord) as error:
            raise Refused(f"table {pin.table}: the rows to repair cannot be read: {error}", "Ask again") from error
        if not net.upserts.schema.equals(arrow_schema(tracked.schema)):
            raise Refused(
                f"table {pin.table}: its structure has changed at the source, and no row of it since, so the lake does "
                "not have it yet",
                "Ask again when a row of it has changed",
            )
        for _ in range(REDOS):
            plan = destination.plan(tracked.target, self._loop.source, thorough=True)
            if plan.position > position:
                raise Refused(f"table {pin.table}: {PASSED}", "Ask again")
            part = plan.write(net)
            try:
                destination.commit(plan, [part], truncated=False, position=position)
            except StaleBase as error:
                LOG.warning("repair refused", table=str(pin.table), what=error.what)
                destination.discard([part])
                continue
            except CommitUnknown as error:
                LOG.warning("repair outcome unknown", table=str(pin.table), what=error.what)
                continue
            tracked.position = position
            what = f"table {pin.table}: {net.changes} rows were put right"
            self._state.add_event("repair", what, pin.table, destination=destination.name)
            return
        raise Refused(
            f"table {pin.table}: somebody else keeps committing to it, {REDOS} tries were refused",
            "Stop the other writer, then ask again",
        )

    def _go_on(self, number: int) -> None:
        table = self._holding.pop(number, None)
        tracked = self._loop.tables.get(table) if table is not None else None
        if tracked is not None:
            self._loop.let_go(tracked)

    def _not_followed(self, table: TableId) -> Refused:
        status = self._state.table_status(self._loop.destination.name).get(table)
        if status is None:
            return Refused(f"table {table} is not followed", "See `penstock tables`")
        if status.state is State.ERRORED:
            return Refused(f"table {table} is Errored: {status.reason}", status.solution)
        return Refused(f"table {table} is being copied ({status.state})", "Ask again when it is Ready")

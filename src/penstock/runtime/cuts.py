"""Makes cuts (state/cut.py): brings a table to exactly one position, puts rows right there, and keeps it readable.

Acted on between two batches. A table that is held falls behind alone; when its position is told it is brought there,
by the same batches as ever, but ended within a segment. Then its contents are bookmarked, and it joins the others
again. Neighbours: `pipeline` calls `tend`, `apply_loop` holds; `control/verify` asks.
"""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import structlog

from penstock.decode.schema import arrow_schema
from penstock.errors import CommitUnknown, PenstockError, StaleBase, StateError
from penstock.fold.net_effect import NetEffect
from penstock.model.position import Position, position_text
from penstock.model.table import TableId
from penstock.model.table_state import State
from penstock.runtime.apply_loop import ApplyLoop
from penstock.runtime.flights import REDOS
from penstock.runtime.tracked import TrackedTable
from penstock.state.cut import EXPIRES_AFTER, Cut
from penstock.state.store import StateStore

LOG = structlog.get_logger("cuts")
LOOK_EVERY = 0.5
PASSED = "the table was past the position already: the run was started again meanwhile"


class Refused(PenstockError):
    """A cut that cannot be made, which says nothing against its table."""


class Cuts:
    def __init__(self, loop: ApplyLoop, state: StateStore) -> None:
        self._loop, self._state = loop, state
        self._holding: dict[int, TableId] = {}
        self._kept: dict[int, tuple[TableId, str]] = {}  # bookmarks: target and name
        self._looked_at = 0.0

    def tend(self) -> None:
        """Raises what concerns the destination as a whole; then call again."""
        if not self._holding and time.monotonic() - self._looked_at < LOOK_EVERY:
            return
        self._looked_at = time.monotonic()
        try:
            cuts = self._wanted(self._state.cuts())
            self._let_go({cut.id for cut in cuts})
            for cut in cuts:
                self._advance(cut)
        except StateError as error:
            LOG.warning("cuts not read", what=error.what)

    def end(self) -> None:
        """The run ends in order: bookmarks that nobody needs any more go; those still needed outlive it."""
        try:
            self._let_go({cut.id for cut in self._wanted(self._state.cuts())})
        except PenstockError as error:
            LOG.warning("bookmarks not released", what=error.what)

    def _wanted(self, cuts: Iterable[Cut]) -> list[Cut]:
        now, every = datetime.now(UTC), list(cuts)
        expired = [cut for cut in every if (now - cut.renewed).total_seconds() > EXPIRES_AFTER]
        if expired:
            self._state.drop_cuts([cut.id for cut in expired])
            LOG.warning("cuts dropped, nobody waits for them", cuts=len(expired), first=str(expired[0].table))
        return [cut for cut in every if cut not in expired]

    def _let_go(self, wanted: set[int]) -> None:
        for number in [number for number in self._holding if number not in wanted]:
            self._go_on(number)
        for number in [number for number in self._kept if number not in wanted]:
            target, name = self._kept[number]
            self._loop.destination.release(target, self._loop.source, name)
            del self._kept[number]

    def _advance(self, cut: Cut) -> None:
        if cut.answered:
            self._go_on(cut.id)
            return
        tracked = self._loop.tables.get(cut.table)
        if tracked is None or tracked.errored:
            self._refuse(cut, self._not_followed(cut.table))
            return
        if cut.id not in self._holding:
            if tracked.held:
                return  # for another cut: this one comes next
            self._hold(cut, tracked)
        if cut.position is None:
            return
        failed = True
        with self._loop.containing(tracked, "it was held for a comparison"):
            try:
                self._bring(cut, tracked, cut.position)
            except Refused as error:
                self._refuse(cut, error)
            failed = False
        if failed:
            self._refuse(cut, self._not_followed(cut.table))

    def _refuse(self, cut: Cut, why: Refused) -> None:
        self._state.answer_cut(cut.id, snapshot=None, reason=why.what, solution=why.solution)
        self._go_on(cut.id)

    def _hold(self, cut: Cut, tracked: TrackedTable) -> None:
        self._holding[cut.id] = cut.table
        level = self._loop.hold(tracked)
        if cut.state == "asked" and self._state.hold_cut(cut.id):
            LOG.info("held", table=str(cut.table), position=position_text(level))

    def _bring(self, cut: Cut, tracked: TrackedTable, position: Position) -> None:
        at = self._loop.hold(tracked, position)
        if at > position:
            raise Refused(f"table {cut.table}: {PASSED}", "Ask again")
        if tracked.level is None or tracked.level < position:
            return  # the loop brings it there
        if cut.repair:
            self._repair(cut, tracked, position)
        name = f"penstock_cut_{uuid.uuid4().hex}"
        snapshot = self._loop.destination.bookmark(tracked.target, self._loop.source, name)
        self._kept[cut.id] = tracked.target, name
        names = {column.number: column.name for column in tracked.schema.columns if column.number}
        self._state.answer_cut(cut.id, snapshot=snapshot, columns=names)
        self._go_on(cut.id)
        LOG.info("cut", table=str(cut.table), position=position_text(position), repaired=bool(cut.repair))

    def _repair(self, cut: Cut, tracked: TrackedTable, position: Position) -> None:
        """Commits the rows that were read at this very position. Done twice it changes nothing more."""
        destination = self._loop.destination
        try:
            net: NetEffect = pickle.loads(Path(cut.repair).read_bytes())
        except OSError as error:
            raise Refused(f"table {cut.table}: the rows to repair are not there: {error}", "Ask again") from error
        if not net.upserts.schema.equals(arrow_schema(tracked.schema)):
            raise Refused(
                f"table {cut.table}: its structure has changed at the source, and no row of it since, so the lake does "
                "not have it yet",
                "Ask again when a row of it has changed",
            )
        for _ in range(REDOS):
            plan = destination.plan(tracked.target, self._loop.source, thorough=True)
            if plan.position > position:
                raise Refused(f"table {cut.table}: {PASSED}", "Ask again")
            part = plan.write(net)
            try:
                destination.commit(plan, [part], truncated=False, position=position)
            except StaleBase as error:
                LOG.warning("repair refused", table=str(cut.table), what=error.what)
                destination.discard([part])
                continue
            except CommitUnknown as error:
                LOG.warning("repair unknown", table=str(cut.table), what=error.what)
                continue
            tracked.position = position
            self._state.add_event("repair", f"table {cut.table}: {net.changes} rows were put right", cut.table)
            return
        raise Refused(
            f"table {cut.table}: somebody else keeps committing to it, {REDOS} tries were refused",
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

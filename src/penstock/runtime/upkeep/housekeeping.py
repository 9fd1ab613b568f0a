"""Between batches: keep tables compact, and move the positions of idle tables on.

An idle table commits nothing, so its position stands still; once in a while it is moved to what has been processed,
or the log (`log_retention`) could never shrink. Commits of maintenance and of batches take turns, so they never
conflict; what takes long the destination does beside them. Between two batches only so much is begun, for `pause` or a
little longer: what is left comes first the next time. How long a batch waited for it, `holds` says.
"""

from __future__ import annotations

import time
from collections import deque
from datetime import UTC, datetime

import structlog

from penstock.config.destinations import Maintenance
from penstock.destinations.contract import MaintenanceReport
from penstock.errors import StaleBase, StateError
from penstock.failpoints import reach
from penstock.model.table import TableId
from penstock.model.upkeep import Upkeep
from penstock.runtime.apply.followed_table import FollowedTable
from penstock.runtime.apply.loop import ApplyLoop
from penstock.runtime.upkeep.stall_meter import StallMeter

LOG = structlog.get_logger("housekeeping")
TELL_EVERY = 2.0
ADVANCED_TOGETHER = 8  # tables, before it is asked whether batches may wait longer
MAINTAINED_TOGETHER = 3  # tables; more would only make each of them late


class Housekeeping:
    def __init__(self, loop: ApplyLoop, maintenance: Maintenance) -> None:
        self._loop, self._maintenance = loop, maintenance
        self._advanced_at = self._ended_at = time.monotonic()
        self._next: TableId | None = None  # whose maintenance comes first the next time
        self._behind: list[FollowedTable] = []  # whose positions are still to be moved on
        self.holds = StallMeter(self._waiting_since)
        self._upkeep: dict[TableId, Upkeep] = {}
        self._untold: dict[TableId, Upkeep] = {}
        self._has_read = False
        self._told_at = time.monotonic() - TELL_EVERY

    def run(self) -> None:
        """Do what is due, as far as batches may wait. Raises what concerns the destination or the log as a whole."""
        with self.holds.between_batches():
            now = time.monotonic()
            until = now + self._pause(now)
            if self._loop.destination.capabilities.maintained:
                self._maintain(until)
            if not self._behind and now - self._advanced_at >= self._maintenance.advance_idle_every:
                self._advanced_at = now
                self._behind = self._idle()
            if self._behind:
                with self.holds.part("positions of idle tables"):
                    self._advance_some(until)
            self._ended_at = time.monotonic()

    def _pause(self, now: float) -> float:
        """Return how long batches may wait.

        Many tables make long batches, and leave as much more to do between them: then up to twice as long, but no
        longer than the rest has taken.
        """
        pause = self._maintenance.pause
        return max(pause, min(now - self._ended_at, 2 * pause))

    def _idle(self) -> list[FollowedTable]:
        """Return the tables that had nothing to apply: their positions move on to what has been processed."""
        return [tracked for tracked in self._loop.tables.values() if self._is_behind(tracked)]

    def _is_behind(self, tracked: FollowedTable) -> bool:
        """Return whether its position is to be moved on, or looked at: somebody may have rolled back an idle table."""
        return not tracked.errored and tracked.level is None and tracked.position <= self._loop.processed

    def _advance_some(self, until: float) -> None:
        """Advance some of those that are behind, at least, and more of them until then."""
        while self._behind:
            some, self._behind = self._behind[:ADVANCED_TOGETHER], self._behind[ADVANCED_TOGETHER:]
            followed = self._loop.tables
            still = [one for one in some if followed.get(one.name) is one and self._is_behind(one)]
            self._loop.in_threads(self._advance, still)
            if time.monotonic() >= until:
                return

    def _advance(self, tracked: FollowedTable) -> None:
        loop = self._loop
        with loop.containing(tracked, "its position was moved on"):
            try:
                loop.destination.advance(tracked.target, loop.source, tracked.position, loop.processed)
            except StaleBase as error:
                LOG.debug("position not advanced", table=str(tracked.name), what=error.what)
                return
            if tracked.position == loop.processed:
                return
            tracked.position = loop.processed
            reach("apply.position_advanced")

    def _maintain(self, until: float) -> None:
        """Maintain a few tables at a time, as long as batches may wait: those that were left the last time first."""
        names = [name for name, tracked in self._loop.tables.items() if not tracked.errored]
        first = next((number for number, name in enumerate(names) if name == self._next), 0)
        waiting = deque(names[first:] + names[:first])
        for reports in self._loop.in_threads(self._maintain_some, [(waiting, until)] * MAINTAINED_TOGETHER):
            for name, report in reports:
                self._note(name, report)
        self._next = waiting[0] if waiting else None
        self._tell()

    def _maintain_some(self, work: tuple[deque[TableId], float]) -> list[tuple[TableId, MaintenanceReport]]:
        """Return the next of those that wait, one at least, and more of them until then."""
        waiting, until = work
        reports = []
        while waiting:
            try:
                name = waiting.popleft()
            except IndexError:
                break  # somebody else has taken the last one
            report = self._maintained(name)
            if report is not None:
                reports.append((name, report))
            if time.monotonic() >= until:
                break
        return reports

    def _maintained(self, name: TableId) -> MaintenanceReport | None:
        """Maintain one table; None if it was put off, or if the table cannot be maintained and is Errored."""
        with self._loop.containing(self._loop.tables[name], "it was maintained"):
            return self._maintain_one(name)
        return None

    def _maintain_one(self, name: TableId) -> MaintenanceReport | None:
        loop, target = self._loop, self._loop.tables[name].target
        try:
            with self.holds.part(f"maintenance of {name}"):
                report = loop.destination.maintain(target, loop.source, loop.runner)
        except StaleBase as error:
            LOG.debug("maintenance put off", table=str(name), what=error.what)
            return None
        if report.did_something:
            LOG.debug("table maintained", table=str(name), report=str(report))
        return report

    def _waiting_since(self) -> float | None:
        """When the oldest of the changes that wait in the log came there."""
        log = self._loop.log
        return next((one.written_at for one in log.segments(after=self._loop.processed) if log.slices(one)), None)

    def _note(self, table: TableId, report: MaintenanceReport) -> None:
        """Add a report to what `status` shows of the table."""
        if not report.did_something and report.shape is None:
            return
        known = self._known().get(table)
        shape = report.shape or (known.shape if known else None)
        if shape is not None:
            before = known or Upkeep(datetime.now(UTC), shape)
            self._upkeep[table] = self._untold[table] = Upkeep(
                datetime.now(UTC),
                shape,
                before.merged_files + report.merged_files,
                before.merged_deletes + report.merged_deletes,
                before.expired_snapshots + report.expired_snapshots,
                before.swept_files + report.swept_files,
            )

    def _known(self) -> dict[TableId, Upkeep]:
        """With what earlier runs have recorded."""
        if not self._has_read:
            try:
                self._upkeep = self._loop.state.upkeep(self._loop.destination.name)
                self._has_read = True
            except StateError as error:
                LOG.warning("upkeep not read", what=error.what)
        return self._upkeep

    def _tell(self) -> None:
        """Record figures for operators now and then; a state store that is away costs only this."""
        now = time.monotonic()
        if not self._untold or now - self._told_at < TELL_EVERY:
            return
        self._told_at = now
        try:
            self._loop.state.record_upkeep(self._loop.destination.name, self._untold)
            self._untold = {}
        except StateError as error:
            LOG.warning("upkeep not recorded", what=error.what)

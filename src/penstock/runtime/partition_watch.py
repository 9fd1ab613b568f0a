"""Notices what happens to whole partitions, which no stream tells, and sees to it that no table silently differs.

| found                                   | what is done                                                              |
|-----------------------------------------|---------------------------------------------------------------------------|
| created in place                        | nothing: all of its rows are sent                                         |
| attached, with rows                     | they were never sent: the table is copied anew                            |
| truncated                               | Postgres sends no such TRUNCATE: the table is copied anew                 |
| detached or dropped                     | its rows are kept, or the table is copied anew (`on_partition_drop`)      |

A clone that holds kept partitions is never copied anew by itself, for that would end them: then a remark says what
differs, and a person decides. Copies of append and history tables keep their past; append heeds no removal at all.
`look` is called at the start and by `membership`'s watch; it leaves requests in the state store as people do. The look
to compare with is of the snapshot that the table was copied from: the copier keeps it when it begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import structlog

from penstock.config.model import Pipeline
from penstock.errors import SourceLocked
from penstock.model.feed import Feed, Mode
from penstock.model.partitions import Partition, Partitions, Remark, RemarkKind
from penstock.model.table import TableId, TableSchema
from penstock.model.table_state import State
from penstock.source.postgres.connect import Connection
from penstock.source.postgres.partitions import has_rows, has_rows_before, read_partitions
from penstock.state.store import Health, StateStore

LOG = structlog.get_logger("partitions")

_SAID: dict[RemarkKind, str] = {
    "kept": "is gone at the source: detached or dropped",
    "missing": "was attached with rows that were never sent as changes",
    "stale": "was truncated at the source, which is never sent",
}


_HEEDED: dict[str, frozenset[RemarkKind]] = {"append": frozenset({"missing"})}  # other modes heed all
_COPIED_ANEW = frozenset({"clone", "append", "history"})


class PartitionWatch:
    def __init__(self, pipeline: Pipeline, state: StateStore) -> None:
        self._pipeline, self._state = pipeline, state
        self._destination = pipeline.destinations[0].name
        self._waiting: dict[TableId, tuple[datetime, int]] = {}  # since when, and how often, somebody's lock was met

    def look(self, connection: Connection, schemas: Sequence[TableSchema]) -> None:
        """Compares with the last look. Tables that are being copied, or Errored, are compared when they are Ready."""
        seen = read_partitions(connection, [schema.relation_id for schema in schemas])
        if not seen:
            return
        status, before = self._state.table_status(self._destination), self._state.partitions(self._destination)
        for schema in schemas:
            now = seen.get(schema.relation_id)
            if now is None:
                continue
            for feed in self._pipeline.feeds(schema.table):
                known = status.get(feed.name)
                if known is None or known.state is not State.READY or self._asked(feed):
                    continue
                try:
                    self._compare(connection, feed, before.get(feed.name), now)
                    self._unlocked(feed)
                except SourceLocked as error:  # it is compared at the next look
                    self._locked(feed, error)

    def _locked(self, feed: Feed, error: SourceLocked) -> None:
        LOG.warning("partition not looked into", table=str(feed.name), what=error.what)
        since, attempts = self._waiting.get(feed.name, (datetime.now(UTC), 0))
        self._waiting[feed.name] = since, attempts + 1
        health = Health("retrying", since, error.what, error.solution, attempts + 1)
        self._state.set_health(f"partitions of {feed.name}", health)

    def _unlocked(self, feed: Feed) -> None:
        if self._waiting.pop(feed.name, None) is not None:
            self._state.set_health(f"partitions of {feed.name}", Health("ok", datetime.now(UTC), "", "", 0))

    def _asked(self, feed: Feed) -> bool:
        return any(one.kind == "resync" and one.table == feed.name for one in self._state.requests())

    def _compare(self, connection: Connection, feed: Feed, before: Partitions | None, now: Partitions) -> None:
        if before is None:
            self._state.set_partitions(self._destination, feed.name, now)
            return
        if now.partitions == before.partitions:
            return
        heeded = _HEEDED.get(feed.mode, _SAID.keys())
        found = [one for one in self._differences(connection, before, now) if one[1] in heeded]
        for partition, kind in found:
            LOG.info("partition", table=str(feed.name), partition=str(partition.relation), what=_SAID[kind])
            what = f"partition {partition.relation} of {feed.table} {_SAID[kind]}"
            self._state.add_event("partition", what, feed.name)
        copied_anew = [kind for _, kind in found if kind != "kept" or self._pipeline.drops_partitions(feed.table)]
        moment = datetime.now(UTC)
        remarks = (*before.remarks, *(Remark(partition.relation, kind, moment) for partition, kind in found))
        if copied_anew and feed.mode in _COPIED_ANEW and not _holds_kept(remarks, self._pipeline, feed):
            self._state.add_request("resync", feed.name)
        self._state.set_partitions(self._destination, feed.name, replace(now, remarks=remarks))

    def _differences(
        self, connection: Connection, before: Partitions, now: Partitions
    ) -> list[tuple[Partition, RemarkKind]]:
        earlier = {one.relation_id: one for one in before.partitions}
        present = {one.relation_id for one in now.partitions}
        found: list[tuple[Partition, RemarkKind]] = [
            (one, "kept") for one in before.partitions if one.relation_id not in present
        ]
        for one in now.partitions:
            known = earlier.get(one.relation_id)
            if known is None or known.link != one.link:
                if not one.made_here and has_rows(connection, one):
                    found.append((one, "missing"))
            elif known.file != one.file and not has_rows_before(connection, one, before.horizon):
                found.append((one, "stale"))
        return found


def _holds_kept(remarks: Sequence[Remark], pipeline: Pipeline, feed: Feed) -> bool:
    kept = any(remark.kind == "kept" for remark in remarks)
    return feed.mode is Mode.CLONE and kept and not pipeline.drops_partitions(feed.table)

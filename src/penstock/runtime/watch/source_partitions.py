"""Notice what happens to whole partitions, which no stream reports, so that no table silently differs.

| found                                        | what is done                                                       |
|----------------------------------------------|--------------------------------------------------------------------|
| created in place                             | nothing: all of its rows are sent                                  |
| attached, with rows                          | they were never sent: the table is copied again                    |
| truncated by itself                          | Postgres sends no such TRUNCATE: the table is copied again         |
| truncated with the whole table               | nothing: that is sent. `truncates.py` tells the two apart          |
| detached and attached again                  | its rows may be others: the table is copied again                  |
| dropped and created again under its name     | the same, also when a look in between found it gone                |
| detached or dropped                          | its rows are kept, or the table is copied again (`on_partition_drop`) |
| made and dropped between two looks           | the same; only the source's counters tell, for all tables together |

A clone that holds the rows of partitions that are gone is never copied again by itself, for that would remove them: it
becomes Errored, and the operator decides. Copies of append and history tables keep their past; append ignores removals.
The look to compare with is of the snapshot that the table was copied from: the copier keeps it when a copy begins.
After a look that finds nothing to do, the next one is compared with that. Neighbour: `table_watch` calls `compare`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

import structlog

from penstock.changelog.log import ChangeLog
from penstock.config.model import Pipeline
from penstock.model.feed import Feed
from penstock.model.partitions import Partition, Partitions, Remark, RemarkKind
from penstock.model.position import Position
from penstock.model.table import TableId
from penstock.runtime.watch.truncates import WholeTruncates
from penstock.source.contract import Session
from penstock.state.store import CopyFacts, Events

LOG = structlog.get_logger("partitions")
NAMED = 3  # partitions in a reason
CAME_AND_WENT = "a partition, of this or another table, was made and dropped between two looks, and may have had rows"
LINKS_UNKNOWN = "whether a partition was made and dropped meanwhile is unknown, for the source's counters were reset"

_SAID: dict[RemarkKind, str] = {
    "kept": "is gone at the source: detached or dropped",
    "missing": "was attached with rows that were never sent as changes",
    "stale": "was truncated at the source, which is never sent",
    "replaced": "was detached and attached again, or dropped and created again, and its rows may be others",
}
_ACTED_ON: dict[str, frozenset[RemarkKind]] = {"append": frozenset({"missing", "replaced"})}  # other modes act on all
_COPIED_AGAIN = frozenset({"clone", "append", "history"})

Found = list[tuple[Partition, RemarkKind]]


class PartitionState(CopyFacts, Events, Protocol):
    """What partitions need of the state store."""


class SourcePartitions:
    def __init__(self, pipeline: Pipeline, state: PartitionState, *, acts_on_events: bool = False) -> None:
        """`acts_on_events`: something is done about tables of events as well, as for streams."""
        self._pipeline, self._state = pipeline, state
        self._acted_on = _COPIED_AGAIN | {"events"} if acts_on_events else _COPIED_AGAIN
        self._destination = pipeline.destination.name
        self._truncates = WholeTruncates(ChangeLog(pipeline.log_uri))

    def in_doubt(self, compared: Collection[TableId]) -> Position:
        """Return how far the log must reach until the tables of one look, by feed, can all be judged; 0: they are."""
        return self._truncates.in_doubt(compared)

    def compare(self, session: Session, feed: Feed, relation_id: int, before: Partitions, now: Partitions) -> str:
        """Compare two looks at a feed's table; return why it has to be copied again, "" when it has not.

        What was found is kept for `status`, as remarks, until the table is copied. SourceLocked when it cannot be told
        now, because somebody holds a lock on a partition. A table that cannot be judged before the log has come further
        (`in_doubt`) is left as it is: the next look compares with the same record.
        """
        now, unseen = self._count_links(session, feed, before, now)
        if now.partitions == before.partitions:
            if not unseen and now.links != before.links:
                self._state.set_partitions(self._destination, feed.name, replace(before, links=now.links))
            return unseen
        acted_on = _ACTED_ON.get(feed.mode, _SAID.keys())
        found = [one for one in differences(session, before, now) if one[1] in acted_on]
        if truncated := [one for one, kind in found if kind == "stale"]:
            whole = self._truncates.explain(
                session=session,
                feed=feed.name,
                relation_id=relation_id,
                truncated=truncated,
                before=before,
                now=now,
            )
            if whole is None:
                return ""
            found = [one for one in found if one[1] != "stale" or one[0] not in whole]
        remarks = self._remarks(feed, before.remarks, found)
        reasons = [one for one in found if one[1] != "kept" or self._pipeline.drops_partitions(feed.table)]
        copied_again = bool(reasons or unseen) and feed.mode in self._acted_on
        content = before if copied_again else now
        self._state.set_partitions(self._destination, feed.name, replace(content, remarks=remarks))
        if not copied_again:
            return ""
        if not reasons:
            return unseen
        said = [f"partition {partition.relation} {_SAID[kind]}" for partition, kind in reasons[:NAMED]]
        more = f"; and {len(reasons) - NAMED} more partitions" if len(reasons) > NAMED else ""
        return "; ".join(said) + more

    def _count_links(self, session: Session, feed: Feed, before: Partitions, now: Partitions) -> tuple[Partitions, str]:
        """Return the look with what was counted since the one before, and why that has the table copied again."""
        known, found = before.links, now.links
        if not self._drops_unseen(feed):
            return replace(now, links=None), ""
        if known is None or found is None:
            return now, ""
        if known.epoch != found.epoch:
            return now, LINKS_UNKNOWN
        if known.counted == found.counted:
            return replace(now, links=known), ""
        links = session.links_since(known, found)
        return replace(now, links=links), CAME_AND_WENT if links.came_and_went() else ""

    def _drops_unseen(self, feed: Feed) -> bool:
        """Tell whether rows of a partition that came and went are to go."""
        return feed.mode in _COPIED_AGAIN - _ACTED_ON.keys() and self._pipeline.drops_partitions(feed.table)

    def _remarks(self, feed: Feed, before: Sequence[Remark], found: Found) -> tuple[Remark, ...]:
        """Return what to say of partitions.

        That is said of one that came back, and of where dropped rows go; that rows are kept is no longer said.
        """
        drops = self._pipeline.drops_partitions(feed.table)
        back = {partition.relation for partition, kind in found if kind == "replaced"}
        still = [one for one in before if one.kind != "kept" or not (drops or one.relation in back)]
        known = {(remark.relation, remark.kind) for remark in still}
        fresh = [(partition.relation, kind) for partition, kind in found if (partition.relation, kind) not in known]
        for relation, kind in fresh:
            LOG.info("partition differs", table=str(feed.name), partition=str(relation), what=_SAID[kind])
            what = f"partition {relation} of {feed.table} {_SAID[kind]}"
            self._state.add_event("partition", what, feed.name, destination=self._destination)
        moment = datetime.now(UTC)
        kept = [(relation, kind) for relation, kind in fresh if kind != "kept" or not drops]
        return (*still, *(Remark(relation, kind, moment) for relation, kind in kept))


def differences(session: Session, before: Partitions, now: Partitions) -> Found:
    """Return the partitions whose rows the stream did not tell all about, and in which way."""
    earlier = {one.relation_id: one for one in before.partitions}
    present, names = {one.relation_id for one in now.partitions}, {one.relation for one in now.partitions}
    gone = [one for one in before.partitions if one.relation_id not in present]
    missed = {one.relation for one in gone} | {one.relation for one in before.remarks if one.kind == "kept"}
    found: Found = [(one, "kept") for one in gone if one.relation not in names]
    for one in now.partitions:
        known = earlier.get(one.relation_id)
        if known is None:
            if one.relation in missed:
                found.append((one, "replaced"))
            elif not one.made_here:
                if session.has_rows(one):
                    found.append((one, "missing"))
            elif one.file != one.relation_id:  # as it was created; it was truncated or rewritten before the first look
                found.append((one, "stale"))
        elif known.link != one.link:
            found.append((one, "replaced"))
        elif known.file != one.file and not session.has_rows_before(one, before.horizon):
            found.append((one, "stale"))
    return found

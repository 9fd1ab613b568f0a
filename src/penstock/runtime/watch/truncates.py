"""Tell a partition that was truncated with its whole table from one that was truncated by itself.

Postgres sends a TRUNCATE of the partitioned table, and none of a single partition. Both leave the partition with
another file. The catalogue has the transaction that last wrote a partition's entry, and the log the last transaction
that truncated the whole table and wrote nothing to it afterwards (`Cleared` in changelog/segment.py). If they are the
same, the partition was empty when that transaction ended, the stream says so too, and nothing has truncated it since.

Everything else counts as truncated by itself, also where only the proof is missing:

| case                                                             | why it proves nothing                            |
|------------------------------------------------------------------|--------------------------------------------------|
| the transaction also wrote rows after its TRUNCATE               | it may have truncated the partition after that,  |
|                                                                  | which leaves no trace                            |
| the TRUNCATE was in a subtransaction (a savepoint, an exception  | the catalogue has the subtransaction's number,   |
| block of a function)                                             | the stream only the transaction's                |
| the partition was altered after it                               | the catalogue has the number of that change      |
| the transaction was too large for one piece of the log, or more  | the log does not say it                          |
| than MOST_CLEARED tables were truncated since                    |                                                  |
| a billion transactions have passed since the look before         | numbers have 32 bits and may stand for another   |

The log says nothing before it has come as far as the look. Until then the table is in doubt. Used by
`source_partitions`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from penstock.changelog.log import ChangeLog
from penstock.model.partitions import Partition, Partitions
from penstock.model.position import Position
from penstock.model.table import TableId
from penstock.source.contract import Session

MOST_TRANSACTIONS = 2**30  # between two looks, so that a number of 32 bits stands for one transaction


@dataclass(frozen=True)
class _Doubt:
    truncated: frozenset[Partition]
    position: Position


class WholeTruncates:
    def __init__(self, log: ChangeLog) -> None:
        self._log = log
        self._doubts: dict[TableId, _Doubt] = {}  # by feed, since the first look that saw these partitions so

    def in_doubt(self, compared: Collection[TableId]) -> Position:
        """Return how far the log must reach until the truncates of these feeds can be judged; 0: none is in doubt.

        What is known of other feeds is forgotten: they are being copied, or are gone.
        """
        self._doubts = {name: doubt for name, doubt in self._doubts.items() if name in compared}
        return max((doubt.position for doubt in self._doubts.values()), default=0)

    def explain(
        self,
        *,
        session: Session,
        feed: TableId,
        relation_id: int,
        truncated: Sequence[Partition],
        before: Partitions,
        now: Partitions,
    ) -> frozenset[Partition] | None:
        """Return those of the partitions that were truncated with their whole table; None: the log cannot tell yet.

        Args:
            session: a connection to the source.
            feed: the name under which doubts are kept.
            relation_id: of the whole table.
            truncated: partitions that have another file than in the look `before`.
            before: the look to compare with.
            now: the look that found them.
        """
        seen = frozenset(truncated)
        doubt = self._doubts.get(feed)
        position = doubt.position if doubt is not None and doubt.truncated == seen else session.head()
        newest = self._log.newest()
        cleared = None if newest is None else next((c for c in newest.cleared if c.relation_id == relation_id), None)
        whole: frozenset[Partition] = frozenset()
        if cleared is not None and self._is_since(cleared.commit_position, before, now):
            whole = frozenset(one for one in truncated if one.written == cleared.transaction)
        is_later = cleared is not None and cleared.commit_position > position  # the next look sees what that one did
        if whole != seen and (newest is None or newest.end < position or is_later):
            self._doubts[feed] = _Doubt(seen, position)
            return None
        self._doubts.pop(feed, None)
        return whole

    @staticmethod
    def _is_since(commit_position: Position, before: Partitions, now: Partitions) -> bool:
        """Return whether the transaction is younger than the look before, and its number stands for no other."""
        if before.position is None or commit_position <= before.position:
            return False
        return now.horizon - before.horizon < MOST_TRANSACTIONS

"""Whether the log's end is a point of the server's past, by what the server sends again.

A slot stands at the log's end or before it, so a stream that is read from where the slot stands repeats what the log
holds behind that place. A server that was put back to an earlier state of its disk has the slot of that state too, at
or before the place where its history forks from the one that was captured. So:

- the last transaction of the log, if the slot stands before it, must be sent again, at the same position and of the
  same time: that proves all that comes before it;
- between it and the log's end no other transaction with a change may be sent: the log has none there.

Either is a gap if it does not hold. If both hold, the log says of the published tables what the server's history says,
and nothing but the slot was asked. Until then nothing may be confirmed, for that would move the slot past the evidence.
capture.py feeds it.
"""

from __future__ import annotations

from penstock.model.position import Position
from penstock.source.postgres.pgoutput import Begin
from penstock.source.postgres.resume import gap
from penstock.source.postgres.slot import lsn_text
from penstock.source.sink import LastCommit

_RESTORED = "it was put back to an earlier state, and has gone on from there"


class Overlap:
    """What is sent again from `read_from`, where the slot stands, up to `end`, where the log ends.

    `last` is the log's last transaction; None when it is not known, and nothing can be compared.
    """

    def __init__(self, slot: str, read_from: Position, end: Position, last: LastCommit | None) -> None:
        self._slot, self._end, self._last = slot, end, last
        self._awaited = last is not None and last.position >= read_from
        self.verified = read_from >= end

    def take(self, begin: Begin, *, has_changes: bool) -> None:
        """Compare a transaction that was sent again with the log, which has it.

        GapError if the log has another there.
        """
        last = self._last
        if last is None or begin.commit_lsn < last.position:
            return
        if begin.commit_lsn == last.position:
            if begin.commit_time != last.time:
                raise self._forked(f"another transaction committed at {lsn_text(last.position)}")
            self._awaited = False
        elif has_changes:
            raise self._forked(f"a transaction that the log lacks committed at {lsn_text(begin.commit_lsn)}")

    def passed(self) -> None:
        """Everything before the log's end has been sent. GapError if the log's last transaction was not among it."""
        if self._awaited and self._last is not None:
            raise self._forked(f"the transaction that the log has at {lsn_text(self._last.position)} is not there")
        self.verified = True

    def _forked(self, found: str) -> Exception:
        return gap(self._slot, self._end, f"the server's history is not the log's ({found}): {_RESTORED}")

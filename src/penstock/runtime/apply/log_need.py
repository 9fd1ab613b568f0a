"""What an apply loop needs of the change log, and what becomes of its tables when the log lets go of that.

Both are for the loop's own thread. Neighbour: `upkeep/log_retention` decides what the log lets go of.
"""

from __future__ import annotations

from penstock.errors import PositionLost
from penstock.model.position import Position, position_text
from penstock.runtime.apply.loop import ApplyLoop
from penstock.runtime.log_reader import LogNeed


def log_need(loop: ApplyLoop, copying_from: Position | None) -> LogNeed:
    """`copying_from` is the lowest position from which a copy will replay the log.

    It must be read before this is called: a table that is handed over just now is then with the copier or with the
    loop, or with both.
    """
    tables = loop.following
    needed = min((tracked.position for tracked in tables if not tracked.errored), default=loop.processed)
    others = [tracked.position for tracked in tables if tracked.errored]
    return LogNeed(needed, min([needed, *others, *([] if copying_from is None else [copying_from])]))


def pass_over(loop: ApplyLoop, before: Position) -> None:
    """Do without the log before this position: no table is left waiting for what it held.

    Tables whose changes are among that are copied again, or Errored where a copy would lose something.
    """
    for tracked in list(loop.tables.values()):
        if tracked.errored:
            if tracked.position < before and not tracked.lost:
                loop.mark_errored(
                    tracked,
                    PositionLost(
                        f"table {tracked.name}: the log no longer holds what it needs: it was Errored at "
                        f"{position_text(tracked.position)}, and log.max_bytes or log.max_age has passed",
                        f"Copy it again: penstock resync FILE {tracked.name}",
                    ),
                )
        elif tracked.level is None and max(loop.processed, tracked.position) < before:
            loop.mark_errored(tracked, loop.lost(tracked, before))
    loop.processed = max(loop.processed, before)

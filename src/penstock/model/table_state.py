"""Define a table's states at one destination: who sets them, whether they survive a restart, and the legal moves.

| state        | set by                       | kept | meaning                                            |
|--------------|------------------------------|------|----------------------------------------------------|
| Init         | table lifecycle, copier      | yes  | waiting for its copy                               |
| DataSync     | copier                       | yes  | ranges are being read                              |
| FinishedCopy | copier                       | yes  | all ranges are written, nobody sees them yet       |
| SyncWait     | copier                       | no   | set for a moment before Catchup; nobody waits      |
| Catchup      | copier                       | no   | the log is replayed over the copied files          |
| SyncDone     | copier; apply after a crash  | yes  | the copy is committed with its position            |
| Ready        | apply                        | yes  | part of every batch                                |
| Errored      | whoever met the error        | yes  | reason, way out, when it is tried again, code      |

Transient states (SyncWait, Catchup) are restored as FinishedCopy after a restart. A table whose destination already
carries a position when a pipeline first meets it (its state store was lost) goes from Init straight to Ready, and is
then copied again. docs/architecture.md draws the moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from penstock.errors import Retry
from penstock.model.position import Position


class State(StrEnum):
    INIT = "Init"
    DATA_SYNC = "DataSync"
    FINISHED_COPY = "FinishedCopy"
    SYNC_WAIT = "SyncWait"
    CATCHUP = "Catchup"
    SYNC_DONE = "SyncDone"
    READY = "Ready"
    ERRORED = "Errored"


NOT_FOLLOWED = "NotFollowed"  # shown in place of the state of a table that no rule of the file matches any more
GONE = "is no longer at the source, or no longer published"  # why a table is Errored that a rule still matches

LEGAL_MOVES: dict[State, frozenset[State]] = {
    State.INIT: frozenset({State.DATA_SYNC, State.READY, State.ERRORED}),
    State.DATA_SYNC: frozenset({State.INIT, State.FINISHED_COPY, State.ERRORED}),
    State.FINISHED_COPY: frozenset({State.INIT, State.SYNC_WAIT, State.ERRORED}),
    State.SYNC_WAIT: frozenset({State.CATCHUP, State.FINISHED_COPY, State.ERRORED}),
    State.CATCHUP: frozenset({State.SYNC_DONE, State.FINISHED_COPY, State.ERRORED}),
    State.SYNC_DONE: frozenset({State.INIT, State.READY, State.ERRORED}),
    State.READY: frozenset({State.INIT, State.ERRORED}),
    State.ERRORED: frozenset({State.INIT, State.READY}),
}


COPYING = frozenset({State.INIT, State.DATA_SYNC, State.FINISHED_COPY, State.SYNC_WAIT, State.CATCHUP})


@dataclass(frozen=True)
class TableStatus:
    """Describe where a table stands.

    `reason` and `solution` are set when Errored. `retry` says who tries again; `next_try`, when penstock does so by
    itself and later, says when.
    """

    state: State
    since: datetime
    reason: str = ""
    solution: str = ""
    retry: Retry | None = None
    code: str = ""  # of the error, when Errored: see errors.py
    next_try: str = ""  # such as "in 20 s (try 2 of 5)"

    @property
    def retry_text(self) -> str:
        """Who tries again, or when, for an operator."""
        return self.next_try or str(self.retry or "")

    @property
    def is_copying(self) -> bool:
        """Whether a copy was on its way, also between two tries, or has to be made.

        Then nothing of the log is kept for the table that it is to replace.
        """
        return self.state in COPYING or self.tried_again_by_itself or self.retry is Retry.WHEN_PUBLISHED

    @property
    def tried_again_by_itself(self) -> bool:
        return self.state is State.ERRORED and self.retry is not None and self.retry.is_automatic


@dataclass(frozen=True)
class TableProgress:
    """Describe what has been applied to a table, as last seen. Figures only; the destination decides."""

    position: Position
    changes: int  # applied since the table was created, as counted
    rate: float  # changes a second over the last batch
    commit_time: datetime | None  # of the newest change applied
    updated_at: datetime
    fetched: int = 0  # values that the source left out of updates, read back from the destination; counted likewise

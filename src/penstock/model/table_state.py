"""The life of a table at one destination: its states, who sets them, whether they are kept, and which moves are legal.

| state        | set by   | kept | meaning                                               |
|--------------|----------|------|-------------------------------------------------------|
| Init         | pipeline | yes  | discovered, not yet copied                            |
| DataSync     | copy     | yes  | copying                                               |
| FinishedCopy | copy     | yes  | all ranges written                                    |
| SyncWait     | copy     | no   | waiting for apply to reach a batch boundary           |
| Catchup      | apply    | no   | this table alone replays the log to that boundary     |
| SyncDone     | copy     | yes  | committed, level with apply                           |
| Ready        | apply    | yes  | part of every batch                                   |
| Errored      | any      | yes  | reason, what to do about it, when it is tried again   |

States that are not kept are FinishedCopy to the next start. A table that the destination holds with a position when a
pipeline first meets it (its state store was lost) goes from Init straight to Ready, and is then copied again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

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
    """Where a table stands. `reason` and `solution` are set when Errored; `retry` says who tries again, and when:
    "at once" and "in … s" need nobody, everything else waits for a person or for the next start.
    """

    state: State
    since: datetime
    reason: str = ""
    solution: str = ""
    retry: str = ""

    @property
    def is_copying(self) -> bool:
        """Whether a copy was on its way, also between two tries, or has to be made as soon as the table is published:
        then nothing of the log is kept for the table that it is to replace."""
        return self.state in COPYING or self.tried_again_by_itself or self.retry == "when published"

    @property
    def tried_again_by_itself(self) -> bool:
        return self.state is State.ERRORED and (self.retry == "at once" or self.retry.startswith("in "))


@dataclass(frozen=True)
class TableProgress:
    """What has been applied to a table, as last seen: figures for people. The truth is in the destination."""

    position: Position
    changes: int  # applied since the table was created, as counted
    rate: float  # changes a second over the last batch
    commit_time: datetime | None  # of the newest change applied
    updated_at: datetime

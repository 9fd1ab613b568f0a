"""What a source's pipeline knows of each of its destinations: somebody who reads the change log at a pace of its own.

`RetryingReader` (retrying_reader.py) is the part that all share; `destination_pipeline.py` completes it for tables, and
`publish/stream_pipeline.py` for streams. `SourcePipeline` runs each reader in a thread of its own, keeps the log for
them (upkeep/log_retention.py) and shows them the source's catalogue (watch/source_watch.py). A reader knows nothing of
other readers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.model.position import Position
from penstock.runtime.process.signals import SignalFlag
from penstock.runtime.watch.catalogue import Catalogue
from penstock.source.contract import Session


@dataclass(frozen=True)
class LogNeed:
    """What a reader needs of the log.

    From `needed_from` on for tables that are well, from `held_from` on (never later) for those that are Errored or
    being copied.
    """

    needed_from: Position
    held_from: Position

    def only_held(self) -> LogNeed:
        """Return the need of a reader that has failed for good: what it would need is held up to the log's limits."""
        return LogNeed(NEVER, self.held_from)


NEVER: Position = 2**64 - 1  # beyond every position
EVERYTHING = LogNeed(0, 0)  # of a reader that does not know yet

Observe = Callable[[Session, Catalogue], None]


class LogReader(Protocol):
    """Read one source's change log into one destination. `run` is its thread; everything else is asked from others."""

    @property
    def name(self) -> str:
        """The destination's name."""

    @property
    def processed(self) -> Position:
        """How far it has applied the log; 0 while it does not know."""

    @property
    def log_need(self) -> LogNeed:
        """As it was when the reader last looked. A later one is never lower, but for EVERYTHING."""

    @property
    def is_retrying(self) -> bool:
        """Whether its last try failed, and the next one has not succeeded yet."""

    def let_go(self, before: Position) -> bool:
        """Ask the reader to do without the log before this position; False while it may still be reading there.

        What it has lost by that is copied again, or Errored with the way out.
        """

    def begin_look(self) -> Observe:
        """Note what is followed now, before the catalogue is read; call the result with what was read."""

    def give_up(self, error: BaseException) -> None:
        """End `run` with this error, which concerns the whole source: a gap, a damaged log."""

    def run(self, stop: SignalFlag) -> None:
        """Return when stopped or, if the run is to end, when drained. Raise what no retry can fix."""

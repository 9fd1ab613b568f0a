"""Waiting between tries: doubling, bounded, cut short when the pipeline is asked to stop."""

from __future__ import annotations

from typing import Protocol


class StopFlag(Protocol):
    """A threading.Event, or what behaves like one."""

    def wait(self, timeout: float | None = None) -> bool: ...


class Backoff:
    def __init__(self, first: float = 0.25, longest: float = 30.0) -> None:
        self._first, self._longest = first, longest
        self.attempts = 0

    @property
    def delay(self) -> float:
        """Seconds until the next try."""
        return float(min(self._longest, self._first * 2 ** min(self.attempts, 30)))

    def wait(self, stop: StopFlag) -> None:
        stop.wait(self.delay)
        self.attempts += 1

    def reset(self) -> None:
        self.attempts = 0

"""From which level on a process logs, changeable while it runs: by itself, or by others through a file in its home."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import structlog
from structlog.typing import EventDict

LevelName = Literal["debug", "info", "warning", "error"]
NUMBERS: dict[LevelName, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
LOOK_EVERY = 1.0
FILE_NAME = "log-level"


class LevelSwitch:
    """A structlog processor that drops what is below the level.

    With a `file`, a level that somebody writes there after the start counts within a second of the next line.
    """

    def __init__(self, level: LevelName = "info", file: Path | None = None) -> None:
        self.set(level, file)

    def set(self, level: LevelName, file: Path | None = None) -> None:
        self.level: LevelName = level
        self._file, self._looked_at = file, time.monotonic()
        self._stamp = self._stamp_now()

    def __call__(self, _logger: object, method: str, event: EventDict) -> EventDict:
        if self._file is not None and time.monotonic() - self._looked_at > LOOK_EVERY:
            self._look()
        number = NUMBERS["error"] if method in ("exception", "critical") else NUMBERS.get(_named(method), 20)
        if number < NUMBERS[self.level]:
            raise structlog.DropEvent
        return event

    def _look(self) -> None:
        self._looked_at = time.monotonic()
        stamp = self._stamp_now()
        if stamp != self._stamp and self._file is not None:
            self._stamp = stamp
            said = self._file.read_text().strip() if stamp else ""
            self.level = next((name for name in NUMBERS if name == said), self.level)

    def _stamp_now(self) -> int:
        try:
            return 0 if self._file is None else self._file.stat().st_mtime_ns
        except FileNotFoundError:
            return 0


SWITCH = LevelSwitch()  # of this process, if it logs through `follow`


def follow(level: LevelName, file: Path | None = None) -> LevelSwitch:
    """Set this process's level, and return the switch to log through."""
    SWITCH.set(level, file)
    return SWITCH


def ask(home: Path, level: LevelName) -> None:
    """Have the process whose home this is log from another level on."""
    home.mkdir(parents=True, exist_ok=True)
    fresh = home / f"{FILE_NAME}.new"
    fresh.write_text(f"{level}\n")
    fresh.replace(home / FILE_NAME)


def _named(method: str) -> LevelName:
    return next((name for name in NUMBERS if name == method), "warning" if method == "warn" else "info")

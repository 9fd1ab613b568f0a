"""Print for commands: rich on a terminal; plain, and never truncated, into a file or a pipe."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

WIDE = 10_000


def stdout() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False, soft_wrap=not sys.stdout.isatty())


def say_when(file: Path, pid: int | None) -> None:
    """Print when a request takes effect: `pid` is the process of the run under way, if there is one."""
    if pid is not None:
        when = f"the run under way (process {pid}) takes it up; see `penstock tables {file}`"
    else:
        when = f"no run is under way: it takes effect at the next `penstock run {file}`"
    stdout().print(when, markup=False)

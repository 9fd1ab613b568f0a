"""Print for commands: rich on a terminal; plain, and never truncated, into a file or a pipe."""

from __future__ import annotations

import sys

from rich.console import Console

WIDE = 10_000


def stdout() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False, soft_wrap=not sys.stdout.isatty())

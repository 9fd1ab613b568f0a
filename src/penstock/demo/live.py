"""The demo's live view: for each table the changes applied, their rate, and the lag in seconds and bytes.

Fed by `control.status`, which looks at the running pipeline from outside; so what it shows is what `penstock status`
would. On a terminal the view stays in place; elsewhere a plain line comes every few seconds.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext

from rich.console import Console
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from penstock.control.status.report import Status, TableReport
from penstock.control.status.view import STATE_STYLES
from penstock.control.text.figures import bytes_text, count_text, rate_text, seconds_text
from penstock.model.scoped_name import ScopedName

LOOK_EVERY = 0.5
LINE_EVERY = 5.0
RATE_WINDOW = 4.0


class Rates:
    """Changes a second over the last few seconds, for each table, from what was seen."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, dict[ScopedName, int]]] = deque()

    def see(self, at: float, tables: list[TableReport]) -> dict[ScopedName, float]:
        now = {report.table: report.changes for report in tables}
        self._seen.append((at, now))
        while len(self._seen) > 2 and at - self._seen[1][0] >= RATE_WINDOW:
            self._seen.popleft()
        since, before = self._seen[0]
        elapsed = at - since
        return {table: (changes - before.get(table, 0)) / elapsed if elapsed else 0.0 for table, changes in now.items()}


def watch(
    console: Console,
    look: Callable[[], Status],
    title: Callable[[], str],
    done: Callable[[Status], bool],
    every: float = LOOK_EVERY,
    transient: bool = False,
) -> Status:
    """Show what `look` sees until `done` says so, and return the last look. A transient view leaves no trace."""
    rates = Rates()
    line_due = time.monotonic() + LINE_EVERY
    live = Live(console=console, auto_refresh=False, transient=transient) if console.is_terminal else None
    with live or nullcontext():
        while True:
            started = time.monotonic()
            status = look()
            rate = rates.see(started, status.tables)
            if live is not None:
                live.update(Padding(view(status, rate, title()), (1, 2), expand=False), refresh=True)
            elif started >= line_due:
                line_due = started + LINE_EVERY
                console.print(line(status, rate, title()))
            if done(status):
                return status
            time.sleep(max(every - (time.monotonic() - started), 0.0))


def view(status: Status, rate: dict[ScopedName, float], title: str) -> Table:
    table = Table(
        box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold", title=title, title_justify="left"
    )
    table.add_column("table", min_width=20)
    table.add_column("state")
    for heading, width in (("changes applied", 15), ("rate", 8), ("lag", 7), ("behind", 9)):
        table.add_column(heading, justify="right", min_width=width, no_wrap=True)
    for report in status.tables:
        table.add_row(
            str(report.table),
            Text(report.state, STATE_STYLES.get(report.state, "yellow")),
            count_text(report.changes),
            rate_text(rate[report.table]),
            seconds_text(report.lag_seconds),
            bytes_text(report.lag_bytes),
        )
    table.add_section()
    table.add_row(
        Text("all", "bold"),
        "",
        Text(count_text(sum(report.changes for report in status.tables)), "bold"),
        Text(rate_text(sum(rate.values())), "bold"),
        *_largest_lag(status.tables),
    )
    return table


def line(status: Status, rate: dict[ScopedName, float], title: str) -> str:
    """Return the same figures in one line of text."""
    tables = ", ".join(f"{report.table.name.name} {count_text(report.changes)}" for report in status.tables)
    lag, behind = _largest_lag(status.tables)
    return f"{title}: {rate_text(sum(rate.values()))}, lag {lag}, {behind} behind; applied: {tables}"


def _largest_lag(tables: list[TableReport]) -> tuple[str, str]:
    """Return seconds and bytes as text."""
    seconds = max((report.lag_seconds for report in tables if report.lag_seconds is not None), default=None)
    behind = max((report.lag_bytes for report in tables if report.lag_bytes is not None), default=None)
    return seconds_text(seconds), bytes_text(behind)

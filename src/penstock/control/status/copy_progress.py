"""Copies as they go on: on a terminal a bar for each table, elsewhere a plain line for each every few seconds.

Fed by whoever copies, from any thread: `update` as often as it likes, with what is there already at once, so that the
rates are of this run; `finish` when all rows of a table are written; `drop` when its copy was given up. Bars are there
only while something is copied. They keep the last lines of the terminal, so whatever else is printed meanwhile must go
through `sys.stderr` as it then is (rich puts itself in its place), or it breaks the bars.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.control.text.figures import bytes_text, count_text, of_about_text, percent_text, rate_text, seconds_text
from penstock.model.scoped_name import ScopedName
from penstock.runtime.copy.progress_view import CopyFigures

LINE_EVERY = 5.0
RATE_WINDOW = 15.0  # long enough for a range or two to be finished in it

SHORTEST_NAME = 12  # of a table, as shown on a narrow terminal

CopyKey = tuple[str, ScopedName]  # destination, table


@dataclass(frozen=True)
class Sample:
    at: float
    rows: int
    bytes: int


@dataclass(frozen=True)
class Pace:
    """How far a copy is, and how fast over the last seconds. None: not known."""

    fraction: float | None
    rows_per_second: float
    bytes_per_second: float
    seconds_left: float | None


@dataclass
class TableCopy:
    """One table's copy as last reported."""

    first: Sample
    line_due: float
    last: Sample
    rows_estimate: int | None = None
    bytes_total: int = 0
    recent: deque[Sample] = field(default_factory=deque)

    def see(self, sample: Sample, rows_estimate: int | None, bytes_total: int) -> None:
        if sample.rows < self.last.rows:  # it began from zero again
            self.first = sample
            self.recent.clear()
        self.last, self.rows_estimate, self.bytes_total = sample, rows_estimate, bytes_total
        self.recent.append(sample)
        while len(self.recent) > 2 and sample.at - self.recent[1].at >= RATE_WINDOW:
            self.recent.popleft()

    def pace(self, now: float) -> Pace:
        since = self.recent[0]
        elapsed = now - since.at
        rows_per_second = (self.last.rows - since.rows) / elapsed if elapsed > 0 else 0.0
        bytes_per_second = (self.last.bytes - since.bytes) / elapsed if elapsed > 0 else 0.0
        done, total, speed = self.last.bytes, self.bytes_total, bytes_per_second
        if not total:
            done, total, speed = self.last.rows, self.rows_estimate or 0, rows_per_second
        left = max(total - done, 0)
        return Pace(
            fraction=min(done / total, 1.0) if total else None,
            rows_per_second=rows_per_second,
            bytes_per_second=bytes_per_second,
            seconds_left=left / speed if total and speed > 0 else None,
        )


class CopyView:
    """A context manager.

    `say` takes the plain lines, and the line that ends each table's copy; they are printed when it is not given.
    `names_destinations`: a table may be copied to several at once, so each line says to which.
    """

    def __init__(
        self,
        console: Console | None = None,
        say: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        names_destinations: bool = False,
    ) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())
        self._say = say or self._print
        self._clock, self._names_destinations = clock, names_destinations
        self._copies: dict[CopyKey, TableCopy] = {}
        self._lock = threading.Lock()  # over _copies; never held while rich works, which asks for the bars
        self._switch = threading.Lock()  # over starting and stopping the bars
        self._live: Live | None = None

    def update(self, destination: str, table: ScopedName, figures: CopyFigures) -> None:
        """Take note of what is copied by now."""
        now = self._clock()
        sample = Sample(now, figures.rows, figures.bytes_done)
        line = None
        with self._lock:
            copy = self._copies.setdefault((destination, table), TableCopy(sample, now + LINE_EVERY, sample))
            copy.see(sample, figures.rows_estimate, figures.bytes_total)
            if not self._console.is_terminal and now >= copy.line_due:
                copy.line_due = now + LINE_EVERY
                line = progress_line(self._name((destination, table)), copy, now)
        if line is not None:
            self._say(line)
        self._show_bars_while_needed()

    def finish(self, destination: str, table: ScopedName) -> None:
        """Report that the table is copied. One that was never reported before had no rows."""
        now = self._clock()
        with self._lock:
            copy = self._copies.pop((destination, table), None)
        self._show_bars_while_needed()
        self._say(finished_line(self._name((destination, table)), copy, now))

    def drop(self, destination: str, table: ScopedName) -> None:
        """Drop the table's copy from view; the reason is reported elsewhere."""
        with self._lock:
            self._copies.pop((destination, table), None)
        self._show_bars_while_needed()

    def close(self) -> None:
        with self._lock:
            self._copies.clear()
        self._show_bars_while_needed()

    def __enter__(self) -> CopyView:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def bars(self) -> Table:
        """Return what a terminal shows now."""
        now = self._clock()
        grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
        grid.add_column(no_wrap=True, overflow="ellipsis", max_width=max(self._console.width // 4, SHORTEST_NAME))
        grid.add_column(ratio=1, min_width=8)
        for _ in range(5):
            grid.add_column(justify="right", no_wrap=True)
        with self._lock:
            for key, copy in self._copies.items():
                pace = copy.pace(now)
                grid.add_row(
                    Text(self._name(key)),
                    ProgressBar(100.0, 100.0 * (pace.fraction or 0.0), pulse=pace.fraction is None),
                    percent_text(pace.fraction),
                    f"{count_text(copy.last.rows)} rows",
                    rate_text(pace.rows_per_second),
                    f"{bytes_text(int(pace.bytes_per_second))}/s",
                    _left_text(pace),
                )
        return grid

    def _show_bars_while_needed(self) -> None:
        if not self._console.is_terminal:
            return
        with self._switch:
            needed = bool(self._copies)
            if needed and self._live is None:
                self._live = Live(
                    console=self._console, get_renderable=self.bars, transient=True, redirect_stdout=False
                )
                self._live.start()
            elif not needed and self._live is not None:
                self._live.stop()
                self._live = None

    def _name(self, key: CopyKey) -> str:
        destination, table = key
        return f"{table} to {destination}" if self._names_destinations else str(table)

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False)


def progress_line(table: str, copy: TableCopy, now: float) -> str:
    pace = copy.pace(now)
    parts = (
        percent_text(pace.fraction) if pace.fraction is not None else None,
        f"{of_about_text(copy.last.rows, copy.rows_estimate)} rows",
        rate_text(pace.rows_per_second).replace("/s", " rows/s"),
        f"{bytes_text(int(pace.bytes_per_second))}/s",
        _left_text(pace) or None,
    )
    return f"copying {table}: {', '.join(part for part in parts if part is not None)}"


def finished_line(table: str, copy: TableCopy | None, now: float) -> str:
    if copy is None:
        return f"copied {table}: 0 rows"
    elapsed = now - copy.first.at
    here = copy.last.rows - copy.first.rows
    earlier = f"; {count_text(here)} of them" if copy.first.rows else ""
    speed = f", {rate_text(here / elapsed).replace('/s', ' rows/s')}" if elapsed > 0 else ""
    amount = f"{count_text(copy.last.rows)} rows, {bytes_text(copy.last.bytes)}"
    return f"copied {table}: {amount}{earlier} in {seconds_text(elapsed)}{speed}"


def _left_text(pace: Pace) -> str:
    return "" if pace.seconds_left is None else f"{seconds_text(pace.seconds_left)} left"

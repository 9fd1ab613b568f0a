"""How old a change is when it can be read in the lake: from its commit at the source to the Iceberg table that has it.

    python benchmarks/freshness.py [--seconds 60] [--rates 1000 10000] [--tables 1 20]

Transactions of a few rows (inserts, and updates of older rows) are committed at a steady rate. Beside the pipeline, a
reader asks the catalog again and again which metadata file each table has and reads the position in it: a transaction
is visible from the moment when a reader finds a position behind its own. Prints p50, p95, p99 and the maximum.

What makes the figures honest: traffic goes on until the last counted transaction is visible; afterwards some of the
metadata files that were found are opened with pyiceberg, and must show every row up to their position; the CPU seconds
that writing and asking took are printed, for they share the cores with the pipeline.
"""

from __future__ import annotations

import argparse
import json
import re
import sqlite3
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from pyiceberg.table import StaticTable

from harness import RESULTS, Result, parser, report, say
from penstock.demo.server import PostgresServer
from pipelines import Run
from plot import Panel, draw
from targets import FRESHNESS_P50, FRESHNESS_P99, FRESHNESS_P99_20_TABLES, Target
from traffic import Committed, Traffic
from watch import Usage, Watch

ASK_SECONDS = 0.01
SETTLE_SECONDS = 10.0  # of traffic that is not counted, while caches and Java's compiler warm up
LATE_SECONDS = 300.0  # after which a transaction that is not visible ends the benchmark
PROVED = 3  # metadata files of each table that are read


@dataclass(frozen=True)
class Seen:
    """A position that a reader found, and when."""

    position: int
    at: float
    metadata: str


@dataclass(frozen=True)
class Measured:
    ages: list[tuple[float, float]]  # second of the traffic, and age
    reached: float
    measuring: dict[str, float]
    roles: dict[str, Usage]

    def percentile(self, percent: int) -> float:
        ordered = sorted(age for _, age in self.ages)
        return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--rates", type=int, nargs="*", default=[1_000, 10_000])
    arguments.add_argument("--tables", type=int, nargs="*", default=[1, 20])
    options = arguments.parse_args()
    measured: dict[str, Measured] = {}
    results: list[Result] = []
    for tables in options.tables:
        for rate in options.rates:
            name = f"{rate:,}/s, {tables} table{'s' if tables > 1 else ''}"
            say(name)
            one = measured[name] = _measure(rate, tables, options.seconds)
            results += _results(name, one, rate, tables)
            say(f"p50 {one.percentile(50):.2f} s, p99 {one.percentile(99):.2f} s")
            _report(options, measured, results)


def _results(name: str, one: Measured, rate: int, tables: int) -> list[Result]:
    targets: dict[int, Target | None] = {50: None, 99: None}
    if (rate, tables) == (1_000, 1):
        targets = {50: FRESHNESS_P50, 99: FRESHNESS_P99}
    elif (rate, tables) == (1_000, 20):
        targets = {50: None, 99: FRESHNESS_P99_20_TABLES}
    return [
        Result(
            f"freshness at {name}, p{percent}", f"{one.percentile(percent):.2f} s", "", one.percentile(percent), "s", t
        )
        for percent, t in targets.items()
    ]


def _report(options: argparse.Namespace, measured: dict[str, Measured], results: list[Result]) -> None:
    plot = draw(
        RESULTS / "freshness.svg",
        Panel(
            "Age of a change when it is readable (mean of a second)",
            "seconds of traffic",
            "seconds",
            {name: _by_second(one.ages) for name, one in measured.items()},
        ),
    )
    report(
        "freshness",
        "from commit to readable in Iceberg",
        ("changes", "transactions", "p50 s", "p95 s", "p99 s", "max s", "changes/s written", "writing CPU s", "asking"),
        [
            (
                name,
                len(one.ages),
                *(one.percentile(percent) for percent in (50, 95, 99, 100)),
                round(one.reached),
                *one.measuring.values(),
            )
            for name, one in measured.items()
        ],
        options=options,
        results=results,
        processes={name: one.roles for name, one in measured.items()},
        plots=[plot],
    )


def _measure(rate: int, tables: int, seconds: float) -> Measured:
    names = [f"t{number}" for number in range(tables)]
    with (
        PostgresServer() as server,
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        Traffic(server.url(), names, rate) as traffic,
        Run(Path(scratch), server.url()) as run,
    ):
        run.await_joined(tables)
        reader = _Reader(Path(scratch) / "warehouse")
        reader.start()
        with Watch(run.pid) as watch:
            traffic.run(SETTLE_SECONDS)
            began = time.monotonic()
            written = traffic.run(seconds)
            reached = traffic.reached
            late = traffic.run(LATE_SECONDS, until=lambda: reader.has(written) or not run.alive)
            reader.stop()
        if not reader.has(written):
            raise SystemExit("the last transactions did not become visible:\n" + "".join(run.said[-20:]))
        for name in names:
            _prove(reader.seen[name], [*written[name], *late.get(name, [])])
    ages = [
        (committed - began, seen - committed)
        for name, transactions in written.items()
        for committed, seen in _matched(transactions, reader.seen[name])
    ]
    measuring = {"writing": round(traffic.cpu_seconds, 2), "asking": round(reader.cpu_seconds, 2)}
    return Measured(sorted(ages), reached, measuring, watch.roles)


class _Reader:
    """Asks the catalog as any reader would; `seen` has for each table the positions and when they were found."""

    def __init__(self, warehouse: Path) -> None:
        self.seen: dict[str, list[Seen]] = defaultdict(list)
        self.cpu_seconds = 0.0
        self._catalog = warehouse / "catalog.db"
        self._locations: dict[str, str] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def has(self, written: dict[str, list[Committed]]) -> bool:
        return all(
            self.seen[name] and self.seen[name][-1].position >= transactions[-1].position
            for name, transactions in written.items()
        )

    def _run(self) -> None:
        connection = sqlite3.connect(f"file:{self._catalog}?mode=ro", uri=True)
        while not self._stopping.wait(ASK_SECONDS):
            try:
                found = connection.execute("select table_name, metadata_location from iceberg_tables").fetchall()
            except sqlite3.OperationalError:
                continue  # a commit holds it: ask again
            for name, location in found:
                if self._locations.get(name) != location:
                    self._locations[name] = location
                    self._read(name, location)
        connection.close()
        self.cpu_seconds = time.thread_time()

    def _read(self, name: str, location: str) -> None:
        metadata = json.loads(Path(re.sub("^file:(//)?", "", location)).read_text())
        text = metadata["properties"].get("penstock.position.bench")
        if text is not None:
            self.seen[name].append(Seen(int(text, 16), time.monotonic(), location))


def _prove(seen: list[Seen], transactions: list[Committed]) -> None:
    """Reads what a reader would have read then: every key up to the position must be there."""
    first = transactions[0]
    for one in [one for one in seen if one.position > first.position][-PROVED:]:
        keys = [item.key for item in transactions if item.position <= one.position]
        table = StaticTable.from_metadata(one.metadata)
        found = table.scan(row_filter=f"id > {first.key} and id <= {keys[-1]}", selected_fields=("id",)).to_arrow()
        if found.num_rows != keys[-1] - first.key:
            raise SystemExit(f"{one.metadata} shows {found.num_rows} rows of {keys[-1] - first.key} up to its position")


def _matched(written: list[Committed], seen: list[Seen]) -> list[tuple[float, float]]:
    matched, at = [], 0
    for transaction in written:
        while seen[at].position < transaction.position:
            at += 1
        matched.append((transaction.at, seen[at].at))
    return matched


def _by_second(ages: list[tuple[float, float]]) -> list[tuple[float, float]]:
    seconds: dict[int, list[float]] = defaultdict(list)
    for at, age in ages:
        seconds[int(at)].append(age)
    return [(float(at), statistics.fmean(some)) for at, some in sorted(seconds.items())]


if __name__ == "__main__":
    main()

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
import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from harness import RESULTS, Result, parser, report, say
from penstock.demo.server import PostgresServer
from pipelines import Run
from plot import Panel, draw
from targets import FRESHNESS_P50, FRESHNESS_P99, FRESHNESS_P99_20_TABLES, Target
from traffic import Traffic
from visibility import LakeReader, matched, prove
from watch import Usage, Watch

SETTLE_SECONDS = 10.0  # of traffic that is not counted, while caches and Java's compiler warm up
LATE_SECONDS = 300.0  # after which a transaction that is not visible ends the benchmark


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
        reader = LakeReader(Path(scratch) / "warehouse")
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
            prove(reader.seen[name], [*written[name], *late.get(name, [])])
    ages = [
        (committed - began, seen - committed)
        for name, transactions in written.items()
        for committed, seen in matched(transactions, reader.seen[name])
    ]
    measuring = {"writing": round(traffic.cpu_seconds, 2), "asking": round(reader.cpu_seconds, 2)}
    return Measured(sorted(ages), reached, measuring, watch.roles)


def _by_second(ages: list[tuple[float, float]]) -> list[tuple[float, float]]:
    seconds: dict[int, list[float]] = defaultdict(list)
    for at, age in ages:
        seconds[int(at)].append(age)
    return [(float(at), statistics.fmean(some)) for at, some in sorted(seconds.items())]


if __name__ == "__main__":
    main()

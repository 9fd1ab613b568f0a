"""What the others notice while one of several destinations is away, and how it catches up.

    python benchmarks/outage.py [--before 60] [--away 600] [--rate 2000]

Two lakes take the same table, at a steady rate of changes. After a while with both, the second one's warehouse is
moved away, and later put back. Three figures: the freshness of the first lake while the second was away, beside the
time before, in the same run; the WAL that the slot held back at the most, beside all that was written meanwhile; and
how long the second takes until it is level again, while traffic goes on. At the end both must have the source's rows.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from harness import RESULTS, Result, parser, report, say
from penstock.demo.server import PostgresServer
from pipelines import Run
from plot import Panel, draw
from readers import catalog
from targets import FRESHNESS_DURING_OUTAGE, RETAINED_DURING_OUTAGE
from traffic import Committed, Traffic
from visibility import LakeReader, matched
from watch import Usage, Watch

TABLE = "t0"
STAYS, GOES = "lake", "second"
SETTLE_SECONDS = 15.0  # of traffic that is not counted, while caches and Java's compiler warm up
LATE_SECONDS = 600.0  # after which a transaction that is not visible ends the benchmark
SAMPLE_SECONDS = 1.0
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Phase:
    """A stretch of the traffic: the seconds at which it began and ended, its ages, and the WAL retained, in bytes."""

    name: str
    began: float
    ended: float
    ages: list[float]
    retained: list[int]

    def percentile(self, percent: int) -> float:
        ordered = sorted(self.ages)
        return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


@dataclass(frozen=True)
class Measured:
    before: Phase
    away: Phase
    after: Phase
    written: int  # bytes of WAL, during the outage
    caught_up: float  # seconds
    missed: int  # changes made during the outage
    ages: list[tuple[float, float]]  # second of the traffic, and age
    retained: list[tuple[float, int]]
    roles: dict[str, Usage]


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--before", type=float, default=60, help="seconds with both, to compare with")
    arguments.add_argument("--away", type=float, default=600, help="seconds for which the second one is away")
    arguments.add_argument("--rate", type=int, default=2_000, help="changes per second")
    options = arguments.parse_args()
    _report(options, _measure(options))


def _measure(options: argparse.Namespace) -> Measured:
    with (
        PostgresServer(settings={"checkpoint_timeout": "30s"}) as server,
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        Traffic(server.url(), [TABLE], options.rate) as traffic,
        Run(Path(scratch), server.url(), destinations=[_lake(Path(scratch), name) for name in (STAYS, GOES)]) as run,
    ):
        folder, hidden = Path(scratch) / GOES, Path(scratch) / "hidden"
        run.await_joined(2)
        with (
            _reading(Path(scratch) / STAYS) as reader,
            _retained(server.url()) as retained,
            Watch(run.pid) as watch,
        ):
            traffic.run(SETTLE_SECONDS)
            began = time.monotonic()
            committed = traffic.run(options.before)[TABLE]
            folder.rename(hidden)
            say("the second one is away")
            left = time.monotonic()
            committed += traffic.run(options.away)[TABLE]
            missed = round(traffic.reached * options.away)
            last = committed[-1]
            written = last.position - next(one for one in committed if one.at >= left).position
            hidden.rename(folder)
            say("the second one is back")
            back = time.monotonic()
            with _reading(folder) as second:
                committed += traffic.run(LATE_SECONDS, until=lambda: second.has({TABLE: [last]}))[TABLE]
                if not second.has({TABLE: [last]}):
                    raise SystemExit("the second one did not catch up:\n" + "".join(run.said[-20:]))
                level = time.monotonic()
                say(f"level after {level - back:.1f} s")
                committed += traffic.run(10.0)[TABLE]
                end = committed[-1]
                run.wait_for(lambda: _both_have(reader, second, end), "both to have the last transaction", LATE_SECONDS)
        _require_rows(server.url(), [Path(scratch) / name for name in (STAYS, GOES)])
    pairs = [(at, seen - at) for at, seen in matched(committed, reader.seen[TABLE])]

    def phase(name: str, start: float, stop: float) -> Phase:
        return Phase(
            name,
            start,
            stop,
            [age for at, age in pairs if start <= at < stop],
            [size for at, size in retained if start <= at < stop],
        )

    return Measured(
        phase("both there", began, left),
        phase("the second away", left, back),
        phase("the second catching up", back, level),
        written,
        level - back,
        missed,
        [(at - began, age) for at, age in pairs],
        [(at - began, size) for at, size in retained if at >= began],
        watch.roles,
    )


def _lake(folder: Path, name: str) -> dict[str, str]:
    return {"name": name, "type": "iceberg", "warehouse": str(folder / name)}


def _both_have(first: LakeReader, second: LakeReader, last: Committed) -> bool:
    return first.has({TABLE: [last]}) and second.has({TABLE: [last]})


@contextmanager
def _reading(warehouse: Path) -> Iterator[LakeReader]:
    reader = LakeReader(warehouse)
    reader.start()
    try:
        yield reader
    finally:
        reader.stop()


@contextmanager
def _retained(url: str) -> Iterator[list[tuple[float, int]]]:
    """Sample what the slot holds back, with the time of each sample."""
    samples: list[tuple[float, int]] = []
    stopping = threading.Event()

    def sample() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while not stopping.wait(SAMPLE_SECONDS):
                row = connection.execute("select pg_current_wal_lsn() - restart_lsn from pg_replication_slots")
                (size,) = row.fetchone() or (0,)
                samples.append((time.monotonic(), int(size)))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        stopping.set()
        thread.join()


def _require_rows(url: str, warehouses: Sequence[Path]) -> None:
    """Compare each lake's rows with the source's, by number and sum."""
    with psycopg.connect(url) as connection:
        expected = connection.execute(f"select count(*), sum(n) from {TABLE}".encode()).fetchone()
    for warehouse in warehouses:
        rows = catalog(warehouse, warehouse.name).load_table(f"public.{TABLE}").scan(selected_fields=("n",)).to_arrow()
        found = (rows.num_rows, sum(rows["n"].to_pylist()))
        if found != expected:
            raise SystemExit(f"{warehouse.name} has {found} as the number and sum of its rows, the source {expected}")


def _report(options: argparse.Namespace, one: Measured) -> None:
    phases = (one.before, one.away, one.after)
    peak = max(one.away.retained)
    results = [
        Result(
            f"freshness of one lake while another is away for {options.away:.0f} s, p{percent}",
            f"{one.away.percentile(percent):.2f} s",
            f"both there {one.before.percentile(percent):.2f} s",
            one.away.percentile(percent) / one.before.percentile(percent),
            "of before",
            FRESHNESS_DURING_OUTAGE,
        )
        for percent in (50, 99)
    ]
    results.append(
        Result(
            "WAL retained at the most meanwhile",
            f"{peak / 2**20:.0f} MiB",
            f"written {one.written / 2**20:.0f} MiB",
            peak / one.written,
            "of what was written",
            RETAINED_DURING_OUTAGE,
        )
    )
    results.append(
        Result(
            f"catching up on {one.missed:,} changes while {options.rate:,}/s go on",
            f"{one.caught_up:.1f} s, {one.missed / one.caught_up:,.0f} changes/s",
            f"away {options.away:.0f} s",
            one.caught_up / options.away,
            "of the outage",
        )
    )
    plot = draw(
        RESULTS / "outage.svg",
        Panel("Age of a change when it is readable in the other lake", "seconds", "seconds", {STAYS: one.ages[::20]}),
        Panel(
            "WAL that the slot retains",
            "seconds",
            "MiB",
            {"retained": [(at, size / 2**20) for at, size in one.retained]},
        ),
    )
    report(
        "outage",
        f"one of two lakes away for {options.away:.0f} s at {options.rate:,} changes/s",
        ("the other lake, while", "seconds", *(f"p{percent} s" for percent in PERCENTILES), "WAL retained MiB, most"),
        [
            (
                phase.name,
                phase.ended - phase.began,
                *(phase.percentile(percent) for percent in PERCENTILES),
                max(phase.retained, default=0) / 2**20,
            )
            for phase in phases
        ],
        options=options,
        results=results,
        processes={"outage": one.roles},
        plots=[plot],
    )


if __name__ == "__main__":
    main()

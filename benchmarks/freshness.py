"""How old a change is when it can be read in the lake: from its commit at the source to the Iceberg table that has it.

    python benchmarks/freshness.py [--seconds 60] [--rates 1000 10000] [--tables 1 20]

Transactions of a few rows (inserts, and updates of older rows) are committed at a steady rate. Beside the pipeline, a
reader asks the catalog again and again which metadata file each table has and reads the position in it: a transaction
is visible from the moment when a reader finds a position behind its own. Prints p50, p95, p99 and the maximum.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

import psycopg
import yaml

from harness import RESULTS, Usage, Watch, report
from penstock.demo.server import PostgresServer
from plot import line_plot

TICK_SECONDS = 0.05
ASK_SECONDS = 0.01
SETTLE_SECONDS = 5.0  # of traffic that is not counted, while caches and Java's compiler warm up
Moment = tuple[int, float]  # a position, and when it was reached


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rates", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--tables", type=int, nargs="*", default=[1, 20])
    options = parser.parse_args()
    rows, lines, details = [], {}, {}
    for tables in options.tables:
        for rate in options.rates:
            ages, behind, roles = _measure(rate, tables, options.seconds)
            name = f"{rate:,}/s, {tables} table{'s' if tables > 1 else ''}"
            seconds = sorted(age for _, age in ages)
            rows.append((name, len(seconds), *(_percentile(seconds, p) for p in (50, 95, 99)), seconds[-1], behind))
            lines[name] = _smoothed(ages)
            details[name] = {role: vars(usage) for role, usage in roles.items()}
            print(rows[-1], flush=True)
    line_plot(RESULTS / "freshness.svg", "Age of a change when it is readable", "seconds of traffic", "seconds", lines)
    columns = ("changes", "transactions", "p50 s", "p95 s", "p99 s", "max s", "rate reached")
    report("freshness", "from commit to readable in Iceberg", columns, rows, {"processes": details})


def _measure(rate: int, tables: int, seconds: float) -> tuple[list[tuple[float, float]], float, dict[str, Usage]]:
    names = [f"t{number}" for number in range(tables)]
    with PostgresServer() as server, tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        folder = Path(scratch)
        with psycopg.connect(server.url(), autocommit=True) as connection:
            for name in names:
                connection.execute(f"create table {name} (id bigint primary key, n int, note text, at timestamptz)")
        file = folder / "pipeline.yaml"
        settings = {
            "version": 1,
            "name": "bench",
            "source": {"type": "postgres", "url": server.url()},
            "tables": [{"match": "public.*"}],
            "destinations": [{"type": "iceberg", "warehouse": str(folder / "warehouse")}],
        }
        file.write_text(yaml.safe_dump(settings))
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.main", "run", str(file)], stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        joined = 0
        for line in process.stderr:
            joined += " table joined " in line
            if joined == tables:
                break
        threading.Thread(target=process.stderr.read, daemon=True).start()
        reader = _Reader(folder / "warehouse")
        reader.start()
        with Watch(process.pid) as watch:
            _write(server.url(), names, rate, SETTLE_SECONDS)
            began = time.monotonic()
            written, reached = _write(server.url(), names, rate, seconds, first=10**9)
            time.sleep(0.5)
            deadline = time.monotonic() + 120
            while not reader.has(written) and time.monotonic() < deadline:
                time.sleep(0.1)
            reader.stop()
        process.send_signal(signal.SIGTERM)
        process.wait()
        ages = [
            (committed - began, seen - committed)
            for name, moments in written.items()
            for committed, seen in _matched(moments, reader.seen[name])
        ]
        return sorted(ages), reached, watch.roles


def _write(
    url: str, names: list[str], rate: int, seconds: float, first: int = 0
) -> tuple[dict[str, list[Moment]], float]:
    """Transactions at a steady rate; gives for each table when its transactions were committed, and the rate."""
    rows = max(1, round(rate * TICK_SECONDS / len(names)))
    each = rows * len(names) / rate
    written: dict[str, list[Moment]] = defaultdict(list)
    began, number = time.monotonic(), 0
    with psycopg.connect(url, autocommit=True) as connection:
        while (due := began + number * each) < began + seconds:
            time.sleep(max(0.0, due - time.monotonic()))
            for name in names:
                at = first + number * rows
                connection.execute(
                    f"with old as (update {name} set n = n + 1 where id between {at - 10 * rows} "
                    f"and {at - 10 * rows + rows // 2 - 1} returning 1) insert into {name} select g, 1, "
                    f"'note ' || g, now() from generate_series({at}, {at + rows - rows // 2 - 1}) g"
                )
                committed = time.monotonic()
                row = connection.execute("select pg_current_wal_insert_lsn() - '0/0'").fetchone()
                assert row is not None
                written[name].append((int(row[0]), committed))
            number += 1
    return dict(written), number * rows * len(names) / (time.monotonic() - began)


class _Reader:
    """Asks the catalog as any reader would; `seen` has for each table the positions and when they were found."""

    def __init__(self, warehouse: Path) -> None:
        self.seen: dict[str, list[Moment]] = defaultdict(list)
        self._catalog = warehouse / "catalog.db"
        self._locations: dict[str, str] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def has(self, written: dict[str, list[Moment]]) -> bool:
        return all(self.seen[name] and self.seen[name][-1][0] >= moments[-1][0] for name, moments in written.items())

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
                    metadata = json.loads(Path(re.sub("^file:(//)?", "", location)).read_text())
                    text = metadata["properties"].get("penstock.position.bench")
                    if text is not None:
                        self.seen[name].append((int(text, 16), time.monotonic()))


def _matched(written: list[Moment], seen: list[Moment]) -> list[tuple[float, float]]:
    matched, at = [], 0
    for position, committed in written:
        while at < len(seen) and seen[at][0] < position:
            at += 1
        if at < len(seen):
            matched.append((committed, seen[at][1]))
    return matched


def _percentile(ordered: list[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def _smoothed(ages: list[tuple[float, float]]) -> list[tuple[float, float]]:
    seconds: dict[int, list[float]] = defaultdict(list)
    for at, age in ages:
        seconds[int(at)].append(age)
    return [(float(at), statistics.fmean(some)) for at, some in sorted(seconds.items())]


if __name__ == "__main__":
    main()

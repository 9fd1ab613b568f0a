"""What a batch costs as things grow: the table it goes into, the number of tables, the backlog, and reading meanwhile.

    python benchmarks/growth.py [--rows 100000 1000000 10000000] [--tables 1 20 100 500] [--backlog 1000000 4000000]

Every figure is of a real pipeline. A batch is one transaction of 10,000 changes, half of them updates of rows anywhere
in the table; its time is the one that penstock says itself, median of several after a few that are not counted.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import psycopg
from pyiceberg.catalog.sql import SqlCatalog

from harness import RESULTS, Run, Watch, report
from penstock.demo.server import PostgresServer
from plot import line_plot

CHANGES = 10_000
WARM, COUNTED = 3, 7
READ_BATCHES = 200
SCATTER = 7_919  # a prime, so that updates hit rows all over the table


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="*", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--tables", type=int, nargs="*", default=[1, 20, 100, 500])
    parser.add_argument("--backlog", type=int, nargs="*", default=[1_000_000, 4_000_000, 16_000_000])
    parser.add_argument("--reads", type=int, default=READ_BATCHES, help="batches during which the table is read")
    options = parser.parse_args()
    by_rows = [(rows, _batches([rows])) for rows in options.rows]
    by_tables = [(count, _batches([max(1_000, CHANGES // count)] * count)) for count in options.tables]
    by_backlog = [(changes, *_backlog(changes)) for changes in options.backlog]
    lines = {}
    report_rows: list[tuple[object, ...]] = []
    for rows, seconds in by_rows:
        report_rows.append((f"batch into {rows:,} rows", seconds, seconds / by_rows[0][1]))
    for count, seconds in by_tables:
        report_rows.append((f"batch over {count} tables", seconds, seconds / by_tables[0][1]))
    for changes, seconds, peak in by_backlog:
        first = by_backlog[0]
        report_rows.append(
            (f"backlog of {changes:,}, peak {peak} MiB", seconds, seconds / first[1] / (changes / first[0]))
        )
    if options.reads:
        during, compacted, lines["read while streaming"] = _reads(options.reads)
        report_rows.append((f"read during {options.reads} batches", during, during / compacted))
        line_plot(RESULTS / "growth_reads.svg", "Reading a clone table while it streams", "batch", "seconds", lines)
    if by_rows:
        line_plot(
            RESULTS / "growth_rows.svg",
            f"A batch of {CHANGES:,} changes",
            "rows in the table",
            "seconds",
            {"seconds": [(float(rows), seconds) for rows, seconds in by_rows]},
        )
    report("growth", "what a batch costs as things grow", ("what", "seconds", "against the first"), report_rows, {})


def _prepared(connection: psycopg.Connection[tuple[object, ...]], sizes: list[int]) -> list[str]:
    names = [f"t{number}" for number in range(len(sizes))]
    for name, rows in zip(names, sizes, strict=True):
        connection.execute(f"create table {name} (id bigint primary key, n int, note text, at timestamptz)")
        connection.execute(
            f"insert into {name} select g, 1, 'note of row ' || g, timestamptz '2026-01-01' + g * interval '1 second' "
            f"from generate_series(1, {rows}) g"
        )
    return names


def _batches(sizes: list[int]) -> float:
    """Seconds of a batch that goes into all of these tables."""
    with (
        PostgresServer(settings={"max_wal_size": "8GB"}) as server,
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        psycopg.connect(server.url(), autocommit=True) as connection,
    ):
        names = _prepared(connection, sizes)
        with Run(Path(scratch), server.url()) as run:
            run.await_joined(len(names))
            for number in range(WARM + COUNTED):
                _write(connection, names, sizes[0], number)
                run.await_applied((number + 1) * (CHANGES // len(names) // 2 * 2) * len(names))
            seconds = statistics.median(one["seconds"] for one in run.applied[-COUNTED:])
    print(f"{len(sizes)} tables of {sizes[0]:,} rows: {seconds:.3f} s", flush=True)
    return seconds


def _write(connection: psycopg.Connection[tuple[object, ...]], names: list[str], rows: int, number: int) -> None:
    half = CHANGES // len(names) // 2
    with connection.transaction():
        for name in names:
            connection.execute(
                f"update {name} set n = n + 1 where id in (select 1 + (g * {SCATTER} + {number}) % {rows} "
                f"from generate_series(1, {half}) g)"
            )
            first = rows + 1 + number * half
            connection.execute(
                f"insert into {name} select g, 1, 'new', now() from generate_series({first}, {first + half - 1}) g"
            )


def _backlog(changes: int) -> tuple[float, int]:
    """Seconds to apply a backlog that waits in the slot, and the driver's and workers' highest peak in MiB."""
    with (
        PostgresServer(settings={"max_wal_size": "32GB"}) as server,
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        psycopg.connect(server.url(), autocommit=True) as connection,
    ):
        _prepared(connection, [0])
        run = Run(Path(scratch), server.url())
        with run:
            run.await_joined(1)
        for first in range(1, changes + 1, 100_000):
            connection.execute(
                f"insert into t0 select g, 1, 'row ' || g, now() from generate_series({first}, {first + 99_999}) g"
            )
        run.applied.clear()
        began = time.monotonic()
        with run, Watch(run.pid) as watch:
            run.await_applied(changes)
            took = time.monotonic() - began
        peak = max(usage.peak_mib for role, usage in watch.roles.items() if role != "java")
    print(f"backlog of {changes:,}: {took:.1f} s, {peak} MiB", flush=True)
    return took, peak


def _reads(batches: int) -> tuple[float, float, list[tuple[float, float]]]:
    """Median seconds of a full read by pyiceberg while batches go on, of one of a compacted table, and all of them."""
    with (
        PostgresServer(settings={"max_wal_size": "8GB"}) as server,
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        psycopg.connect(server.url(), autocommit=True) as connection,
    ):
        rows = 1_000_000
        names = _prepared(connection, [rows])
        with Run(Path(scratch), server.url()) as run:
            run.await_joined(1)
            catalog = SqlCatalog(
                "lake", uri=f"sqlite:///{scratch}/warehouse/catalog.db", warehouse=f"{scratch}/warehouse"
            )
            fresh = statistics.median(_read(catalog) for _ in range(3))
            seen = []
            for number in range(batches):
                _write(connection, names, rows, number)
                run.await_applied((number + 1) * CHANGES)
                if number % 10 == 9:
                    seen.append((float(number + 1), _read(catalog)))
    return statistics.median(seconds for _, seconds in seen), fresh, seen


def _read(catalog: SqlCatalog) -> float:
    began = time.monotonic()
    catalog.load_table(("public", "t0")).scan().to_arrow()
    return time.monotonic() - began


if __name__ == "__main__":
    main()

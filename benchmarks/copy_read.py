"""Reading the initial copy: rows a second of typed Arrow batches, by two processes, against `COPY … TO STDOUT` by psql.

    .venv/bin/python benchmarks/copy_read.py [--rows 1000000] [--rounds 3]

psql throws away what it gets, so it shows the most that one connection to the server can give. Both read the table of
the design (bigint, int, text, numeric, timestamptz, jsonb, text, bool), in turns, in one run; the best round counts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psycopg

from penstock.demo.server import PostgresServer
from penstock.model.table import TableId
from penstock.source.postgres.copy_ranges import CopyRange, plan_ranges
from penstock.source.postgres.copy_read import CopySource, read_range
from penstock.source.postgres.discover import discover
from penstock.source.postgres.snapshot import export_snapshot, snapshot_connection

PROCESSES = 2
RANGE_BYTES = 32 * 1024 * 1024
TABLE = TableId("public", "orders")


def fill(url: str, rows: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, customer int, name text, price numeric(12,2), at timestamptz,"
            " doc jsonb, note text, paid bool)"
        )
        connection.execute(
            "INSERT INTO orders SELECT g, g %% 1000, 'name ' || g, (g %% 100000) / 100.0,"
            " timestamptz '2024-01-01' + g * interval '1.001 second', jsonb_build_object('a', g, 'b', 'x' || g),"
            " repeat('y', (g %% 40)::int), g %% 2 = 0 FROM generate_series(1, %s::bigint) g",
            (rows,),
        )
        connection.execute("VACUUM ANALYZE orders")


def peak_memory(process: int | str = "self") -> int:
    """Of a process since it began, in MiB. Not ru_maxrss, which a process inherits from who started it."""
    status = Path(f"/proc/{process}/status").read_text()
    return next(int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def read(task: tuple[CopySource, CopyRange]) -> tuple[int, int]:
    """Rows read, and the process's peak memory in MiB."""
    source, part = task
    rows = sum(batch.num_rows for batch in read_range(source, part, statement_timeout=600))
    return rows, peak_memory()


def by_psql(server: PostgresServer) -> float:
    began = time.perf_counter()
    subprocess.run(
        [server.binaries / "psql", "--quiet", "--no-psqlrc", "--command=COPY orders TO STDOUT", server.url()],
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - began


def by_processes(url: str, pool: ProcessPoolExecutor) -> tuple[float, int, int]:
    """Seconds from the first statement to the last row, rows, and peak memory of a process."""
    began = time.perf_counter()
    with export_snapshot(url, timeout=60, waiting=lambda blockers: None) as snapshot:
        with snapshot_connection(url, snapshot.name) as connection:
            (schema,) = discover(connection, lambda table: table == TABLE, "none")
            ranges = plan_ranges(connection, schema, range_bytes=RANGE_BYTES)
        source = CopySource(url, snapshot.name, schema)
        done = list(pool.map(read, [(source, part) for part in ranges]))
    return time.perf_counter() - began, sum(rows for rows, _ in done), max(peak for _, peak in done)


def alternately(rounds: int, *runs: Callable[[], float]) -> list[float]:
    """The best time of each."""
    times = [[run() for run in runs] for _ in range(rounds)]
    return [min(column) for column in zip(*times, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    peaks: list[int] = []
    with PostgresServer() as server, ProcessPoolExecutor(PROCESSES, mp_context=spawn) as pool:
        fill(server.url(), arguments.rows)

        def ours() -> float:
            seconds, rows, peak = by_processes(server.url(), pool)
            if rows != arguments.rows:
                raise SystemExit(f"read {rows} rows of {arguments.rows}")
            peaks.append(peak)
            return seconds

        ours()  # starts the processes
        limit, copy = alternately(arguments.rounds, lambda: by_psql(server), ours)
    rows = arguments.rows
    print(f"load average at the end     {os.getloadavg()[0]:10.1f} on {os.cpu_count()} cores")
    print(f"psql, COPY … TO STDOUT      {limit:10.2f} s {rows / limit:12,.0f} rows/s")
    print(f"read_range, {PROCESSES} processes     {copy:10.2f} s {rows / copy:12,.0f} rows/s")
    print(f"peak memory of a process    {max(peaks):10} MiB")
    print(f"ratio to the limit          {limit / copy:10.2f}")


if __name__ == "__main__":
    main()

"""Reading the initial copy: rows a second of typed Arrow batches, by two processes, against `COPY … TO STDOUT` by psql.

    python benchmarks/copy_read.py [--rows 1000000] [--rounds 3]

psql throws away what it gets, so it shows the most that one connection to the server can give. Both read the table of
the design (bigint, int, text, numeric, timestamptz, jsonb, text, bool), in turns, in one run; the best round counts.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import time
from concurrent.futures import ProcessPoolExecutor

import psycopg

from harness import Result, parser, report, say
from penstock.demo.server import PostgresServer
from penstock.model.table import TableId
from penstock.source.postgres.copy_ranges import CopyRange, plan_ranges
from penstock.source.postgres.copy_read import CopySource, read_range
from penstock.source.postgres.discover import discover
from penstock.source.postgres.snapshot import export_snapshot, snapshot_connection
from watch import Usage, peak_memory

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


def read(task: tuple[CopySource, CopyRange]) -> tuple[int, int, float]:
    """Rows read, the process's peak memory in MiB, and the CPU seconds that it took."""
    source, part = task
    began = time.process_time()
    rows = sum(batch.num_rows for batch in read_range(source, part, statement_timeout=600))
    return rows, peak_memory(), time.process_time() - began


def by_psql(server: PostgresServer, table: str) -> float:
    began = time.perf_counter()
    subprocess.run(
        [server.binaries / "psql", "--quiet", "--no-psqlrc", f"--command=COPY {table} TO STDOUT", server.url()],
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - began


def by_processes(url: str, pool: ProcessPoolExecutor) -> tuple[float, int, Usage]:
    """Seconds from the first statement to the last row, rows, and what a process took."""
    began = time.perf_counter()
    with export_snapshot(url, timeout=60, waiting=lambda blockers: None) as snapshot:
        with snapshot_connection(url, snapshot.name) as connection:
            (schema,) = discover(connection, lambda table: table == TABLE, "none")
            ranges = plan_ranges(connection, schema, range_bytes=RANGE_BYTES)
        source = CopySource(url, snapshot.name, schema)
        done = list(pool.map(read, [(source, part) for part in ranges]))
    took = time.perf_counter() - began
    usage = Usage(max(peak for _, peak, _ in done), round(sum(cpu for _, _, cpu in done), 2), PROCESSES)
    return took, sum(rows for rows, _, _ in done), usage


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    times: dict[str, list[float]] = {"psql, COPY … TO STDOUT": [], f"read_range, {PROCESSES} processes": []}
    limit, ours = times.values()
    spawn = multiprocessing.get_context("spawn")
    with PostgresServer() as server, ProcessPoolExecutor(PROCESSES, mp_context=spawn) as pool:
        say("filling the table")
        fill(server.url(), options.rows)
        by_processes(server.url(), pool)  # starts the processes
        for _ in range(options.rounds):
            limit.append(by_psql(server, str(TABLE)))
            seconds, rows, usage = by_processes(server.url(), pool)
            if rows != options.rows:
                raise SystemExit(f"read {rows} rows of {options.rows}")
            ours.append(seconds)
    report(
        "copy_read",
        f"reading {options.rows:,} rows, best of {options.rounds}",
        ("what", "seconds", "rows/s"),
        [(what, min(took), round(options.rows / min(took))) for what, took in times.items()],
        options=options,
        results=[
            Result(
                f"reading {options.rows:,} rows into Arrow",
                f"{options.rows / min(ours):,.0f} rows/s",
                f"psql to nowhere {options.rows / min(limit):,.0f} rows/s",
                min(limit) / min(ours),
                "of the limit",
            )
        ],
        processes={"read_range": {"workers": usage}},
        seconds=times,
    )


if __name__ == "__main__":
    main()

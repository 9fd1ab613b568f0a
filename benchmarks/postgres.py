"""How fast changes reach a Postgres destination, and how old they are when they can be read there.

    python benchmarks/postgres.py [--scale 10] [--rounds 2] [--rate 1000] [--seconds 30]

W1 waits in the slots: 100,000 TPC-B transactions of pgbench at scale 10, then 500,000 inserts, 300,000 updates and
50,000 deletes of a table of 8 columns: 1.25 million row changes. Source and destination are two databases of one server
with fsync on, on the machine that penstock runs on. The clock runs from the moment when capture reads the slot until
the last commit: the start of Spark lies within it. The destination holds the tables' earlier rows already (a million
accounts among them). Of the rounds the best counts; each has a database of its own, and in the end the rows are counted
on both sides.

Then transactions of a few rows are committed at a steady rate, and a reader of the destination asks again and again for
the newest row. The peer's figures are kuvasz-streamer's, measured once on such a machine (docs/benchmarks.md).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

import psycopg

from harness import Result, parser, report, say
from penstock.demo.server import PostgresServer
from pipelines import Backlog, Drained, Run
from source_rows import BIG_WAL, W1_TABLES, w1_changes, w1_tables
from targets import POSTGRES_CHANGES, POSTGRES_FRESHNESS_P50
from traffic import Committed, Traffic

SETTINGS = BIG_WAL | {"fsync": "on", "max_replication_slots": "40", "max_wal_senders": "40", "max_connections": "200"}
KUVASZ_CHANGES, KUVASZ_FRESHNESS = 7_800, 0.7
ASK_SECONDS, SETTLE_SECONDS, LATE_SECONDS = 0.005, 10.0, 60.0


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--scale", type=int, default=10)
    arguments.add_argument("--rounds", type=int, default=2)
    arguments.add_argument("--rate", type=int, default=1_000)
    arguments.add_argument("--seconds", type=float, default=30)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        with PostgresServer(settings=SETTINGS) as server:
            drained = _drained(server, Path(scratch), options)
        with PostgresServer(settings=SETTINGS) as server:
            ages = _ages(server, Path(scratch) / "fresh", options)
    speed = drained.changes / drained.seconds
    p50, p99 = statistics.median(ages), sorted(ages)[int(len(ages) * 0.99)]
    cpu = sum(usage.cpu_seconds for usage in drained.roles.values())
    report(
        "postgres",
        f"{drained.changes:,} changes into Postgres, best of {options.rounds}; then {options.rate:,} changes/s",
        ("what", "figure"),
        [
            ("changes per second", speed),
            ("seconds", drained.seconds),
            ("CPU seconds of penstock", cpu),
            ("freshness p50, s", p50),
            ("freshness p99, s", p99),
        ],
        options=options,
        results=[
            Result(
                f"{drained.changes:,} changes into Postgres",
                f"{speed:,.0f} changes/s",
                f"kuvasz-streamer {KUVASZ_CHANGES:,} changes/s",
                speed,
                "changes/s",
                POSTGRES_CHANGES,
            ),
            Result(
                f"freshness p50 at {options.rate:,} changes/s",
                f"{p50:.2f} s",
                f"kuvasz-streamer {KUVASZ_FRESHNESS:.1f} s",
                p50,
                "s",
                POSTGRES_FRESHNESS_P50,
            ),
        ],
        processes={"penstock": drained.roles},
    )


def _database(server: PostgresServer, name: str) -> str:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
    return server.url(name)


def _drained(server: PostgresServer, folder: Path, options: argparse.Namespace) -> Drained:
    url, scale = server.url(), options.scale
    say(f"pgbench at scale {scale}, and its copies")
    w1_tables(server, scale)
    backlogs = {}
    for number in range(options.rounds):
        copy = _database(server, f"copy{number}")
        destination = {"name": "copy", "type": "postgres", "url": copy}
        backlogs[copy] = Backlog(folder, url, f"into{number}", destinations=[destination])
        copied = backlogs[copy].copied
        say(f"copied {copied.rows_copied:,} rows in {copied.seconds:.2f} s")
    say("writing W1")
    w1_changes(server, scale)
    rounds = []
    for copy, backlog in backlogs.items():
        drained = backlog.drain()
        say(
            f"{drained.changes:,} changes in {drained.seconds:.2f} s: {drained.changes / drained.seconds:,.0f} a second"
        )
        for role, usage in drained.roles.items():
            say(f"  {role}: {usage.cpu_seconds:.1f} CPU s")
        for table in W1_TABLES:
            there, here = (_figures(one, table) for one in (url, copy))
            if there != here:
                raise SystemExit(f"{table}: the source has {there}, the destination {here}")
        rounds.append(drained)
    return min(rounds, key=lambda one: one.seconds)


def _figures(url: str, table: str) -> tuple[object, ...] | None:
    with psycopg.connect(url) as connection:
        return connection.execute(f"select count(*), sum(hashtext(t::text)::bigint) from {table} t".encode()).fetchone()


def _ages(server: PostgresServer, folder: Path, options: argparse.Namespace) -> list[float]:
    copy = _database(server, "copy")
    seen: list[tuple[int, float]] = []
    done = threading.Event()

    def read() -> None:
        with psycopg.connect(copy, autocommit=True) as connection:
            while not done.wait(ASK_SECONDS):
                row = connection.execute("select max(id) from fresh").fetchone()
                newest = int(row[0] or 0) if row is not None else 0
                if not seen or newest > seen[-1][0]:
                    seen.append((newest, time.monotonic()))

    with Traffic(server.url(), ["fresh"], options.rate) as traffic:
        destination = {"name": "copy", "type": "postgres", "url": copy}
        with Run(folder, server.url(), destinations=[destination]) as run:
            run.await_joined(1)
            reader = threading.Thread(target=read)
            reader.start()
            try:
                traffic.run(SETTLE_SECONDS)
                committed = traffic.run(options.seconds)["fresh"]
                last = committed[-1].key
                traffic.run(LATE_SECONDS, until=lambda: bool(seen) and seen[-1][0] >= last)
            finally:
                done.set()
                reader.join()
    return _aged(committed, seen)


def _aged(committed: list[Committed], seen: list[tuple[int, float]]) -> list[float]:
    ages, place = [], 0
    for one in committed:
        while place < len(seen) and seen[place][0] < one.key:
            place += 1
        if place == len(seen):
            raise SystemExit("a transaction did not arrive")
        ages.append(max(0.0, seen[place][1] - one.at))
    return ages


if __name__ == "__main__":
    main()

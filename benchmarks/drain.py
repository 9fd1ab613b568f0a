"""How fast waiting changes reach Iceberg: capture, decode, fold, write and commit, from the slot to the lake.

    python benchmarks/drain.py [--scale 10] [--rounds 2] [--without-debezium]

W1 waits in the slots: 100,000 TPC-B transactions of pgbench at scale 10, then 500,000 inserts, 300,000 updates and
50,000 deletes of a table of 8 columns: 1.25 million row changes. The limit is `pg_recvlogical` writing the same stream
to a file; the peer is Debezium's engine with a handler that only counts. Taken in turns, in one run.

penstock's clock runs from the moment when its capture reads the slot until `run --once` has made its last commit: the
start of Spark lies within it. The lake holds the tables' earlier rows already (a million accounts among them).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
import yaml

from debezium import count_changes
from harness import EIGHT_COLUMN_ROWS, EIGHT_COLUMNS, Usage, Watch, recvlogical, report
from penstock.demo.server import PostgresServer
from penstock.source.postgres.connect import connect
from penstock.source.postgres.slot import create_slot, flush_position

PUBLICATION = "penstock_bench"
TRANSACTION_ROWS = 100


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=int, default=10, help="of W1; 10 is what the figures in docs/ are taken at")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--without-debezium", action="store_true")
    options = parser.parse_args()
    with (
        PostgresServer(settings={"max_wal_size": "8GB"}) as server,
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
    ):
        _measure(server, Path(scratch), options.scale, options.rounds, debezium=not options.without_debezium)


def _measure(server: PostgresServer, scratch: Path, scale: int, rounds: int, *, debezium: bool) -> None:
    url = server.url()
    subprocess.run(
        [str(server.binaries / "pgbench"), "-i", "-q", "-s", str(scale), url], check=True, capture_output=True
    )
    with connect(url) as connection:
        connection.execute(EIGHT_COLUMNS.format(table="w1"))
    file = _pipeline(url, scratch / "work")
    _once(file)
    shutil.copytree(scratch / "work", scratch / "before")  # the lake before W1: each round begins with it
    with connect(url) as connection:
        for number in range(rounds):
            create_slot(connection, url, f"recvlogical_{number}")
            connection.execute("select pg_copy_logical_replication_slot('penstock_bench', %s)", (f"round_{number}",))
        if debezium:
            create_slot(connection, url, "debezium")
    _write(server, scale)
    with connect(url) as connection:
        end = flush_position(connection)

    took: dict[str, list[float]] = {"pg_recvlogical": [], "penstock": [], "debezium": []}
    roles: dict[str, Usage] = {}
    changes = 0
    for number in range(rounds):
        took["pg_recvlogical"].append(recvlogical(server, f"recvlogical_{number}", PUBLICATION, end))
        shutil.rmtree(scratch / "work")
        shutil.copytree(scratch / "before", scratch / "work")
        seconds, changes, roles = _drain(server, file, f"round_{number}")
        took["penstock"].append(seconds)
        print({name: [round(one, 2) for one in some] for name, some in took.items()}, flush=True)
    if debezium:
        took["debezium"].append(count_changes(server.port, "debezium", PUBLICATION, changes))
    best = {name: min(some) for name, some in took.items() if some}
    report(
        "drain",
        f"drain of {changes:,} row changes",
        ("what", "seconds", "row changes/s", "of penstock's speed"),
        [(name, best[name], round(changes / best[name]), best["penstock"] / best[name]) for name in best],
        {
            "seconds": took,
            "penstock": {role: vars(usage) for role, usage in roles.items()},
            "penstock_of_recvlogical": best["pg_recvlogical"] / best["penstock"],
            "penstock_against_debezium": best["debezium"] / best["penstock"] if debezium else None,
        },
    )
    for role, usage in roles.items():
        print(f"  penstock's {role}: peak {usage.peak_mib} MiB, {usage.cpu_seconds:.1f} CPU seconds")


def _pipeline(url: str, folder: Path) -> Path:
    folder.mkdir()
    settings = {
        "version": 1,
        "name": "bench",
        "source": {"type": "postgres", "url": url, "publication": PUBLICATION},
        "tables": [{"match": "public.*"}],
        "destinations": [{"type": "iceberg", "warehouse": "./warehouse"}],
    }
    file = folder / "pipeline.yaml"
    file.write_text(yaml.safe_dump(settings))
    return file


def _once(file: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "run", str(file), "--once"], check=True, capture_output=True
    )


def _write(server: PostgresServer, scale: int) -> None:
    clients, transactions = 4, 10_000 * scale
    subprocess.run(
        [
            str(server.binaries / "pgbench"),
            "-n",
            "-c",
            str(clients),
            "-j",
            "2",
            "-t",
            str(transactions // clients),
            server.url(),
        ],
        check=True,
        capture_output=True,
    )
    inserts, updates, deletes = 50_000 * scale, 30_000 * scale, 5_000 * scale
    with psycopg.connect(server.url()) as connection:
        for first in range(1, inserts + 1, TRANSACTION_ROWS):
            connection.execute(EIGHT_COLUMN_ROWS.format(table="w1"), (first, first + TRANSACTION_ROWS - 1))
            connection.commit()
        for first in range(1, updates + 1, TRANSACTION_ROWS):
            connection.execute(
                "update w1 set n = n + 1 where id between %s and %s", (first, first + TRANSACTION_ROWS - 1)
            )
            connection.commit()
        for first in range(1, deletes + 1, TRANSACTION_ROWS):
            connection.execute("delete from w1 where id between %s and %s", (first, first + TRANSACTION_ROWS - 1))
            connection.commit()


def _drain(server: PostgresServer, file: Path, slot: str) -> tuple[float, int, dict[str, Usage]]:
    """Seconds from `capture started` to the end of the last commit, and the changes applied."""
    with connect(server.url()) as connection:
        connection.execute("select pg_drop_replication_slot('penstock_bench')")
        connection.execute("select pg_copy_logical_replication_slot(%s, 'penstock_bench')", (slot,))
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", "run", str(file), "--once"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    began = ended = 0.0
    changes, said = 0, []
    with Watch(process.pid) as watch:
        for line in process.stderr:
            said.append(line)
            if "capture started" in line and not began:
                began = time.monotonic()
            elif " applied " in line:
                ended = time.monotonic()
                changes += int(line.partition("changes=")[2].split()[0])
        process.wait()
    if process.returncode or not ended:
        raise SystemExit("".join(said[-30:]))
    return ended - began, changes, watch.roles


if __name__ == "__main__":
    main()

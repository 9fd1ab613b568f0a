"""How fast capture drains a slot, against `pg_recvlogical` writing the same stream to a file, in one run.

    python benchmarks/capture.py [ROWS] [ROUNDS]

Inserts, updates and deletes of an eight-column table in transactions of 170 changes, then the same bytes drained from
equal slots in turns. Prints seconds of each round, changes a second in capture's best round, its peak memory, and the
ratio of the medians and of the best rounds (below 1: capture is faster); with few rounds on a busy machine neither says
much. Capture frames, groups by table, checksums and fsyncs; pg_recvlogical does not. Capture's clock starts when it
says `started`, so without the start of its interpreter; pg_recvlogical's starts with its process.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from harness import EIGHT_COLUMN_ROWS, EIGHT_COLUMNS, recvlogical
from penstock.changelog.log import ChangeLog
from penstock.demo.server import PostgresServer
from penstock.source.postgres.connect import connect
from penstock.source.postgres.slot import create_slot, flush_position


def main(rows: int, rounds: int) -> None:
    with PostgresServer(settings={"max_wal_size": "8GB"}) as server, tempfile.TemporaryDirectory() as folder:
        url = server.url()
        with connect(url) as connection:
            connection.execute(EIGHT_COLUMNS.format(table="w1"))
            connection.execute("create publication w1 for table w1")
            slots = [f"{reader}_{number}" for number in range(rounds) for reader in ("recvlogical", "capture")]
            for slot in slots:
                create_slot(connection, url, slot)
            _write(url, rows)
            end = flush_position(connection)
        seconds: dict[str, list[float]] = {"recvlogical": [], "capture": []}
        peak = messages = 0
        for slot in slots:
            reader = slot.partition("_")[0]
            if reader == "capture":
                took, peak, messages = _capture(url, slot, end, Path(folder))
            else:
                took = recvlogical(server, slot, "w1", end)
            seconds[reader].append(took)
            print(f"{reader:12} {took:6.2f} s")
        best = {reader: min(took) for reader, took in seconds.items()}
        print(f"{messages:,} row changes; capture {messages / best['capture']:,.0f} a second, peak {peak} MiB")
        middle = {reader: statistics.median(took) for reader, took in seconds.items()}
        for name, of in (("medians", middle), ("best rounds", best)):
            print(f"ratio capture / pg_recvlogical, {name}: {of['capture'] / of['recvlogical']:.2f}")


def _write(url: str, rows: int) -> None:
    with psycopg.connect(url) as connection:
        for first in range(1, rows + 1, 100):
            connection.execute(EIGHT_COLUMN_ROWS.format(table="w1"), (first, first + 99))
            connection.execute("update w1 set n = n + 1 where id between %s and %s", (first, first + 59))
            connection.execute("delete from w1 where id between %s and %s", (first, first + 9))
            connection.commit()


def _capture(url: str, slot: str, end: int, folder: Path) -> tuple[float, int, int]:
    """Seconds from the first byte asked for to the last byte durable, peak MiB, and row changes."""
    home = folder / slot
    home.mkdir()
    file = home / "pipeline.yaml"
    file.write_text(
        json.dumps(
            {
                "version": 1,
                "name": "bench",
                "source": {"type": "postgres", "url": url, "publication": "w1", "slot": slot},
                "tables": [{"match": "public.*"}],
                "destinations": [{"type": "iceberg", "warehouse": str(home / "warehouse")}],
                "log": {"uri": str(home / "log")},
            }
        )
    )
    log = ChangeLog(str(home / "log"))
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.runtime.capture_process", str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ),
    )
    assert process.stdout is not None
    process.stdout.readline()
    began = time.monotonic()
    while (log.end() or 0) < end:
        time.sleep(0.02)
    took = time.monotonic() - began
    status = Path(f"/proc/{process.pid}/status").read_text()
    peak = next(int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    process.terminate()
    process.communicate()
    rows = sum(item.slice.rows for name in log.segments() for item in log.slices(name))
    shutil.rmtree(home)
    return took, peak, rows


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]]
    main(*(arguments + [600_000, 3][len(arguments) :]))

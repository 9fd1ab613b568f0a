"""How fast capture drains a slot, against `pg_recvlogical` writing the same stream to a file, in one run.

    python benchmarks/capture.py [--rows 600000] [--rounds 3]

Inserts, updates and deletes of an eight-column table in small transactions, drained from equal slots in turns. With few
rounds on a busy machine the ratio says little. Capture frames, groups by table, checksums and fsyncs; pg_recvlogical
does not. Capture's clock starts when it says `started`, so without the start of its interpreter; pg_recvlogical's
starts with its process. `drain` measures the same with W1.
"""

from __future__ import annotations

import statistics

from harness import Result, parser, report, say
from penstock.demo.server import PostgresServer
from penstock.source.postgres.connect import connect
from penstock.source.postgres.slot import create_slot, flush_position
from pipelines import copy_slot
from slot_readers import capture, recvlogical
from source_rows import BIG_WAL, change_eight_columns, create_eight_columns
from targets import CAPTURE_OF_RECVLOGICAL
from watch import Usage


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--rows", type=int, default=600_000)
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    parts = options.rows, options.rows * 6 // 10, options.rows // 10
    seconds: dict[str, list[float]] = {"pg_recvlogical": [], "capture": []}
    roles: dict[str, Usage] = {}
    with PostgresServer(settings=BIG_WAL) as server:
        url = server.url()
        create_eight_columns(url, "w1")
        with connect(url) as connection:
            connection.execute("create publication w1 for table w1")
            create_slot(connection, url, "kept")
            say(f"writing {sum(parts):,} changes")
            change_eight_columns(url, "w1", *parts)
            end = flush_position(connection)
        for _ in range(options.rounds):
            for slot in ("recvlogical", "capture"):
                copy_slot(url, "kept", slot)
            seconds["pg_recvlogical"].append(recvlogical(server, "recvlogical", "w1", end))
            captured = capture(server, "capture", "w1", end)
            seconds["capture"].append(captured.seconds)
            roles = captured.roles
            say(", ".join(f"{reader} {took[-1]:.2f} s" for reader, took in seconds.items()))
    changes = sum(parts)
    best = {reader: min(took) for reader, took in seconds.items()}
    ours, limit = best["capture"], best["pg_recvlogical"]
    report(
        "capture",
        f"a slot with {changes:,} row changes, into a file",
        ("what", "best s", "median s", "row changes/s"),
        [(name, best[name], statistics.median(took), round(changes / best[name])) for name, took in seconds.items()],
        options=options,
        results=[
            Result(
                "capture alone, one table",
                f"{ours:.2f} s, {changes / ours:,.0f} changes/s",
                f"pg_recvlogical {limit:.2f} s",
                limit / ours,
                "of pg_recvlogical's speed",
                CAPTURE_OF_RECVLOGICAL,
            )
        ],
        processes={"capture": roles},
        seconds=seconds,
    )


if __name__ == "__main__":
    main()

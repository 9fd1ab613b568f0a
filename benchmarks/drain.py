"""How fast waiting changes reach Iceberg: capture, decode, fold, write and commit, from the slot to the lake.

    python benchmarks/drain.py [--scale 10] [--rounds 3] [--without-debezium] [--debezium-seconds 300]

W1 waits in the slots: 100,000 TPC-B transactions of pgbench at scale 10, then 500,000 inserts, 300,000 updates and
50,000 deletes of a table of 8 columns: 1.25 million row changes. The limit is `pg_recvlogical` writing the same stream
to a file; the peer is Debezium's engine with a handler that only counts. Beside the whole of penstock, its capture
alone. They take turns in one run, and the best round of each counts.

penstock's clock runs from the moment when its capture reads the slot until `run --once` has made its last commit: the
start of Spark lies within it. The lake holds the tables' earlier rows already (a million accounts among them).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import debezium
from harness import Result, parser, report, say
from penstock.demo.server import PostgresServer
from penstock.source.postgres.connect import connect
from penstock.source.postgres.slot import create_slot, flush_position
from pipelines import Backlog, copy_slot
from slot_readers import capture, recvlogical
from source_rows import BIG_WAL, PEERS_PUBLICATION, publish_to_peers, w1_changes, w1_tables
from targets import CAPTURE_OF_RECVLOGICAL, DRAIN_AGAINST_DEBEZIUM, DRAIN_OF_RECVLOGICAL
from watch import Usage

RECVLOGICAL, CAPTURE, PENSTOCK = "pg_recvlogical", "capture alone", "penstock"


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--scale", type=int, default=10, help="of W1; 10 is what the figures in docs/ are taken at")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--without-debezium", action="store_true")
    arguments.add_argument("--debezium-seconds", type=float, default=300, help="after which Debezium's part is enough")
    options = arguments.parse_args()
    with PostgresServer(settings=BIG_WAL) as server, tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        _measure(server, Path(scratch), options)


def _measure(server: PostgresServer, scratch: Path, options: argparse.Namespace) -> None:
    url, scale = server.url(), options.scale
    say(f"pgbench at scale {scale}, and its copy into the lake")
    w1_tables(server, scale)
    publish_to_peers(url)
    backlog = Backlog(scratch, url)
    with connect(url) as connection:
        create_slot(connection, url, "kept")
    say("writing W1")
    w1_changes(server, scale)
    with connect(url) as connection:
        end = flush_position(connection)

    took: dict[str, list[float]] = {RECVLOGICAL: [], CAPTURE: [], PENSTOCK: []}
    roles: dict[str, dict[str, Usage]] = {}
    changes = 0
    for _ in range(options.rounds):
        for slot in ("recvlogical", "capture"):
            copy_slot(url, "kept", slot)
        took[RECVLOGICAL].append(recvlogical(server, "recvlogical", PEERS_PUBLICATION, end))
        captured = capture(server, "capture", PEERS_PUBLICATION, end)
        drained = backlog.drain()
        took[CAPTURE].append(captured.seconds)
        took[PENSTOCK].append(drained.seconds)
        changes, roles = drained.changes, {CAPTURE: captured.roles, PENSTOCK: drained.roles}
        say(", ".join(f"{name} {seconds[-1]:.2f} s" for name, seconds in took.items()))
    counted = None
    if not options.without_debezium:
        copy_slot(url, "kept", "debezium")
        counted = debezium.stream(server, "debezium", PEERS_PUBLICATION, changes, options.debezium_seconds)
    _report(options, took, roles, changes, counted)


def _report(
    options: argparse.Namespace,
    took: dict[str, list[float]],
    roles: dict[str, dict[str, Usage]],
    changes: int,
    counted: debezium.Counted | None,
) -> None:
    best = {name: min(some) for name, some in took.items()}
    rows = [(name, best[name], round(changes / best[name]), best[PENSTOCK] / best[name]) for name in best]
    limit, speed = f"pg_recvlogical {best[RECVLOGICAL]:.2f} s", "of pg_recvlogical's speed"
    results = [
        Result(what, f"{best[name]:.2f} s, {changes / best[name]:,.0f} changes/s", limit, figure, speed, target)
        for what, name, figure, target in (
            ("capture alone", CAPTURE, best[RECVLOGICAL] / best[CAPTURE], CAPTURE_OF_RECVLOGICAL),
            ("drain, end to end", PENSTOCK, best[RECVLOGICAL] / best[PENSTOCK], DRAIN_OF_RECVLOGICAL),
        )
    ]
    if counted is not None:
        rate = changes / best[PENSTOCK]
        rows.append((str(counted), counted.seconds, round(counted.rate), counted.rate / rate))
        against = Result(
            "drain, against Debezium's engine with no sink",
            f"{rate:,.0f} changes/s",
            str(counted),
            rate / counted.rate,
            "× its speed",
            DRAIN_AGAINST_DEBEZIUM,
        )
        results.append(against)
    report(
        "drain",
        f"drain of {changes:,} row changes, best of {options.rounds}",
        ("what", "seconds", "row changes/s", "of penstock's speed"),
        rows,
        options=options,
        results=results,
        processes=roles,
        seconds=took,
    )


if __name__ == "__main__":
    main()

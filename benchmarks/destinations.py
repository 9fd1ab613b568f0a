"""What a second destination costs: CPU seconds of two destinations at once, beside the sum of each alone.

    python benchmarks/destinations.py [--inserts 300000] [--updates 200000] [--deletes 50000] [--rounds 2]

A table of 8 columns. The same changes wait in a slot for each pipeline, and the pipelines take turns; of each the round
with the fewest CPU seconds counts, of all its processes from start to end. Two destinations share capture, the change
log and Spark, so a second one that costs no more than its own work comes out below 1.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from harness import Result, parser, report, say
from penstock.demo.server import PostgresServer
from pipelines import Backlog, Drained
from source_rows import BIG_WAL, change_eight_columns, create_eight_columns
from targets import SECOND_DESTINATION

LAKE, SECOND, FILES = "lake", "second", "files"
CASES = {LAKE: (LAKE,), SECOND: (SECOND,), FILES: (FILES,), "lakes": (LAKE, SECOND), "mixed": (LAKE, FILES)}
WORDS = {
    LAKE: "one lake",
    SECOND: "another lake",
    FILES: "a stream of files",
    "lakes": "two lakes at once",
    "mixed": "a lake and a stream at once",
}
SETTINGS = BIG_WAL | {"max_replication_slots": "40", "max_wal_senders": "40"}


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--inserts", type=int, default=300_000)
    arguments.add_argument("--updates", type=int, default=200_000)
    arguments.add_argument("--deletes", type=int, default=50_000)
    arguments.add_argument("--rounds", type=int, default=2)
    options = arguments.parse_args()
    changes = options.inserts + options.updates + options.deletes
    best = _measure(options)
    for case, one in best.items():
        if one.changes != changes * len(CASES[case]):
            raise SystemExit(f"{WORDS[case]}: {one.changes} changes of {changes * len(CASES[case])} arrived")
    sums = {case: sum(_cpu(best[name]) for name in names) for case, names in CASES.items()}
    report(
        "destinations",
        f"{changes:,} changes of a table of 8 columns, best of {options.rounds}",
        ("what", "CPU seconds", "of the sum of each alone", "seconds"),
        [(WORDS[case], _cpu(one), _cpu(one) / sums[case], one.seconds) for case, one in best.items()],
        options=options,
        results=[
            Result(
                f"{WORDS[case]}, {changes:,} changes",
                f"{_cpu(best[case]):.1f} CPU s",
                f"each alone, together {sums[case]:.1f} CPU s",
                _cpu(best[case]) / sums[case],
                "of the sum",
                SECOND_DESTINATION,
            )
            for case in ("lakes", "mixed")
        ],
        processes={WORDS[case]: one.roles for case, one in best.items()},
    )


def _cpu(drained: Drained) -> float:
    return sum(usage.cpu_seconds for usage in drained.roles.values())


def _measure(options: argparse.Namespace) -> dict[str, Drained]:
    best: dict[str, Drained] = {}
    with PostgresServer(settings=SETTINGS) as server, tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        create_eight_columns(server.url(), "w1")
        folder = Path(scratch)
        backlogs = {
            case: Backlog(
                folder, server.url(), case, destinations=[_destination(folder / case, name) for name in names]
            )
            for case, names in CASES.items()
        }
        change_eight_columns(server.url(), "w1", options.inserts, options.updates, options.deletes)
        say("the changes are written")
        for _ in range(options.rounds):
            for case, backlog in backlogs.items():
                drained = backlog.drain()
                say(f"{WORDS[case]}: {_cpu(drained):.1f} CPU s, {drained.seconds:.2f} s")
                if case not in best or _cpu(drained) < _cpu(best[case]):
                    best[case] = drained
    return best


def _destination(folder: Path, name: str) -> dict[str, Any]:
    if name == FILES:
        return {"name": name, "type": "files", "path": str(folder / name)}
    return {"name": name, "type": "iceberg", "warehouse": str(folder / name)}


if __name__ == "__main__":
    main()

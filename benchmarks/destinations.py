"""What a second destination costs, and how fast changes reach Delta beside Iceberg. Two parts:

    python benchmarks/destinations.py cost [--inserts 300000] [--updates 200000] [--deletes 50000] [--rounds 2]
    python benchmarks/destinations.py delta [--scale 10] [--rounds 2]

**cost**: CPU seconds of two destinations at once, beside the sum of each alone, on a table of 8 columns. The same
changes wait in a slot for each pipeline, and the pipelines take turns; of each the round with the fewest CPU seconds
counts, of all its processes from start to end. Two destinations share capture, the change log and Spark, so a second
one that costs no more than its own work comes out below 1.

**delta**: W1 (`drain.py` says what that is) waits in the slots of two pipelines, one into Iceberg and one into Delta,
which drain it in turns; the best round of each counts. The clock is that of `drain`. In the end the rows of both lakes
are counted. How fast W1 reaches Postgres is `postgres.py`'s.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import Result, only, parser, report, run_parts, say
from penstock.demo.server import PostgresServer
from penstock.source.postgres.connect import connect
from pipelines import Backlog, Drained
from source_rows import BIG_WAL, W1_TABLES, change_eight_columns, create_eight_columns, w1_changes, w1_tables
from targets import DELTA_OF_ICEBERG, SECOND_DESTINATION

LAKES = ("iceberg", "delta")
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
    arguments.add_argument("--scale", type=int, default=10, help="of W1; 10 is what the figures in docs/ are taken at")
    run_parts(arguments, {"cost": cost, "delta": delta})


def cost(options: argparse.Namespace) -> None:
    changes = options.inserts + options.updates + options.deletes
    best = _measure(options)
    for case, one in best.items():
        if one.changes != changes * len(CASES[case]):
            raise SystemExit(f"{WORDS[case]}: {one.changes} changes of {changes * len(CASES[case])} arrived")
    sums = {case: sum(_cpu(best[name]) for name in names) for case, names in CASES.items()}
    report(
        "destinations_cost",
        f"{changes:,} changes of a table of 8 columns, best of {options.rounds}",
        ("what", "CPU seconds", "of the sum of each alone", "seconds"),
        [(WORDS[case], _cpu(one), _cpu(one) / sums[case], one.seconds) for case, one in best.items()],
        options=only(options, "inserts", "updates", "deletes", "rounds"),
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


def delta(options: argparse.Namespace) -> None:
    best: dict[str, Drained] = {}
    with PostgresServer(settings=SETTINGS) as server, tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        folder, url = Path(scratch), server.url()
        w1_tables(server, options.scale)
        backlogs = {
            kind: Backlog(
                folder, url, kind, destinations=[{"name": kind, "type": kind, "warehouse": str(folder / kind / "lake")}]
            )
            for kind in LAKES
        }
        say("writing W1")
        w1_changes(server, options.scale)
        for _ in range(options.rounds):
            for kind, backlog in backlogs.items():
                drained = backlog.drain()
                say(f"{kind}: {drained.seconds:.2f} s, {_cpu(drained):.1f} CPU s")
                if kind not in best or drained.seconds < best[kind].seconds:
                    best[kind] = drained
        for backlog in backlogs.values():
            _require_equal(url, backlog.file)
    speeds = {kind: drained.changes / drained.seconds for kind, drained in best.items()}
    report(
        "destinations_delta",
        f"{best['delta'].changes:,} changes of W1 into each format, best of {options.rounds}",
        ("format", "seconds", "changes/s", "CPU seconds"),
        [(kind, one.seconds, round(speeds[kind]), _cpu(one)) for kind, one in best.items()],
        options=only(options, "scale", "rounds"),
        results=[
            Result(
                f"{best['delta'].changes:,} changes of W1 into Delta",
                f"{best['delta'].seconds:.2f} s, {speeds['delta']:,.0f} changes/s",
                f"Iceberg {best['iceberg'].seconds:.2f} s, {speeds['iceberg']:,.0f} changes/s",
                speeds["delta"] / speeds["iceberg"],
                "of Iceberg's speed",
                DELTA_OF_ICEBERG,
            )
        ],
        processes={kind: one.roles for kind, one in best.items()},
    )


def _require_equal(url: str, file: Path) -> None:
    """Ends the benchmark unless the lake has as many rows as the source, in every table."""
    for table in W1_TABLES:
        query = f"select count(*) from public.{table}"
        with connect(url) as connection:
            there = connection.execute(query.encode()).fetchone()
        asked = [sys.executable, "-m", "penstock.cli.main", "query", str(file), query, "--format", "csv"]
        said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        here = tuple(map(int, said.splitlines()[1:]))
        if there != here:
            raise SystemExit(f"{file.parent.name}: {table}: the source has {there} rows, the lake {here}")


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

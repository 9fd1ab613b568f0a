"""What other modes cost beside clone, and several sources beside one: the same changes, drained from the slot.

    python benchmarks/modes.py [--inserts 300000] [--updates 200000] [--deletes 50000] [--sources 4] [--rounds 2]

A table of 8 columns. The changes wait in a slot for each pipeline, and the pipelines take turns; the best round of each
counts. Modes are measured from the moment when capture reads the slot. Several sources are databases of one server,
which share the changes evenly and end in one table; beside them one source with all of the changes. There the clock
starts with the process, for a pipeline of several opens Spark before its captures.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from harness import Result, parser, report, say
from penstock.demo.server import PostgresServer
from pipelines import Backlog, Drained
from source_rows import BIG_WAL, change_eight_columns, create_eight_columns

MODES = ("clone", "history", "events")
ONE, MANY = "one", "many"
SETTINGS = BIG_WAL | {"max_replication_slots": "40", "max_wal_senders": "40"}


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--inserts", type=int, default=300_000)
    arguments.add_argument("--updates", type=int, default=200_000)
    arguments.add_argument("--deletes", type=int, default=50_000)
    arguments.add_argument("--sources", type=int, default=4)
    arguments.add_argument("--rounds", type=int, default=2)
    options = arguments.parse_args()
    changes = options.inserts + options.updates + options.deletes
    drained = _modes(options) | _sources(options)
    for name, one in drained.items():
        if one.changes != changes:
            raise SystemExit(f"{name}: {one.changes} changes of {changes} were applied")
    clone = drained["clone"]
    rows: list[tuple[Any, ...]] = []
    results = []
    for name, one in drained.items():
        base, seconds = (clone.seconds, one.seconds) if name in MODES else (drained[ONE].whole, one.whole)
        words = _words(name, options.sources)
        rows.append((words, seconds, round(changes / seconds), base / seconds))
        if name not in ("clone", ONE):
            beside = "clone" if name in MODES else "one source"
            results.append(
                Result(
                    f"{words}, {changes:,} changes",
                    f"{seconds:.2f} s, {changes / seconds:,.0f} changes/s",
                    f"{beside} {base:.2f} s",
                    base / seconds,
                    "of its speed",
                )
            )
    report(
        "modes",
        f"{changes:,} changes of a table of 8 columns, best of {options.rounds}",
        ("what", "seconds", "changes/s", "of the first's speed"),
        rows,
        options=options,
        results=results,
        processes={_words(name, options.sources): one.roles for name, one in drained.items()},
    )


def _words(name: str, sources: int) -> str:
    return {ONE: "one source", MANY: f"{sources} sources"}.get(name, f"mode {name}")


def _modes(options: argparse.Namespace) -> dict[str, Drained]:
    with PostgresServer(settings=SETTINGS) as server, tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        create_eight_columns(server.url(), "w1")
        say(f"pipelines of the modes {', '.join(MODES)}")
        backlogs = {
            mode: Backlog(Path(scratch), server.url(), mode, tables=[{"match": "public.w1", "mode": mode}])
            for mode in MODES
        }
        change_eight_columns(server.url(), "w1", options.inserts, options.updates, options.deletes)
        return _take_turns(backlogs, options.rounds)


def _sources(options: argparse.Namespace) -> dict[str, Drained]:
    count = options.sources
    with PostgresServer(settings=SETTINGS) as server, tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        urls = {}
        with psycopg.connect(server.url(), autocommit=True) as connection:
            for name in (ONE, *(f"s{number}" for number in range(count))):
                connection.execute(f"create database {name}".encode())
                urls[name] = server.url(name)
                create_eight_columns(urls[name], "w1")
        say(f"a pipeline of one source, and one of {count}")
        several = {name: url for name, url in urls.items() if name != ONE}
        folder = Path(scratch)
        backlogs = {ONE: Backlog(folder, urls[ONE], ONE), MANY: Backlog(folder, several, MANY)}
        for name, url in urls.items():
            share = 1 if name == ONE else count
            change_eight_columns(url, "w1", *(n // share for n in (options.inserts, options.updates, options.deletes)))
        return _take_turns(backlogs, options.rounds)


def _take_turns(backlogs: dict[str, Backlog], rounds: int) -> dict[str, Drained]:
    """The best round of each."""
    best: dict[str, Drained] = {}
    say("the changes are written")
    for _ in range(rounds):
        for name, backlog in backlogs.items():
            drained = backlog.drain()
            say(f"{name}: {drained.seconds:.2f} s")
            if name not in best or drained.whole < best[name].whole:
                best[name] = drained
    return best


if __name__ == "__main__":
    main()

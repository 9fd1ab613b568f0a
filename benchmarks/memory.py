"""What the processes hold: for a transaction of any size, for a copy of any size, and over time.

    python benchmarks/memory.py [transaction] [copy] [soak]        which parts; all of them unless some are named
        [--transactions 1000000 5000000 10000000] [--copies 2000000 20000000]
        [--minutes 20] [--rate 5000] [--tables 4] [--keep 50000] [--sample 5]

Each part has a file of its own, build/bench/memory_PART.json. The table has 8 columns.
transaction: one transaction of so many inserts reaches a pipeline that streams.
copy: `run --once` on a table of so many rows.
soak: inserts, updates and deletes at a steady rate, tables that stay as large as they are. Memory, threads, open files,
  the change log and the WAL that the slot keeps are looked at every few seconds. A line is fitted to the second half:
  the first is left out, for snapshots are kept for ten minutes, so the lake's metadata is not full before. At the end
  `penstock verify` compares all rows. The longest time that a batch waited for maintenance is told by the run itself.

Java's resident memory is what its heap has grown to, not what is in use: a collection gives little back. So beside it
stands the heap in use after collections, from Java's own log, and at the end after one of the whole heap (`jcmd`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psycopg

from harness import RESULTS, Result, only, parser, report, run_parts, say
from penstock.demo.server import PostgresServer
from pipelines import Run, run_once, write_pipeline
from plot import Panel, draw
from source_rows import BIG_WAL, create_eight_columns, insert_at_once
from targets import CAPTURE_MEBIBYTES, LONGEST_HOLD
from traffic import Traffic
from watch import Usage, Watch, collect_heap, heap_after_collections, held

ROLES = ("driver", "java", "workers", "capture")
SERIES = {  # what is sampled, and the growth in the fitted half that is noise whatever the level is
    **{f"{role} RSS MiB": 16.0 for role in ROLES},
    "threads": 5.0,
    "open files": 10.0,
    "log MiB": 32.0,
    "WAL kept MiB": 64.0,
}
HEAP = "heap in use after GC MiB"
HEAP_NOISE = 16.0  # MiB
WARM_SECONDS = 60.0  # until Java holds what it needs
FLAT = 0.1  # of the level
VERIFY_SECONDS = 900
Samples = list[tuple[float, float]]


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--transactions", type=int, nargs="+", default=[1_000_000, 5_000_000, 10_000_000])
    arguments.add_argument("--copies", type=int, nargs="+", default=[2_000_000, 20_000_000])
    arguments.add_argument("--minutes", type=float, default=20)
    arguments.add_argument("--rate", type=int, default=5_000, help="changes a second, of the soak")
    arguments.add_argument("--tables", type=int, default=4, help="of the soak")
    arguments.add_argument("--keep", type=int, default=50_000, help="rows that each of them stays at")
    arguments.add_argument("--sample", type=float, default=5, help="seconds between two looks")
    run_parts(arguments, {"transaction": transaction, "copy": copy, "soak": soak})


@dataclass(frozen=True)
class Size:
    """What so many rows took."""

    rows: int
    seconds: float
    roles: dict[str, Usage]
    heap: int  # the most that Java's heap held after a collection, MiB

    def peak(self, role: str) -> int:
        return self.roles[role].peak_mib


def transaction(options: argparse.Namespace) -> None:
    sizes = {f"a transaction of {rows:,}": _transaction(rows) for rows in options.transactions}
    results = [
        Result(
            f"capture's memory, {name}",
            f"{size.peak('capture')} MiB",
            "",
            float(size.peak("capture")),
            "MiB",
            CAPTURE_MEBIBYTES,
        )
        for name, size in sizes.items()
    ]
    _report_sizes(
        only(options, "transactions"),
        "memory_transaction",
        "one transaction, from its commit until it is in the lake",
        sizes,
        results,
    )


def _transaction(rows: int) -> Size:
    say(f"a transaction of {rows:,}")
    with PostgresServer(settings=BIG_WAL) as server, tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        create_eight_columns(server.url(), "w1")
        with Run(Path(scratch), server.url()) as run:
            run.await_joined(1)
            with Watch(run.pid) as watch:
                insert_at_once(server.url(), "w1", rows)
                say("committed")
                began = time.monotonic()
                run.await_applied(rows, seconds=3600)
                took = time.monotonic() - began
        say(f"in the lake after {took:.1f} s")
        return Size(rows, took, watch.roles, _highest_heap(Path(scratch)))


def copy(options: argparse.Namespace) -> None:
    sizes = {f"a copy of {rows:,}": _copy(rows) for rows in options.copies}
    first, last = next(iter(sizes.values())), next(reversed(sizes.values()))
    results = [
        Result(
            f"memory of a copy, {role}, {last.rows:,} rows against {first.rows:,}",
            f"{last.peak(role)} MiB",
            f"{first.peak(role)} MiB",
            last.peak(role) / first.peak(role),
            "× the smaller's",
        )
        for role in ROLES
    ]
    _report_sizes(only(options, "copies"), "memory_copy", "a copy, Java's start included", sizes, results)


def _copy(rows: int) -> Size:
    say(f"a copy of {rows:,}")
    with PostgresServer(settings=BIG_WAL) as server, tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        create_eight_columns(server.url(), "w1", rows)
        say("the table is filled")
        copied = run_once(write_pipeline(Path(scratch), server.url()))
        if copied.rows_copied != rows:
            raise SystemExit(f"{copied.rows_copied} rows of {rows} were copied")
        say(f"copied in {copied.seconds:.1f} s")
        return Size(rows, copied.seconds, copied.roles, _highest_heap(Path(scratch)))


def _report_sizes(
    options: argparse.Namespace, name: str, title: str, sizes: dict[str, Size], results: list[Result]
) -> None:
    lines: dict[str, Samples] = {
        role: [(float(size.rows), float(size.peak(role))) for size in sizes.values()] for role in ROLES
    }
    lines["heap after collections"] = [(float(size.rows), float(size.heap)) for size in sizes.values()]
    report(
        name,
        title,
        ("what", "seconds", "rows/s", *(f"{role} MiB" for role in ROLES), "heap after collections MiB"),
        [
            (what, size.seconds, round(size.rows / size.seconds), *(size.peak(role) for role in ROLES), size.heap)
            for what, size in sizes.items()
        ],
        options=options,
        results=results,
        processes={what: size.roles for what, size in sizes.items()},
        plots=[draw(RESULTS / f"{name}.svg", Panel(f"Peak memory: {title}", "rows", "MiB", lines, log_x=True))],
    )


def _highest_heap(folder: Path) -> int:
    return max((mebibytes for _, mebibytes in heap_after_collections(folder)), default=0)


def soak(options: argparse.Namespace) -> None:
    names = [f"t{number}" for number in range(options.tables)]
    samples: dict[str, Samples] = defaultdict(list)
    with (
        PostgresServer(settings=BIG_WAL) as server,
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        Traffic(server.url(), names, options.rate, options.keep) as traffic,
        Run(Path(scratch), server.url()) as run,
    ):
        run.await_joined(len(names))
        say(f"{options.minutes:g} minutes at {options.rate:,} changes/s")
        done = threading.Event()
        looking = threading.Thread(target=_look, args=(run, server.url(), options.sample, done, samples), daemon=True)
        with Watch(run.pid) as watch:
            looking.start()
            traffic.run(options.minutes * 60, until=lambda: not run.alive)
            reached = traffic.reached
            done.set()
            looking.join()
        if not run.alive:
            raise SystemExit("the run ended:\n" + "".join(run.said[-20:]))
        live = collect_heap(run.pid, Path(scratch))
        applied, holds = run.changes, list(run.holds)
        say("verifying")
        verified = subprocess.run(
            [sys.executable, "-m", "penstock.cli.main", "verify", str(run.file)],
            capture_output=True,
            text=True,
            timeout=VERIFY_SECONDS,
            check=False,
        )
        if verified.returncode:
            raise SystemExit(f"the lake is not equal to the source:\n{verified.stdout}{verified.stderr}")
        samples[HEAP] = [(at, float(size)) for at, size in heap_after_collections(Path(scratch))]
    _report_soak(options, dict(samples), watch.roles, reached, applied, live, holds)


def _look(run: Run, url: str, every: float, done: threading.Event, samples: dict[str, Samples]) -> None:
    began = told = time.monotonic()
    with psycopg.connect(url, autocommit=True) as connection:
        while not done.wait(every):
            at = time.monotonic() - began
            found = held(run.pid)
            for role in ROLES:
                if role in found:
                    samples[f"{role} RSS MiB"].append((at, found[role].rss_mib))
            samples["threads"].append((at, float(sum(one.threads for one in found.values()))))
            samples["open files"].append((at, float(sum(one.files for one in found.values()))))
            samples["log MiB"].append((at, _folder_size(run.folder / "penstock-bench" / "log") / 2**20))
            row = connection.execute("select pg_current_wal_lsn() - restart_lsn from pg_replication_slots").fetchone()
            assert row is not None
            samples["WAL kept MiB"].append((at, float(row[0]) / 2**20))
            if time.monotonic() - told > 60:
                told = time.monotonic()
                say(", ".join(f"{name} {some[-1][1]:.0f}" for name, some in samples.items()))


def _folder_size(folder: Path) -> int:
    size = 0
    for file in folder.rglob("*"):
        try:
            size += file.stat().st_size
        except FileNotFoundError:
            continue  # it is not needed any more
    return size


def _report_soak(
    options: argparse.Namespace,
    samples: dict[str, Samples],
    roles: dict[str, Usage],
    reached: float,
    applied: int,
    live: int | None,
    holds: list[float],
) -> None:
    longest = max(holds, default=0.0)
    rows = [(name, *_fitted(samples[name], noise)) for name, noise in SERIES.items()]
    rows.append((HEAP, *_fitted_heap(samples[HEAP], live)))
    grown = [row[0] for row in rows if row[-1] == "grows"]
    say(f"{reached:,.0f} changes/s written, {applied:,} applied; heap after a collection of all of it: {live} MiB")
    memory = {name: samples[name] for name in samples if name.endswith("RSS MiB") or name == HEAP}
    plot = draw(
        RESULTS / "memory_soak.svg",
        Panel(f"{options.minutes:g} minutes at {options.rate:,} changes/s: memory", "seconds", "MiB", memory),
        Panel("threads and open files", "seconds", "", {name: samples[name] for name in ("threads", "open files")}),
        Panel("change log and WAL", "seconds", "MiB", {name: samples[name] for name in ("log MiB", "WAL kept MiB")}),
    )
    report(
        "memory_soak",
        f"{options.minutes:g} minutes at {options.rate:,} changes/s: the second half",
        ("what", "samples", "mean", "highest", "fitted, an hour", "grown in the half", "± 2σ", "verdict"),
        rows,
        options=only(options, "minutes", "rate", "tables", "keep", "sample"),
        results=[
            Result(
                f"soak of {options.minutes:g} minutes at {options.rate:,} changes/s",
                "all flat" if not grown else f"grows: {', '.join(grown)}",
                "the rows of source and lake, equal at the end",
                float(len(grown)),
                "of 9 series grow",
            ),
            Result(
                "longest hold: a batch that waited for maintenance",
                f"{longest:.2f} s" if holds else "none of 0.05 s",
                f"of {applied:,} changes applied",
                longest,
                "s",
                LONGEST_HOLD,
            ),
        ],
        processes={"soak": roles},
        plots=[plot],
        changes_written_per_second=reached,
        changes_applied=applied,
        heap_after_whole_collection_mib=live,
        holds=holds,
        samples=samples,
    )


def _fitted_heap(samples: Samples, live: int | None) -> tuple[int, float, float, float, float, float, str]:
    """As `_fitted`; but what rises until the old part of the heap is collected is no growth, if a collection of all of
    it at the end leaves no more than there was in the first minutes."""
    line = _fitted(samples, HEAP_NOISE)
    lowest = min((held for at, held in samples if WARM_SECONDS < at < samples[-1][0] / 2), default=0.0)
    if line[-1] == "grows" and live is not None and live <= lowest + HEAP_NOISE:
        return (*line[:-1], "garbage")
    return line


def _fitted(samples: Samples, noise: float) -> tuple[int, float, float, float, float, float, str]:
    """Number, mean and highest of the second half, the slope of the line through it per hour, what it makes of the half
    with twice its standard error, and whether that is growth: more than noise, and more than the error."""
    half = samples[-1][0] / 2 if samples else 0.0
    later = np.array([one for one in samples if one[0] >= half])
    if len(later) < 3:
        return len(later), 0.0, 0.0, 0.0, 0.0, 0.0, "too few"
    at, value = later[:, 0], later[:, 1]
    spread = at - at.mean()
    slope = float((spread * value).sum() / (spread**2).sum())
    rest = value - value.mean() - slope * spread
    error = float(np.sqrt((rest**2).sum() / (len(at) - 2) / (spread**2).sum()))
    window = float(at[-1] - at[0])
    grown, doubt = slope * window, 2 * error * window
    grows = grown > max(FLAT * float(value.mean()), noise) and grown > doubt
    verdict = "grows" if grows else "flat"
    return len(at), float(value.mean()), float(value.max()), slope * 3600, grown, doubt, verdict


if __name__ == "__main__":
    main()

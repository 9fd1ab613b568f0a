"""What a batch costs as things grow: the table it goes into, the number of tables, the backlog, and reading meanwhile.

    python benchmarks/growth.py [rows] [tables] [backlog] [reads]        which parts; all of them unless some are named
        [--rows 100000 1000000 10000000] [--tables 1 20 100 500] [--backlog 1000000 4000000 16000000] [--batches 200]

Every figure is of a real pipeline, and each part has a file of its own, build/bench/growth_PART.json.
rows, tables: a batch is one transaction of 10,000 changes, half of them updates of rows anywhere in the table, half
  inserts; its time is the one that penstock says itself, median of several after a few that are not counted.
backlog: that many inserts wait in the slot; `run --once`, from the moment when capture reads it, Java's start included.
reads: batches go into a table of a million rows, one after the other, maintenance is on; meanwhile pyiceberg and
  Spark read the whole table, and a table with the same rows that was written a moment ago in one go: under one load.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from harness import RESULTS, Result, only, parser, report, run_parts, say
from penstock.demo.server import PostgresServer
from pipelines import Backlog, Drained, Run
from plot import Panel, draw
from readers import TABLE, Pyiceberg, Reader, catalog, content, spark_reader, timed
from source_rows import BIG_WAL
from targets import BATCH_BY_ROWS, BATCH_BY_TABLES, READ_WHILE_STREAMING, Target
from watch import Usage, Watch

CHANGES = 10_000
WARM, COUNTED = 3, 7
SCATTER = 7_919  # a prime, so that updates hit rows all over the table
TRANSACTION = 100_000  # rows, when a table or a backlog is filled
PEAKS = ("capture", "workers", "driver", "java")
Connection = psycopg.Connection[tuple[object, ...]]


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    arguments.add_argument("--tables", type=int, nargs="+", default=[1, 20, 100, 500])
    arguments.add_argument("--backlog", type=int, nargs="+", default=[1_000_000, 4_000_000, 16_000_000])
    arguments.add_argument("--batches", type=int, default=200, help="during which the table is read")
    arguments.add_argument("--read-rows", type=int, default=1_000_000, help="of the table that is read, at first")
    run_parts(arguments, {"rows": by_rows, "tables": by_tables, "backlog": by_backlog, "reads": reads})


@dataclass
class Batch:
    """Median seconds of a batch, those of each, and what the processes took."""

    seconds: float
    each: list[float]
    roles: dict[str, Usage]


@dataclass(frozen=True)
class Axis:
    """What grows; `held` are the two sizes that the target speaks of."""

    name: str
    what: str
    unit: str
    target: Target
    held: tuple[int, int]


ROWS = Axis("rows", "rows in the table", "× the smaller's time", BATCH_BY_ROWS, (100_000, 10_000_000))
TABLES = Axis("tables", "tables it goes into", "× one table's time", BATCH_BY_TABLES, (1, 100))


def by_rows(options: argparse.Namespace) -> None:
    _report_batches(options, ROWS, {rows: _batches([rows]) for rows in options.rows})


def by_tables(options: argparse.Namespace) -> None:
    measured = {count: _batches([max(1_000, CHANGES // count)] * count) for count in options.tables}
    _report_batches(options, TABLES, measured)


def _report_batches(options: argparse.Namespace, axis: Axis, measured: dict[int, Batch]) -> None:
    """Each size against the first."""
    name, title = f"growth_{axis.name}", f"a batch of {CHANGES:,} changes, by {axis.what}"
    words = {size: f"{size:,} {axis.name}" for size in measured}
    first = next(iter(measured))
    ratios = {size: batch.seconds / measured[first].seconds for size, batch in measured.items()}
    lines = {"seconds": [(float(size), batch.seconds) for size, batch in measured.items()]}
    report(
        name,
        title,
        ("what", "median s", "fastest s", "slowest s", "against the first"),
        [
            (words[size], batch.seconds, min(batch.each), max(batch.each), ratios[size])
            for size, batch in measured.items()
        ],
        options=only(options, axis.name),
        results=[
            Result(
                f"batch of {CHANGES:,} changes, {words[size]} against {first:,}",
                f"{batch.seconds:.3f} s",
                f"{measured[first].seconds:.3f} s",
                ratios[size],
                axis.unit,
                axis.target if (first, size) == axis.held else None,
            )
            for size, batch in measured.items()
            if size != first
        ],
        processes={words[size]: batch.roles for size, batch in measured.items()},
        plots=[draw(RESULTS / f"{name}.svg", Panel(title, axis.what, "seconds", lines, log_x=True))],
        seconds={words[size]: batch.each for size, batch in measured.items()},
    )


def _prepared(connection: Connection, sizes: list[int]) -> list[str]:
    names = [f"t{number}" for number in range(len(sizes))]
    for name, rows in zip(names, sizes, strict=True):
        connection.execute(f"create table {name} (id bigint primary key, n int, note text, at timestamptz)".encode())
        connection.execute(
            f"insert into {name} select g, 1, 'note of row ' || g, timestamptz '2026-01-01' + g * interval '1 second' "
            f"from generate_series(1, {rows}) g".encode()
        )
        connection.execute(f"analyze {name}".encode())
    return names


def _batches(sizes: list[int]) -> Batch:
    """A batch that goes into all of these tables."""
    say(f"{len(sizes)} tables of {sizes[0]:,} rows")
    each, written = [], 0
    with (
        PostgresServer(settings=BIG_WAL) as server,
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        psycopg.connect(server.url(), autocommit=True) as connection,
    ):
        names = _prepared(connection, sizes)
        with Run(Path(scratch), server.url()) as run, Watch(run.pid) as watch:
            run.await_joined(len(names), seconds=1800)
            say("copied")
            for number in range(WARM + COUNTED):
                batches = len(run.applied)
                written += _write(connection, names, sizes[0], number)
                run.await_applied(written)
                each.append(sum(one["seconds"] for one in run.applied[batches:]))
    counted = each[-COUNTED:]
    say(f"{len(sizes)} tables of {sizes[0]:,} rows: {statistics.median(counted):.3f} s a batch")
    return Batch(statistics.median(counted), counted, watch.roles)


def _write(connection: Connection, names: list[str], rows: int, number: int) -> int:
    """A transaction over all of the tables; gives its row changes: fewer when a table has fewer rows."""
    half, changes = CHANGES // len(names) // 2, 0
    with connection.transaction():
        for name in names:
            first = rows + 1 + number * half
            for statement in (
                f"update {name} set n = n + 1 where id in (select 1 + (g * {SCATTER} + {number}) % {rows} "
                f"from generate_series(1, {half}) g)",
                f"insert into {name} select g, 1, 'new', now() from generate_series({first}, {first + half - 1}) g",
            ):
                changes += connection.execute(statement.encode()).rowcount
    return changes


def by_backlog(options: argparse.Namespace) -> None:
    drained = {changes: _drained(changes) for changes in options.backlog}
    rates = {changes: changes / one.seconds for changes, one in drained.items()}
    first = next(iter(rates))
    memory = {
        role: [(float(changes), float(one.roles[role].peak_mib)) for changes, one in drained.items()] for role in PEAKS
    }
    speed = {"changes/s": [(float(changes), rate) for changes, rate in rates.items()]}
    plot = draw(
        RESULTS / "growth_backlog.svg",
        Panel("Speed, by backlog", "changes that wait", "changes/s", speed, log_x=True),
        Panel("Peak memory, by backlog", "changes that wait", "MiB", memory, log_x=True),
    )
    report(
        "growth_backlog",
        "a backlog that waits in the slot, into one table of 4 columns",
        ("what", "seconds", "changes/s", *(f"{role} MiB" for role in PEAKS)),
        [
            (f"{changes:,}", one.seconds, round(rates[changes]), *(one.roles[role].peak_mib for role in PEAKS))
            for changes, one in drained.items()
        ],
        options=only(options, "backlog"),
        results=[
            Result(
                f"backlog of {changes:,} changes",
                f"{rate:,.0f} changes/s",
                f"backlog of {first:,}: {rates[first]:,.0f} changes/s",
                rate / rates[first],
                "of its speed",
            )
            for changes, rate in rates.items()
            if changes != first
        ],
        processes={f"backlog of {changes:,}": one.roles for changes, one in drained.items()},
        plots=[plot],
    )


def _drained(changes: int) -> Drained:
    say(f"a backlog of {changes:,}")
    with (
        PostgresServer(settings={"max_wal_size": "32GB"}) as server,
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        psycopg.connect(server.url(), autocommit=True) as connection,
    ):
        _prepared(connection, [0])
        backlog = Backlog(Path(scratch), server.url())
        for first in range(1, changes + 1, TRANSACTION):
            last = min(first + TRANSACTION - 1, changes)
            connection.execute(
                f"insert into t0 select g, 1, 'row ' || g, now() from generate_series({first}, {last}) g".encode()
            )
        say("written")
        drained = backlog.drain()
    if drained.changes != changes:
        raise SystemExit(f"{drained.changes} changes of {changes} were applied")
    say(f"{drained.seconds:.1f} s")
    return drained


@dataclass
class _Reading:
    """What one reader took: batch, and seconds."""

    streamed: list[tuple[float, float]] = field(default_factory=list)
    compacted: list[tuple[float, float]] = field(default_factory=list)

    @property
    def pairs(self) -> list[tuple[float, float]]:
        return [(a, b) for (_, a), (_, b) in zip(self.streamed, self.compacted, strict=True)]


def reads(options: argparse.Namespace) -> None:
    """Reads of the streamed table, and of one with the same rows that is written anew for each."""
    rows = options.read_rows
    with (
        PostgresServer(settings=BIG_WAL) as server,
        tempfile.TemporaryDirectory(prefix="bench-") as text,
        psycopg.connect(server.url(), autocommit=True) as connection,
    ):
        names = _prepared(connection, [rows])
        scratch = Path(text)
        anew = scratch / "anew"
        anew.mkdir()
        catalog(anew).create_namespace("public")
        with (
            Run(scratch, server.url()) as run,
            Watch(run.pid) as watch,
            spark_reader(scratch / "warehouse", anew) as spark,
        ):
            run.await_joined(1)
            readers: dict[Reader, _Reading] = {reader: _Reading() for reader in (Pyiceberg(), spark)}
            done = threading.Event()
            written: list[int] = []

            def stream() -> None:
                try:
                    for number in range(options.batches):
                        written.append(_write(connection, names, rows, number))
                        run.await_applied(sum(written))
                finally:
                    done.set()

            _read_all({reader: _Reading() for reader in readers}, scratch / "warehouse", anew, 0.0)  # they warm up
            writer = threading.Thread(target=stream, daemon=True)
            writer.start()
            while not done.is_set():
                _read_all(readers, scratch / "warehouse", anew, float(len(written)))
            writer.join()
            if len(written) < options.batches or run.changes < sum(written):
                raise SystemExit(f"only {run.changes:,} changes were applied, of {len(written)} batches")
            _read_all(readers, scratch / "warehouse", anew, float(options.batches))
    _report_reads(options, {reader.name: reading for reader, reading in readers.items()}, watch.roles)


def _read_all(readers: Mapping[Reader, _Reading], streamed: Path, anew: Path, batch: float) -> None:
    """Each reader in turn reads the streamed table, and then one with the same rows that was written in one go."""
    for reader, reading in readers.items():
        _, took = timed(reader, streamed)
        reading.streamed.append((batch, took))
        rows, lake = content(streamed), catalog(anew)
        if lake.table_exists(TABLE):
            lake.purge_table(TABLE)
        lake.create_table(TABLE, rows.schema).append(rows)
        found, took = timed(reader, anew)
        reading.compacted.append((batch, took))
        if found != rows.num_rows:
            raise SystemExit(f"{found} rows of {rows.num_rows}")
        say(f"batch {batch:.0f}, {reader.name}: {reading.streamed[-1][1]:.2f} s, written anew {took:.2f} s")


def _report_reads(options: argparse.Namespace, readings: Mapping[str, _Reading], roles: dict[str, Usage]) -> None:
    lines: dict[str, list[tuple[float, float]]] = {}
    rows, results = [], []
    for name, reading in readings.items():
        pairs = reading.pairs
        ratio = statistics.median(a / b for a, b in pairs)
        streamed, compacted = (statistics.median(some) for some in zip(*pairs, strict=True))
        lines |= {f"{name}: the clone, streaming": reading.streamed, f"{name}: compacted": reading.compacted}
        rows.append((f"{name}: clone table, streaming", len(pairs), streamed, max(a for a, _ in pairs)))
        rows.append((f"{name}: the same rows, compacted", len(pairs), compacted, max(b for _, b in pairs)))
        results.append(
            Result(
                f"clone read by {name} under streaming with maintenance, {options.batches} batches",
                f"{streamed:.2f} s",
                f"freshly compacted {compacted:.2f} s",
                ratio,
                "× its time (median of pairs)",
                READ_WHILE_STREAMING,
            )
        )
    plot = draw(
        RESULTS / "growth_reads.svg", Panel("Reading a whole table while it streams", "batch", "seconds", lines)
    )
    report(
        "growth_reads",
        f"reading a table of {options.read_rows:,} rows and more during {options.batches} batches",
        ("what", "reads", "median s", "slowest s"),
        rows,
        options=only(options, "batches", "read_rows"),
        results=results,
        processes={"streaming": roles},
        plots=[plot],
        readings={name: vars(reading) for name, reading in readings.items()},
    )


if __name__ == "__main__":
    main()

"""Whether penstock has become slower: decode, drain and small commits, each beside a limit, in about a minute.

    python benchmarks/quick.py [CASE…] [--rounds 5] [--store]

CI runs decode and drain. What counts is no time but a ratio: the limit's over penstock's, taken in turns in the same
process, the median over rounds. It must be at least FLOOR of the one in quick_ratios.json; a case that is below is
measured a second time, so that a burst of other work is no regression. `--store` writes the ratios of this run there.

    case     penstock                                                 limit
    decode   every image of 300,000 changes into typed columns        the same cells to strings, unchecked
    drain    a waiting slot into the log, then decoded, folded and    the slot's bytes into a file
             written as Parquet
    commits  ten changes into an Iceberg table: keys looked up, two   ten rows in a file, appended by Iceberg alone
             files written, a strict commit

decode and drain are seconds of this process on a CPU. Half of a commit is Java's, so there the clock counts.
"""

from __future__ import annotations

import json
import select
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from decode import decode, prototype, segments
from harness import parser, report, say
from local_lake import local_lake
from penstock.changelog.log import ChangeLog
from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.demo.server import PostgresServer
from penstock.destinations.iceberg.destination import IcebergDestination
from penstock.fold.clone import fold_clone
from penstock.runtime.capture.process import run_capture
from penstock.source.postgres.connect import connect, replication_connection
from penstock.source.postgres.slot import create_slot, flush_position
from pipelines import copy_slot, write_pipeline
from source_rows import BIG_WAL, PEERS_PUBLICATION, change_eight_columns, create_eight_columns, publish_to_peers
from upsert import OURS, THEIRS, Upserts, rows

FLOOR = 0.8
STORED = Path(__file__).parent / "quick_ratios.json"
DECODED = 300_000
INSERTS, UPDATES, DELETES = 120_000, 60_000, 15_000
COMMITS, WARM = 25, 5

Pair = tuple[float, float]  # the limit's seconds, and penstock's


def timed(work: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    began = clock()
    work()
    return clock() - began


def measure_decode(rounds: int) -> list[Pair]:
    changes = segments(DECODED, DECODED)
    decode(changes)
    return [(timed(lambda: prototype(changes)), timed(lambda: decode(changes))) for _ in range(2 * rounds)]


class Slot:
    """A stream that waits in a slot, and the two that read it."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self._url, self._folder, self._turn = server.url(), folder, 0
        create_eight_columns(self._url, "w1")
        publish_to_peers(self._url)
        with connect(self._url) as connection:
            create_slot(connection, self._url, "kept")
        change_eight_columns(self._url, "w1", INSERTS, UPDATES, DELETES)
        with connect(self._url) as connection:
            self._end = flush_position(connection)

    def pair(self) -> Pair:
        self._turn += 1
        for slot in ("bytes", "drain"):
            copy_slot(self._url, "kept", slot)
        folder = self._folder / str(self._turn)
        folder.mkdir()
        source = {"type": "postgres", "url": self._url, "publication": PEERS_PUBLICATION, "slot": "drain"}
        pipeline = load(write_pipeline(folder, self._url, source=source, log={"uri": str(folder / "log")}))
        return timed(lambda: self._read_bytes(folder / "bytes")), timed(lambda: self._drain(pipeline, folder))

    def _read_bytes(self, file: Path) -> None:
        stream = replication_connection(self._url)
        options = f"proto_version '1', publication_names '{PEERS_PUBLICATION}'"
        stream.exec_(f"START_REPLICATION SLOT bytes LOGICAL 0/0 ({options})".encode())
        reached = 0
        with file.open("wb") as target:
            while reached < self._end:
                size, frame = stream.get_copy_data(1)
                if size == 0:
                    select.select([stream.socket], [], [], 1.0)
                    stream.consume_input()
                elif frame[0] == ord("w"):
                    target.write(frame[25:])
                elif frame[0] == ord("k"):
                    reached = int.from_bytes(frame[1:9], "big")
        stream.finish()

    def _drain(self, pipeline: Pipeline, folder: Path) -> None:
        log = ChangeLog(pipeline.log_uri)
        run_capture(pipeline, _AtEnd(log, self._end), lambda _: None)
        changes = [one for segment in log.segments() for one in log.read(segment)]
        net = fold_clone(changes, position=0)
        if net.upserts.num_rows != INSERTS - DELETES:
            raise SystemExit(f"drain made {net.upserts.num_rows} rows")
        pq.write_table(net.upserts, folder / "rows.parquet")


class _AtEnd:
    """A stop flag that is set once the log has come to a position."""

    def __init__(self, log: ChangeLog, end: int) -> None:
        self._log, self._end, self._looked, self._is_there = log, end, 0.0, False

    def is_set(self) -> bool:
        if not self._is_there and time.monotonic() - self._looked > 0.1:
            self._looked = time.monotonic()
            self._is_there = (self._log.end() or 0) >= self._end
        return self._is_there

    def wait(self, timeout: float | None = None) -> bool:
        time.sleep(timeout or 0.1)
        return self.is_set()


def measure_drain(rounds: int) -> list[Pair]:
    with PostgresServer(settings=BIG_WAL) as server, tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        slot = Slot(server, Path(scratch))
        slot.pair()
        return [slot.pair() for _ in range(rounds)]


class Commits:
    """Small commits of ours, and of Iceberg alone, in one catalog."""

    def __init__(self, destination: IcebergDestination, java: object, folder: Path) -> None:
        self._ours, self._java, self._folder, self._number = Upserts(destination), java, folder, 0
        for target in (OURS, THEIRS):
            self._ours.create(target)
        self._theirs = destination._tables.known(THEIRS, "bench").table

    def pair(self) -> Pair:
        self._number += 1
        first = 10 * self._number
        some: pa.Table = rows(np.arange(first, first + 10), self._number)
        return (
            timed(lambda: self._append(some), time.perf_counter),
            timed(lambda: self._ours.apply(OURS, some), time.perf_counter),
        )

    def _append(self, some: pa.Table) -> None:
        file = self._folder / f"{self._number}.parquet"
        pq.write_table(some, file)
        builder = self._java.org.apache.iceberg.DataFiles.builder(self._theirs.spec())  # type: ignore[attr-defined]
        described = builder.withPath(str(file)).withFormat("PARQUET").withFileSizeInBytes(file.stat().st_size)
        self._theirs.newAppend().appendFile(described.withRecordCount(some.num_rows).build()).commit()


def measure_commits(rounds: int) -> list[Pair]:
    with local_lake() as (spark, destination), tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        commits = Commits(destination, spark.sparkContext._jvm, Path(scratch))
        pairs = [commits.pair() for _ in range(WARM + COMMITS * rounds // 5)]
        return pairs[WARM:]


CASES: dict[str, Callable[[int], list[Pair]]] = {
    "decode": measure_decode,
    "drain": measure_drain,
    "commits": measure_commits,
}


def ratio(pairs: list[Pair]) -> float:
    return statistics.median(limit / ours for limit, ours in pairs)


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all unless some are named")
    arguments.add_argument("--store", action="store_true", help="write the ratios of this run to quick_ratios.json")
    options = arguments.parse_args()
    stored: dict[str, float] = json.loads(STORED.read_text()) if STORED.exists() else {}
    found: dict[str, float] = {}
    lines, taken = [], {}
    for name in options.cases or CASES:
        if name not in CASES:
            arguments.error(f"{name} is not one of {', '.join(CASES)}")
        measure = CASES[name]
        pairs = measure(options.rounds)
        if not options.store and ratio(pairs) < FLOOR * stored.get(name, 0.0):
            say(f"{name}: {ratio(pairs):.3f} is below {FLOOR} of {stored[name]:.3f}; measured once more")
            pairs = max(pairs, measure(options.rounds), key=ratio)
        found[name], taken[name] = ratio(pairs), [ours for _, ours in pairs]
        limit, ours = (statistics.median(side) for side in zip(*pairs, strict=True))
        least = FLOOR * stored.get(name, 0.0)
        lines.append((name, ours, limit, found[name], stored.get(name, 0.0), least))
        say(f"{name}: {found[name]:.3f} of the limit's speed, at least {least:.3f}")
    report(
        "quick",
        f"is penstock slower than it was? medians of {options.rounds} rounds",
        ("case", "penstock's seconds", "the limit's", "ratio", "stored", "at least"),
        lines,
        options=options,
        seconds=taken,
    )
    if options.store:
        STORED.write_text(json.dumps(stored | {name: round(one, 3) for name, one in found.items()}, indent=2) + "\n")
        return
    unknown = [name for name in found if name not in stored]
    if unknown:
        say(f"nothing is stored for {', '.join(unknown)}, so nothing is said of it: see --store")
    slower = [name for name, one in found.items() if one < FLOOR * stored.get(name, 0.0)]
    if slower:
        sys.exit(
            f"slower than it was: {', '.join(slower)}. Each is below {FLOOR} of its stored ratio; if that is meant, "
            "say why in docs/benchmarks.md and run `python benchmarks/quick.py --store` on a quiet machine"
        )


if __name__ == "__main__":
    main()

"""How fast waiting changes reach streams, and how old a change is when a consumer has it.

    python benchmarks/streams.py [drain] [freshness] [memory] [--scale 10] [--rounds 2] [--seconds 30]
        [--into kafka redis nats files] [--transactions 1000000 5000000]

drain: W1 (see `drain.py`) waits in a slot, and `run --once` publishes it, by two shards, exactly once; the clock runs
from the moment when capture reads the slot until the last batch is published. Beside it, in the same run: Kafka's own
`ProducerPerformance`, with transactions and the same values, and Debezium's engine with a handler that only
counts. What there is afterwards is counted by a client that knows nothing of penstock; for Kafka, a consumer with
`read_committed`. Redis writes to its disk before it answers (`appendfsync always`).

freshness: small transactions at a steady rate; a consumer with `read_committed` notes when it gets the newest row of
each. p50 and p99 are from the commit at the source to the consumer.

memory: what the processes hold while one transaction of so many rows goes into Kafka.

The servers share the cores with penstock.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

import debezium
from harness import Result, only, parser, report, run_parts, say
from penstock.demo.server import PostgresServer
from penstock.source.postgres.connect import connect
from penstock.source.postgres.slot import create_slot
from pipelines import Drained, Run, copy_slot, drop_slot, run_once, write_pipeline
from source_rows import (
    BIG_WAL,
    EIGHT_COLUMN_ROWS,
    PEERS_PUBLICATION,
    change_eight_columns,
    create_eight_columns,
    insert_at_once,
    pgbench_tables,
    pgbench_transactions,
    publish_to_peers,
)
from stream_places import PARTITIONS, ReadBack, Target, consumer, kafka_section, targets
from targets import (
    STREAM_AGAINST_DEBEZIUM,
    STREAM_FRESHNESS_P50,
    STREAM_FRESHNESS_P99,
    STREAM_INTO_KAFKA,
    STREAM_MEMORY,
)
from traffic import Traffic
from watch import Usage, Watch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
from confluent_kafka import TopicPartition

from kafka_server import KafkaServer

QUICK = ("-Xmx384m", "-Xms256m")
SETTLE_SECONDS = 10.0
LATE_SECONDS = 120.0
ROLES = ("driver", "java", "workers", "capture")

Section = Callable[[int], dict[str, Any]]  # of a destination, by the number of the round


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--scale", type=int, default=10, help="of W1; 10 is what the figures in docs/ are taken at")
    arguments.add_argument("--rounds", type=int, default=2)
    arguments.add_argument("--into", nargs="*", default=["kafka", "redis", "nats", "files"])
    arguments.add_argument("--seconds", type=float, default=30, help="of traffic, for freshness")
    arguments.add_argument("--rate", type=int, default=1_000, help="of that traffic, in row changes per second")
    arguments.add_argument("--without-debezium", action="store_true")
    arguments.add_argument("--debezium-seconds", type=float, default=300, help="after which Debezium's part is enough")
    arguments.add_argument(
        "--transactions", type=int, nargs="+", default=[1_000_000, 5_000_000], help="rows, of memory"
    )
    run_parts(arguments, {"drain": _drain, "freshness": _freshness, "memory": _memory})


# drain


def _drain(options: argparse.Namespace) -> None:
    with (
        PostgresServer(settings=BIG_WAL) as server,
        KafkaServer(options=QUICK) as kafka,
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        targets(options.into, kafka, Path(scratch)) as places,
    ):
        _measure_drain(server, kafka, Path(scratch), places, options)


def _measure_drain(
    server: PostgresServer,
    kafka: KafkaServer,
    scratch: Path,
    places: dict[str, Target],
    options: argparse.Namespace,
) -> None:
    url, scale = server.url(), options.scale
    say(f"pgbench at scale {scale}")
    pgbench_tables(server, scale)
    create_eight_columns(url, "w1")
    publish_to_peers(url)
    backlogs = {name: StreamBacklog(scratch, url, f"bench_{name}", place.section) for name, place in places.items()}
    with connect(url) as connection:
        create_slot(connection, url, "kept")
    say("writing W1")
    pgbench_transactions(server, 10_000 * scale)
    change_eight_columns(url, "w1", 50_000 * scale, 30_000 * scale, 5_000 * scale)

    took: dict[str, list[float]] = {name: [] for name in backlogs}
    roles: dict[str, dict[str, Usage]] = {}
    told: dict[str, list[Any]] = {name: [] for name in backlogs}
    changes, performance = 0, list[Performance]()
    for number in range(1, options.rounds + 1):
        for name, backlog in backlogs.items():
            drained = backlog.drain(number)
            took[name].append(drained.seconds)
            changes, roles[name] = drained.changes, drained.roles
            told[name].append({"busy": drained.busy, "steps": drained.steps})
            busy = ", ".join(f"{one} {seconds:.1f}" for one, seconds in drained.busy.items())
            say(f"{name}: {drained.changes:,} changes in {drained.seconds:.2f} s; CPU seconds: {busy}")
            read = places[name].read(number)
            if read.records != changes:
                raise SystemExit(f"{changes:,} changes were published, and {read.records:,} are in {name}")
            places[name].forget(number)
            if name == "kafka":
                performance.append(_producer_performance(kafka, number, read, scratch / "payloads"))
                say(f"ProducerPerformance: {performance[-1].rate:,.0f} records/s of {performance[-1].size} bytes")
    counted = None
    if not options.without_debezium:
        copy_slot(url, "kept", "debezium")
        counted = debezium.stream(server, "debezium", PEERS_PUBLICATION, changes, options.debezium_seconds)
    _report_drain(options, took, roles, told, changes, performance, counted)


def _report_drain(
    options: argparse.Namespace,
    took: dict[str, list[float]],
    roles: dict[str, dict[str, Usage]],
    told: dict[str, list[Any]],
    changes: int,
    performance: list[Performance],
    counted: debezium.Counted | None,
) -> None:
    best = {name: min(some) for name, some in took.items()}
    rows: list[tuple[object, ...]] = [(name, best[name], round(changes / best[name])) for name in best]
    results = []
    limit = max(performance, key=lambda one: one.rate, default=None)
    if limit is not None:
        rows.append((f"ProducerPerformance, {limit.size} bytes", changes / limit.rate, round(limit.rate)))
    if counted is not None:
        rows.append((str(counted), counted.seconds, round(counted.rate)))
    for name, seconds in best.items():
        rate = changes / seconds
        beside = f"ProducerPerformance {limit.rate:,.0f}/s" if limit is not None and name == "kafka" else ""
        target = STREAM_INTO_KAFKA if name == "kafka" else None
        results.append(Result(f"drain into {name}", f"{rate:,.0f} changes/s", beside, rate, "changes/s", target))
        if counted is not None:
            what = f"drain into {name}, against Debezium's engine with no sink"
            against = STREAM_AGAINST_DEBEZIUM if name == "kafka" else None
            figure = rate / counted.rate
            results.append(Result(what, f"{rate:,.0f} changes/s", str(counted), figure, "× its speed", against))
    report(
        "streams_drain",
        f"{changes:,} row changes into streams, exactly once, best of {options.rounds}",
        ("what", "seconds", "per second"),
        rows,
        options=only(options, "scale", "rounds", "into", "without_debezium", "debezium_seconds"),
        results=results,
        processes=roles,
        seconds=took,
        rounds=told,
    )


class StreamBacklog:
    """A pipeline into one stream whose slot keeps everything from its first start on: each drain begins there, as
    another stream."""

    def __init__(self, folder: Path, url: str, name: str, section: Section) -> None:
        self._work, self._before = folder / name, folder / f"{name}-before"
        self._url, self._name, self._section = url, name, section
        self._slot = f"penstock_{name}"
        run_once(self._write(0), idle=True)
        shutil.copytree(self._work, self._before)
        copy_slot(url, self._slot, f"kept_{self._slot}")

    def drain(self, number: int) -> Drained:
        shutil.rmtree(self._work)
        shutil.copytree(self._before, self._work)
        copy_slot(self._url, f"kept_{self._slot}", self._slot)
        drained = run_once(self._write(number))
        drop_slot(self._url, self._slot)
        return drained

    def _write(self, number: int) -> Path:
        return write_pipeline(self._work, self._url, name=self._name, destinations=[self._section(number)])


@dataclass(frozen=True)
class Performance:
    """What Kafka's own tool reaches."""

    rate: float
    size: int


def _producer_performance(kafka: KafkaServer, number: int, read: ReadBack, payloads: Path) -> Performance:
    """As many records as were read, chosen from the same values, so that they compress alike."""
    payloads.write_bytes(b"\n".join(read.sample) + b"\n")
    topic = f"performance{number}"
    _create_topic(kafka, topic)
    properties = ["acks=all", "compression.type=lz4", "batch.size=1000000", "linger.ms=5"]
    said = kafka.run(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(read.records), "--payload-file", str(payloads), "--throughput", "-1"),
        *("--bootstrap-server", kafka.brokers, "--transaction-duration-ms", "1000"),
        *("--command-property", *properties),
        seconds=1800,
    )
    found = re.findall(r"([\d.]+) records/sec", said)
    if not found:
        raise SystemExit(f"ProducerPerformance said nothing of its speed: {said[-800:]}")
    return Performance(float(found[-1]), round(read.size / read.records))


def _create_topic(kafka: KafkaServer, topic: str) -> None:
    kafka.run(
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", kafka.brokers, "--create", "--topic", topic, "--partitions", str(PARTITIONS)),
    )


# freshness


def _freshness(options: argparse.Namespace) -> None:
    with (
        PostgresServer() as server,
        KafkaServer(options=QUICK) as kafka,
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        Traffic(server.url(), ["t0"], options.rate) as traffic,
        Run(Path(scratch), server.url(), destinations=[kafka_section(kafka, 0)]) as run,
    ):
        run.wait_for(lambda: any(" streaming " in line for line in run.said), "the stream", 300)
        traffic.run(1.0)
        run.wait_for(lambda: any(" topic created " in line for line in run.said), "the topic", 120)
        with _Reader(kafka, "round0.public.t0") as reader, Watch(run.pid) as watch:
            traffic.run(SETTLE_SECONDS)
            written = traffic.run(options.seconds)["t0"]
            reached = traffic.reached
            keys = {one.key for one in written}  # partitions are read side by side: the last key may come first
            traffic.run(LATE_SECONDS, until=lambda: keys <= reader.seen.keys() or not run.alive)
            missing = [one for one in written if one.key not in reader.seen]
        if missing:
            raise SystemExit(f"{len(missing)} transactions did not arrive:\n" + "".join(run.said[-20:]))
    ages = sorted(reader.seen[one.key] - one.at for one in written)
    percentiles = {percent: ages[min(len(ages) - 1, len(ages) * percent // 100)] for percent in (50, 95, 99, 100)}
    what = f"commit to consumer of Kafka at {options.rate:,}/s"
    targets = {50: STREAM_FRESHNESS_P50, 99: STREAM_FRESHNESS_P99} if options.rate == 1_000 else {}
    report(
        "streams_freshness",
        what,
        ("transactions", "p50 s", "p95 s", "p99 s", "max s", "changes/s written"),
        [(len(ages), *percentiles.values(), round(reached))],
        options=only(options, "seconds", "rate"),
        results=[
            Result(f"{what}, p{percent}", f"{percentiles[percent]:.2f} s", "", percentiles[percent], "s", target)
            for percent, target in targets.items()
        ],
        processes={"penstock": watch.roles},
    )


class _Reader:
    """A consumer that notes when it got each new row; `seen` is by the row's id."""

    def __init__(self, kafka: KafkaServer, topic: str) -> None:
        self.seen: dict[int, float] = {}
        self._kafka, self._topic = kafka, topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        with consumer(self._kafka, fetch_wait_max_ms=20) as reader:
            reader.assign([TopicPartition(self._topic, number, 0) for number in range(PARTITIONS)])
            while not self._stopping.is_set():
                for message in reader.consume(1_000, 0.01):
                    key = message.key()
                    if message.error() is None and key is not None:
                        self.seen.setdefault(json.loads(key)["id"], time.monotonic())


# memory


def _memory(options: argparse.Namespace) -> None:
    sizes = {rows: _one_transaction(rows) for rows in options.transactions}
    first, last = min(sizes), max(sizes)
    report(
        "streams_memory",
        "one transaction, from its commit until it is in Kafka",
        ("rows", "seconds", "rows/s", *(f"{role} MiB" for role in ROLES)),
        [
            (rows, seconds, round(rows / seconds), *(roles[role].peak_mib for role in ROLES))
            for rows, (seconds, roles) in sizes.items()
        ],
        options=only(options, "transactions"),
        results=[
            Result(
                f"memory of a transaction into Kafka, {role}, {last:,} rows against {first:,}",
                f"{sizes[last][1][role].peak_mib} MiB",
                f"{sizes[first][1][role].peak_mib} MiB",
                sizes[last][1][role].peak_mib / sizes[first][1][role].peak_mib,
                "× the smaller's",
                STREAM_MEMORY,
            )
            for role in ROLES
        ],
        processes={f"a transaction of {rows:,}": roles for rows, (_, roles) in sizes.items()},
    )


def _one_transaction(rows: int) -> tuple[float, dict[str, Usage]]:
    say(f"a transaction of {rows:,}")
    with (
        PostgresServer(settings=BIG_WAL) as server,
        KafkaServer(options=QUICK) as kafka,
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
    ):
        create_eight_columns(server.url(), "w1")
        with Run(Path(scratch), server.url(), destinations=[kafka_section(kafka, 0)]) as run:
            run.wait_for(lambda: any(" streaming " in line for line in run.said), "the stream", 300)
            insert_at_once(server.url(), "w1", 1000)  # what is only made once is there before
            run.wait_for(lambda: _published(run) >= 1000, "the first rows", 120)
            with Watch(run.pid) as watch, psycopg.connect(server.url()) as connection:
                connection.execute(EIGHT_COLUMN_ROWS.format(table="w1").encode(), (1001, 1000 + rows))
                connection.commit()
                say("committed")
                began = time.monotonic()
                run.wait_for(lambda: _published(run) >= 1000 + rows, "the transaction", 1800)
                took = time.monotonic() - began
        say(f"in Kafka after {took:.1f} s")
        return took, watch.roles


def _published(run: Run) -> int:
    said = [line for line in run.said if " published " in line and "events=" in line]
    return sum(int(line.partition("events=")[2].split()[0]) for line in said)


if __name__ == "__main__":
    main()

"""Where `streams.py` publishes: servers of its own, the section of a pipeline file, and what an independent client
counts there. Each round is another stream."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import redis

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
from confluent_kafka import Consumer, KafkaError, TopicPartition

from kafka_server import KafkaServer
from stream_servers import Server, nats_server, redis_server

SHARDS, PARTITIONS = 2, 6
SAMPLED = 100  # one of so many records is what ProducerPerformance sends
MOVES = "._penstock"  # how subjects of NATS end that move the place alone
NATS_SETTINGS = "max_payload: 8MB\n"


@dataclass(frozen=True)
class ReadBack:
    """What there is of a round. `sample` are some of the values; only Kafka's are kept."""

    records: int
    size: int = 0  # in bytes
    sample: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Target:
    """`section`, `read` and `forget` are of a round, by its number."""

    section: Callable[[int], dict[str, Any]]
    read: Callable[[int], ReadBack]
    forget: Callable[[int], None]


@contextmanager
def targets(names: list[str], kafka: KafkaServer, scratch: Path) -> Iterator[dict[str, Target]]:
    """Start what they need, and end it."""
    with ExitStack() as stack:
        made: dict[str, Callable[[], Target]] = {
            "kafka": lambda: _kafka(kafka),
            "redis": lambda: _redis(stack.enter_context(redis_server())),
            "nats": lambda: _nats(stack.enter_context(nats_server(NATS_SETTINGS))),
            "files": lambda: _files(scratch),
        }
        yield {name: made[name]() for name in names}


def kafka_section(kafka: KafkaServer, number: int) -> dict[str, Any]:
    return {
        "type": "kafka",
        "brokers": kafka.brokers,
        "topic": f"round{number}.${{source.schema}}.${{source.table}}",
        "positions_topic": f"positions{number}",
        "partitions": PARTITIONS,
        "shards": SHARDS,
    }


@contextmanager
def consumer(kafka: KafkaServer, **settings: Any) -> Iterator[Consumer]:
    opened = Consumer(
        {
            "bootstrap.servers": kafka.brokers,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    try:
        yield opened
    finally:
        opened.close()


def _kafka(kafka: KafkaServer) -> Target:
    return Target(
        lambda number: kafka_section(kafka, number),
        lambda number: _read_topics(kafka, f"round{number}."),
        lambda number: None,
    )


def _read_topics(kafka: KafkaServer, prefix: str) -> ReadBack:
    """Read the topics of a round, as any consumer does it."""
    with consumer(kafka, enable_partition_eof=True) as reader:
        topics = {name: one for name, one in reader.list_topics(timeout=10).topics.items() if name.startswith(prefix)}
        wanted = [TopicPartition(name, number, 0) for name, one in topics.items() for number in one.partitions]
        reader.assign(wanted)
        records = size = ended = 0
        sample: list[bytes] = []
        while ended < len(wanted):
            for message in reader.consume(10_000, 1.0):
                error = message.error()
                if error is None:
                    records += 1
                    size += len(message.key() or b"") + len(message.value() or b"")
                    if records % SAMPLED == 0:
                        sample.append(message.value() or b"")
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended += 1
                else:
                    raise SystemExit(f"Kafka cannot be read: {error}")
        return ReadBack(records, size, tuple(sample))


def _redis(server: Server) -> Target:
    def section(number: int) -> dict[str, Any]:
        stream = f"round{number}.${{source.schema}}.${{source.table}}"
        return {
            "name": f"redis{number}",
            "type": "redis",
            "url": f"redis://127.0.0.1:{server.port}",
            "stream": stream,
            "shards": SHARDS,
        }

    def read(number: int) -> ReadBack:
        with redis.Redis(port=server.port) as client:
            return ReadBack(sum(int(client.xlen(name)) for name in client.scan_iter(f"round{number}.*")))

    def forget(number: int) -> None:
        with redis.Redis(port=server.port) as client:
            for name in list(client.scan_iter(f"round{number}.*")):
                client.unlink(name)

    return Target(section, read, forget)


def _nats(server: Server) -> Target:
    url = f"nats://127.0.0.1:{server.port}"

    def section(number: int) -> dict[str, Any]:
        return {"name": f"nats{number}", "type": "nats", "url": url, "stream": f"ROUND{number}", "shards": SHARDS}

    async def read(number: int) -> ReadBack:
        client = await nats.connect(url)
        try:
            records = 0
            for shard in range(SHARDS):
                info = await client.jetstream().stream_info(f"ROUND{number}_{shard}", subjects_filter=">")
                subjects = info.state.subjects or {}
                records += sum(count for subject, count in subjects.items() if not subject.endswith(MOVES))
            return ReadBack(records)
        finally:
            await client.close()

    async def forget(number: int) -> None:
        client = await nats.connect(url)
        try:
            for shard in range(SHARDS):
                await client.jetstream().delete_stream(f"ROUND{number}_{shard}")
        finally:
            await client.close()

    return Target(section, lambda number: asyncio.run(read(number)), lambda number: asyncio.run(forget(number)))


def _files(scratch: Path) -> Target:
    def folder(number: int) -> Path:
        return scratch / f"changes-{number}"

    def read(number: int) -> ReadBack:
        records = 0
        for path in folder(number).rglob("*.jsonl"):
            with path.open("rb") as lines:
                while octets := lines.read(1 << 24):
                    records += octets.count(b"\n")
        return ReadBack(records)

    return Target(
        lambda number: {"type": "files", "path": str(folder(number)), "shards": SHARDS},
        read,
        lambda number: shutil.rmtree(folder(number)),
    )

"""Partitions as Kafka's Java producers choose them, and how they are divided over shards."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.destinations.kafka.layout import KafkaLayout, topic_name
from penstock.destinations.kafka.murmur2 import murmur2, positive_hashes
from penstock.destinations.stream_contract import TOPIC_TYPE
from penstock.errors import UnknownTopics

# From Kafka's own UtilsTest.testMurmur2.
KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def plain_murmur2(key: bytes) -> int:
    """As Utils.java has it, a byte at a time."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    for at in range(0, len(key) // 4 * 4, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ (k >> 24)) * m & mask)
    if len(key) % 4:
        h = (h ^ int.from_bytes(key[len(key) // 4 * 4 :], "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return h ^ (h >> 15)


def test_hashes_are_those_of_javas_producers() -> None:
    keys = pa.array([b"left out", *KNOWN], pa.binary())[1:]
    assert murmur2(keys).astype(np.int32).tolist() == list(KNOWN.values())
    chosen = np.random.default_rng(15)
    some = [chosen.bytes(int(length)) for length in chosen.integers(0, 30, 500)]
    assert murmur2(pa.array(some, pa.binary())).tolist() == [plain_murmur2(key) for key in some]
    assert len(murmur2(pa.array([], pa.binary()))) == 0
    assert positive_hashes(pa.array([None, b"21"])).tolist() == [
        plain_murmur2(b"") & 0x7FFFFFFF,
        -973932308 & 2**31 - 1,
    ]


def divided(
    layout: KafkaLayout, topics: list[str], keys: list[bytes | None], everywhere: list[int]
) -> list[list[tuple[int, int]]]:
    mask = np.zeros(len(keys), np.bool_)
    mask[everywhere] = True
    given = pa.array(topics, TOPIC_TYPE), pa.array(keys, pa.binary()), mask
    shares = [layout.select(shard, *given) for shard in range(layout.shards)]
    return [list(zip(index.tolist(), partitions.tolist(), strict=True)) for index, partitions in shares]


def test_a_partition_has_one_shard_and_a_truncate_is_in_every_partition() -> None:
    layout = KafkaLayout(2, {"orders": 5, "people": 1})
    keys: list[bytes | None] = [str(number).encode() for number in range(40)]
    keys[20] = keys[39] = None
    shares = divided(layout, ["orders"] * 39 + ["people"], keys, [20, 39])
    for shard, share in enumerate(shares):
        assert all(partition % 2 == shard for _, partition in share)
        assert [row for row, _ in share] == sorted(row for row, _ in share)
    assert sorted(partition for share in shares for row, partition in share if row == 20) == [0, 1, 2, 3, 4]
    assert [partition for share in shares for row, partition in share if row == 39] == [0]
    found = {row: partition for share in shares for row, partition in share if row not in (20, 39)}
    assert found == {row: (plain_murmur2(key) & 0x7FFFFFFF) % 5 for row, key in enumerate(keys) if key is not None}


def test_what_has_no_key_is_in_one_partition_of_its_topic() -> None:
    shares = divided(KafkaLayout(3, {"a": 7, "b": 7}), ["a", "b"] * 10, [None] * 20, [])
    of = [{partition for share in shares for row, partition in share if row % 2 == topic} for topic in (0, 1)]
    assert [len(partitions) for partitions in of] == [1, 1]


@pytest.mark.parametrize(("ordering", "used"), [("table", 1), ("source", 1), ("key", 5)])
def test_ordering_says_what_is_in_one_partition(ordering: str, used: int) -> None:
    layout = KafkaLayout(1, {"a": 5}, ordering)  # type: ignore[arg-type]
    (share,) = divided(layout, ["a"] * 60, [str(number).encode() for number in range(60)], [0])
    assert len({partition for _, partition in share}) == used
    assert len(share) == (64 if ordering == "key" else 60)


def test_topics_that_are_not_known_are_named_as_they_were_rendered() -> None:
    layout = KafkaLayout(1, {"a": 1, "odd_name": 2})
    divided(layout, ["odd name", "a"], [b"1", b"2"], [])
    with pytest.raises(UnknownTopics) as unknown:
        divided(layout, ["a", "Größe"], [b"1", b"2"], [])
    assert unknown.value.names == {"Größe"}


def test_names_that_kafka_does_not_take_are_changed() -> None:
    assert topic_name("public.orders-2_x") == "public.orders-2_x"
    assert topic_name("Odd Schema.größe") == "Odd_Schema.gr__e"
    assert [topic_name(name) for name in ("", ".", "..")] == ["_", "_", "__"]
    long, longer = topic_name("x" * 250), topic_name("x" * 251)
    assert len(long) == len(longer) == 249
    assert long != longer

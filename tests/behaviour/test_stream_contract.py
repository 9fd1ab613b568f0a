"""What `destinations/stream_contract.py` promises, held by every stream destination alike."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import fs

from kafka_bench import KafkaBench
from penstock.destinations import memory_stream
from penstock.destinations.files import shard as files_shard
from penstock.destinations.files.destination import FilesDestination
from penstock.destinations.files.names import Range, parse_range
from penstock.destinations.kafka import publisher as kafka_publisher
from penstock.destinations.key_layout import KeyLayout
from penstock.destinations.memory_stream import MemoryStreamDestination, MemoryStreamStore
from penstock.destinations.nats import publisher as nats_publisher
from penstock.destinations.places.folder import StoreFolder
from penstock.destinations.redis import publisher as redis_publisher
from penstock.destinations.stream_contract import (
    TOPIC_TYPE,
    CopyPlace,
    Publisher,
    Records,
    ShardPlace,
    StreamDestination,
    StreamId,
)
from penstock.errors import Overtaken, RecordRefused, StreamBroken, TopicsRefused, UnknownTopics
from penstock.model.place import Place, place_at
from stream_benches import nats_streams, redis_streams

START = place_at(100)
HASHED = [5, 6, 3, 6]
SHOP = StreamId("shop", "history 1", START)


Crashes = tuple[Callable[[str], None], Callable[[], None]]


class Killed(BaseException):
    """The process dies here."""


@dataclass
class Bench:
    """A stream destination that survives its processes, and what a reader sees of it."""

    opened: Callable[[int], StreamDestination]
    seen: Callable[[int], list[str]]
    crash_at: Callable[[str], None]
    go_on: Callable[[], None]
    keys_are_divided: bool = True  # over shards; otherwise a topic is in one shard

    def publisher(self, shard: int = 0, shards: int = 1) -> Publisher:
        destination = self.opened(shards)
        destination.ensure(SHOP)
        return destination.publisher("shop", shard)


def _files(folder: Path, crashes: Crashes) -> Bench:
    def seen(shard: int) -> list[str]:
        """As any reader does it: files in the order of their names, their lines in order."""
        found = sorted((folder / "shop" / f"{shard:04d}").glob("*.jsonl"))
        return [line for path in found for line in path.read_text().splitlines()]

    return Bench(lambda shards: FilesDestination("stream", folder, shards), seen, *crashes)


def _store(folder: Path, crashes: Crashes) -> Bench:
    """Files where nothing can be linked or renamed, as in an object store."""
    whole = fs.SubTreeFileSystem(str(folder.parent), fs.LocalFileSystem())
    folder.parent.mkdir(parents=True, exist_ok=True)
    opened = partial(FilesDestination, "stream", StoreFolder(whole, folder.name, "store://stream"))
    return replace(_files(folder, crashes), opened=opened)


def _memory(crashes: Crashes) -> Bench:
    store = MemoryStreamStore()

    def seen(shard: int) -> list[str]:
        return [(value or b"").decode() for value in store.values("shop")[shard]]

    return Bench(lambda shards: MemoryStreamDestination("stream", store, shards), seen, *crashes)


def _crashes(patch: pytest.MonkeyPatch) -> Crashes:
    armed: list[str] = []

    def reached(name: str) -> None:
        if name in armed:
            raise Killed(name)

    for module in (files_shard, memory_stream, kafka_publisher, nats_publisher, redis_publisher):
        patch.setattr(module, "reach", reached)
    return armed.append, armed.clear


@pytest.fixture(params=["memory", "files", "store", "kafka", "redis", "nats"])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    crashes = _crashes(monkeypatch)
    match request.param:
        case "memory":
            return _memory(crashes)
        case "files":
            return _files(tmp_path / "stream", crashes)
        case "store":
            return _store(tmp_path / "stream", crashes)
        case "kafka":
            made = KafkaBench(request.getfixturevalue("kafka_server"))
            return Bench(made.destination, made.values, *crashes)
        case "redis":
            streams = redis_streams(request.getfixturevalue("redis"))
            return Bench(streams.opened, streams.seen, *crashes, keys_are_divided=False)
        case _:
            subjects = nats_streams(request.getfixturevalue("nats"))
            return Bench(subjects.opened, subjects.seen, *crashes)


def records(*given: tuple[int, str]) -> Records:
    return Records(
        pa.array([place_at(position) for position, _ in given]),
        pa.array([b"key"] * len(given), pa.binary()),
        pa.array([text.encode() for _, text in given], pa.binary()),
        pa.array(["public.orders"] * len(given), TOPIC_TYPE),
        pa.array([0] * len(given), pa.int32()),
    )


def publish(publisher: Publisher, end: int, *given: tuple[int, str], **behind: Place) -> None:
    """Publish what lies behind the shard's place, as a task does."""
    at = publisher.open()
    fresh = [one for one in given if place_at(one[0]) >= at.place]
    publisher.publish([records(*fresh)] if fresh else [], lambda: ShardPlace(max(at.place, place_at(end)), behind))


def test_a_new_stream_begins_at_its_start(bench: Bench) -> None:
    assert bench.opened(2).places("shop") == []
    assert bench.publisher(shards=2).open() == ShardPlace(START)
    assert bench.opened(2).places("shop") == [ShardPlace(START)] * 2
    later = StreamId("shop", "history 1", place_at(900))
    assert bench.opened(2).ensure(later).shards == 2
    assert bench.opened(2).places("shop") == [ShardPlace(START)] * 2, "a stream keeps its start"


def test_records_and_place_move_together_and_in_order(bench: Bench) -> None:
    publisher = bench.publisher()
    publisher.open()
    added = publisher.publish(
        iter([records((100, "a"), (110, "b")), records((120, "c"))]), lambda: ShardPlace(place_at(200))
    )
    assert added.records == 3
    publish(publisher, 300, (200, "d"))
    assert bench.seen(0) == ["a", "b", "c", "d"]
    assert bench.opened(1).places("shop") == [ShardPlace(place_at(300))]


def test_what_is_published_again_is_there_once(bench: Bench) -> None:
    publish(bench.publisher(), 200, (100, "a"), (110, "b"))
    publish(bench.publisher(), 200, (100, "a"), (110, "b"))
    publish(bench.publisher(), 300, (100, "a"), (110, "b"), (210, "c"))
    assert bench.seen(0) == ["a", "b", "c"]


def test_a_writer_that_was_overtaken_publishes_nothing(bench: Bench) -> None:
    stale, other = bench.publisher(), bench.publisher()
    stale.open()
    for end in (200, 300, 400):
        publish(other, end, (end - 50, f"until {end}"))
    with pytest.raises(Overtaken):
        stale.publish([records((100, "stale"))], lambda: ShardPlace(place_at(999)))
    with pytest.raises(Overtaken):
        stale.advance(ShardPlace(place_at(999)))
    assert bench.seen(0) == ["until 200", "until 300", "until 400"]
    assert stale.open() == ShardPlace(place_at(400)), "it opens the shard again, and goes on"
    publish(stale, 500, (450, "until 500"))
    assert bench.seen(0)[-1] == "until 500"


def test_two_writers_that_opened_at_once_have_one_winner(bench: Bench) -> None:
    one, other = bench.publisher(), bench.publisher()
    one.open()
    other.open()
    won = []
    for name, writer in (("one", one), ("other", other)):
        try:
            writer.publish([records((100, name))], lambda: ShardPlace(place_at(200)))
            won.append(name)
        except Overtaken:
            continue
    assert len(won) == 1
    assert bench.seen(0) == won


@pytest.mark.parametrize("step", ["publish.file_written", "publish.committed", "publish.visible"])
def test_a_publication_that_is_cut_short_is_whole_or_absent(bench: Bench, step: str) -> None:
    publish(bench.publisher(), 200, (100, "a"))
    bench.crash_at(step)
    try:
        publish(bench.publisher(), 300, (200, "b"), (210, "c"))
    except Killed:
        assert bench.seen(0) in (["a"], ["a", "b", "c"])
    bench.go_on()
    publish(bench.publisher(), 300, (200, "b"), (210, "c"))
    publish(bench.publisher(), 400, (300, "d"))
    assert bench.seen(0) == ["a", "b", "c", "d"]
    assert bench.opened(1).ensure(SHOP).shards == 1, "nothing is missing"


def test_what_the_records_raise_leaves_nothing_behind(bench: Bench) -> None:
    def failing() -> Iterator[Records]:
        yield records((100, "a"))
        raise ValueError("the log is gone")

    publisher = bench.publisher()
    publisher.open()
    with pytest.raises(ValueError, match="the log is gone"):
        publisher.publish(failing(), lambda: ShardPlace(place_at(200)))
    assert bench.seen(0) == []
    assert bench.publisher().open() == ShardPlace(START)


def test_advancing_moves_the_place_alone(bench: Bench) -> None:
    publisher = bench.publisher()
    publish(publisher, 200, (100, "a"))
    publisher.advance(ShardPlace(place_at(250)))
    publish(publisher, 300, (210, "never: it lies before the place"))
    publish(publisher, 400, (310, "b"))
    assert bench.seen(0) == ["a", "b"]
    assert bench.opened(1).ensure(SHOP).shards == 1, "a file begins where the last one ended"


def test_tables_stand_behind_and_are_brought_on(bench: Bench) -> None:
    publisher = bench.publisher()
    publish(publisher, 200, (100, "a"))
    publish(publisher, 300, (200, "b"), orders=place_at(200))
    publish(publisher, 400, orders=place_at(200))
    (at,) = bench.opened(1).places("shop")
    assert at.of("orders") == place_at(200)
    assert at.of("people") == at.place == place_at(400)
    for text, behind in (("x", {"orders": place_at(300)}), ("y", {})):
        publisher.open()
        publisher.publish([records((250, text))], lambda behind=behind: ShardPlace(at.place, behind))  # type: ignore[misc]
    publish(publisher, 500, (450, "c"))
    assert bench.seen(0) == ["a", "b", "x", "y", "c"]
    assert bench.opened(1).places("shop") == [ShardPlace(place_at(500))]
    assert bench.opened(1).ensure(SHOP).shards == 1


def test_copied_rows_move_with_their_place(bench: Bench) -> None:
    publisher = bench.publisher()
    waiting, names = {"orders": place_at(150)}, {"orders": place_at(150), "people": place_at(90)}
    for number, text in enumerate(("row 1", "row 2"), 1):
        at = publisher.open()
        upto = ShardPlace(at.place, names, {"orders": CopyPlace("1-A", number)})
        publisher.publish([records((0, text))], lambda upto=upto: upto)  # type: ignore[misc]
        assert bench.opened(1).places("shop") == [upto]
    publisher.advance(ShardPlace(START, waiting))
    publish(publisher, 200, (150, "a change"))
    assert bench.seen(0) == ["row 1", "row 2", "a change"]
    assert bench.opened(1).ensure(SHOP).shards == 1


def test_headers_topics_and_partitions_are_taken(bench: Bench) -> None:
    """Whether a reader sees them is the destination's to say; the records are published in any case."""
    plain = records((100, "a"), (110, "b"))
    headers = (("kind", pa.array([b"new", None], pa.binary())), ("none", pa.nulls(2, pa.binary())))
    publisher = bench.publisher()
    publisher.open()
    made = replace(plain, headers=headers, keys=pa.array([b"k", None], pa.binary()))
    assert publisher.publish([made, made.take(pa.array([1]))], lambda: ShardPlace(place_at(200))).records == 3
    assert bench.seen(0) == ["a", "b", "b"]


def test_a_layout_divides_keys_and_knows_its_topics_once_they_are_looked_up(bench: Bench) -> None:
    destination = bench.opened(3)
    destination.ensure(SHOP)
    layout = pickle.loads(pickle.dumps(destination.topics("shop", ["public.orders", "public.people"])))
    topics = pa.array(["public.orders"] * 50 + ["public.people"] * 51, TOPIC_TYPE)
    keys = pa.array([str(number).encode() for number in range(50)] * 2 + [None], pa.binary())
    everywhere = np.zeros(101, np.bool_)
    everywhere[100] = True
    shares = [layout.select(shard, topics, keys, everywhere) for shard in range(3)]
    if not bench.keys_are_divided:
        found = sorted((row, shard) for shard, (index, _) in enumerate(shares) for row in index.tolist())
        assert [row for row, _ in found] == list(range(101)), "every record is in one shard"
        assert [len({shard for row, shard in found if row // 50 == topic}) for topic in (0, 1)] == [1, 1]
        return
    taken = [index.tolist() for index, _ in shares]
    assert all(len(index) == len(partitions) for index, partitions in shares)
    assert [share[-1] for share in taken] == [100, 100, 100], "what concerns every key is in every shard"
    assert sorted(row for share in taken for row in share[:-1]) == list(range(100)), "every record is in one shard"
    assert all(share == sorted(share) for share in taken)
    of_key: dict[tuple[int, int], set[int]] = {}
    for shard, (index, partitions) in enumerate(shares):
        for row, partition in zip(index.tolist()[:-1], partitions.tolist()[:-1], strict=True):
            of_key.setdefault((row // 50, row % 50), set()).add((shard, partition))  # type: ignore[arg-type]
    assert all(len(found) == 1 for found in of_key.values()), "a key is in one shard and one partition"


def test_shards_go_on_by_themselves(bench: Bench) -> None:
    first, second = bench.publisher(0, 2), bench.publisher(1, 2)
    publish(first, 300, (100, "a"))
    publish(second, 200, (110, "b"))
    assert (bench.seen(0), bench.seen(1)) == (["a"], ["b"])
    assert [one.place for one in bench.opened(2).places("shop")] == [place_at(300), place_at(200)]


def test_another_history_or_number_of_shards_is_refused(bench: Bench) -> None:
    publish(bench.publisher(), 200, (100, "a"))
    with pytest.raises(StreamBroken, match="another change log"):
        bench.opened(1).ensure(StreamId("shop", "history 2", START))
    with pytest.raises(StreamBroken, match="shards"):
        bench.opened(2).ensure(SHOP)
    assert bench.seen(0) == ["a"]


# What is special about the twin: topics, tombstones, and records that are refused


@pytest.fixture
def store() -> MemoryStreamStore:
    return MemoryStreamStore(topics=set(), forbidden={"public.secret"}, longest=5)


def test_topics_are_looked_up_before_records_go_there(store: MemoryStreamStore) -> None:
    destination = MemoryStreamDestination("stream", store)
    some = records((100, "a"))
    given = some.topics, some.keys, np.zeros(1, np.bool_)
    with pytest.raises(UnknownTopics) as unknown:
        destination.ensure(SHOP).select(0, *given)
    assert pickle.loads(pickle.dumps(unknown.value)).names == {"public.orders"}
    assert destination.topics("shop", ["public.orders"]).select(0, *given)[0].tolist() == [0]
    assert destination.ensure(SHOP).select(0, *given)[0].tolist() == [0]
    with pytest.raises(TopicsRefused) as refused:
        destination.topics("shop", ["public.secret", "public.people"])
    assert list(pickle.loads(pickle.dumps(refused.value)).reasons) == ["public.secret"]
    assert store.topics == {"public.orders", "public.people"}, "the others are made"


def test_refused_records_are_named_and_nothing_is_published(store: MemoryStreamStore) -> None:
    destination = MemoryStreamDestination("stream", store)
    destination.ensure(SHOP)
    publisher = destination.publisher("shop", 0)
    publisher.open()
    given = records((100, "short"), (110, "much longer"), (120, "longer, too"))
    with pytest.raises(RecordRefused) as refused:
        publisher.publish([given], lambda: ShardPlace(place_at(200)))
    assert sorted(pickle.loads(pickle.dumps(refused.value)).reasons) == [place_at(110), place_at(120)]
    assert (store.values("shop"), destination.places("shop")) == ([[]], [ShardPlace(START)])
    publisher.publish([given.take(pa.array([0]))], lambda: ShardPlace(place_at(200)))
    assert store.values("shop") == [[b"short"]]


def test_tombstones_and_headers_arrive(store: MemoryStreamStore) -> None:
    destination = MemoryStreamDestination("stream", store)
    destination.ensure(SHOP)
    publisher = destination.publisher("shop", 0)
    publisher.open()
    given = replace(
        records((100, ""), (110, "b")),
        values=pa.array([None, b"b"], pa.binary()),
        headers=(("kind", pa.array([b"gone", None], pa.binary())),),
    )
    publisher.publish([given], lambda: ShardPlace(place_at(200)))
    gone, there = store.shards["shop"][0].records
    assert (gone.value, gone.headers, gone.topic) == (None, (("kind", b"gone"),), "public.orders")
    assert (there.value, there.headers) == (b"b", ())


# How keys are divided


@pytest.mark.parametrize(("ordering", "used"), [("key", 4), ("table", 2), ("source", 1)])
def test_what_is_kept_in_one_shard(ordering: str, used: int) -> None:
    layout = KeyLayout(4, ordering)  # type: ignore[arg-type]
    topics = pa.array(["public.orders", "public.things"] * 50, TOPIC_TYPE)
    keys = pa.array([str(number).encode() for number in range(100)], pa.binary())
    everywhere = np.zeros(100, np.bool_)
    everywhere[0] = True
    shares = [set(layout.select(shard, topics, keys, everywhere)[0].tolist()) for shard in range(4)]
    assert sum(bool(share) for share in shares) == used
    assert sum(0 in share for share in shares) == (4 if ordering == "key" else 1)
    assert sum(len(share - {0}) for share in shares) == 99


def test_the_hash_of_keys_and_tables_stays_as_it_is() -> None:
    """Streams exist that were divided by it."""
    topics, keys = pa.array(["public.orders"] * 4, TOPIC_TYPE), pa.array([b'{"id":1}', b'{"id":2}', b"x", None])
    found = {
        row: shard
        for shard in range(7)
        for row in KeyLayout(7).select(shard, topics, keys, np.zeros(4, np.bool_))[0].tolist()
    }
    assert [found[row] for row in range(4)] == HASHED


# What is special about files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "stream"


def _published(folder: Path, ends: Sequence[int]) -> list[Path]:
    destination = FilesDestination("stream", folder)
    destination.ensure(SHOP)
    publisher = pickle.loads(pickle.dumps(destination.publisher("shop", 0)))
    for end in ends:
        publish(publisher, end, (end - 10, f"until {end}"))
    return sorted((folder / "shop/0000").glob("*.jsonl"))


def test_names_are_ranges_that_follow_each_other(folder: Path) -> None:
    names = [parse_range(path.name) for path in _published(folder, (200, 300, 450))]
    assert names == [Range(place_at(begin), place_at(end)) for begin, end in ((100, 200), (200, 300), (300, 450))]
    assert len(list((folder / "shop/0000/_places").iterdir())) == 1, "only the newest place is kept"
    assert not list((folder / "shop/0000/_writing").iterdir())


def test_a_hole_is_an_error_and_a_removed_beginning_is_not(folder: Path) -> None:
    first, second, third = _published(folder, (200, 300, 450))
    first.unlink()
    assert FilesDestination("stream", folder).ensure(SHOP).shards == 1
    fourth = _published(folder, (500,))[-1]
    third.unlink()
    with pytest.raises(StreamBroken, match=r"hole.*000000000000012c/.* to 00000000000001c2/"):
        FilesDestination("stream", folder).ensure(SHOP)
    second.unlink()
    fourth.unlink()
    assert FilesDestination("stream", folder).ensure(SHOP).shards == 1, "a reader may remove what it has read"
    assert _published(folder, (600,))[0].name.startswith(place_at(500).replace("/", "."))


def test_the_last_file_missing_is_a_hole(folder: Path) -> None:
    _published(folder, (200, 300))[-1].unlink()
    with pytest.raises(StreamBroken, match="hole"):
        FilesDestination("stream", folder).ensure(SHOP)


def test_another_format_is_refused(folder: Path) -> None:
    _published(folder, (200,))
    description = folder / "shop/stream.json"
    description.write_text(json.dumps({**json.loads(description.read_text()), "format": 99}))
    with pytest.raises(StreamBroken, match="format 99"):
        FilesDestination("stream", folder).ensure(SHOP)

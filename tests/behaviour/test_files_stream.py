"""What files of other kinds add to the contract of streams: formats, rolling, one growing file, writers in a store."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from penstock.destinations.files import growing
from penstock.destinations.files import shard as files_shard
from penstock.destinations.files.destination import FilesDestination
from penstock.destinations.files.encoding import Encoding
from penstock.destinations.files.growing import GrowingFile
from penstock.destinations.files.names import parse_range
from penstock.destinations.files.shard import Roll
from penstock.destinations.places.chain import ListedChain, chain_in
from penstock.destinations.places.folder import Folder, LocalFolder, StoreFolder
from penstock.destinations.stream_contract import TOPIC_TYPE, Publisher, Records, ShardPlace, StreamId
from penstock.errors import CommitUnknown, DestinationUnreachable, Overtaken, StreamBroken
from penstock.model.place import place_at

SHOP = StreamId("shop", "history 1", place_at(100))
KINDS = [Encoding("jsonl", "gzip"), Encoding("jsonl", "zstd"), Encoding("parquet", "zstd")]


class Killed(BaseException):
    """The process dies here."""


def records(*places: int) -> Records:
    return Records(
        pa.array([place_at(place) for place in places]),
        pa.array([b'{"id":%d}' % place for place in places], pa.binary()),
        pa.array([b'{"n":%d}' % place for place in places], pa.binary()),
        pa.array(["public.orders"] * len(places), TOPIC_TYPE),
        pa.array([0] * len(places), pa.int32()),
    )


def publish(publisher: Publisher, end: int, *places: int) -> None:
    at = publisher.open()
    fresh = [place for place in places if place_at(place) >= at.place]
    publisher.publish([records(*fresh)] if fresh else [], lambda: ShardPlace(max(at.place, place_at(end))))


def seen(shard: Path) -> list[int]:
    """The events of a shard, read by their files' names alone."""
    found = []
    for path in sorted(one for one in shard.iterdir() if one.is_file()):
        assert parse_range(path.name) is not None
        if path.name.endswith(".parquet"):
            rows = pq.read_table(path).to_pylist()
            assert all(row["topic"] == "public.orders" and json.loads(row["key"])["id"] for row in rows)
            texts = [row["value"] for row in rows]
        elif path.name.endswith(".gz"):
            texts = gzip.decompress(path.read_bytes()).decode().splitlines()
        else:
            kind = "zstd" if path.name.endswith(".zst") else None
            with pa.input_stream(str(path), compression=kind) as file:
                texts = file.read().decode().splitlines()
        found += [json.loads(text)["n"] for text in texts]
    return found


@pytest.fixture
def crash_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    armed: list[str] = []

    def reached(name: str) -> None:
        if name in armed:
            armed.remove(name)
            raise Killed(name)

    for module in (files_shard, growing):
        monkeypatch.setattr(module, "reach", reached)
    return armed.append


@pytest.fixture(params=["local", "store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> LocalFolder | StoreFolder:
    if request.param == "local":
        return LocalFolder(tmp_path / "stream")
    return StoreFolder(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "stream", "store://stream")


@pytest.mark.parametrize("encoding", KINDS, ids=lambda kind: kind.ending)
def test_formats_and_compressions(
    tmp_path: Path, folder: LocalFolder | StoreFolder, encoding: Encoding, crash_at: Callable[[str], None]
) -> None:
    destination = FilesDestination("stream", folder, encoding=encoding)
    destination.ensure(SHOP)
    publish(destination.publisher("shop", 0), 200, 100, 110)
    steps = {200: "publish.file_written", 300: "publish.committed", 400: "publish.visible"}
    for begin, step in steps.items():
        crash_at(step)
        with pytest.raises(Killed):
            publish(destination.publisher("shop", 0), begin + 100, *range(200, begin + 1, 100))
    publish(destination.publisher("shop", 0), 600, 200, 300, 400, 500)
    assert seen(tmp_path / "stream/shop/0000") == [100, 110, 200, 300, 400, 500]
    assert destination.ensure(SHOP).shards == 1, "nothing is missing"


@pytest.mark.parametrize("encoding", [Encoding(), *KINDS], ids=lambda kind: kind.ending)
def test_files_roll_by_size_and_age(
    tmp_path: Path,
    folder: LocalFolder | StoreFolder,
    encoding: Encoding,
    crash_at: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shard = tmp_path / "stream/shop/0000"
    destination = FilesDestination("stream", folder, encoding=encoding, roll=Roll(1 << 20, 60.0))
    destination.ensure(SHOP)
    publish(destination.publisher("shop", 0), 200, 100, 110)
    publish(destination.publisher("shop", 0), 300, 200)
    assert seen(shard) == [], "neither large nor old enough"
    assert destination.places("shop") == [ShardPlace(place_at(300))], "but durable"
    with monkeypatch.context() as later:
        now = time.time()
        later.setattr("time.time", lambda: now + 61)
        for step in ("publish.file_written", "publish.committed"):
            crash_at(step)
            with pytest.raises(Killed):
                publish(destination.publisher("shop", 0), 400, 300)
        publish(destination.publisher("shop", 0), 400, 300)
        assert seen(shard) == [100, 110, 200, 300]
        assert len([path for path in shard.iterdir() if path.is_file()]) == 1
    small = FilesDestination("stream", folder, encoding=encoding, roll=Roll(1, 60.0))
    publish(small.publisher("shop", 0), 500, 400)
    assert seen(shard) == [100, 110, 200, 300, 400]
    publish(destination.publisher("shop", 0), 600, 500)
    assert seen(shard)[-1] == 400
    other = FilesDestination("stream", folder)  # neither rolled nor compressed any more
    publisher = other.publisher("shop", 0)
    publisher.open()
    publisher.advance(ShardPlace(place_at(650)))
    assert seen(shard)[-1] == 500, "what was gathered is shown when the file no longer asks for it"
    publish(other.publisher("shop", 0), 700, 650)
    assert seen(shard) == [100, 110, 200, 300, 400, 500, 650]
    assert destination.ensure(SHOP).shards == 1


def test_a_changed_format_shows_what_was_gathered_first(tmp_path: Path) -> None:
    path = tmp_path / "stream"
    gathering = FilesDestination("stream", path, roll=Roll(1 << 20, 60.0))
    gathering.ensure(SHOP)
    publish(gathering.publisher("shop", 0), 200, 100)
    publish(gathering.publisher("shop", 0), 300, 200)
    parquet = FilesDestination("stream", path, encoding=Encoding("parquet", "zstd"), roll=Roll(1, 60.0))
    publish(parquet.publisher("shop", 0), 400, 300)
    assert seen(path / "shop/0000") == [100, 200, 300]
    assert [one.suffix for one in sorted((path / "shop/0000").glob("*-*"))] == [".jsonl", ".parquet"]


# One growing file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "changes.jsonl"


def lines(path: Path) -> list[int]:
    return [json.loads(line)["n"] for line in path.read_text().splitlines()]


def grown(path: Path) -> Publisher:
    destination = GrowingFile("stream", str(path))
    assert destination.ensure(SHOP).shards == 1
    return destination.publisher("shop", 0)


def position(path: Path) -> dict[str, Any]:
    return dict(json.loads(Path(f"{path}.position").read_text()))


def test_a_file_grows_and_is_cut_back_to_its_position(path: Path, crash_at: Callable[[str], None]) -> None:
    publish(grown(path), 200, 100, 110)
    crash_at("publish.file_written")
    with pytest.raises(Killed):
        publish(grown(path), 300, 200, 210)
    assert lines(path) == [100, 110, 200, 210], "appended, and not in the position yet"
    assert GrowingFile("stream", str(path)).places("shop") == [ShardPlace(place_at(200))]
    grown(path)
    assert lines(path) == [100, 110], "cut off"
    crash_at("publish.committed")
    with pytest.raises(Killed):
        publish(grown(path), 300, 200)
    publish(grown(path), 400, 200, 300)
    assert lines(path) == [100, 110, 200, 300]
    assert position(path)["bytes"] == path.stat().st_size


def test_of_two_writers_of_a_file_one_goes_on(path: Path) -> None:
    stale, other = grown(path), grown(path)
    stale.open()
    publish(other, 200, 100)
    with pytest.raises(Overtaken):
        stale.publish([records(100)], lambda: ShardPlace(place_at(200)))
    with pytest.raises(Overtaken):
        stale.advance(ShardPlace(place_at(999)))

    def interfering() -> Any:
        with pytest.raises(DestinationUnreachable, match="locked"):
            grown(path)
        yield records(200)

    other.open()
    other.publish(interfering(), lambda: ShardPlace(place_at(300)))
    assert lines(path) == [100, 200]


def test_what_the_records_raise_is_cut_off(path: Path) -> None:
    def failing() -> Any:
        yield records(100)
        raise ValueError("the log is gone")

    publisher = grown(path)
    publisher.open()
    with pytest.raises(ValueError, match="the log is gone"):
        publisher.publish(failing(), lambda: ShardPlace(place_at(200)))
    assert path.stat().st_size == 0


def test_a_file_that_is_not_the_streams_is_left_alone(path: Path) -> None:
    path.write_text("somebody's notes\n")
    with pytest.raises(StreamBroken, match="has content"):
        grown(path)
    assert path.read_text() == "somebody's notes\n"
    path.unlink()
    publish(grown(path), 200, 100)
    with pytest.raises(StreamBroken, match="another change log"):
        GrowingFile("stream", str(path)).ensure(StreamId("shop", "history 2", place_at(100)))
    path.write_text("")
    with pytest.raises(StreamBroken, match="events are missing"):
        grown(path)


# Writers of a store that has neither links nor renames


def test_writers_that_come_while_a_record_is_written(tmp_path: Path) -> None:
    folder = StoreFolder(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "places", "store://places")
    first = ListedChain(folder)
    assert first.open() is None

    class Slow(ListedChain):
        """Another writer opens the chain between its record and its look around."""

        def append(self, record: dict[str, Any]) -> None:
            self.folder = cast(Folder, _Interrupted(folder, lambda: chain_in(folder).open()))
            super().append(record)

    slow = Slow(folder)
    slow.open()
    with pytest.raises(Overtaken):
        first.append({"n": 0})
    with pytest.raises(CommitUnknown):
        slow.append({"n": 1})
    assert chain_in(folder).open() == {"n": 1}, "whoever opened after the record was written found it"


class _Interrupted:
    """A folder in which something happens after each record is written."""

    def __init__(self, folder: StoreFolder, happens: Callable[[], object]) -> None:
        self._folder, self._happens = folder, happens

    def write(self, name: str, content: bytes) -> None:
        self._folder.write(name, content)
        self._happens()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._folder, name)


def test_many_writers_add_each_number_once(folder: LocalFolder | StoreFolder) -> None:
    """A counter that writers raise side by side: each success is one more, and none is lost."""
    successes: list[int] = []

    def work() -> None:
        for _ in range(12):
            chain = chain_in(folder)
            try:
                before = (chain.open() or {"n": 0})["n"]
                chain.append({"n": before + 1})
            except (Overtaken, CommitUnknown, DestinationUnreachable):
                continue
            successes.append(before + 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(successes)) == len(successes), "no two writers added the same record"
    newest = chain_in(folder).open()
    assert newest is not None
    assert newest["n"] >= max(successes)


def test_a_folder_is_removed_with_what_is_in_it(folder: LocalFolder | StoreFolder) -> None:
    inside = folder.under("a").under("b")
    inside.make()
    inside.write("name", b"content")
    assert folder.remove()
    assert inside.read("name") is None
    assert not folder.under("a").remove()

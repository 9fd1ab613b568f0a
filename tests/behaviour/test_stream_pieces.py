"""Publications that Redis and NATS take in several pieces, cut short everywhere: what is out is a prefix."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from penstock.destinations import spool as spool_module
from penstock.destinations.nats import protocol as nats_protocol
from penstock.destinations.nats import publisher as nats_publisher
from penstock.destinations.redis import publisher as redis_publisher
from penstock.destinations.spool import Spool, after_event, midway
from penstock.destinations.stream_contract import TOPIC_TYPE, CopyPlace, Publisher, Records, ShardPlace, StreamId
from penstock.errors import Overtaken, RecordRefused
from penstock.model.place import Place, place_at
from running import await_condition
from stream_benches import Streams, nats_streams, redis_streams

START = place_at(100)
SHOP = StreamId("shop", "history 1", START)
MOST = 4  # records of a piece


class Killed(BaseException):
    """The process dies here."""


@dataclass
class Shard:
    """One shard of a real server, whose writers die when `pieces` are out (0: never)."""

    streams: Streams
    pieces: int = 0

    def publisher(self) -> Publisher:
        destination = self.streams.opened(1)
        destination.ensure(SHOP)
        return destination.publisher("shop", 0)

    @property
    def seen(self) -> list[str]:
        return self.streams.seen(0)

    def reached(self, name: str) -> None:
        if name == "publish.piece_out" and self.pieces:
            self.pieces -= 1
            if not self.pieces:
                raise Killed


@pytest.fixture(params=["redis", "nats"])
def shard(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Shard:
    make = {"redis": redis_streams, "nats": nats_streams}[request.param]
    made = Shard(make(request.getfixturevalue(request.param)))
    for module in (redis_publisher, nats_publisher):
        monkeypatch.setattr(module, "AT_ONCE", MOST)
        monkeypatch.setattr(module, "reach", made.reached)
    return made


def records(places: list[str], topic: str = "public.orders") -> Records:
    count = len(places)
    return Records(
        pa.array(places, pa.string()),
        pa.array([b"key"] * count, pa.binary()),
        pa.array([f"{topic}@{place}".encode() for place in places], pa.binary()),
        pa.array([topic] * count, TOPIC_TYPE),
        pa.array([0] * count, pa.int32()),
    )


def values(places: list[str], topic: str = "public.orders") -> list[str]:
    return [f"{topic}@{place}" for place in places]


def catch_up(publisher: Publisher, places: list[str], end: Place) -> None:
    """Publish what the shard lacks, as a task does: by the event that a record belongs to."""
    at = publisher.open()
    fresh = [place for place in places if place[:33] >= at.place]
    publisher.publish([records(fresh)] if fresh else [], lambda: replace(at, place=end))


@pytest.mark.parametrize("pieces", [1, 3, 5])
def test_a_publication_that_is_cut_between_pieces_goes_on_from_there(shard: Shard, pieces: int) -> None:
    places = [place_at(100 + number // 3, number % 3) for number in range(22)]
    shard.pieces = pieces
    with pytest.raises(Killed):
        catch_up(shard.publisher(), places, place_at(900))
    at = shard.publisher().open()
    assert START < at.place < place_at(900)
    assert shard.seen == values([place for place in places if place < at.place]), "the place says what is out"
    catch_up(shard.publisher(), places, place_at(900))
    assert shard.seen == values(places)
    assert shard.publisher().open() == ShardPlace(place_at(900))


def test_records_of_one_event_are_in_one_piece(shard: Shard) -> None:
    event = place_at(101)
    places = [place_at(100, 0), place_at(100, 1), place_at(100, 2), event, f"{event}.1", f"{event}.2", place_at(102)]
    shard.pieces = 1
    with pytest.raises(Killed):
        catch_up(shard.publisher(), places, place_at(200))
    assert shard.publisher().open().place == place_at(101, 1)
    catch_up(shard.publisher(), places, place_at(200))
    assert shard.seen == values(places)


def test_tables_stand_behind_from_where_they_failed_also_between_pieces(shard: Shard) -> None:
    """The table `failed` could not be rendered from the eleventh event on."""
    places = [place_at(100, number) for number in range(20)]
    final = ShardPlace(place_at(900), {"held": START, "failed": place_at(100, 10)})
    for number, behind in ((1, {"held": START}), (2, {"held": START, "failed": place_at(100, 10)})):
        shard.pieces = number
        publisher = shard.publisher()
        at = publisher.open()
        with pytest.raises(Killed):
            publisher.publish([records([place for place in places if place >= at.place])], lambda: final)
        assert shard.publisher().open().behind == behind
    publisher = shard.publisher()
    at = publisher.open()
    publisher.publish([records([place for place in places if place >= at.place])], lambda: final)
    assert (shard.publisher().open(), shard.seen) == (final, values(places))
    late = [place_at(100, 10 + number) for number in range(10)]  # and now it is brought on alone
    whole = ShardPlace(place_at(900), {"held": START})
    for pieces in (2, 0):
        shard.pieces = pieces
        publisher = shard.publisher()
        at = publisher.open()
        rest = [place for place in late if place >= at.of("failed")]
        if pieces:
            with pytest.raises(Killed):
                publisher.publish([records(rest, "late")], lambda: whole)
            assert shard.publisher().open().of("failed") == place_at(100, 18)
        else:
            publisher.publish([records(rest, "late")], lambda: whole)
    assert (shard.publisher().open(), shard.seen) == (whole, values(places) + values(late, "late"))


def test_copied_rows_go_on_by_their_number(shard: Shard) -> None:
    """Copied rows have no places of their own to go on from."""
    rows = records([START] * 11)
    rows = Records(rows.places, rows.keys, pa.array([b"row %d" % n for n in range(11)]), rows.topics, rows.partitions)
    first = ShardPlace(START, {"orders": START}, {"orders": CopyPlace("snapshot 1", 3)})
    shard.pieces = 2
    publisher = shard.publisher()
    publisher.open()
    with pytest.raises(Killed):
        publisher.publish([rows], lambda: first)
    assert len(shard.seen) == 2 * MOST
    catch_up(shard.publisher(), [place_at(101)], place_at(200))  # another table's change comes between
    publisher = shard.publisher()
    at = publisher.open()
    upto = ShardPlace(at.place, {"orders": START}, first.copies)
    publisher.publish([rows], lambda: upto)
    expected = [f"row {number}" for number in range(11)]
    assert shard.seen == [*expected[:8], *values([place_at(101)]), *expected[8:]]
    assert shard.publisher().open() == upto
    publisher.open()
    again = ShardPlace(at.place, {"orders": START}, {"orders": CopyPlace("snapshot 2", 1)})
    publisher.publish([rows.take(pa.array([0, 1]))], lambda: again)
    assert shard.seen[-2:] == expected[:2], "another copy starts with its first row"


def test_dead_letters_that_are_sent_again_go_on_by_their_number(shard: Shard) -> None:
    letters = [f"{place_at(50, number)}" for number in range(10)]
    upto = ShardPlace(START, retried="2/1000")
    shard.pieces = 1
    publisher = shard.publisher()
    publisher.open()
    with pytest.raises(Killed):
        publisher.publish([records(letters)], lambda: upto)
    publisher = shard.publisher()
    assert publisher.open() == ShardPlace(START), "none of them counts as sent"
    publisher.publish([records(letters)], lambda: upto)
    assert (shard.seen, shard.publisher().open()) == (values(letters), upto)
    catch_up(shard.publisher(), [place_at(101)], place_at(200))
    assert shard.seen[-1:] == values([place_at(101)])


@pytest.mark.parametrize("stored", [1, 2, 3, 4, 5])
def test_a_chain_that_breaks_within_an_event_goes_on_there(
    nats: object, monkeypatch: pytest.MonkeyPatch, stored: int
) -> None:
    """NATS stores message by message: what was sent last may be any record."""
    shard = Shard(nats_streams(nats))  # type: ignore[arg-type]
    event = place_at(101)
    places = [place_at(100), event, f"{event}.1", f"{event}.2", place_at(102), place_at(103)]
    whole: Callable[..., memoryview] = nats_protocol.chain

    def broken(*columns: object, **options: object) -> memoryview:
        subjects, contents, headers = columns
        cut = [(name, column.slice(0, stored)) for name, column in headers]  # type: ignore[attr-defined]
        replies = options.pop("replies").slice(0, stored)  # type: ignore[attr-defined]
        return whole(subjects.slice(0, stored), contents.slice(0, stored), cut, replies=replies, **options)  # type: ignore[attr-defined]

    def lost(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(nats_publisher, "chain", broken)
        patch.setattr(nats_publisher.NatsPublisher, "_stored", lost)
        with pytest.raises(Killed):
            catch_up(shard.publisher(), places, place_at(900))
    await_condition(lambda: len(shard.seen) == stored, "the messages to be stored", 10)
    catch_up(shard.publisher(), places, place_at(900))
    assert shard.seen == values(places)


def test_a_writer_that_wakes_up_between_pieces_is_refused(shard: Shard) -> None:
    places = [place_at(100, number) for number in range(10)]
    asleep = shard.publisher()
    asleep.open()

    def others_first() -> Iterator[Records]:
        catch_up(shard.publisher(), places, place_at(900))
        yield records(places)

    with pytest.raises(Overtaken):
        asleep.publish(others_first(), lambda: ShardPlace(place_at(900)))
    assert shard.seen == values(places)


ZOMBIE = """
import pickle, sys
from penstock.destinations.nats import publisher as nats_publisher
from penstock.destinations.redis import publisher as redis_publisher
from penstock.errors import CommitUnknown, Overtaken
redis_publisher.AT_ONCE = nats_publisher.AT_ONCE = 4
publisher, records, upto = pickle.loads(sys.stdin.buffer.read())
publisher.open()
try:
    publisher.publish([records], lambda: upto)
except (Overtaken, CommitUnknown) as refused:
    sys.exit(f"refused: {refused.code}")
"""


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_process_that_is_stopped_and_goes_on_later_adds_nothing(shard: Shard, tmp_path: Path, pieces: int) -> None:
    places = [place_at(100, number) for number in range(30)]
    failpoint = tmp_path / "failpoint"
    failpoint.write_text(f"publish.piece_out {pieces} SIGSTOP")
    given = pickle.dumps((shard.publisher(), records(places), ShardPlace(place_at(900))))
    environment = {**os.environ, "PENSTOCK_FAILPOINT_FILE": str(failpoint), "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", ZOMBIE], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as zombie:
        assert zombie.stdin is not None
        zombie.stdin.write(given)
        zombie.stdin.close()
        zombie.stdin = None
        stopped = psutil.Process(zombie.pid)
        await_condition(lambda: stopped.status() == psutil.STATUS_STOPPED, "the writer to be stopped", 30)
        assert len(shard.seen) == pieces * MOST
        catch_up(shard.publisher(), places, place_at(900))
        catch_up(shard.publisher(), [place_at(950)], place_at(999))
        stopped.resume()
        _, said = zombie.communicate(timeout=30)
    assert said.decode().strip() == "refused: overtaken"
    assert shard.seen == [*values(places), *values([place_at(950)])]
    assert shard.publisher().open() == ShardPlace(place_at(999))


def test_large_publications_wait_in_a_file(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "IN_MEMORY", 100)
    publisher = shard.publisher()
    publisher.open()
    places = [place_at(100, number) for number in range(30)]
    given = [records(places[start : start + 7]) for start in range(0, 30, 7)]
    assert publisher.publish(iter(given), lambda: ShardPlace(place_at(900))).records == 30
    assert shard.seen == values(places)


def test_records_that_are_too_large_are_named_before_anything_is_out(nats: object) -> None:
    shard = Shard(nats_streams(nats))  # type: ignore[arg-type]
    given = records([place_at(100), place_at(101), place_at(102)])
    large = pa.array([b"small", b"x" * (1 << 20), b"small"], pa.binary())
    publisher = shard.publisher()
    publisher.open()
    with pytest.raises(RecordRefused) as refused:
        publisher.publish(
            [Records(given.places, given.keys, large, given.topics, given.partitions)],
            lambda: ShardPlace(place_at(200)),
        )
    assert list(refused.value.reasons) == [place_at(101)]
    assert shard.seen == []


def test_a_place_within_a_publication() -> None:
    opened, final = ShardPlace(START, {"a": place_at(50)}), ShardPlace(place_at(900), {"a": place_at(50)})
    assert midway(opened, final, place_at(300)) == ShardPlace(place_at(300), {"a": place_at(50)})
    assert midway(opened, ShardPlace(START), place_at(70)) == ShardPlace(START, {"a": place_at(70)})
    assert midway(opened, ShardPlace(START), place_at(120)) == ShardPlace(START)
    assert after_event(f"{place_at(7, 3)}.1") == place_at(7, 4)
    with Spool() as empty:
        assert list(empty) == []

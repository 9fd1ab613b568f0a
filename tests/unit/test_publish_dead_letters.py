"""Dead letters of the publish loop: kept before the stream passes them, once, and sent again once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loop_bench import ORDERS, PEOPLE
from penstock.config.destinations import DeadLetterConfig
from penstock.destinations.memory_stream import MemoryPublisher
from penstock.errors import RecordRefused, StateError, StreamHeld
from penstock.model.dead_letter import DeadLetter, LetterCount
from penstock.model.feed import Feed
from penstock.model.place import place_at
from penstock.model.processor import ProcessorSpec
from penstock.model.table_state import State
from penstock.runtime import dead_letter_box
from penstock.runtime.publish import dead_letters, task
from pgoutput_messages import insert, truncate, update
from publish_bench import PublishBench, stream_feed

LONG = "b" * 500


@pytest.fixture(autouse=True)
def _asked_for_is_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "ASKED_EVERY", 0.0)


def test_a_refused_event_is_a_dead_letter_and_the_stream_goes_on(tmp_path: Path) -> None:
    for shards in (1, 3):
        bench = bench_of(tmp_path / str(shards), shards)
        bench.seal(
            200,
            *((PEOPLE, 100 + number, insert(str(number), "Ann", "x")) for number in range(10)),
            (ORDERS, 150, insert("1", "a")),
            (ORDERS, 160, insert("2", LONG)),
            (ORDERS, 170, insert("3", "c")),
        )
        bench.seal(300, (ORDERS, 210, update("2", "b")))
        bench.drain()
        assert sorted(published(bench, "people")) == list(range(10))
        assert sorted(published(bench, "orders")) == [1, 2, 3]
        assert bench.state.table_status("stream")[ORDERS.table].state is State.READY
        (kept,) = bench.state.letters("stream")
        letter = kept.letter
        assert (letter.table, letter.op, letter.place, letter.code) == (
            ORDERS.table, "insert", place_at(160, 11), "too-large",
        )  # fmt: skip
        assert letter.key == b'{"id":2}'
        assert letter.message is not None
        assert LONG.encode() in letter.message.data
        assert bench.state.letter_counts("stream") == {ORDERS.table: LetterCount(1)}


def test_a_letter_is_kept_before_the_stream_passes_it_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(tmp_path)
    bench.seal(200, (ORDERS, 110, insert("1", LONG)), (ORDERS, 120, insert("2", "b")))
    with monkeypatch.context() as patch:
        patch.setattr(bench.state, "keep_letters", fails)
        with pytest.raises(StateError):
            bench.drain()
    assert published(bench, "orders") == []
    bench.runner.fail_after = 0
    with pytest.raises(ConnectionError):
        bench.drain()
    bench.restart()
    bench.drain()
    bench.restart()
    bench.drain()
    assert published(bench, "orders") == [2]
    assert len(bench.state.letters("stream")) == 1


def test_a_truncate_that_one_shard_refuses_stays_in_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, publish = bench_of(tmp_path, 2), MemoryPublisher.publish
    bench.seal(200, (ORDERS, 110, truncate(1)))

    def refusing(self: MemoryPublisher, records: object, upto: object) -> object:
        taken = list(records)  # type: ignore[call-overload]
        if self.shard == 1 and any(len(some) for some in taken):
            raise RecordRefused({taken[0].places[0].as_py(): "no room here"})
        return publish(self, taken, upto)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(MemoryPublisher, "publish", refusing)
        bench.drain()
    assert [[event["op"] for event in share] for share in bench.events()] == [["truncate"], []]
    (kept,) = bench.state.letters("stream")
    assert (kept.letter.shard, kept.letter.op) == (1, "truncate")
    send_all(bench)
    assert [[event["op"] for event in share] for share in bench.events()] == [["truncate"], ["truncate"]]


def test_more_letters_than_a_task_returns_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "MOST_LETTERS", 2)
    bench = bench_of(tmp_path)
    changes = [(ORDERS, 100 + n, insert(str(n), LONG if n % 2 else "a")) for n in range(14)]
    bench.seal(200, *changes[:7])
    bench.seal(300, *changes[7:])
    bench.drain()
    assert published(bench, "orders") == list(range(0, 14, 2))
    assert [one.letter.key for one in bench.state.letters("stream")] == [
        b'{"id":%d}' % number for number in range(1, 14, 2)
    ]


def test_without_room_the_table_is_errored_and_no_other(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, dlq=DeadLetterConfig(max_entries=2))
    bench.seal(200, *((ORDERS, 100 + n, insert(str(n), LONG)) for n in range(2)))
    bench.drain()
    bench.seal(300, (ORDERS, 210, insert("3", LONG)), (PEOPLE, 220, insert("1", "Ann", "x")))
    bench.drain()
    status = bench.state.table_status("stream")[ORDERS.table]
    assert (status.state, len(bench.state.letters("stream"))) == (State.ERRORED, 2)
    assert "the event at 00000000000000d2/0000000000000000 cannot be taken (too-large" in status.reason
    assert "no room for it: stream keeps 2 dead letters" in status.reason
    assert published(bench, "people") == [1]
    bench.state.release_letters([one.id for one in bench.state.letters("stream")])
    bench.loop.retry(bench.loop.tables[ORDERS.table])
    bench.drain()
    assert (len(bench.state.letters("stream")), bench.loop.is_level) == (1, True)


def test_block_holds_the_stream_until_there_is_room(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, dlq=DeadLetterConfig(max_entries=1, overflow="block"))
    bench.seal(200, (ORDERS, 110, insert("1", LONG)))
    bench.drain()
    bench.seal(300, (ORDERS, 210, insert("2", LONG)), (PEOPLE, 220, insert("1", "Ann", "x")))
    for _ in range(2):
        with pytest.raises(StreamHeld, match="stream keeps 1 dead letters"):
            bench.drain()
    assert (published(bench, "people"), len(bench.state.letters("stream"))) == ([], 1)
    bench.state.release_letters([one.id for one in bench.state.letters("stream")])
    bench.drain()
    assert (published(bench, "people"), len(bench.state.letters("stream"))) == ([1], 1)


def test_drop_oldest_and_max_age_count_what_they_drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(tmp_path, dlq=DeadLetterConfig(max_entries=2, overflow="drop_oldest", max_age=1e-6))
    bench.seal(200, *((ORDERS, 100 + n, insert(str(n), LONG)) for n in range(3)))
    bench.drain()
    assert [one.letter.key for one in bench.state.letters("stream")] == [b'{"id":1}', b'{"id":2}']
    monkeypatch.setattr(dead_letter_box, "EXPIRE_EVERY", 0.0)
    bench.drain()
    assert bench.state.letter_counts("stream") == {ORDERS.table: LetterCount(0, dropped=3)}
    assert [event.message for event in bench.state.events()][-1:] == [
        "2 dead letters were dropped: they were older than `dlq.max_age`"
    ]


@pytest.mark.parametrize("shards", [1, 3])
def test_letters_are_sent_again_once_in_the_order_of_the_requests(
    tmp_path: Path, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of(tmp_path, shards)
    bench.seal(200, *((ORDERS, 100 + n, insert(str(n), LONG)) for n in range(6)), (ORDERS, 150, insert("9", "x")))
    bench.drain()
    first, *rest = (one.id for one in bench.state.letters("stream"))
    bench.store.longest = 5000
    bench.state.ask_letters(rest[::-1])
    bench.state.ask_letters([first])
    with monkeypatch.context() as patch:
        patch.setattr(bench.state, "release_letters", fails)
        with pytest.raises(StateError):
            bench.drain()
    assert len(bench.state.letters("stream")) == 6
    bench.restart()
    bench.drain()
    assert bench.state.letters("stream") == []
    assert sorted(published(bench, "orders")) == [0, 1, 2, 3, 4, 5, 9]
    for share in bench.events():
        own = [event["key"]["id"] for event in share]
        assert own == [one for one in (9, 1, 2, 3, 4, 5, 0) if one in own]
    assert bench.loop.is_level
    bench.seal(300, (ORDERS, 210, insert("10", "x")))
    bench.restart()
    bench.drain()
    assert len(published(bench, "orders")) == 8


def test_a_letter_that_fails_again_stays_and_holds_up_no_other(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    bench.seal(200, *((ORDERS, 100 + n, insert(str(n), LONG + "c" * 1000 * (n == 1))) for n in range(3)))
    bench.seal(300, (PEOPLE, 210, insert("7", LONG, "x")))
    bench.drain()
    bench.store.longest = 1000
    bench.loop.forget(PEOPLE.table)
    send_all(bench)
    assert published(bench, "orders") == [0, 2]
    kept = bench.state.letters("stream")
    assert [(one.letter.key, one.letter.code, one.attempts, one.asked) for one in kept] == [
        (b'{"id":1}', "too-large", 2, False),
        (b'{"id":7}', "not-followed", 2, False),
    ]
    bench.store.longest = 5000
    send_all(bench)
    assert published(bench, "orders") == [0, 2, 1]


def test_a_topic_that_cannot_be_had_fails_its_letter_and_no_table(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, 2)
    bench.store.topics, bench.store.forbidden = set(), {"forbidden"}
    bench.restart()
    letter = DeadLetter(ORDERS.table, place_at(110), b"k", b"{}", "too-large", "", "read", "forbidden", 0)
    bench.state.keep_letters("stream", [letter, replace(letter, place=place_at(120), topic="made")], most=9)
    bench.seal(200, (PEOPLE, 110, insert("1", "Ann", "x")))
    send_all(bench)
    assert [one.letter.reason for one in bench.state.letters("stream")] == ["topic forbidden: it may not be made"]
    assert bench.state.table_status("stream")[ORDERS.table].state is State.READY
    assert sorted(record.topic for shard in bench.store.shards["shop"] for record in shard.records) == [
        *("made", "public.people")
    ]


def test_a_state_store_that_is_away_holds_no_stream_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(tmp_path, dlq=DeadLetterConfig(max_age=60))
    monkeypatch.setattr(bench.state, "asked_letters", fails)
    monkeypatch.setattr(bench.state, "expire_letters", fails)
    bench.seal(200, (PEOPLE, 110, insert("1", "Ann", "x")))
    bench.drain()
    assert published(bench, "people") == [1]


def bench_of(folder: Path, shards: int = 1, dlq: DeadLetterConfig | None = None) -> PublishBench:
    folder.mkdir(exist_ok=True)
    bench = PublishBench(folder, stream_feed(ORDERS), stream_feed(PEOPLE), shards=shards)
    bench.store.longest = 600
    if dlq is not None:
        bench.restart(dlq=dlq)
    return bench


def published(bench: PublishBench, table: str) -> list[int]:
    return [event["key"]["id"] for share in bench.events() for event in share if event["table"] == table]


def send_all(bench: PublishBench) -> None:
    bench.state.ask_letters([one.id for one in bench.state.letters("stream")])
    bench.drain()


def fails(*_: object, **__: object) -> bool:
    raise StateError("the state store is away", "")


def test_an_event_that_a_processor_fails_on_is_sent_again_when_the_processor_is_corrected(tmp_path: Path) -> None:
    def feed(text: str) -> Feed:
        return stream_feed(
            ORDERS, processors=(ProcessorSpec("sql", json.dumps({"select": "", "set": {"n": text}, "where": ""})),)
        )

    bench = PublishBench(tmp_path, feed("state::bigint"), stream_feed(PEOPLE), shards=2)
    bench.seal(200, *((ORDERS, 100 + n, insert(str(n), str(n) if n % 2 else "x")) for n in range(6)))
    bench.drain()
    assert sorted(published(bench, "orders")) == [1, 3, 5]
    assert [(one.letter.key, one.letter.code) for one in bench.state.letters("stream")] == [
        (b'{"id":%d}' % n, "expression") for n in (0, 2, 4)
    ]
    send_all(bench)
    assert [one.attempts for one in bench.state.letters("stream")] == [2, 2, 2]
    bench.feeds = (feed("length(state)"), stream_feed(PEOPLE))
    bench.restart()
    send_all(bench)
    assert bench.state.letters("stream") == []
    found = {event["key"]["id"]: event["after"]["n"] for share in bench.events() for event in share}
    assert found == {0: 1, 1: 1, 2: 1, 3: 3, 4: 1, 5: 5}
    assert len(published(bench, "orders")) == 6

"""Events of the source itself: what capture keeps of them, and how streams write them."""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loop_bench import AT_ONCE
from penstock.changelog.segment import SliceRows
from penstock.cli import main as cli
from penstock.config.destinations import FilesDestination
from penstock.config.load import load
from penstock.config.source_events import feed_of
from penstock.destinations.memory_stream import MemoryStreamDestination
from penstock.model.change import RawChanges
from penstock.model.feed import Feed
from penstock.model.source_events import DDL, MESSAGES, RELATIONS, TRANSACTIONS, WantedEvents, all_wanted
from penstock.model.table import TableId, TableSchema
from penstock.processors.batch import StepFailed
from penstock.processors.outbox import _of_message
from penstock.render.event import Origin
from penstock.render.events import Rendered, in_stream_order, render_changes
from penstock.render.format import Envelope, EventFormat
from penstock.runtime.publish.loop import PublishLoop
from penstock.source.postgres import source_events
from penstock.source.postgres.pgoutput import Begin
from penstock.source.postgres.transaction_buffer import TransactionBuffer
from penstock.source.sink import CapturedSlice
from penstock.spark_source.reading import Reading
from pgoutput_messages import INT4, TEXT, insert, table_schema
from pipeline_files import pipeline_file
from publish_bench import PublishBench, stream_feed

SCHEMA = table_schema({"id": INT4, "t": TEXT}, relation=7)
OTHER = replace(table_schema({"id": INT4, "t": TEXT}, relation=8), table=TableId("public", "other"))
ALL = WantedEvents(transactions=True, schema_changes=True, messages=("app.%", "outbox"))


def frame(message: bytes, start: int = 5) -> bytes:
    return b"w" + struct.pack(">QQq", start, 0, 0) + message


def logical(prefix: str, content: bytes, *, transactional: bool = True) -> bytes:
    return (
        struct.pack(">cBQ", b"M", transactional, 9)
        + prefix.encode()
        + b"\0"
        + struct.pack(">I", len(content))
        + content
    )


def begun(number: int) -> Begin:
    return Begin(commit_lsn=number * 100, commit_time=number * 1000, xid=number)


def buffer_of(wanted: WantedEvents = ALL, known: dict[int, TableSchema] | None = None) -> TransactionBuffer:
    buffer = TransactionBuffer(wanted, (known or {}).get)
    buffer.relation(SCHEMA)
    buffer.relation(OTHER)
    return buffer


def rendered(slices: list[CapturedSlice], format: EventFormat = EventFormat(), **feed: Any) -> Rendered:
    pieces = [
        render_changes(
            RawChanges(one.schema, one.batch),
            replace(Feed.clone(one.schema.table), **feed),
            Origin("shop", "db"),
            format,
        )
        for one in slices
    ]
    return in_stream_order(pieces)


def events(slices: list[CapturedSlice], format: EventFormat = EventFormat(), **feed: Any) -> list[dict[str, Any]]:
    return [json.loads(value) for value in rendered(slices, format, **feed).values.to_pylist()]


def one_transaction(buffer: TransactionBuffer, number: int = 1) -> list[CapturedSlice]:
    buffer.begin(begun(number))
    buffer.frames.append(frame(insert("1", "a", relation=7), 11))
    buffer.message(frame(logical("app.note", b"\x00hi"), 12))
    buffer.frames.append(frame(insert("2", "b", relation=8), 13))
    buffer.frames.append(frame(insert("3", "c", relation=7), 14))
    buffer.commit(number * 100 + 50)
    return buffer.take_closed()[1]


def test_a_transaction_with_everything_is_told_in_its_order() -> None:
    found = events(one_transaction(buffer_of()))
    assert [one["op"] for one in found] == [
        "begin", "relation", "insert", "message", "relation", "insert", "insert", "commit",
    ]  # fmt: skip
    begin, relation, row, message, *_, commit = found
    assert begin["place"] == row["place"] == f"{100:016x}/{0:016x}"
    assert (begin["transaction"], begin["change_position"]) == (1, f"{11:016x}")
    assert relation["schema_version"] == row["schema_version"]
    assert [(one["name"], one["type"], one["key"]) for one in relation["columns"]] == [
        ("id", "int4", True), ("t", "text", False),
    ]  # fmt: skip
    assert message["message"] == {"prefix": "app.note", "content": base64.b64encode(b"\x00hi").decode()}
    assert message["place"] == f"{100:016x}/{1:016x}"
    assert (commit["end_position"], commit["changes"]) == (f"{150:016x}", 3)
    assert commit["tables"] == [
        {"schema": "public", "table": "other", "changes": 1},
        {"schema": "public", "table": SCHEMA.table.name, "changes": 2},
    ]
    assert len({one["id"] for one in found}) == len(found)
    assert found == events(one_transaction(buffer_of()))


def test_nothing_is_kept_that_nobody_asks_for() -> None:
    slices = one_transaction(buffer_of(WantedEvents()))
    assert [one.schema.table for one in slices] == [SCHEMA.table, OTHER.table]
    assert [row["ordinal"] for row in slices[0].batch.to_pylist()] == [0, 2]
    only = one_transaction(buffer_of(WantedEvents(transactions=True)))
    assert [one.schema.table for one in only] == [TRANSACTIONS, SCHEMA.table, OTHER.table]
    assert [row["ordinal"] for row in only[1].batch.to_pylist()] == [0, 2], "rows keep their places"


def test_a_transaction_in_parts_begins_and_ends_once() -> None:
    buffer = buffer_of()
    buffer.begin(begun(1))
    slices = []
    for number in range(3):
        buffer.frames.append(frame(insert(str(number), "x", relation=7)))
        slices += buffer.take_open()
    buffer.commit(150)
    slices += buffer.take_closed()[1]
    found = [one for one in events(slices) if one["op"] in ("begin", "commit")]
    assert [one["op"] for one in found] == ["begin", "commit"]
    assert found[1]["changes"] == 3
    buffer.begin(begun(2))
    buffer.commit(250)
    assert buffer.take_closed() == (250, []), "an empty transaction is none"


def test_a_structure_is_told_when_it_is_another_than_the_logs() -> None:
    assert DDL not in {one.schema.table for one in one_transaction(buffer_of())}
    same = one_transaction(buffer_of(known={7: SCHEMA, 8: OTHER}))
    assert RELATIONS not in {one.schema.table for one in same}
    older = table_schema({"id": INT4}, relation=7)
    found = events(one_transaction(buffer_of(known={7: older, 8: OTHER})))
    ddl, relation = (one for one in found if one["op"] in ("ddl", "relation"))
    assert (ddl["op"], relation["op"], ddl["place"]) == ("ddl", "relation", relation["place"])
    assert ddl["previous_version"] == older.structure
    assert ddl["schema_version"] == relation["schema_version"] == SCHEMA.structure
    assert len(ddl["changes"]) == 1
    assert "t" in ddl["changes"][0]


@pytest.mark.parametrize(
    "message",
    [
        logical("penstock", b"x"),  # the DDL trigger's own
        logical("other", b"x"),
        logical("app.x", b"x", transactional=False),
        logical("app.x", b"xyz")[:-2],  # not whole
        b"M\x01",
        b"M\x01" + b"\xff" * 40,
    ],
)
def test_a_strangers_message_does_nothing(message: bytes) -> None:
    buffer = buffer_of(WantedEvents(messages=("app.%", "penstock", "%nstock")))
    buffer.begin(begun(1))
    buffer.message(frame(message))
    buffer.commit(150)
    assert buffer.take_closed() == (150, [])


def test_content_that_is_too_large_is_left_out_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_events, "MOST_MESSAGE_BYTES", 3)
    buffer = buffer_of(WantedEvents(messages=("%",)))
    buffer.begin(begun(1))
    buffer.message(frame(logical("a", b"abc")))
    buffer.message(frame(logical("a", b"abcd")))
    buffer.commit(150)
    found = events(buffer.take_closed()[1])
    assert [one["message"]["content"] for one in found] == ["YWJj", None]


def test_debezium_has_metadata_of_transactions_and_messages() -> None:
    slices = one_transaction(buffer_of(WantedEvents(transactions=True, messages=("app.%",))))
    begin, first, message, *_, end = events(slices, EventFormat(Envelope("debezium"), transactions=True))
    assert begin == {"status": "BEGIN", "id": "1:100", "ts_ms": 1, "event_count": None, "data_collections": None}
    assert (end["status"], end["id"], end["event_count"]) == ("END", "1:100", 3)
    assert end["data_collections"] == [
        {"data_collection": "public.other", "event_count": 1},
        {"data_collection": str(SCHEMA.table), "event_count": 2},
    ]
    assert (message["op"], message["message"]["prefix"]) == ("m", "app.note")
    assert (message["source"]["schema"], message["source"]["lsn"]) == ("", 12)
    assert first["op"] == "c"
    assert first["transaction"] == {"id": "1:100", "total_order": 1, "data_collection_order": 1}
    keys = rendered(slices, EventFormat(Envelope("debezium"))).keys.to_pylist()
    assert (keys[0], keys[2]) == (b'{"id":"1:100"}', b'{"prefix":"app.note"}')


def test_faucet_leaves_them_out_and_cloudevents_wraps_them() -> None:
    assert [one["op"] for one in events(one_transaction(buffer_of()), EventFormat(Envelope("faucet")))] == [
        "insert"
    ] * 3
    found = events(one_transaction(buffer_of()), EventFormat(Envelope("cloudevents", prefix="shop")))
    assert [one["type"] for one in found[:2]] == ["shop.begin", "shop.relation"]
    assert found[-1]["data"]["changes"] == 3


def test_topics_are_the_sources_unless_the_template_says_more() -> None:
    template = FilesDestination(type="files", path="/x", transactions=True).record_format
    assert set(rendered(one_transaction(buffer_of()), template).topics.to_pylist()) == {
        "shop.transaction", "shop.schema_change", "shop.message", str(SCHEMA.table), "public.other",
    }  # fmt: skip


def test_a_stream_has_only_the_prefixes_that_it_asks_for() -> None:
    slices = [one for one in one_transaction(buffer_of()) if one.schema.table == MESSAGES]
    assert len(events(slices, messages=("app.%",))) == 1
    assert events(slices, messages=("outbox",)) == []
    assert all_wanted([WantedEvents(messages=("a",)), WantedEvents(True, messages=("a", "b"))]) == WantedEvents(
        transactions=True, messages=("a", "b")
    )


def outbox() -> Feed:
    messages = {"prefixes": ["outbox"], "processors": [{"type": "outbox", "topic": "shop.{aggregate_type}"}]}
    section = FilesDestination.model_validate({"type": "files", "path": "/x", "messages": messages})
    feed = feed_of(MESSAGES, section.wanted_events, section.messages.specs(""))
    assert feed is not None
    return feed


def test_an_outbox_of_logical_messages() -> None:
    buffer = buffer_of()
    buffer.begin(begun(1))
    content = b'{"aggregate_type": "order", "aggregate_id": 7, "id": "e1", "payload": {"price": 1.50, "n": [1]}}'
    buffer.message(frame(logical("outbox", content)))
    buffer.message(frame(logical("app.x", b"other")))
    buffer.message(frame(logical("outbox", b"no json")))
    buffer.commit(150)
    (slice,) = (one for one in buffer.take_closed()[1] if one.schema.table == MESSAGES)
    made = render_changes(RawChanges(slice.schema, slice.batch), outbox(), Origin("shop"))
    assert made.values.to_pylist() == [b'{"price": 1.50, "n": [1]}']
    assert (made.topics.to_pylist(), made.keys.to_pylist()) == (["shop.order"], [b"7"])
    assert dict(made.headers)["id"].to_pylist() == [b"e1"]
    (letter,) = made.failed
    assert "holds no JSON object" in letter.reason


@pytest.mark.parametrize(
    ("content", "members"),
    [
        (b'{"a": "x\\n", "b": null, "c": 1.0, "d": {"e": []}}', {"a": "x\n", "b": None, "c": "1.0", "d": '{"e": []}'}),
        (b" {} ", {}),
    ],
)
def test_members_of_a_message_are_as_they_were_written(content: bytes, members: dict[str, str | None]) -> None:
    assert _of_message(content) == members


@pytest.mark.parametrize("content", [b"", b"[]", b'{"a" 1}', b'{"a": 1', b'{"a": 1 "b": 2}', b"\xff", b'{"a": 1,}'])
def test_a_message_that_is_no_object_is_refused(content: bytes) -> None:
    with pytest.raises(StepFailed):
        _of_message(content)


def test_source_events_go_through_the_publish_loop_once(tmp_path: Path) -> None:
    feeds = [stream_feed(SCHEMA), stream_feed(OTHER), *map(Feed.clone, (TRANSACTIONS, DDL, RELATIONS, MESSAGES))]
    bench = PublishBench(tmp_path, *feeds)
    slices = one_transaction(buffer_of(), 2)
    bench.writer.append(250, [SliceRows(one.schema, one.batch) for one in slices])
    bench.drain()
    bench.restart()
    bench.drain()
    assert [one["op"] for one in bench.events()[0]] == [
        "begin", "relation", "insert", "message", "relation", "insert", "insert", "commit",
    ]  # fmt: skip
    assert {one.table for one in bench.state.schema_versions()} == {SCHEMA.table, OTHER.table}


def test_debeziums_order_in_the_transaction_holds_over_files_and_structures(tmp_path: Path) -> None:
    wider = table_schema({"id": INT4, "t": TEXT, "u": TEXT}, relation=7)
    bench = PublishBench(tmp_path, stream_feed(SCHEMA), stream_feed(OTHER))
    bench.part(150, 0, (OTHER, insert("1", "a")), (SCHEMA, insert("2", "a")), (SCHEMA, insert("3", "a")))
    bench.part(150, 3, (SCHEMA, insert("4", "a")), (wider, insert("5", "a", "b")), (OTHER, insert("6", "a")))
    bench.part(150, 6, (wider, insert("7", "a", "b")))
    bench.seal(200)
    bench.loop = PublishLoop(
        "shop",
        MemoryStreamDestination("stream", bench.store, 1),
        bench.runner,
        bench.log,
        AT_ONCE,
        bench.state,
        format=EventFormat(Envelope("debezium"), transactions=True),
    )
    for feed in bench.feeds:
        bench.loop.follow(feed)
    bench.drain()
    found = [(one["after"]["id"], one["transaction"]["data_collection_order"]) for one in bench.events()[0]]
    assert sorted(found) == [(1, 1), (2, 1), (3, 2), (4, 3), (5, 4), (6, 2), (7, 5)]


def test_the_log_is_read_with_them_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = pipeline_file(tmp_path, tables=[{"match": "%.%"}])
    bench = PublishBench(Path(load(file).log_uri))
    slices = one_transaction(buffer_of(), 2)
    bench.writer.append(250, [SliceRows(one.schema, one.batch) for one in slices])
    plain: list[str] = []
    everything: list[str] = []
    for found, words in ((plain, []), (everything, ["--all"])):
        assert cli.main(["events", str(file), *words]) == 0
        found += [json.loads(line)["op"] for line in capsys.readouterr().out.splitlines()]
    assert plain == ["insert"] * 3
    assert (everything[0], everything[-1]) == ("begin", "commit")
    assert len(everything) == 8
    for all_of_it, rows in ((False, 3), (True, 8)):
        reading = Reading.of(str(file), everything=all_of_it)
        pieces = reading.pieces(*reading.bounds())
        assert sum(batch.num_rows for piece in pieces for batch in reading.read(piece)) == rows


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"transactions": True, "envelope": "faucet"}, "the envelope faucet has no shape"),
        ({"schema_changes": True, "envelope": "debezium"}, "the envelope debezium has no shape"),
        ({"messages": ["a"], "envelope": {"type": "debezium", "schemas": "inline"}}, "schemas: inline"),
        ({"messages": {"processors": [{"type": "outbox"}]}}, "it says which messages"),
    ],
)
def test_what_has_no_shape_is_refused_when_the_file_is_read(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        FilesDestination(type="files", path="/x", **keys)

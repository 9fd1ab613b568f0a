"""Changes as JSON records: what they say, in which order, and to which shard they belong."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from penstock.decode.choices import fitted
from penstock.destinations.key_layout import KeyLayout
from penstock.model.feed import ColumnChoice, Feed, Projection
from penstock.model.place import place_at
from penstock.model.table import ColumnType, TableSchema
from penstock.model.type_map import AS_WRITTEN
from penstock.render.event import Origin
from penstock.render.events import Rendered, Select, every_record, in_stream_order, render_changes
from pgoutput_messages import (
    INT8,
    JSONB,
    RELATION,
    TEXT,
    TIMESTAMPTZ,
    UNSENT,
    Change,
    Stream,
    delete,
    insert,
    numeric,
    raw_changes,
    table_schema,
    truncate,
    update,
)

NUMERIC = ColumnType(1700, "numeric")
THINGS = table_schema({"id": INT8, "name": TEXT, "price": numeric(10, 2)})
FEED = Feed.clone(THINGS.table)


def lines(rendered: Rendered) -> list[dict[str, Any]]:
    return [json.loads(value) for value in rendered.values.to_pylist()]


def of(schema: TableSchema, *messages: bytes, feed: Feed = FEED, select: Select = every_record) -> list[dict[str, Any]]:
    return lines(render_changes(Stream().transaction(*messages).raw(schema), feed, "shop", select=select))


def test_an_event_says_all() -> None:
    (event,) = of(THINGS, insert("1", 'a "b"\n', "12.50"))
    assert event == {
        "op": "insert",
        "id": f"shop/{RELATION}/{place_at(100)}",
        "source": "shop",
        "database": "public",  # where no database is known, schemas are what the source calls databases
        "schema": "public",
        "table": "things",
        "table_id": RELATION,
        "place": place_at(100),
        "change_position": f"{100:016x}",
        "transaction": 1,
        "commit_time": "1970-01-01T00:00:01Z",
        "schema_version": THINGS.structure,
        "key": {"id": 1},
        "before": None,
        "after": {"id": 1, "name": 'a "b"\n', "price": "12.50"},
    }


def test_images_say_nothing_that_is_not_known() -> None:
    """An unsent cell is not null, and an old key is not a row whose other columns are null."""
    changed, unsent, gone = of(THINGS, update("1", "a", None), update("2", UNSENT, "1.00"), delete("3", None, None))
    assert (changed["before"], changed["after"]) == (None, {"id": 1, "name": "a", "price": None})
    assert "unchanged" not in changed
    assert (unsent["after"], unsent["unchanged"]) == ({"id": 2, "price": "1.00"}, ["name"])
    assert (gone["op"], gone["key"], gone["before"], gone["after"]) == ("delete", {"id": 3}, {"id": 3}, None)


def test_full_old_images() -> None:
    full = table_schema({"id": INT8, "name": TEXT}, identity="full")
    changed, gone = of(full, update("1", "b", row=("1", "a")), delete("1", None, full=True))
    assert changed["before"] == {"id": 1, "name": "a"}
    assert gone["before"] == {"id": 1, "name": None}


def test_a_change_of_the_key_is_a_delete_and_an_insert() -> None:
    left, came, after = of(THINGS, update("2", UNSENT, "1.00", key=("1", None, None)), update("2", "b", "2.00"))
    assert (left["op"], left["key"], left["before"], left["after"]) == ("delete", {"id": 1}, {"id": 1}, None)
    assert left["moved_to"] == {"id": 2}
    assert (came["op"], came["key"], came["before"], came["after"]) == (
        "insert",
        {"id": 2},
        None,
        {"id": 2, "price": "1.00"},
    )
    assert (came["moved_from"], came["unchanged"]) == ({"id": 1}, ["name"])
    assert [left["place"], came["place"], after["place"]] == [place_at(100), place_at(100) + ".1", place_at(100, 1)]
    assert "moved_from" not in after


def test_records_of_a_key_are_in_one_shard_and_truncates_in_all() -> None:
    messages = [insert(str(number), "a", "1") for number in range(50)]
    messages += [
        truncate(),
        *(update(str(number + 50), "b", "1", key=(str(number), None, None)) for number in range(9)),
    ]
    everything = of(THINGS, *messages)
    shares = [of(THINGS, *messages, select=partial(KeyLayout(3).select, shard)) for shard in range(3)]
    keys = [{event["key"]["id"] for event in share if event["key"]} for share in shares]
    assert sum(map(len, keys)) == len(set().union(*keys)) == 59, "no key is in two shards"
    assert all(share for share in keys)
    assert [sum(event["op"] == "truncate" for event in share) for share in shares] == [1, 1, 1]
    rows = [event for share in shares for event in share if event["op"] != "truncate"]
    wanted = [event for event in everything if event["op"] != "truncate"]
    assert sorted(map(json.dumps, rows)) == sorted(map(json.dumps, wanted)), "every event is in one shard"
    for share in shares:
        assert [event["place"] for event in share] == sorted(event["place"] for event in share)


def test_a_table_without_a_key_is_in_one_shard() -> None:
    keyless = table_schema({"id": INT8, "name": TEXT}, key=())
    messages = [insert(str(number), "a") for number in range(20)]
    assert sorted(len(of(keyless, *messages, select=partial(KeyLayout(4).select, shard))) for shard in range(4)) == [
        0,
        0,
        0,
        20,
    ]


def test_what_the_rule_keeps() -> None:
    choices = (ColumnChoice("price", dropped=True), ColumnChoice("name", name="label"))
    feed = Feed(
        THINGS.table, THINGS.table, THINGS.table, projection=Projection("id < 10", choices, (("region", "eu"),))
    )
    kept, out = of(
        THINGS,
        insert("1", "a", "1"),
        insert("11", "b", "1"),
        update("12", "c", "1", key=("1",) + (None,) * 2),
        feed=feed,
    )
    assert kept["after"] == {"id": 1, "label": "a", "region": "eu"}
    assert (out["op"], out["key"], out["after"]) == ("delete", {"id": 1}, None)


def test_values_stay_as_the_source_wrote_them() -> None:
    """Also in a table of which `where` compares values and a mask hashes them, as their types."""
    many = table_schema({"id": INT8, "n": NUMERIC, "at": TIMESTAMPTZ, "body": JSONB, "secret": NUMERIC})
    many = fitted(many, AS_WRITTEN)
    masked = Projection("n > 1", (ColumnChoice("secret", masked=True),))
    feed = Feed(many.table, many.table, many.table, projection=masked)
    events = of(
        many,
        insert("1", "12.5", "infinity", '{"a": [1, 1e400]}', "1.0"),
        insert("2", "1.0", None, None, None),
        insert("3", "100", "0044-03-15 00:00:00+00 BC", "null", "1.00"),
        insert("4", "12345678901234567890123456789012345678901", None, None, "NaN"),
        feed=feed,
    )
    assert [event["key"]["id"] for event in events] == [1, 3], "41 digits fit no column: NULL for `where`"
    assert events[0]["after"] | {"secret": ""} == {
        "id": 1,
        "n": "12.5",
        "at": "infinity",
        "body": {"a": [1, float("inf")]},
        "secret": "",
    }
    assert (events[1]["after"]["at"], events[1]["after"]["body"]) == ("0044-03-15 00:00:00+00 BC", None)
    assert events[0]["after"]["secret"] == events[1]["after"]["secret"], "equal values have equal masks"


def test_what_is_no_text_is_rescued() -> None:
    message = insert("1", "a?", "1.00").replace(b"a?", b"a\xff")
    (event,) = of(THINGS, message)
    assert (event["after"]["name"], event["_rescued"]) == (None, {"after.name": "\\x61ff"})


def test_a_truncate_says_what_it_was_given() -> None:
    plain, cascading = truncate(), truncate()[:5] + b"\x03" + truncate()[6:]
    events = of(THINGS, plain, cascading)
    assert [event["truncate_options"] for event in events] == [[], ["cascade", "restart_identity"]]


def test_the_registrys_numbers_are_in_the_event() -> None:
    origin = Origin("shop", "crm", "eu", {THINGS.structure: (3, 17)})
    (event,) = lines(render_changes(Stream().transaction(insert("1", "a", "1")).raw(THINGS), FEED, origin))
    assert (event["database"], event["sid"], event["schema_sequence"]) == ("crm", "eu", 17)


def test_tables_and_structures_are_merged_in_stream_order() -> None:
    older = table_schema({"id": INT8})
    other = table_schema({"id": INT8}, relation=7)
    pieces = [
        render_changes(
            raw_changes(THINGS, [Change(200, 1, insert("3", "c", "1")), Change(400, 0, insert("5", "", "1"))]),
            FEED,
            "s",
        ),
        render_changes(raw_changes(older, [Change(100, 0, insert("1")), Change(200, 0, insert("2"))]), FEED, "s"),
        render_changes(raw_changes(other, [Change(300, 0, insert("4", relation=7))]), FEED, "s"),
    ]
    merged = in_stream_order(pieces)
    places, keys, values = merged.places, merged.keys, merged.values
    assert [json.loads(value)["key"]["id"] for value in values.to_pylist()] == [1, 2, 3, 4, 5]
    assert keys.to_pylist() == [f'{{"id":{number}}}'.encode() for number in range(1, 6)]
    assert places.to_pylist() == sorted(places.to_pylist())
    empty = render_changes(raw_changes(THINGS, []), FEED, "s")
    assert len(empty) == 0
    assert in_stream_order([empty]).values.to_pylist() == []

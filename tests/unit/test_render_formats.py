"""Envelopes, templates, tombstones and what cannot be written: records of a format, from raw changes."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import pytest

from penstock.destinations.key_layout import KeyLayout
from penstock.model.feed import Feed
from penstock.model.place import place_at
from penstock.model.table import ColumnType, TableSchema
from penstock.render.event import Origin
from penstock.render.events import Rendered, render_changes
from penstock.render.format import Envelope, EventFormat
from penstock.render.own_changes import FEWEST
from penstock.render.template import compiled
from pgoutput_messages import (
    INT4,
    INT8,
    JSONB,
    RELATION,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNSENT,
    Stream,
    delete,
    insert,
    numeric,
    table_schema,
    truncate,
    update,
)

NUMERIC = ColumnType(1700, "numeric")
LIST = ColumnType(1007, "_int4", kind="array", element=INT4)
PAIR = ColumnType(20000, "pair", kind="composite", fields=(("x", INT4), ("y", TEXT)))
THINGS = table_schema({"id": INT8, "name": TEXT, "price": NUMERIC})
KINDS = table_schema({"id": INT8, "n": NUMERIC, "at": TIMESTAMPTZ, "body": JSONB, "list": LIST, "pair": PAIR})
ORIGIN = Origin("shop", "crm")
ROW = ("1", "12.5", "2026-01-02 03:04:05.5+00", '{"a": 1.50}', "{{1,2},{3,4}}", '(1,"b")')


def rendered(schema: TableSchema, *messages: bytes, **format: Any) -> Rendered:
    feed, changes = Feed.clone(schema.table), Stream().transaction(*messages).raw(schema)
    return render_changes(changes, feed, ORIGIN, EventFormat(**format))


def values(made: Rendered) -> list[Any]:
    return [None if value is None else json.loads(value) for value in made.values.to_pylist()]


def test_deltaforge_to_the_key() -> None:
    """The keys of DeltaForge's own envelope, in its order, and its forms of values."""
    form, origin = EventFormat(Envelope("deltaforge")), Origin("shop", "crm", tenant="acme")
    schema = table_schema({"id": INT8, "n": NUMERIC, "at": TIMESTAMPTZ, "raw": ColumnType(17, "bytea")})
    row = ("1", "12.50", "2026-01-02 03:04:05.5+00", "\\x00ff")
    messages = (insert(*row), update("1", UNSENT, None, UNSENT), delete("1", None, None, None), truncate())
    changes = Stream().transaction(*messages).raw(schema)
    made = render_changes(changes, Feed.clone(schema.table), origin, form)
    came, changed, gone, emptied = values(made)
    assert list(came) == [
        *("before", "after", "source", "op", "ts_ms", "transaction", "event_id", "tenant_id", "schema_version")
    ]
    assert list(came["source"]) == ["version", "connector", "name", "ts_ms", "db", "schema", "table", "lsn", "txId"]
    assert (came["op"], came["ts_ms"], came["tenant_id"]) == ("c", 1000, "acme")
    assert came["transaction"] == {"id": str(came["source"]["txId"])}
    assert came["after"] == {"id": 1, "n": "12.50", "at": row[2], "raw": {"_base64": "AP8="}}
    unsent = {"_unchanged": True}
    assert changed["after"] == {"id": 1, "n": unsent, "at": None, "raw": unsent}
    assert (gone["op"], gone["before"]) == ("d", {"id": 1, "n": None, "at": None, "raw": None})
    assert (emptied["op"], emptied["before"], emptied["after"]) == ("t", None, None)
    ids = [event["event_id"] for event in (came, changed, gone, emptied)]
    again = render_changes(changes, Feed.clone(schema.table), origin, form)
    assert ids == [event["event_id"] for event in values(again)], "made again it is the same event"
    names = [f"shop/{schema.relation_id}/{place}" for place in made.places.to_pylist()]
    assert ids == [str(uuid5(uuid5(NAMESPACE_URL, "penstock:event"), name)) for name in names]


def test_debezium_unwrapped() -> None:
    """The row alone, as the transform of that name leaves it; of a delete a tombstone, or the old row."""
    messages = (insert("1", "a", "1"), update("1", "b", UNSENT), delete("1", None, None), truncate())
    rewritten = rendered(
        THINGS,
        *messages,
        envelope=Envelope("debezium", unwrap="row and whether it is deleted"),
        truncates="skip",
        deletes="both",
    )
    first, second, gone, tombstone = values(rewritten)
    assert first == {"id": 1, "name": "a", "price": {"scale": 0, "value": "AQ=="}, "__deleted": "false"}
    assert (second["name"], second["__deleted"]) == ("b", "false")
    assert gone == {"id": 1, "name": None, "price": None, "__deleted": "true"}
    assert tombstone is None
    form = {"truncates": "skip", "deletes": "tombstone"}
    plain = rendered(THINGS, *messages, envelope=Envelope("debezium", "inline", unwrap="row"), **form)
    first, _, gone = values(plain)
    assert first["payload"] == {"id": 1, "name": "a", "price": {"scale": 0, "value": "AQ=="}}
    assert [field["field"] for field in first["schema"]["fields"]] == ["id", "name", "price"]
    assert gone is None


def test_debezium_has_keys_of_connect() -> None:
    """Also where each of several shards leaves out what belongs to others before it is decoded."""
    schema = table_schema({"id": INT8, "at": TIMESTAMP, "name": TEXT}, key=("id", "at"))
    moment = "2026-01-02 03:04:05.5"
    messages = [insert(str(number), moment, "x") for number in range(FEWEST)]
    plain = b'{"id":%d,"at":1767323045500000}'
    fields = (
        b'[{"type":"int64","optional":false,"field":"id"},'
        b'{"type":"int64","optional":false,"name":"io.debezium.time.MicroTimestamp","version":1,"field":"at"}]'
    )
    name = f"shop.{schema.table}.Key".encode()
    described = b'{"schema":{"type":"struct","fields":%s,"optional":false,"name":"%s"},"payload":%s}'
    for schemas, expected in (("none", plain), ("inline", described % (fields, name, plain))):
        form = EventFormat(Envelope("debezium", schemas))  # type: ignore[arg-type]
        changes = Stream().transaction(*messages).raw(schema)
        layout = KeyLayout(2)
        shards = [
            render_changes(
                changes, Feed.clone(schema.table), ORIGIN, form, select=partial(layout.select, shard), shared=True
            )
            for shard in (0, 1)
        ]
        keys = [set(made.keys.to_pylist()) for made in shards]
        assert all(keys)
        assert not keys[0] & keys[1]
        assert keys[0] | keys[1] == {expected % number for number in range(FEWEST)}


def test_faucet_to_the_key() -> None:
    """Seven keys in faucet's order; values are Postgres' own texts, as far as JSON allows."""
    faucet = EventFormat(Envelope("faucet"), split_moves=False)
    messages = (insert(*ROW), update("1", "13.0", UNSENT, None, "{1,NULL}", None), delete("1", *[None] * 5), truncate())
    made = render_changes(Stream().transaction(*messages).raw(KINDS), Feed.clone(KINDS.table), ORIGIN, faucet)
    came, changed, gone, emptied = values(made)
    assert list(came) == ["op", "schema", "table", "lsn", "ts_ms", "before", "after"]
    assert (came["op"], came["lsn"], came["ts_ms"], came["before"]) == ("insert", "0/64", 1000, None)
    assert came["after"] == {
        "id": 1,
        "n": "12.5",
        "at": "2026-01-02 03:04:05.5+00",
        "body": {"a": 1.5},
        "list": "{{1,2},{3,4}}",
        "pair": '(1,"b")',
    }
    assert b'"body":{"a": 1.50}' in made.values[0].as_py(), "digit for digit"
    assert changed["after"] == {
        "id": 1,
        "n": "13.0",
        "body": None,
        "list": [1, None],
        "pair": None,
        "__unchanged_toast__": ["at"],
    }
    assert gone["before"] == {"id": 1, "n": None, "at": None, "body": None, "list": None, "pair": None}
    assert (emptied["op"], emptied["before"], emptied["after"]) == ("truncate", None, None)
    (moved,) = values(
        render_changes(
            Stream().transaction(update("2", *ROW[1:], key=("1", *[None] * 5))).raw(KINDS),
            Feed.clone(KINDS.table),
            ORIGIN,
            faucet,
        )
    )
    assert (moved["op"], moved["before"]["id"], moved["after"]["id"]) == ("update", 1, 2)


def test_cloudevents_to_the_key() -> None:
    envelope = Envelope("cloudevents", prefix="crm")
    came, gone = values(rendered(THINGS, insert("1", "a", "1"), delete("1", None, None), envelope=envelope))
    assert came == {
        "specversion": "1.0",
        "id": f"shop/{RELATION}/{place_at(100)}",
        "source": "penstock/shop/public.things",
        "type": "crm.created",
        "time": "1970-01-01T00:00:01.000Z",
        "datacontenttype": "application/json",
        "subject": "public.things",
        "data": {"before": None, "after": {"id": 1, "name": "a", "price": "1"}, "op": "insert"},
    }
    assert (gone["type"], gone["data"]) == ("crm.deleted", {"before": {"id": 1}, "after": None, "op": "delete"})
    bare = replace(envelope, null_images=False)
    assert values(rendered(THINGS, delete("1", None, None), envelope=bare))[0]["data"] == {
        "before": {"id": 1},
        "op": "delete",
    }


@pytest.mark.parametrize("schemas", ["none", "empty", "inline"])
def test_debezium_with_and_without_its_schema(schemas: Any) -> None:
    """`tests/integration/test_debezium.py` compares it with what Debezium writes, field by field."""
    (event,) = values(rendered(THINGS, insert("1", "a", "12.5"), envelope=Envelope("debezium", schemas)))
    payload = event if schemas == "none" else event["payload"]
    assert payload["after"] == {"id": 1, "name": "a", "price": {"scale": 1, "value": "fQ=="}}
    assert (payload["op"], payload["source"]["db"], payload["source"]["table"]) == ("c", "crm", "things")
    if schemas == "inline":
        assert event["schema"]["name"] == "shop.public.things.Envelope"
    else:
        assert event.get("schema") is None


@pytest.mark.parametrize(
    ("deletes", "kinds"),
    [
        ("event", ["c", "d", "d", "c"]),
        ("tombstone", ["c", None, None, "c"]),
        ("both", ["c", "d", None, "d", None, "c"]),
    ],
)
def test_deletes_and_changed_keys_with_tombstones(deletes: Any, kinds: list[str | None]) -> None:
    messages = insert("1", "a", "1"), delete("1", None, None), update("3", "a", "1", key=("2", None, None))
    made = rendered(THINGS, *messages, envelope=Envelope("debezium"), deletes=deletes)
    assert [value and value["op"] for value in values(made)] == kinds
    ids = [json.loads(key)["id"] for key in made.keys.to_pylist()]
    assert ids == [1] + [1] * (len(kinds) // 2 - 1) + [2] * (len(kinds) // 2 - 1) + [3]
    places = made.places.to_pylist()
    assert places == sorted(places)
    assert len(set(places)) == len(places)


def test_a_table_without_a_key_has_no_tombstones() -> None:
    keyless = table_schema({"id": INT8, "name": TEXT}, key=(), identity="full")
    made = rendered(keyless, delete("1", "a", full=True), deletes="tombstone")
    assert [value["op"] for value in values(made)] == ["delete"]


def test_truncates_may_be_skipped() -> None:
    assert len(rendered(THINGS, truncate(), insert("1", "a", "1"), truncates="skip")) == 1


def test_templates_of_topics_keys_and_headers() -> None:
    format = {
        "topic": compiled("${source.name}.${source.schema}.${source.table}-${op}"),
        "key": compiled("${after.id}/${source.db}"),
        "headers": (("name", compiled("${after.name}")), ("was", compiled("${before.id}")), ("k", compiled("${key}"))),
    }
    messages = insert("1", "a", "1"), update("2", None, "1", key=("1", None, None)), truncate()
    made = rendered(THINGS, *messages, **format)
    tables = ["insert", "delete", "insert", "truncate"]
    assert made.topics.to_pylist() == [f"shop.public.things-{op}" for op in tables]
    assert made.keys.to_pylist() == [b"1/crm", b"1/crm", b"2/crm", None]
    headers = {name: found.to_pylist() for name, found in made.headers}
    assert headers["name"] == [b"a", None, None, None]
    assert headers["k"] == [b'{"id":1}', b'{"id":1}', b'{"id":2}', None]
    assert headers["was"] == [b"1", b"1", b"1", None]


def test_an_event_without_a_topic_is_a_dead_letter() -> None:
    messages = insert("1", "a", "1"), insert("2", None, "1"), truncate()
    made = rendered(THINGS, *messages, topic=compiled("of-${after.name}"))
    assert made.topics.to_pylist() == ["of-a"]
    assert [(letter.place, letter.code) for letter in made.failed] == [
        (place_at(100, 1), "no-topic"),
        (place_at(100, 2), "no-topic"),
    ]
    assert "of-${after.name}" in made.failed[0].reason
    assert json.loads(made.failed[0].value or b"")["after"]["id"] == 2
    assert made.failed[0].message is not None, "so that it can be rendered again"


def test_a_value_without_a_form_is_a_dead_letter_and_the_others_go_on() -> None:
    dates = table_schema({"id": INT8, "day": ColumnType(1082, "date"), "price": numeric(10, 2)})
    messages = insert("1", "2026-01-02", "1.00"), insert("2", "infinity", "1.00"), insert("3", None, "NaN")
    made = rendered(dates, *messages, envelope=Envelope("debezium"))
    assert [value["after"]["id"] for value in values(made)] == [1]
    assert [(letter.place, letter.code) for letter in made.failed] == [
        (place_at(100, 1), "not-rendered"),
        (place_at(100, 2), "not-rendered"),
    ]
    assert "column \"day\": 'infinity' has no form as io.debezium.time.Date" in made.failed[0].reason


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${source.tabel}", r"names \$\{source.tabel\}; allowed are \$\{source.name\}"),
        ("a${", "has \\$\\{ without its }"),
        ("${after.}", "names"),
        ("${row.id}", "names"),
    ],
)
def test_unknown_names_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        compiled(text)


def test_moments_without_a_zone() -> None:
    moments = table_schema({"id": INT8, "at": TIMESTAMP})
    made = values(rendered(moments, insert("1", "2026-01-02 03:04:05"), insert("2", "-infinity")))
    assert [event["after"]["at"] for event in made] == ["2026-01-02T03:04:05", "-infinity"]

"""Avro in Confluent's framing: decoded by fastavro and by Confluent's own deserializer, which know nothing of ours."""

from __future__ import annotations

import io
import json
import subprocess
import venv
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DestinationUnreachable, SchemaRefused
from penstock.model.feed import Feed
from penstock.model.table import ColumnType, TableSchema
from penstock.render import avro, registry
from penstock.render.event import Origin
from penstock.render.events import Rendered, render_changes
from penstock.render.format import Envelope, EventFormat, Registry
from penstock.render.template import compiled
from pgoutput_messages import (
    BOOL,
    BYTEA,
    DATE,
    FLOAT8,
    INT2,
    INT8,
    JSONB,
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
from registry_twin import RegistryTwin, registry_twin

LIST = ColumnType(1009, "_text", kind="array", element=TEXT)
KINDS = table_schema(
    {
        "id": INT8,
        "flag": BOOL,
        "small": INT2,
        "n": numeric(10, 2),
        "free": ColumnType(1700, "numeric"),
        "x": FLOAT8,
        "raw": BYTEA,
        "day": DATE,
        "at": TIMESTAMPTZ,
        "local": TIMESTAMP,
        "body": JSONB,
        "words": LIST,
        "odd name": TEXT,
    }
)
ROW = (
    "1",
    "t",
    "-7",
    "-12.50",
    "12.500",
    "1.5",
    "\\x00ff",
    "2026-01-02",
    "2026-01-02 03:04:05.5+00",
    "2026-01-02 03:04:05",
    '{"a": 1.50}',
    "{a,NULL}",
    "é",
)
ORIGIN = Origin("shop", "crm")
CONFLUENT = """
import json, sys
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

read = AvroDeserializer(SchemaRegistryClient({"url": sys.argv[1]}))
event = read(bytes.fromhex(sys.argv[2]), SerializationContext("public.things", MessageField.VALUE))
print(json.dumps([event["op"], str(event["after"]["n"]), str(event["after"]["day"])]))
"""


@pytest.fixture
def twin() -> Iterator[RegistryTwin]:
    registry._KNOWN.clear()
    with registry_twin() as made:
        yield made


def rendered(twin: RegistryTwin, schema: TableSchema, *messages: bytes, **format: Any) -> Rendered:
    where = format.pop("registry", Registry(twin.url, timeout=2))
    changes = Stream().transaction(*messages).raw(schema)
    return render_changes(changes, Feed.clone(schema.table), ORIGIN, EventFormat(registry=where, **format))


def decoded(twin: RegistryTwin, framed: bytes | None) -> Any:
    """As any reader does it: the schema is the one of the id in the record."""
    if framed is None:
        return None
    assert framed[0] == 0
    content = io.BytesIO(framed[5:])
    found = fastavro.schemaless_reader(content, twin.schema(int.from_bytes(framed[1:5], "big")), None)
    assert not content.read(), "nothing is left over"
    return found


def test_events_with_their_types(twin: RegistryTwin) -> None:
    made = rendered(
        twin, KINDS, insert(*ROW), update(*ROW[:10], UNSENT, *ROW[11:]), delete("1", *[None] * 12), truncate()
    )
    came, changed, gone, emptied = (decoded(twin, one) for one in made.values.to_pylist())
    assert came["after"] == {
        "id": 1,
        "flag": True,
        "small": -7,
        "n": Decimal("-12.50"),
        "free": "12.500",
        "x": 1.5,
        "raw": b"\x00\xff",
        "day": date(2026, 1, 2),
        "at": datetime(2026, 1, 2, 3, 4, 5, 500000, UTC),
        "local": datetime(2026, 1, 2, 3, 4, 5),
        "body": '{"a": 1.50}',
        "words": ["a", None],
        "odd_name": "é",
    }
    assert (came["op"], came["source"], came["table"], came["commit_time"].timestamp()) == (
        "insert",
        "shop",
        "things",
        1,
    )
    assert (changed["after"]["body"], changed["unchanged"]) == (None, ["body"])
    assert (gone["before"]["id"], gone["before_kind"], gone["after"]) == (1, "key", None)
    assert (emptied["op"], emptied["truncate_options"]) == ("truncate", [])
    assert [decoded(twin, key) for key in made.keys.to_pylist()] == [{"id": 1}] * 3 + [None]
    assert sorted(twin.subjects) == ["public.things-key", "public.things-value"]


def test_debezium_in_avro(twin: RegistryTwin) -> None:
    made = rendered(
        twin,
        KINDS,
        insert(*ROW),
        update("2", *ROW[1:], key=("1", *[None] * 12)),
        envelope=Envelope("debezium"),
        deletes="both",
    )
    came, left, tombstone, arrived = (decoded(twin, one) for one in made.values.to_pylist())
    assert tombstone is None
    assert came["after"] == {
        "id": 1,
        "flag": True,
        "small": -7,
        "n": Decimal("-12.50"),
        "free": {"scale": 3, "value": (12500).to_bytes(2, "big")},
        "x": 1.5,
        "raw": b"\x00\xff",
        "day": 20455,
        "at": "2026-01-02T03:04:05.500000Z",
        "local": 1767323045000000,
        "body": '{"a": 1.50}',
        "words": ["a", None],
        "odd_name": "é",
    }
    assert (came["op"], left["op"], arrived["op"]) == ("c", "d", "c")
    assert (left["before"]["id"], arrived["after"]["id"]) == (1, 2)
    assert [decoded(twin, key) for key in made.keys.to_pylist()] == [{"id": 1}] * 3 + [{"id": 2}]
    alone = Envelope("debezium", unwrap="row and whether it is deleted")
    unwrapped = rendered(twin, KINDS, insert(*ROW), delete("1", *[None] * 12), envelope=alone, truncates="skip")
    row, gone = (decoded(twin, one) for one in unwrapped.values.to_pylist())
    assert row == {**came["after"], "__deleted": "false"}
    assert (gone["id"], gone["n"], gone["__deleted"]) == (1, None, "true")
    schema = twin.schema(int.from_bytes(made.values[0].as_py()[1:5], "big"))
    assert (schema["name"], schema["namespace"]) == ("Envelope", "shop.public.things")
    assert next(one for one in schema["fields"] if one["name"] == "source")["type"]["connect.name"] == (
        "io.debezium.connector.postgresql.Source"
    )


@pytest.mark.full
def test_confluents_own_deserializer_reads_it(twin: RegistryTwin) -> None:
    """In an environment of its own: it needs much that penstock does not."""
    made = rendered(twin, KINDS, insert(*ROW))
    environment = Path("build/confluent")
    python = environment / "bin" / "python"
    if not (environment / "ready").exists():
        venv.create(environment, with_pip=True, clear=True)
        wheels = "confluent-kafka[avro,schemaregistry]>=2.6"
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", wheels], check=True)
        (environment / "ready").touch()
    done = subprocess.run(
        [str(python), "-c", CONFLUENT, twin.url, made.values[0].as_py().hex()],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == ["insert", "-12.50", "2026-01-02"]


@pytest.mark.parametrize(
    ("subject", "subjects"),
    [
        ("topic_name", ["a-1-key", "a-1-value", "a-2-key", "a-2-value"]),
        ("record_name", ["penstock.shop.public.things_event", "penstock.shop.public.things_key"]),
        (
            "topic_record_name",
            [f"a-{one}-penstock.shop.public.things_{part}" for one in (1, 2) for part in ("event", "key")],
        ),
    ],
)
def test_subjects(twin: RegistryTwin, subject: Any, subjects: list[str]) -> None:
    where = Registry(twin.url, subject, timeout=2)
    things = table_schema({"id": INT8})
    made = rendered(twin, things, insert("1"), insert("2"), registry=where, topic=compiled("a-${after.id}"))
    assert sorted(twin.subjects) == subjects
    assert [decoded(twin, value)["after"]["id"] for value in made.values.to_pylist()] == [1, 2]


def test_known_schemas_go_on_while_the_registry_is_away(twin: RegistryTwin) -> None:
    things, wider = table_schema({"id": INT8}), table_schema({"id": INT8, "name": TEXT})
    rendered(twin, things, insert("1"))
    asked = twin.requests
    rendered(twin, things, insert("2"))
    assert twin.requests == asked, "a schema is registered once"
    twin.stop()
    assert len(rendered(twin, things, insert("3"))) == 1
    with pytest.raises(DestinationUnreachable, match=r"the schema registry http://127\.0\.0\.1:\d+ does not answer"):
        rendered(twin, wider, insert("4", "a"))


def test_a_registry_that_refuses() -> None:
    registry._KNOWN.clear()
    with registry_twin("me:secret") as twin:
        where = Registry(twin.url, username="me", password="secret", timeout=2)
        things = table_schema({"id": INT8})
        assert len(rendered(twin, things, insert("1"), registry=where)) == 1
        wrong = Registry(twin.url, "record_name", "me", "wrong", timeout=2)
        with pytest.raises(DestinationUnreachable, match="answered 401") as told:
            rendered(twin, things, insert("1"), registry=wrong)
        assert "wrong" not in str(told.value)
        twin.refuse.add("public.things-value")
        with pytest.raises(SchemaRefused, match=r"refuses the schema of subject public\.things-value: .*incompatible"):
            rendered(twin, table_schema({"id": INT8, "name": TEXT}), insert("1", "a"), registry=where)


def test_a_value_that_does_not_fit_is_a_dead_letter(twin: RegistryTwin) -> None:
    moments = table_schema({"id": INT8, "at": TIMESTAMPTZ})
    made = rendered(twin, moments, insert("1", "infinity"), insert("2", None))
    assert [decoded(twin, value)["after"]["id"] for value in made.values.to_pylist()] == [2]
    (letter,) = made.failed
    assert "column \"at\": 'infinity' does not fit" in letter.reason
    assert json.loads(letter.value or b"")["after"] == {"id": 1, "at": "infinity"}


NESTED = pa.struct(
    [
        pa.field("a", pa.int64()),
        pa.field("b", pa.list_(pa.string())),
        pa.field("c", pa.map_(pa.string(), pa.float64())),
        pa.field("d", pa.decimal128(20, 3)),
        pa.field("e", pa.struct([pa.field("f", pa.binary()), pa.field("g", pa.bool_())])),
        pa.field("h", pa.int32()),
    ]
)
LONG = st.integers(-(2**63), 2**63 - 1)
VALUES = st.fixed_dictionaries(
    {
        "a": st.none() | LONG,
        "b": st.none() | st.lists(st.none() | st.text(max_size=5), max_size=4),
        "c": st.none() | st.dictionaries(st.text(max_size=4), st.none() | st.floats(allow_nan=False), max_size=3),
        "d": st.none() | st.decimals(-(10**16), 10**16, places=3),
        "e": st.none()
        | st.fixed_dictionaries({"f": st.none() | st.binary(max_size=5), "g": st.none() | st.booleans()}),
        "h": st.none() | st.integers(-(2**31), 2**31 - 1),
    }
)


@given(st.lists(VALUES, min_size=1, max_size=12))
def test_any_value_is_what_fastavro_reads(rows: list[dict[str, Any]]) -> None:
    array = pa.array([{**row, "c": None if row["c"] is None else list(row["c"].items())} for row in rows], NESTED)
    schema = avro.avro_type(NESTED, "row")
    for framed, row in zip(avro.values(array).to_pylist(), rows, strict=True):
        content = io.BytesIO(framed)
        assert fastavro.schemaless_reader(content, schema, None) == row
        assert not content.read()


@given(st.lists(LONG, min_size=1, max_size=50))
def test_numbers_of_any_length(numbers: list[int]) -> None:
    for framed, number in zip(avro.varints(np.array(numbers, np.int64)).to_pylist(), numbers, strict=True):
        assert fastavro.schemaless_reader(io.BytesIO(framed), "long", None) == number


def test_names_that_avro_allows() -> None:
    assert [avro.avro_name(name) for name in ("1 a-b", "é", "ok_1")] == ["_1_a_b", "_", "ok_1"]

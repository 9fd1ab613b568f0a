"""Debezium's envelope, field by field, against records that Debezium's engine made from the same workload.

The engine's records are recorded (`debezium_workload.py`); with `--full` the engine is run, and the recording must
still be what it makes. docs/events.md argues the differences, which are the ones that `expected` allows.
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import fastavro
import psycopg
import pytest

from capturing import CaptureBench, changes
from databases import Database
from debezium_avro import RECORDED as RECORDED_AVRO
from debezium_avro import AvroRecord, converted, recorded_avro
from debezium_workload import (
    create,
    made_by_engine,
    recorded,
    recorded_transactions,
    with_transactions,
    without_repeated_schemas,
    work,
)
from penstock import __version__
from penstock.changelog.log import ChangeLog
from penstock.model.feed import Feed
from penstock.model.source_events import WantedEvents, is_source_event
from penstock.render.event import Origin
from penstock.render.events import Rendered, in_stream_order, render_changes
from penstock.render.format import Envelope, EventFormat, Registry
from penstock.render.template import compiled
from registry_twin import registry_twin

CLOCKS = ("ts_ms", "ts_us", "ts_ns")
LABELS = '"connect.parameters": {"allowed": "sad,ok,happy"}, '
PRIMITIVE = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


@pytest.fixture
def captured(postgres: Database, tmp_path: Path) -> ChangeLog:
    """The workload, as it is in the change log."""
    bench = CaptureBench(postgres, ChangeLog(str(tmp_path / "log")), {"wanted": WantedEvents(transactions=True)})
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        create(connection)
        bench.prepare()
        work(connection)
    bench.capture_all()
    return bench.log


@pytest.fixture
def rendered(captured: ChangeLog) -> Rendered:
    """What we make of the workload, with tombstones and schemas, under Debezium's topics."""
    return render(captured, Envelope("debezium", "inline"))


def render(
    log: ChangeLog, envelope: Envelope, registry: Registry | None = None, *, transactions: bool = False
) -> Rendered:
    topic = compiled("${source.name}.${source.schema}.${source.table}")
    format = EventFormat(envelope, registry, topic=topic, deletes="both", transactions=transactions)
    origin = Origin("shop", "postgres")
    return in_stream_order(
        [
            render_changes(one, Feed.clone(one.schema.table), origin, format)
            for one in changes(log)
            if transactions or not is_source_event(one.schema.table)
        ]
    )


def expected(record: dict[str, Any]) -> dict[str, Any] | None:
    """What Debezium made, as ours may differ from it; None for a record that ours are without."""
    if record["value"] is None and record["key"] is None:
        return None  # a tombstone without a key
    payload = record["value"] and record["value"]["payload"]
    if payload:
        source = payload["source"]
        assert source.pop("version").endswith(".Final")
        source.pop("sequence")
        for clock in CLOCKS:
            assert payload.pop(clock) >= source[clock]
            source.pop(clock)
        source.pop("txId"), source.pop("lsn")  # of another server
    return {"topic": record["topic"], "key": record["key"] and record["key"]["payload"], "value": payload}


def ours(topic: str, key: bytes | None, value: bytes | None) -> dict[str, Any]:
    payload = None if value is None else json.loads(value)["payload"]
    if payload:
        source = payload["source"]
        assert source.pop("version") == __version__
        assert re.fullmatch(r'\["[0-9]+","[0-9]+"\]', source.pop("sequence"))
        assert [payload.pop(clock) for clock in CLOCKS] == [source.pop(clock) for clock in CLOCKS]
        assert source.pop("txId") > 0
        assert source.pop("lsn") > 0
    return {"topic": topic, "key": None if key is None else json.loads(key)["payload"], "value": payload}


def test_field_by_field(rendered: Rendered) -> None:
    theirs = [one for one in map(expected, recorded()) if one is not None]
    mine = [
        ours(*one)
        for one in zip(rendered.topics.to_pylist(), rendered.keys.to_pylist(), rendered.values.to_pylist(), strict=True)
    ]
    assert not rendered.failed
    for number, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        assert one == other, f"record {number}"


def test_schemas_field_by_field(rendered: Rendered) -> None:
    theirs = {one["topic"]: one["value"]["schema"] for one in recorded() if one["value"] and "schema" in one["value"]}
    mine = {
        topic: json.loads(value)["schema"]
        for topic, value in zip(rendered.topics.to_pylist(), rendered.values.to_pylist(), strict=True)
        if value is not None
    }
    assert mine.keys() == theirs.keys()
    for topic, schema in theirs.items():
        for image in schema["fields"][:2]:
            for field in image["fields"]:
                if field.get("name") == "io.debezium.data.Enum":
                    assert field.pop("parameters") == {"allowed": "sad,ok,happy"}
        assert mine[topic] == schema, topic


def test_keys_byte_for_byte(rendered: Rendered) -> None:
    """As JsonConverter writes them: their partitions follow from their bytes."""
    theirs = {one["topic"]: one["key"] for one in recorded() if one["key"] and "schema" in one["key"]}
    mine: dict[str, bytes] = {}
    for topic, key in zip(rendered.topics.to_pylist(), rendered.keys.to_pylist(), strict=True):
        if key is not None:
            mine.setdefault(topic, key)
    assert mine.keys() == theirs.keys()
    for topic, key in theirs.items():
        ordered = {"schema": key["schema"], "payload": key["payload"]}
        assert mine[topic] == json.dumps(ordered, separators=(",", ":"), ensure_ascii=False).encode()


def test_avro_field_by_field(captured: ChangeLog) -> None:
    """Schemas as Kafka Connect's converter derives them of the engine's, and values under either schema."""
    with registry_twin() as twin:
        made = render(captured, Envelope("debezium"), Registry(twin.url))
        mine = [
            AvroRecord(topic, *(None if one is None else (twin.schema(number(one)), one[5:]) for one in sides))
            for topic, *sides in zip(*(some.to_pylist() for some in (made.topics, made.keys, made.values)), strict=True)
        ]
    theirs = [one for one in recorded_avro() if one.key or one.value]
    assert not made.failed
    assert [one.topic for one in mine] == [one.topic for one in theirs]
    for place, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        for name in ("key", "value"):
            own, their = getattr(one, name), getattr(other, name)
            assert (own is None) == (their is None), f"record {place}, {name}"
            if own is None:
                continue
            assert described(own[0]) == without_labels(described(their[0])), f"record {place}, {name}"
            assert read(own, own[0]) == read(their, their[0]), f"record {place}, {name}"
            assert read(own, their[0]) == read(own, own[0]), "a consumer that has Debezium's schema reads ours"


def test_transaction_metadata_field_by_field(captured: ChangeLog) -> None:
    """As the engine makes it with `provide.transaction.metadata`."""
    made = render(captured, Envelope("debezium"), transactions=True)
    columns = zip(made.topics.to_pylist(), made.keys.to_pylist(), made.values.to_pylist(), strict=True)
    mine = [
        (topic.replace("shop.shop.", "shop."), key and json.loads(key), value and json.loads(value))
        for topic, key, value in columns
    ]
    told = [(key, value) for topic, key, value in mine if topic == "shop.transaction"]
    assert [key for key, _ in told] == [{"id": value["id"]} for _, value in told]
    assert [key for key, _ in told[::2]] == [key for key, _ in told[1::2]], "the same where it begins and ends"
    own = [
        metadata(topic, value if topic == "shop.transaction" else value and value["transaction"])
        for topic, _, value in mine
    ]
    theirs = [metadata(topic, found) for topic, key, found in recorded_transactions() if key or found]
    # A change of a row's key is two events of one change at the source: Debezium counts events, we count changes
    first = next(place for place, (topic, _) in enumerate(own) if topic == "shop.public.moves")
    moved = range(first, first + 7)
    assert [orders(theirs[place]) for place in moved] == [1, 2, None, 3, 4, None, 4]
    assert [orders(own[place]) for place in moved] == [1, 2, None, 2, 3, None, 3]
    assert [one for place, one in enumerate(own) if place not in moved] == [
        one for place, one in enumerate(theirs) if place not in moved
    ]


def metadata(topic: str, found: dict[str, Any] | None) -> tuple[str, Any]:
    """Return what is of no other server or clock: positions in `id` differ within a transaction at Debezium's."""
    kept = {name: value for name, value in (found or {}).items() if name not in ("id", "ts_ms")}
    if kept.get("data_collections"):
        kept["data_collections"] = sorted(kept["data_collections"], key=lambda one: str(one["data_collection"]))
    return topic, kept or None


def orders(one: tuple[str, Any]) -> int | None:
    return None if one[1] is None else int(one[1].get("total_order") or one[1]["event_count"])


def number(framed: bytes) -> int:
    return int.from_bytes(framed[1:5], "big")


def read(record: tuple[Any, bytes], reader: Any) -> str:
    """Return a record's values as a text (NaN equals NaN there), without those that are of another server or clock."""
    found: Any = fastavro.schemaless_reader(io.BytesIO(record[1]), record[0], reader)
    if isinstance(found, dict) and "source" in found:
        for clock in CLOCKS:
            found.pop(clock), found["source"].pop(clock)
        for name in ("version", "sequence", "txId", "lsn"):
            found["source"].pop(name)
    return repr(found)


def without_labels(schema: Any) -> Any:
    """Return a schema without the labels of enums, which a stream of changes does not have."""
    text = json.dumps(schema)
    assert text.count(LABELS) <= 1
    return json.loads(text.replace(LABELS, ""))


def described(schema: Any, namespace: str = "") -> Any:
    """Return a schema with all names in full, however it writes them."""
    if isinstance(schema, list):
        return [described(one, namespace) for one in schema]
    if not isinstance(schema, dict):
        return schema if "." in schema or schema in PRIMITIVE else f"{namespace}.{schema}"
    found = dict(schema)
    if "name" in found and found.get("type") in ("record", "enum", "fixed"):
        namespace = found.pop("namespace", namespace)
        found["name"] = f"{namespace}.{found['name']}"
    for part in ("type", "items", "values"):
        if part in found and found[part] not in ("record", "enum", "fixed", "array", "map"):
            found[part] = described(found[part], namespace)
    if "fields" in found:
        found["fields"] = [{**one, "type": described(one["type"], namespace)} for one in found["fields"]]
    return found


@pytest.mark.full
def test_the_recorded_avro_is_what_the_converter_makes() -> None:
    assert converted() == json.loads(RECORDED_AVRO.read_text())


@pytest.mark.full
def test_the_recording_is_what_the_engine_makes() -> None:
    fresh = without_repeated_schemas(made_by_engine())
    assert [expected(one) for one in fresh] == [expected(one) for one in recorded()]
    again = with_transactions(made_by_engine(more={"provide.transaction.metadata": "true"}))
    assert [metadata(topic, found) for topic, _, found in again] == [
        metadata(topic, found) for topic, _, found in recorded_transactions()
    ]

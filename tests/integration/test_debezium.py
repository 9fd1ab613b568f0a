"""Debezium's envelope, field by field, against records that Debezium's engine made from the same workload.

The engine's records are recorded (`debezium_workload.py`); with `--full` the engine is run, and the recording must
still be what it makes. docs/events.md argues the differences, which are the ones that `expected` allows.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

from capturing import CaptureBench, changes
from databases import Database
from debezium_workload import create, made_by_engine, recorded, without_repeated_schemas, work
from penstock import __version__
from penstock.changelog.log import ChangeLog
from penstock.model.feed import Feed
from penstock.render.event import Origin
from penstock.render.events import Rendered, in_stream_order, render_changes
from penstock.render.format import Envelope, EventFormat
from penstock.render.template import compiled

CLOCKS = ("ts_ms", "ts_us", "ts_ns")


@pytest.fixture
def rendered(postgres: Database, tmp_path: Path) -> Rendered:
    """What we make of the workload, with tombstones and schemas, under Debezium's topics."""
    bench = CaptureBench(postgres, ChangeLog(str(tmp_path / "log")))
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        create(connection)
        bench.prepare()
        work(connection)
    bench.capture_all()
    topic = compiled("${source.name}.${source.schema}.${source.table}")
    format = EventFormat(Envelope("debezium", "inline"), topic=topic, deletes="both")
    origin = Origin("shop", "postgres")
    return in_stream_order(
        [render_changes(one, Feed.clone(one.schema.table), origin, format) for one in changes(bench.log)]
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
    return {"topic": topic, "key": None if key is None else json.loads(key), "value": payload}


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


@pytest.mark.full
def test_the_recording_is_what_the_engine_makes() -> None:
    fresh = without_repeated_schemas(made_by_engine())
    assert [expected(one) for one in fresh] == [expected(one) for one in recorded()]

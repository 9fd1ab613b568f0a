"""What Avro needs of a schema registry: the same of our twin, which CI runs against, and of Apicurio (`--full`)."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import fastavro
import pytest

from apicurio import apicurio
from penstock.errors import SchemaRefused
from penstock.model.feed import Feed
from penstock.render import registry
from penstock.render.event import Origin
from penstock.render.events import render_changes
from penstock.render.format import Envelope, EventFormat, Registry
from penstock.render.registry import schema_number
from pgoutput_messages import INT8, TEXT, Stream, insert, numeric, table_schema
from registry_twin import registry_twin

THINGS = table_schema({"id": INT8, "n": numeric(10, 2), "note": TEXT})
MEDIA = "application/vnd.schemaregistry.v1+json"


@dataclass(frozen=True)
class Server:
    url: str
    guard: Callable[[str], object]  # from now on the subject takes no schema that its readers could not read

    def answer(self, path: str, body: Any = None, method: str = "") -> tuple[int, Any]:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, content, method=method or ("POST" if content else "GET"))
        request.add_header("Content-Type", MEDIA)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(answer.status), json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


@pytest.fixture(scope="module", params=["twin", pytest.param("apicurio", marks=pytest.mark.full)])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    if request.param == "twin":
        with registry_twin() as twin:
            yield Server(twin.url, twin.refuse.add)
    else:
        with apicurio() as url:
            yield Server(url, lambda subject: backward(url, subject))


def backward(url: str, subject: str) -> None:
    Server(url, print).answer(f"/config/{subject}", {"compatibility": "BACKWARD"}, "PUT")


def record(*fields: str) -> dict[str, Any]:
    return {"type": "record", "name": "thing", "fields": [{"name": one, "type": "int"} for one in fields]}


def test_a_schema_has_one_number_whatever_its_subjects(server: Server) -> None:
    registry._KNOWN.clear()
    where = Registry(server.url, timeout=60)
    first = schema_number(where, "one-value", record("a"))
    registry._KNOWN.clear()
    assert schema_number(where, "one-value", record("a")) == first
    assert schema_number(where, "odd/name-value", record("a")) == first
    other = schema_number(where, "other-value", record("b"))
    assert other != first
    assert {"one-value", "odd/name-value", "other-value"} <= set(server.answer("/subjects")[1])
    for number, fields in ((first, "a"), (other, "b")):
        status, found = server.answer(f"/schemas/ids/{number}")
        assert (status, json.loads(found["schema"])) == (200, record(fields))
    status, found = server.answer("/schemas/ids/99999")
    assert (status, found["error_code"]) == (404, 40403)


def test_what_is_refused_is_one_line(server: Server) -> None:
    registry._KNOWN.clear()
    where = Registry(server.url, timeout=60)
    schema_number(where, "guarded-value", record("a"))
    server.guard("guarded-value")
    with pytest.raises(SchemaRefused, match=r"refuses the schema of subject guarded-value: .*ncompatible") as refused:
        schema_number(where, "guarded-value", record("a", "b"))
    assert "\n" not in refused.value.what
    with pytest.raises(SchemaRefused, match="refuses the schema of subject broken-value"):
        schema_number(where, "broken-value", {"type": "no such type"})


@pytest.mark.parametrize("envelope", ["native", "debezium"])
def test_our_schemas_are_taken_and_records_read_by_their_number(server: Server, envelope: Any) -> None:
    registry._KNOWN.clear()
    changes = Stream().transaction(insert("1", "12.50", "é")).raw(THINGS)
    format = EventFormat(Envelope(envelope), registry=Registry(server.url, timeout=60))
    made = render_changes(changes, Feed.clone(THINGS.table), Origin("shop", "crm"), format)
    (value,) = made.values.to_pylist()
    status, found = server.answer(f"/schemas/ids/{int.from_bytes(value[1:5], 'big')}")
    assert status == 200
    event: Any = fastavro.schemaless_reader(io.BytesIO(value[5:]), json.loads(found["schema"]))
    assert (event["after"]["id"], str(event["after"]["n"]), event["after"]["note"]) == (1, "12.50", "é")

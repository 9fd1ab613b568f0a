"""Processors on their way into a stream: what they change, what they leave as the source wrote it, and what fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pydantic import TypeAdapter

from penstock.config.load import load
from penstock.config.processors import AnyProcessor, specs_of
from penstock.decode.choices import chosen
from penstock.errors import ConfigError, EnvironmentMissing, ProcessorFailed
from penstock.model.change import RawChanges
from penstock.model.feed import EVERYTHING, Feed
from penstock.model.table import ColumnType, TableId
from penstock.model.type_map import AS_WRITTEN
from penstock.processors import chain
from penstock.processors.evaluate import EvaluationError, Row, evaluate
from penstock.processors.expression import BadExpression, parse
from penstock.processors.python import close_children
from penstock.render.events import Rendered, render_changes
from penstock.render.processed import check_processors
from pgoutput_messages import INT8, JSONB, TEXT, UNSENT, Stream, delete, insert, table_schema, truncate, update
from pipeline_files import pipeline_file

PEOPLE = table_schema({"id": INT8, "name": TEXT, "price": ColumnType(1700, "numeric"), "data": JSONB})
SUPPORT = Path(__file__).parents[1] / "support"
PROCESSOR: TypeAdapter[AnyProcessor] = TypeAdapter(AnyProcessor)


@pytest.fixture(autouse=True, scope="module")
def _children() -> Iterator[None]:
    yield
    close_children()


def rendered(messages: list[bytes], *processors: dict[str, Any]) -> Rendered:
    specs = specs_of([PROCESSOR.validate_python(one) for one in processors], PEOPLE.table, str(SUPPORT))
    feed = Feed(PEOPLE.table, PEOPLE.table, PEOPLE.table, processors=specs)
    changes = Stream().transaction(*messages).raw(PEOPLE)
    return render_changes(RawChanges(chosen(changes.schema, (), AS_WRITTEN), changes.batch), feed, "shop")


def row(number: int, name: str, price: str = "12.50", data: str = '{"a": {"b": 1.50}}') -> bytes:
    return insert(str(number), name, price, data)


def events(made: Rendered) -> list[dict[str, Any]]:
    return [json.loads(value or b"null") for value in made.values.to_pylist()]


def names(made: Rendered) -> list[str]:
    return [event["after"]["name"] for event in events(made)]


def test_filter_keeps_what_is_true_and_truncates() -> None:
    messages = [
        row(1, "a"),
        row(2, "b", "99.5"),
        delete("1", None, None, None),
        truncate(PEOPLE.relation_id),
        row(3, "c", "100"),
    ]
    made = rendered(messages, {"type": "filter", "where": "price > 20 and op <> 'delete' or name is null"})
    assert [(event["op"], (event["key"] or {}).get("id")) for event in events(made)] == [
        *(("insert", 2), ("delete", 1), ("truncate", None), ("insert", 3))
    ]
    assert events(made)[0]["after"]["price"] == "99.5", "as the source wrote it"
    ops = rendered(messages, {"type": "filter", "ops": ["insert"]}, {"type": "filter", "where": "id <> 2"})
    assert names(ops) == ["a", "c"]
    fields = [{"path": "after.name", "op": "in", "value": ["b", "c"]}, {"path": "id", "op": "gt", "value": 2}]
    assert names(rendered(messages, {"type": "filter", "ops": ["insert"], "fields": fields})) == ["c"]


def test_sql_computes_columns_and_leaves_the_others_as_they_were() -> None:
    processor = {"type": "sql", "set": {"twice": "price * 2", "name": "upper(name)", "city": "json_text(data, 'a.b')"}}
    (event,) = events(rendered([row(1, "ann", "1.10")], processor))
    assert event["after"] == {
        "id": 1,
        "name": "ANN",
        "price": "1.10",
        "data": {"a": {"b": 1.5}},
        "twice": "2.200000000000000000",
        "city": "1.50",
    }
    (event,) = events(rendered([row(1, "ann")], {"type": "sql", "select": "id, name as who, price", "where": "id = 1"}))
    assert event["after"] == {"id": 1, "who": "ann", "price": "12.50"}


def test_what_one_event_is_to_blame_for_is_a_dead_letter() -> None:
    messages = [row(number, str(number) if number % 5 else f"x{number}") for number in range(1, 21)]
    made = rendered(messages, {"type": "sql", "set": {"number": "name::bigint"}})
    assert [event["after"]["number"] for event in events(made)] == [n for n in range(1, 21) if n % 5]
    assert [(letter.key, letter.code) for letter in made.failed] == [
        (b'{"id":%d}' % number, "expression") for number in (5, 10, 15, 20)
    ]
    assert "processor sql: `name::bigint`: Failed to parse string: 'x5'" in made.failed[0].reason
    assert made.failed[0].message is not None
    assert made.failed[0].place not in made.places.to_pylist()
    dropped = rendered(messages, {"type": "sql", "set": {"number": "name::bigint"}, "on_error": "drop"})
    assert (len(dropped), dropped.failed) == (16, ())
    with pytest.raises(ProcessorFailed, match=r"fails on the event at .*x5"):
        rendered(messages, {"type": "sql", "set": {"number": "name::bigint"}, "on_error": "stop"})


def test_a_value_that_was_not_sent_is_not_taken_for_null() -> None:
    made = rendered([update("1", "ann", "1.5", UNSENT)], {"type": "filter", "where": "data is null"})
    assert [letter.code for letter in made.failed] == ["unsent"]
    assert len(rendered([update("1", "ann", "1.5", UNSENT)], {"type": "filter", "where": "name = 'ann'"})) == 1


def test_a_key_stays_unless_the_processor_says_so() -> None:
    made = rendered([row(1, "a")], {"type": "sql", "set": {"id": "id + 1"}})
    assert [letter.code for letter in made.failed] == ["key-changed"]
    made = rendered([row(1, "a")], {"type": "sql", "set": {"id": "id + 1"}, "changes_key": True})
    assert (made.keys.to_pylist(), made.failed) == ([b'{"id":2}'], ())


def test_a_python_function_by_columns() -> None:
    made = rendered(
        [row(1, "ann"), delete("1", None, None, None)],
        {"type": "python", "function": "processor_functions:upper_names"},
    )
    first, second = events(made)
    assert first["after"] == {"id": 1, "name": "ANN", "price": "12.50", "data": {"a": {"b": 1.5}}}
    assert (second["op"], second["after"]) == ("delete", None)
    assert made.topics.to_pylist() == ["people", "people"]
    made = rendered([row(1, "ann")], {"type": "python", "function": "processor_functions:not_a_table"})
    assert [letter.reason for letter in made.failed] == ["processor python: it returned list, not a pyarrow table"]


def test_a_python_function_that_raises_loops_dies_or_returns_nonsense_costs_its_events_only() -> None:
    words = ["ok", "raise", "loop", "memory", "die", "nonsense", "column", "key", "drop", "twice", "route"]
    processor = {
        "type": "python", "function": "processor_functions:by_name", "rows": True, "adds": ["shout"],
        "limits": {"seconds": 1, "memory": "256MiB"},
    }  # fmt: skip
    made = rendered([row(number, word) for number, word in enumerate(words)], processor)
    assert [(letter.key, letter.code) for letter in made.failed] == [
        *((b'{"id":1}', "raised"), (b'{"id":2}', "too-slow"), (b'{"id":3}', "memory"), (b'{"id":4}', "died")),
        *((b'{"id":5}', "nonsense"), (b'{"id":6}', "nonsense"), (b'{"id":7}', "key-changed")),
    ]
    assert "ValueError: this name is not wanted" in made.failed[0].reason
    assert "took longer than 1 s" in made.failed[1].reason
    assert "column surprise, which is neither" in made.failed[5].reason
    assert names(made) == ["ok", "twice", "again", "route"]
    first, *_, last = events(made)
    assert first["after"]["shout"] == "ok!"
    assert first["after"]["price"] == "12.50"
    twice = made.places.to_pylist()[1:3]
    assert twice[1] == f"{twice[0]}.1"
    assert made.topics.to_pylist() == ["public.things"] * 3 + ["elsewhere"]
    assert made.keys.to_pylist()[-1] == b"k"
    assert dict(made.headers)["n"].to_pylist() == [None, None, b"2", None]
    assert dict(made.headers)["h"].to_pylist() == [None, None, None, b"v"]
    assert last["after"]["shout"] is None


def test_a_function_that_loops_ends_with_the_worker_that_is_killed() -> None:
    calls = (
        "from test_processors import rendered, row; rendered([row(1, 'loop')], {'type': 'python', 'rows': True, "
        "'function': 'processor_functions:by_name', 'adds': ['shout'], 'limits': {'seconds': 600}})"
    )
    path = os.pathsep.join([*sys.path, str(SUPPORT), str(Path(__file__).parent)])
    worker = subprocess.Popen([sys.executable, "-c", calls], env={**os.environ, "PYTHONPATH": path})
    children: list[psutil.Process] = []
    try:
        deadline = time.monotonic() + 60
        while not children and worker.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
            children = psutil.Process(worker.pid).children(recursive=True)
        assert children, "the function's process"
    finally:
        worker.kill()
        worker.wait()
    assert not psutil.wait_procs(children, timeout=20)[1]


def test_a_processor_that_always_fails_stops_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    for function, reason in (
        ("nowhere:process", "No module named 'nowhere'"),
        ("processor_functions:nothing", "has no nothing"),
        ("processor_functions:NO_FUNCTION", "is no function"),
    ):
        with pytest.raises(ProcessorFailed, match=reason):
            rendered([row(1, "a")], {"type": "python", "function": function})
    monkeypatch.setattr(chain, "MOST_FAILURES", 10)
    with pytest.raises(ProcessorFailed, match="fails on too many events"):
        rendered([row(number, "x") for number in range(20)], {"type": "sql", "set": {"n": "name::bigint"}})


def test_flatten_makes_one_level_of_json() -> None:
    data = '{"a": {"b": {"c": 1.50}}, "l": [{"x": 1}], "e": {}}'
    (event,) = events(rendered([row(1, "a", data=data)], {"type": "flatten", "json": ["data"]}))
    assert event["after"]["data"] == {"a_b_c": 1.5, "l": [{"x": 1}], "e": {}}
    processor = {"type": "flatten", "json": ["data"], "separator": ".", "max_depth": 2, "lists": "index"}
    (event,) = events(rendered([row(1, "a", data=data)], processor))
    assert event["after"]["data"] == {"a.b": {"c": 1.5}, "l.0": {"x": 1}, "e": {}}
    made = rendered([row(1, "a", data='{"a": {"b": 1}, "a_b": 2}')], {"type": "flatten", "json": ["data"]})
    assert [letter.code for letter in made.failed] == ["collision"]


def test_an_outbox_becomes_messages() -> None:
    columns = {"aggregate_type": "name", "aggregate_id": "id", "payload": "data"}
    outbox = {
        "type": "outbox",
        "columns": columns,
        "topic": "shop.{aggregate_type}",
        "additional_headers": {"p": "id"},
    }
    messages = [row(7, "order"), update("7", "order", "1", "{}"), delete("7", None, None, None)]
    made = rendered(messages, outbox)
    assert made.topics.to_pylist() == ["shop.order"]
    assert made.keys.to_pylist() == [b"7"]
    assert made.values.to_pylist() == [b'{"a": {"b": 1.50}}'], "byte for byte"
    assert {name: values.to_pylist() for name, values in made.headers} == {
        "aggregateType": [b"order"],
        "p": [b"7"],
        "id": [b"7"],
    }
    strict = rendered(messages, {**outbox, "strict": True})
    assert [letter.code for letter in strict.failed] == ["not-an-insert"] * 2
    whole = rendered([row(7, "order")], {**outbox, "raw_payload": False})
    assert events(whole)[0]["after"]["name"] == "order"


def test_javascript_changes_what_it_changes() -> None:
    script = """
    function processBatch(events) {
      return events.filter(e => e.after.name !== 'drop').map(e => {
        if (e.after.name === 'loop') { while (true) {} }
        if (e.after.name === 'throw') { throw new Error('not this one'); }
        e.after.name = e.after.name.toUpperCase(); e.topic = 'js'; return e; });
    }"""
    words = ["a", "drop", "loop", "throw", "b"]
    made = rendered(
        [row(number, word, "0.10") for number, word in enumerate(words)],
        {"type": "javascript", "inline": script, "limits": {"seconds": 0.2}},
    )
    assert [(letter.key, letter.code) for letter in made.failed] == [(b'{"id":2}', "too-slow"), (b'{"id":3}', "raised")]
    assert names(made) == ["A", "B"]
    assert [event["after"]["price"] for event in events(made)] == ["0.10", "0.10"]
    assert made.topics.to_pylist() == ["js", "js"]


DELTAFORGE = """
- type: filter
  id: only-some
  ops: [create, update]
  tables: {include: ["*.things", "*.t"], exclude: ["*.tmp"]}
  fields:
    - {path: data.a.b, op: gte, value: 1.5}
    - {path: name, op: not_in, value: [audit]}
    - {path: price, op: changed}
- type: javascript
  id: route-by-value
  events: deltaforge
  inline: |
    function processBatch(events) {
      for (const ev of events) {
        if (!ev.after) continue;
        const table = ev.source.table;
        if (table === "things" && ev.after.price > 100) {
          ev.route({topic: `${table}.priority`, key: String(ev.after.id), headers: {"x-tier": `${ev.op}`}});
        }
        if (new Date(ev.timestamp).getUTCFullYear() !== 2000) ev.after.name = mapOperation(ev.op) + " " + ev.table;
      }
    }
    function mapOperation(op) {
      return { 'c': 'created', 'u': 'updated', 'd': 'deleted', 'r': 'snapshot' }[op] || op;
    }
  limits: {cpu_ms: 50, mem_mb: 128, timeout_ms: 2000}
"""


def test_blocks_as_deltaforge_has_them(tmp_path: Path) -> None:
    """Scripts with `${…}` of their own, `ev.route`, letters for operations, limits in milliseconds, `create`."""
    text = DELTAFORGE.replace("\n", "\n      ")
    file = tmp_path / "stream.yaml"
    file.write_text(
        f"""
version: 1
name: shop
source: {{type: postgres, url: "postgresql://db/shop"}}
tables: [{{match: public.*}}]
destinations:
  - name: s
    type: files
    path: ./s
    processors: {text}
"""
    )
    (feed,) = load(file).destination_views[0].feeds(TableId("public", "t"))
    assert json.loads(feed.processors[1].settings)["seconds"] == 2
    assert json.loads(feed.processors[1].settings)["memory"] == 128 << 20
    messages = [
        row(1, "a", "99"),
        row(2, "b", "100.50"),
        row(3, "audit"),
        row(4, "c", data='{"a": {"b": 1.4}}'),
        update("5", "x", "1", '{"a": {"b": 2}}'),
        delete("1", None, None, None),
    ]
    changes = Stream().transaction(*messages).raw(PEOPLE)
    made = render_changes(RawChanges(chosen(changes.schema, (), AS_WRITTEN), changes.batch), feed, "shop")
    assert names(made) == ["created public.things", "created public.things", "updated public.things"]
    assert made.topics.to_pylist() == ["public.things", "things.priority", "public.things"]
    assert made.keys.to_pylist() == [b'{"id":1}', b"2", b'{"id":5}']
    assert dict(made.headers)["x-tier"].to_pylist() == [None, b"c", None]
    assert [event["after"]["price"] for event in events(made)] == ["99", "100.50", "1"], "as the source wrote it"


def test_what_is_empty_or_there_twice_in_a_flattened_object() -> None:
    data = '{"a": {"b": 1}, "a_b": 2, "e": {}, "l": []}'
    made = {}
    for collision, empty in (("first", "drop"), ("last", "null")):
        how = {"on_collision": collision, "empty_object": empty, "empty_list": empty}
        (event,) = events(rendered([row(1, "a", data=data)], {"type": "flatten", "json": ["data"], **how}))
        made[collision] = event["after"]["data"]
    assert made == {"first": {"a_b": 1}, "last": {"a_b": 2, "e": None, "l": None}}


def test_an_outbox_with_a_topic_for_the_rest_and_a_key_of_its_own(tmp_path: Path) -> None:
    block = (
        'processors: [{type: outbox, topic: "${aggregate_type}.${event_type}", default_topic: unrouted, '
        'key: "${aggregate_type}-${aggregate_id}", columns: {aggregate_type: name, aggregate_id: id, payload: data}}]'
    )
    (feed,) = load(stream_file(tmp_path, block)).destination_views[0].feeds(TableId("public", "t"))
    changes = Stream().transaction(row(7, "order")).raw(PEOPLE)
    feed = Feed(PEOPLE.table, PEOPLE.table, PEOPLE.table, processors=feed.processors[-1:])
    made = render_changes(RawChanges(chosen(changes.schema, (), AS_WRITTEN), changes.batch), feed, "shop")
    assert (made.topics.to_pylist(), made.keys.to_pylist()) == (["unrouted"], [b"order-7"])


def test_cel_keeps_events_and_sets_columns() -> None:
    processor = {"type": "cel", "where": "price > 1.0 && op == 'insert'", "set": {"who": "name + '!'"}}
    made = rendered([row(1, "a"), row(2, "b", "0.5"), truncate(PEOPLE.relation_id)], processor)
    assert [(event["op"], (event["after"] or {}).get("who")) for event in events(made)] == [
        *(("insert", "a!"), ("truncate", None))
    ]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("price / 3", ["0.333333333333333333", None]),
        ("price = 1.00 and id in (1, 2)", [True, False]),
        ("not (id between 1 and 5)", [False, True]),
        ("case when id = 1 then 'one' else name end", ["one", None]),
        ("name || '-' || id", ["a-1", None]),
        ("concat(name, id)", ["a1", "9007199254740993"]),
        ("id + 1", [2, 9007199254740994]),
        ("id % 2", [1, 1]),
        ("-id", [-1, -9007199254740993]),
        ("day >= '2026-01-02'", [False, True]),
        ("coalesce(name, 'none')", ["a", "none"]),
        ("changed(id)", [False, False]),
        ("name like 'a%' or name is null", [True, True]),
        ("substring('héllo', 2, 3)", ["éll", "éll"]),
        ("cast(id as text)", ["1", "9007199254740993"]),
    ],
)
def test_expressions(text: str, values: list[object]) -> None:
    row = {
        "id": pa.array([1, 2**53 + 1]),
        "name": pa.array(["a", None]),
        "price": pa.array(["1.00", None]).cast(pa.decimal128(20, 2)),
        "day": pa.array(["2026-01-01", "2026-01-02"]).cast(pa.date32()),
    }
    found = evaluate(parse(text), Row(row, 2, before=row, after=row)).to_pylist()
    assert [str(one) if type(one).__name__ == "Decimal" else one for one in found] == values


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("id =", "at character 5: expected a value, a column or a function, found the end"),
        ("id ? 1", "at character 4: '?' is not understood"),
        ("frob(id)", "there is no function frob"),
        ("regexp_like(name, '(')", "is no regular expression"),
        ("id::blob", "expected a type"),
        ("(" * 100 + "1" + ")" * 100, "within one another"),
    ],
)
def test_expressions_that_are_none(text: str, problem: str) -> None:
    with pytest.raises(BadExpression, match=problem.replace("(", r"\(").replace("?", r"\?")):
        parse(text)


def test_an_overflow_is_an_error_and_no_other_value() -> None:
    for text in ("id * 9223372036854775807", "id / 0", "missing", "name > 1"):
        with pytest.raises(EvaluationError):
            evaluate(parse(text), Row({"id": pa.array([2]), "name": pa.array(["a"])}, 1))


@pytest.mark.parametrize(
    ("processors", "problem"),
    [
        ("[{type: sql, set: {a: 'b ='}}]", "destinations[0].processors[0].set.a is 'b =', but"),
        ("[{type: frob}]", "destinations[0].processors[0].type"),
        ("[{type: python, function: nowhere}]", "destinations[0].processors[0].function"),
        ("[{type: javascript, inline: 'let a = 1'}]", "defines no function processBatch"),
        ("[{type: cel, where: 'a &&'}]", "is no CEL"),
        ("[{type: outbox, topic: 'x.{frob}'}]", "names {frob}"),
        ("[{type: filter}]", "needs `where`, `ops` or `fields`"),
        ("[{type: filter, ops: [insert]}], key: '${tenant}'", "names ${tenant}"),
    ],
)
def test_mistakes_are_found_when_the_file_is_read(tmp_path: Path, processors: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(stream_file(tmp_path, f"processors: {processors}"))
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("engine", "processor"),
    [("quickjs", "{type: javascript, inline: x}"), ("celpy", "{type: cel, where: a}")],
)
def test_an_engine_that_is_not_installed_is_one_clear_line(
    tmp_path: Path, engine: str, processor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, engine, None)
    with pytest.raises(EnvironmentMissing, match=r"which is not installed. pip install 'penstock\["):
        load(stream_file(tmp_path, f"processors: [{processor}]"))


def test_columns_are_not_written_where_they_have_the_types_of_the_source(tmp_path: Path) -> None:
    for kept in ("filter, where: a = 1", "outbox"):
        load(stream_file(tmp_path, f"envelope: debezium, processors: [{{type: {kept}}}]"))
    with pytest.raises(ConfigError, match="and write no columns"):
        load(stream_file(tmp_path, "envelope: debezium, processors: [{type: sql, set: {a: '1'}}]"))


def test_processors_act_in_order(tmp_path: Path) -> None:
    text = (
        "processors: [{type: filter, where: 'c = 3', tables: [public.t]}, {type: filter, where: d = 4, tables: [a.b]}]"
    )
    pipeline = load(stream_file(tmp_path, text, top="processors: [{type: filter, where: a = 1}]"))
    (feed,) = pipeline.destination_views[0].feeds(TableId("public", "t"))
    assert [json.loads(spec.settings)["where"] for spec in feed.processors] == ["(a = 1)", "(b = 2)", "(c = 3)"]
    lake = pipeline_file(tmp_path, tables=[{"match": "public.*", "processors": [{"type": "filter", "where": "b = 2"}]}])
    lake.write_text(lake.read_text() + "\nprocessors: [{type: filter, where: a = 1}]\n")
    (feed,) = load(lake).destination_views[0].feeds(TableId("public", "t"))
    assert [json.loads(spec.settings)["where"] for spec in feed.processors] == ["(a = 1)", "(b = 2)"]


@pytest.mark.parametrize(
    ("processors", "problem"),
    [
        ([{"type": "filter", "where": "nme = 'a'"}], "processor 1 (filter): there is no column nme"),
        ([{"type": "sql", "set": {"a": "name > 1"}}], "string and int64 cannot be compared"),
        ([{"type": "sql", "select": "id"}, {"type": "filter", "where": "name = 'a'"}], "processor 2 (filter)"),
        ([{"type": "outbox"}], "the outbox has no column aggregate_id"),
        ([{"type": "python", "function": "nowhere:process"}], "No module named 'nowhere'"),
        ([{"type": "sql", "set": {"a": "upper(name)"}}, {"type": "filter", "where": "a = 'A' and price > 1"}], None),
    ],
)
def test_what_does_not_suit_a_table_is_found_by_check(processors: list[dict[str, Any]], problem: str | None) -> None:
    specs = specs_of([PROCESSOR.validate_python(one) for one in processors], PEOPLE.table, str(SUPPORT))
    said = check_processors(specs, chosen(PEOPLE, (), AS_WRITTEN), EVERYTHING)
    assert said is None if problem is None else problem in (said or "")


def stream_file(folder: Path, destination: str, top: str = "") -> Path:
    file = folder / "stream.yaml"
    file.write_text(
        f"""
version: 1
name: shop
source: {{type: postgres, url: "postgresql://db/shop"}}
tables: [{{match: public.*, processors: [{{type: filter, where: b = 2}}]}}]
{top}
destinations:
  - {{name: s, type: files, path: ./s, {destination}}}
"""
    )
    return file

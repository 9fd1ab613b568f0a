"""Processors of tables: a row is treated alike in a copy and in a change, and a row that is left out is gone."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import TypeAdapter

from loop_bench import Bench, drain, schema
from penstock.config.destinations import DeadLetterConfig
from penstock.config.load import load
from penstock.config.processors import AnyProcessor, specs_of
from penstock.decode.schema import arrow_schema
from penstock.errors import ConfigError, ProcessorFailed
from penstock.fold.rule import changes, rule_text
from penstock.model.dead_letter import DeadLetter
from penstock.model.feed import Feed, Mode
from penstock.model.table import TableId
from penstock.model.table_state import State
from penstock.processors.rows import process_rows
from penstock.runtime.apply.processed import check_table_processors, processed_batches
from pgoutput_messages import INT8, TEXT, UNSENT, delete, insert, numeric, truncate, update
from pipeline_files import pipeline_file

PEOPLE = schema("people", 2, id=INT8, name=TEXT, price=numeric(6, 2), note=TEXT)
KEPT = TableId("public", "kept")
SUPPORT = Path(__file__).parents[1] / "support"
PROCESSOR: TypeAdapter[Any] = TypeAdapter(AnyProcessor)
CHEAP = {"type": "filter", "where": "price < 10"}
LOUD = {"type": "sql", "set": {"name": "upper(name)", "price": "price * 2"}}


def feed_of(*processors: dict[str, Any], mode: Mode = Mode.CLONE) -> Feed:
    specs = specs_of([PROCESSOR.validate_python(one) for one in processors], PEOPLE.table, str(SUPPORT))
    return replace(Feed.clone(PEOPLE.table), mode=mode, processors=specs)


def bench_of(folder: Path, feed: Feed) -> Bench:
    bench = Bench(folder)
    bench.follow(feed, PEOPLE)
    return bench


def rows_of(*rows: tuple[Any, ...]) -> pa.Table:
    wanted = arrow_schema(PEOPLE)
    columns = zip(*rows, strict=True)
    return pa.table(
        [pa.array(list(one), field.type) for one, field in zip(columns, wanted, strict=True)], schema=wanted
    )


def copied(feed: Feed, *rows: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    letters: list[DeadLetter] = []
    made = processed_batches(feed, PEOPLE, [rows_of(*rows)], events=False, keep=letters.extend)
    found = [tuple(row.values()) for one in made for row in one.to_pylist()]
    assert not letters
    return found


def status(bench: Bench) -> Any:
    return bench.state.table_status("lake")[PEOPLE.table]


def test_rows_are_mapped_and_one_that_leaves_the_filter_is_deleted(tmp_path: Path) -> None:
    feed = feed_of(CHEAP, LOUD)
    bench = bench_of(tmp_path, feed)
    bench.seal(
        200,
        (PEOPLE, 110, insert("1", "ann", "1.50", "a")),
        (PEOPLE, 110, insert("2", "bo", "20.00", "b")),
        (PEOPLE, 120, insert("3", "cy", "3.00", "c")),
    )
    drain(bench)
    rows = [(row[0], row[1], str(row[2])) for row in bench.rows(PEOPLE)]
    assert rows == [(1, "ANN", "3.00"), (3, "CY", "6.00")]
    bench.seal(
        300,
        (PEOPLE, 210, update("1", "ann", "11.00", "a")),  # leaves
        (PEOPLE, 220, update("2", "bo", "2.00", "b")),  # comes
        (PEOPLE, 230, update("7", "cy", "3.00", "c", key=("3", None, None, None))),
        (PEOPLE, 240, delete("9", None, None, None)),
    )
    drain(bench)
    rows = [(row[0], row[1], str(row[2])) for row in bench.rows(PEOPLE)]
    assert rows == [(2, "BO", "4.00"), (7, "CY", "6.00")]
    from_copy = copied(feed, (1, "ann", Decimal(11), "a"), (2, "bo", Decimal(2), "b"), (7, "cy", Decimal(3), "c"))
    assert sorted(from_copy) == bench.rows(PEOPLE), "a copy makes the same of the source's rows"
    bench.seal(400, (PEOPLE, 310, truncate(2)), (PEOPLE, 320, insert("5", "di", "1.00", "d")))
    drain(bench)
    assert [row[0] for row in bench.rows(PEOPLE)] == [5]


def test_values_that_were_not_sent_are_fetched_unless_a_processor_needs_them(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, feed_of(CHEAP, LOUD))
    bench.seal(200, (PEOPLE, 110, insert("1", "ann", "1.50", "long")))
    bench.seal(300, (PEOPLE, 210, update("1", "bo", "2.00", UNSENT)))
    drain(bench)
    assert [(row[1], row[3]) for row in bench.rows(PEOPLE)] == [("BO", "long")]
    bench.seal(400, (PEOPLE, 310, update("1", UNSENT, "2.00", "x")))
    drain(bench)
    assert status(bench).state is State.ERRORED
    assert "a processor needs column name" in status(bench).reason


DIVIDES = {"type": "sql", "set": {"name": "cast(10 % cast(price as integer) as text)"}}


def test_what_a_processor_fails_on_stops_the_table_or_is_left_out(tmp_path: Path) -> None:
    bench = bench_of(tmp_path / "stop", feed_of(DIVIDES | {"on_error": "stop"}))
    bench.seal(200, (PEOPLE, 110, insert("1", "ann", "2.00", "a")))
    bench.seal(300, (PEOPLE, 210, insert("2", "bo", "0.00", "b")))
    drain(bench)
    assert status(bench).state is State.ERRORED
    assert status(bench).code == "processor"
    bench = bench_of(tmp_path / "drop", feed_of(DIVIDES | {"on_error": "drop"}))
    bench.seal(200, (PEOPLE, 110, insert("1", "ann", "2.00", "a")), (PEOPLE, 120, insert("2", "bo", "0.00", "b")))
    bench.seal(300, (PEOPLE, 210, update("1", "ann", "0.00", "a")), (PEOPLE, 220, update("2", "bo", "5.00", "b")))
    drain(bench)
    assert [row[0] for row in bench.rows(PEOPLE)] == [2], "as a filter would"
    assert bench.state.letters("lake") == []


def test_a_failed_update_leaves_no_old_row_behind_and_is_a_dead_letter(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, feed_of(DIVIDES))
    bench.seal(200, (PEOPLE, 110, insert("1", "ann", "2.00", "a")), (PEOPLE, 120, insert("2", "bo", "3.00", "b")))
    drain(bench)
    assert [row[:2] for row in bench.rows(PEOPLE)] == [(1, "0"), (2, "1")]
    bench.lake.failures = ["stale"]  # the batch is done again, and the letter is kept once
    bench.seal(300, (PEOPLE, 210, update("1", "ann", "0.00", "a")))
    drain(bench)
    assert [row[0] for row in bench.rows(PEOPLE)] == [2]
    (kept,) = bench.state.letters("lake")
    assert (kept.table, kept.letter.key, kept.letter.op) == (PEOPLE.table, b'{"id": 1}', "row")
    assert b'"name": "ann"' in (kept.letter.value or b"")
    assert "zero" in kept.letter.reason
    assert status(bench).state is State.READY
    bench.seal(400, (PEOPLE, 310, update("1", "ann", "4.00", "a")))
    drain(bench)
    assert [row[:2] for row in bench.rows(PEOPLE)] == [(1, "2"), (2, "1")], "it comes back when it can"
    bench.seal(500, (PEOPLE, 410, update("1", "ann", "0.00", "a")))
    drain(bench)
    bench.seal(600, (PEOPLE, 510, update("1", "ann", "4.00", UNSENT)))
    drain(bench)
    assert status(bench).state is State.ERRORED, "a value that was not sent is nowhere any more"
    assert "penstock resync" in status(bench).solution


def test_without_room_for_a_dead_letter_the_table_stops(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, feed_of(DIVIDES))
    bench.loop.letters._limits = DeadLetterConfig(max_entries=1)
    rows = [(PEOPLE, 110, insert(str(number), "x", "0.00", "a")) for number in range(2)]
    bench.seal(200, (PEOPLE, 105, insert("7", "ok", "1.00", "a")))
    bench.seal(300, *rows)
    drain(bench)
    assert status(bench).state is State.ERRORED
    assert status(bench).code == "dead-letters-full"
    assert len(bench.state.letters("lake")) == 0, "all or none: it begins where it stopped"


def test_a_function_maps_rows_and_may_not_multiply_route_or_add(tmp_path: Path) -> None:
    rows = rows_of((1, "ann", Decimal(1), "a"), (2, "bo", Decimal(2), "b"))
    for name, said in (("twice", "makes several rows of one"), ("routed", "says where rows go")):
        feed = feed_of({"type": "python", "function": f"table_functions:{name}", "rows": True})
        with pytest.raises(ProcessorFailed, match=said):
            process_rows(feed.processors, PEOPLE, rows)
    for name, said in (("rekeyed", "changed column id of the key"), ("retyped", "that are no decimal")):
        feed = feed_of({"type": "python", "function": f"table_functions:{name}", "rows": True})
        done = process_rows(feed.processors, PEOPLE, rows)
        assert (done.rows["id"].to_pylist(), list(done.failed)) == ([2], [0])
        assert said in done.failed[0].reason
        stops = feed_of({"type": "python", "function": f"table_functions:{name}", "rows": True, "on_error": "stop"})
        with pytest.raises(ProcessorFailed, match=said):
            process_rows(stops.processors, PEOPLE, rows)
    feed = feed_of({"type": "python", "function": "table_functions:shouted", "rows": True})
    assert process_rows(feed.processors, PEOPLE, rows).rows["name"].to_pylist() == ["ANN!", "BO!"]


def test_check_foresees_what_cannot_be() -> None:
    def problem(processor: dict[str, Any], mode: Mode = Mode.CLONE) -> str:
        return check_table_processors(feed_of(processor, mode=mode), PEOPLE) or ""

    assert "there is no column nme" in problem({"type": "filter", "where": "nme = 'a'"})
    assert "makes a column gross, which the source's table does not have" in problem(
        {"type": "sql", "set": {"gross": "price * 2"}}
    )
    assert "that are no decimal" in problem({"type": "sql", "set": {"price": "price > 1"}}, Mode.EVENTS)
    assert not problem(LOUD)
    assert not problem(LOUD, Mode.EVENTS)
    no_key = replace(PEOPLE, key=(), identity="full")
    assert no_key.by_row
    assert "has no key" in (check_table_processors(feed_of(LOUD), no_key) or "")
    assert check_table_processors(feed_of(LOUD, mode=Mode.APPEND), no_key) is None


def test_tables_of_events_see_events(tmp_path: Path) -> None:
    feed = feed_of({"type": "filter", "where": "op <> 'insert' or price > 5"}, LOUD, mode=Mode.EVENTS)
    bench = bench_of(tmp_path, replace(feed, target=TableId("public", "events")))
    bench.seal(
        200,
        (PEOPLE, 110, insert("1", "ann", "1.50", "a")),
        (PEOPLE, 120, insert("2", "bo", "6.00", "b")),
        (PEOPLE, 130, update("1", "ann", "2.50", UNSENT)),
        (PEOPLE, 140, truncate(2)),
    )
    drain(bench)
    found = sorted(bench.lake.rows(TableId("public", "events")).to_pylist(), key=lambda row: row["commit_position"])
    assert [(row["op"], row["after"] and row["after"]["name"]) for row in found] == [
        ("insert", "BO"), ("update", "ANN"), ("truncate", None),
    ]  # fmt: skip
    assert str(found[1]["after"]["price"]) == "5.00"


def test_versions_end_where_a_row_is_left_out_and_appended_rows_are_mapped(tmp_path: Path) -> None:
    bench = bench_of(tmp_path / "history", replace(feed_of(CHEAP, LOUD, mode=Mode.HISTORY), target=KEPT))
    bench.seal(200, (PEOPLE, 110, insert("1", "ann", "1.50", "a")))
    bench.seal(300, (PEOPLE, 210, update("1", "ann", "20.00", UNSENT)), (PEOPLE, 220, update("1", "bo", "3.00", "b")))
    drain(bench)
    kept = bench.lake.rows(KEPT).to_pylist()
    found = sorted((one["valid_from"], one["name"], one["valid_to"]) for one in kept)
    assert [name for _, name, _ in found] == ["ANN", "BO"]
    assert found[0][2] < found[1][0], "between them it was left out"
    bench = bench_of(tmp_path / "append", replace(feed_of(CHEAP, LOUD, mode=Mode.APPEND), target=KEPT))
    bench.seal(200, (PEOPLE, 110, insert("1", "ann", "1.50", "a")), (PEOPLE, 120, insert("2", "bo", "30.00", "a")))
    bench.seal(300, (PEOPLE, 210, update("2", "bo", "3.00", "b")), (PEOPLE, 220, delete("1", None, None, None)))
    drain(bench)
    assert sorted((row["id"], row["name"]) for row in bench.lake.rows(KEPT).to_pylist()) == [(1, "ANN"), (2, "BO")]


def test_a_changed_processor_is_a_changed_rule() -> None:
    before, after = rule_text(feed_of(CHEAP)), rule_text(feed_of(CHEAP, LOUD))
    assert changes(before, after) == ["`processors` changed"]
    assert changes(rule_text(feed_of()), rule_text(feed_of())) == []


@pytest.mark.parametrize(
    ("processor", "said"),
    [
        ({"type": "flatten"}, "is for streams"),
        ({"type": "outbox"}, "is for streams"),
        ({"type": "sql", "select": "id"}, "has a `select`"),
        ({"type": "python", "function": "a:b", "adds": ["c"]}, "has `adds`"),
        ({**LOUD, "changes_key": True}, "finds its rows by the source's key"),
        ({"type": "filter", "ops": ["insert"]}, "looks at `ops`"),
        ({"type": "filter", "where": "changed(name)"}, "looks at `changed`"),
        ({"type": "filter", "where": "before.price > 1"}, r"looks at `before\.price`"),
        ({"type": "sql", "where": "op = 'insert'"}, "looks at `op`"),
    ],
)
def test_what_cannot_be_exact_is_refused_when_the_file_is_read(
    tmp_path: Path, processor: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        load(pipeline_file(tmp_path, tables=[{"match": "public.*", "processors": [processor]}]))
    if "ops" in processor or processor.get("where"):
        load(pipeline_file(tmp_path, tables=[{"match": "public.*", "mode": "events", "processors": [CHEAP]}]))

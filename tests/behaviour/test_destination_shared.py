"""Tables that several sources feed, held against every destination: each has a share of its own, and only that."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from destination_rows import ORDERS, START, TYPES, Lake, Row, net, table, write
from penstock.decode.rescue import RESCUED, RESCUED_TYPE
from penstock.decode.schema import arrow_schema
from penstock.destinations.contract import InProcessRunner, TableDestination
from penstock.errors import PositionLost, SchemaChanged, StaleBase
from penstock.fold.envelope import fold_events
from penstock.fold.history import fold_history
from penstock.fold.layout import ROWS, Layout
from penstock.fold.net_effect import NetEffect
from penstock.model.feed import Period, Sid
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from pgoutput_messages import INT4, INT8, TEXT, Stream, delete, insert, table_schema, truncate, update

EU, US = "crm.eu", "crm.us"
SIDS: dict[str, Sid] = {EU: Sid("sid", "eu", "crm"), US: Sid("sid", "us", "crm")}
THINGS = table_schema({"id": INT8, "body": TEXT})
ONE = {"id": 1, "amount": 10, "note": "one"}
TWO = {"id": 2, "amount": 20, "note": "two"}


def ensure(
    driver: TableDestination,
    source: str,
    schema: TableSchema = ORDERS,
    start: int | None = START,
    sid: Sid | None = None,
    layout: Layout = ROWS,
) -> int | None:
    return driver.ensure_table(schema.table, schema, source, start, (), layout, sid or SIDS[source])


def apply_for(
    driver: TableDestination, source: str, position: int, *effects: NetEffect, schema: TableSchema = ORDERS
) -> None:
    plan = driver.plan(schema.table, source)
    truncated = any(effect.truncated for effect in effects)
    driver.commit(plan, write(plan, *effects), truncated=truncated, position=position)


def copy_for(driver: TableDestination, source: str, content: Sequence[Row], position: int, schema: TableSchema) -> None:
    plan = driver.plan_copy(schema.table, source)
    batch = pa.RecordBatch.from_pylist(list(content), schema=arrow_schema(schema))
    driver.commit_copy(schema.table, source, [plan.write_rows([batch])], position)


def seen(lake: Lake, schema: TableSchema = ORDERS) -> dict[Any, list[Row]]:
    """Rows by sid, without it, in the order of their keys; columns that are null are left out."""
    found: dict[Any, list[Row]] = {}
    for row in sorted(lake.read(schema.table).to_pylist(), key=lambda row: str(row.get("id"))):
        bare = {name: value for name, value in row.items() if name != "sid" and value is not None}
        found.setdefault(row["sid"], []).append(bare)
    return found


@pytest.fixture
def driver(any_lake: Lake) -> TableDestination:
    destination = any_lake.driver()
    ensure(destination, EU)
    ensure(destination, US)
    return destination


def test_equal_keys_of_two_sources_are_two_rows(any_lake: Lake, driver: TableDestination) -> None:
    apply_for(driver, EU, START + 1, net(ORDERS, [ONE, TWO]))
    apply_for(driver, US, START + 7, net(ORDERS, [{**ONE, "note": "us"}]))
    assert seen(any_lake) == {"eu": [ONE, TWO], "us": [{**ONE, "note": "us"}]}
    apply_for(driver, US, START + 8, net(ORDERS, [{**TWO, "note": "us"}], deletes=[{"id": 1}]))
    apply_for(driver, EU, START + 2, net(ORDERS, [{**ONE, "amount": 11}]))
    assert seen(any_lake) == {"eu": [{**ONE, "amount": 11}, TWO], "us": [{**TWO, "note": "us"}]}
    assert driver.position(ORDERS.table, EU) == START + 2
    assert driver.position(ORDERS.table, US) == START + 8


def test_a_cell_is_fetched_from_the_sources_own_row(any_lake: Lake, driver: TableDestination) -> None:
    apply_for(driver, EU, START + 1, net(ORDERS, [ONE]))
    apply_for(driver, US, START + 1, net(ORDERS, [{**ONE, "note": "us"}]))
    for source in (EU, US):
        kept = net(ORDERS, [{"id": 1, "amount": 5, "note": None}], fetches=[("note", 0, {"id": 1})])
        apply_for(driver, source, START + 2, kept)
    assert seen(any_lake) == {
        "eu": [{"id": 1, "amount": 5, "note": "one"}],
        "us": [{"id": 1, "amount": 5, "note": "us"}],
    }


def test_a_truncate_touches_the_sources_own_rows_only(any_lake: Lake, driver: TableDestination) -> None:
    apply_for(driver, EU, START + 1, net(ORDERS, [ONE, TWO]))
    apply_for(driver, EU, START + 2, net(ORDERS, [], deletes=[{"id": 2}]))
    apply_for(driver, US, START + 1, net(ORDERS, [ONE, TWO]))
    apply_for(driver, EU, START + 3, net(ORDERS, [TWO], truncated=True))
    assert seen(any_lake) == {"eu": [TWO], "us": [ONE, TWO]}
    apply_for(driver, US, START + 2, net(ORDERS, truncated=True))
    assert seen(any_lake) == {"eu": [TWO]}


def test_a_copy_replaces_the_sources_own_rows_only(any_lake: Lake, driver: TableDestination) -> None:
    apply_for(driver, EU, START + 1, net(ORDERS, [ONE]))
    apply_for(driver, US, START + 1, net(ORDERS, [ONE, TWO]))
    plan = driver.plan_copy(ORDERS.table, US)
    first = plan.write_rows([pa.RecordBatch.from_pylist([TWO], schema=arrow_schema(ORDERS))])
    apply_for(driver, EU, START + 2, net(ORDERS, [TWO]))  # meanwhile
    change = net(ORDERS, [{**TWO, "note": "caught up"}])
    more = write(driver.plan_catchup(ORDERS.table, US, [first], START + 5), change)
    apply_for(driver, EU, START + 3, net(ORDERS, [], deletes=[{"id": 1}]))
    driver.commit_copy(ORDERS.table, US, [first, *more], START + 6)
    assert seen(any_lake) == {"eu": [TWO], "us": [{**TWO, "note": "caught up"}]}
    assert driver.position(ORDERS.table, EU) == START + 3
    assert driver.position(ORDERS.table, US) == START + 6


def test_a_source_that_comes_later_is_taken_in_to_be_copied(any_lake: Lake) -> None:
    driver = any_lake.driver()
    assert ensure(driver, EU) == START
    apply_for(driver, EU, START + 1, net(ORDERS, [ONE]))
    assert ensure(driver, US, start=None) is None
    assert ensure(any_lake.driver(), US, start=None) is None, "and is still to be copied at the next start"
    with pytest.raises(PositionLost):
        driver.plan(ORDERS.table, US)
    copy_for(driver, US, [TWO], START + 9, ORDERS)
    assert seen(any_lake) == {"eu": [ONE], "us": [TWO]}
    again = any_lake.driver()
    assert (ensure(again, EU, start=None), ensure(again, US, start=None)) == (START + 1, START + 9)


def test_a_source_of_another_family_is_refused(driver: TableDestination) -> None:
    with pytest.raises(PositionLost):
        ensure(driver, "other.eu", sid=Sid("sid", "x", "other"))


def test_a_table_that_was_made_for_one_source_takes_no_other(any_lake: Lake) -> None:
    driver = any_lake.driver()
    driver.ensure_table(ORDERS.table, ORDERS, EU, START)
    with pytest.raises(SchemaChanged, match=r"not (partitioned by a sid|made for several)"):
        ensure(driver, US)


def test_a_source_that_has_a_column_of_the_sids_name_is_refused(any_lake: Lake) -> None:
    schema = table("odd", "id int8, sid text")
    with pytest.raises(SchemaChanged, match="sid"):
        ensure(any_lake.driver(), EU, schema)


def test_plans_stay_valid_over_commits_of_other_sources_by_the_same_driver(
    any_lake: Lake, driver: TableDestination
) -> None:
    apply_for(driver, EU, START + 1, net(ORDERS, [ONE]))
    plan = driver.plan(ORDERS.table, EU)
    parts = write(plan, net(ORDERS, [{**ONE, "note": "planned before"}]))
    for step in range(1, 4):
        apply_for(driver, US, START + step, net(ORDERS, [{**ONE, "amount": step}]))
    driver.advance(ORDERS.table, US, START + 3, START + 4)
    driver.maintain(ORDERS.table, US, InProcessRunner())
    driver.commit(plan, parts, truncated=False, position=START + 2)
    assert seen(any_lake) == {"eu": [{**ONE, "note": "planned before"}], "us": [{**ONE, "amount": 3}]}


def test_plans_stay_valid_over_bookmarks_of_other_sources(any_lake: Lake, driver: TableDestination) -> None:
    apply_for(driver, US, START + 1, net(ORDERS, [ONE]))
    plan = driver.plan(ORDERS.table, EU)
    driver.bookmark(ORDERS.table, US, "kept")
    driver.commit(plan, write(plan, net(ORDERS, [ONE])), truncated=False, position=START + 1)
    plan = driver.plan(ORDERS.table, EU)
    driver.release(ORDERS.table, US, "kept")
    driver.commit(plan, write(plan, net(ORDERS, [TWO])), truncated=False, position=START + 2)
    apply_for(driver, US, START + 2, net(ORDERS, [TWO]))
    assert seen(any_lake) == {"eu": [ONE, TWO], "us": [ONE, TWO]}


def test_a_plan_is_stale_after_a_commit_for_the_same_source(any_lake: Lake, driver: TableDestination) -> None:
    plan = driver.plan(ORDERS.table, EU)
    parts = write(plan, net(ORDERS, [ONE]))
    apply_for(driver, EU, START + 1, net(ORDERS, [TWO]))
    apply_for(driver, US, START + 1, net(ORDERS, [TWO]))
    with pytest.raises(StaleBase):
        driver.commit(plan, parts, truncated=False, position=START + 2)
    assert seen(any_lake) == {"eu": [TWO], "us": [TWO]}


def test_a_plan_is_stale_after_another_driver_has_committed_for_any_source(
    any_lake: Lake, driver: TableDestination
) -> None:
    plan = driver.plan(ORDERS.table, EU)
    parts = write(plan, net(ORDERS, [ONE]))
    other = any_lake.driver()
    ensure(other, US)
    apply_for(other, US, START + 1, net(ORDERS, [TWO]))
    if driver.capabilities.strict == "table":
        with pytest.raises(StaleBase):
            driver.commit(plan, parts, truncated=False, position=START + 2)
    apply_for(driver, US, START + 2, net(ORDERS, [ONE]))
    apply_for(driver, EU, START + 1, net(ORDERS, [ONE]))
    assert seen(any_lake) == {"eu": [ONE], "us": [ONE, TWO]}


def test_columns_are_the_union_and_null_where_a_source_has_none(any_lake: Lake) -> None:
    here = table("mixed", "id int4, amount int4, only_eu text")
    there = table("mixed", "id int8, only_us bool, amount int8")
    driver = any_lake.driver()
    ensure(driver, EU, here)
    apply_for(driver, EU, START + 1, net(here, [{"id": 1, "amount": 1, "only_eu": "x"}]), schema=here)
    ensure(driver, US, there)
    big = {"id": 2**40, "only_us": True, "amount": 2**41}
    apply_for(driver, US, START + 1, net(there, [big, {**big, "id": 1}]), schema=there)
    apply_for(driver, EU, START + 2, net(here, [{"id": 2, "amount": 2, "only_eu": "y"}]), schema=here)
    changed = net(here, [{"id": 1, "amount": 9, "only_eu": None}], fetches=[("only_eu", 0, {"id": 1})])
    apply_for(driver, EU, START + 3, changed, schema=here)
    driver.maintain(here.table, EU, InProcessRunner())
    expected: dict[str, list[Row]] = {
        "eu": [{"id": 1, "amount": 9, "only_eu": "x"}, {"id": 2, "amount": 2, "only_eu": "y"}],
        "us": [{**big, "id": 1}, big],
    }
    assert seen(any_lake, here) == expected
    again = any_lake.driver()  # the narrower one is opened after the table was widened
    assert (ensure(again, EU, here), ensure(again, US, there)) == (START + 3, START + 1)
    apply_for(again, EU, START + 4, net(here, [], deletes=[{"id": 1}]), schema=here)
    assert seen(any_lake, here) == {**expected, "eu": expected["eu"][1:]}


@pytest.mark.parametrize(
    ("other", "what"),
    [("id int8, amount text, note text", "amount"), ("id int8, note text, amount int4", "key")],
)
def test_a_real_conflict_is_that_sources_own_and_says_what_to_do(
    any_lake: Lake, driver: TableDestination, other: str, what: str
) -> None:
    differing = table("orders", other, key=("note",) if what == "key" else ("id",))
    with pytest.raises(SchemaChanged, match=what) as refused:
        ensure(driver, "crm.asia", differing, sid=Sid("sid", "asia", "crm"))
    assert "{source}" in refused.value.solution
    apply_for(driver, EU, START + 1, net(ORDERS, [ONE]))
    assert seen(any_lake) == {"eu": [ONE]}


def test_a_source_gains_a_column_that_another_has_already(any_lake: Lake) -> None:
    here, there = table("growing", "id int8, note text"), table("growing", "id int8, note text, extra int4")
    driver = any_lake.driver()
    ensure(driver, EU, here)
    ensure(driver, US, there)
    apply_for(driver, US, START + 1, net(there, [{"id": 1, "note": "u", "extra": 5}]), schema=there)
    apply_for(driver, EU, START + 1, net(here, [{"id": 1, "note": "e"}]), schema=here)
    grown = driver.structure(here.table, EU)
    grown = TableSchema(
        grown.table, grown.relation_id, (*grown.columns, replace(there.columns[-1], number=9)), grown.key
    )
    plan = driver.plan(here.table, EU, grown)
    parts = write(plan, net(grown, [{"id": 2, "note": "e", "extra": 7}]))
    driver.commit(plan, parts, truncated=False, position=START + 2)
    assert seen(any_lake, here) == {
        "eu": [{"id": 1, "note": "e"}, {"id": 2, "note": "e", "extra": 7}],
        "us": [{"id": 1, "note": "u", "extra": 5}],
    }
    assert any_lake.read(here.table).column_names.count("extra") == 1
    assert driver.structure(here.table, US).key == ("id",)


def test_numbers_are_sids_too(any_lake: Lake) -> None:
    driver = any_lake.driver()
    for number in (1, 2):
        ensure(driver, f"crm.s{number}", sid=Sid("sid", number, "crm"))
        apply_for(driver, f"crm.s{number}", START + 1, net(ORDERS, [{**ONE, "amount": number}]))
    apply_for(driver, "crm.s2", START + 2, net(ORDERS, [TWO], truncated=True))
    assert seen(any_lake) == {1: [{**ONE, "amount": 1}], 2: [TWO]}


def test_a_table_without_a_key_keeps_sources_apart(any_lake: Lake) -> None:
    schema = table("events", "what text", key=())
    driver = any_lake.driver()
    for source in (EU, US):
        ensure(driver, source, schema)
        apply_for(driver, source, START + 1, net(schema, [{"what": source}, {"what": source}]), schema=schema)
    apply_for(driver, EU, START + 2, net(schema, truncated=True), schema=schema)
    assert seen(any_lake, schema) == {"us": [{"what": US}, {"what": US}]}


def test_sources_commit_side_by_side_without_a_redo(any_lake: Lake, driver: TableDestination) -> None:
    """Threads of one driver, with compaction and expiry between: each is refused by nobody, and the rows are right."""
    oracle: dict[str, dict[int, Row]] = {EU: {}, US: {}}
    problems: list[BaseException] = []

    def feed(source: str) -> None:
        chance = random.Random(source)
        try:
            for step in range(1, 13):
                rows: list[Row] = [{"id": n, "amount": step, "note": source} for n in chance.sample(range(30), 5)]
                gone = [{"id": n} for n in chance.sample(range(30), 3) if n not in {row["id"] for row in rows}]
                apply_for(driver, source, START + step, net(ORDERS, rows, gone))
                oracle[source] |= {row["id"]: row for row in rows}
                for key in gone:
                    oracle[source].pop(key["id"], None)
                driver.maintain(ORDERS.table, source, InProcessRunner())
        except BaseException as error:  # noqa: BLE001 - raised below
            problems.append(error)

    threads = [threading.Thread(target=feed, args=(source,)) for source in oracle]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    expected = {
        SIDS[source].value: sorted(rows.values(), key=lambda row: str(row["id"])) for source, rows in oracle.items()
    }
    assert seen(any_lake) == expected


def test_versions_of_several_sources_are_kept_apart(any_lake: Lake) -> None:
    """Each closes and truncates its own, and none but its own; with what was rescued of them."""
    driver, layout = any_lake.driver(), Layout(period=Period())
    streams = {source: Stream() for source in SIDS}
    for source in SIDS:
        ensure(driver, source, THINGS, 0, layout=layout)

    def feed(source: str, *messages: bytes) -> None:
        streams[source].transaction(*messages)
        plan = driver.plan(THINGS.table, source)
        changes = streams[source].raw(THINGS)
        effect = fold_history([changes], position=plan.position, since=plan.moment, bucket=0, buckets=1)
        position, moment = (streams[source].transactions + 1) * 100, max(plan.moment, effect.last_commit_time)
        driver.commit(plan, write(plan, effect), truncated=False, position=position, moment=moment)
        driver.maintain(THINGS.table, source, InProcessRunner())

    feed(EU, insert("1", "eu"), insert("2", "eu"))
    feed(US, insert("1", "us"), insert("2", "us"))
    feed(EU, update("1", "eu changed"))
    feed(US, delete("2", None))
    feed(US, insert("1000", "no text").replace(b"no", b"n\xff"))
    feed(US, update("1000", "no text").replace(b"no", b"\xffo"))
    feed(EU, insert("3", "no text").replace(b"no", b"n\xff"))
    feed(EU, truncate())
    rows = any_lake.read(THINGS.table).to_pylist()
    lost = {(row["sid"], row["valid_to"].year, text) for row in rows for _, text in row[RESCUED] or ()}
    assert lost == {
        ("us", 1970, "\\x" + b"n\xff text".hex()),
        ("us", 9999, "\\x" + b"\xffo text".hex()),
        ("eu", 1970, "\\x" + b"n\xff text".hex()),
    }
    told = [row for row in rows if row[RESCUED] is None]
    found = sorted((row["sid"], row["id"], row["body"], row["valid_to"].year, row["deleted"]) for row in told)
    assert found == [
        ("eu", 1, "eu", 1970, False),
        ("eu", 1, "eu changed", 1970, True),
        ("eu", 2, "eu", 1970, True),
        ("us", 1, "us", 9999, False),
        ("us", 2, "us", 1970, True),
    ]


def test_lists_of_several_sources_are_one_column(any_lake: Lake) -> None:
    texts = ColumnType(1009, "_text", kind="array", element=TYPES["text"])
    schema = TableSchema(TableId("public", "lists"), 1, (Column("id", TYPES["int8"]), Column("tags", texts)), ("id",))
    driver = any_lake.driver()
    for source in (EU, US):
        ensure(driver, source, schema)
        apply_for(driver, source, START + 1, net(schema, [{"id": 1, "tags": [source, None]}]), schema=schema)
    driver.maintain(schema.table, EU, InProcessRunner())
    apply_for(driver, EU, START + 2, net(schema, [{"id": 2, "tags": []}]), schema=schema)
    assert seen(any_lake, schema) == {
        "eu": [{"id": 1, "tags": [EU, None]}, {"id": 2, "tags": []}],
        "us": [{"id": 1, "tags": [US, None]}],
    }


def test_images_of_events_are_the_union(typed_lake: Lake) -> None:
    driver, layout = typed_lake.driver(), Layout(events=True)
    narrow = table_schema({"id": INT4, "body": TEXT})
    wide = table_schema({"id": INT8, "more": TEXT, "body": TEXT})
    sent = ((EU, narrow, ("1", "a")), (US, wide, ("2", "m", "b")), (EU, narrow, ("3", "c")))
    for number, (source, schema, cells) in enumerate(sent, start=1):
        ensure(driver, source, schema, layout=layout)
        plan = driver.plan(schema.table, source)
        effect = fold_events([Stream().transaction(insert(*cells)).raw(schema)], position=0)
        driver.commit(plan, write(plan, effect), truncated=False, position=START + number)
    assert sorted((row["sid"], *row["after"].values()) for row in typed_lake.read(narrow.table).to_pylist()) == [
        ("eu", 1, "a", None),
        ("eu", 3, "c", None),
        ("us", 2, "b", "m"),
    ]
    driver.maintain(narrow.table, EU, InProcessRunner())
    assert typed_lake.read(narrow.table).num_rows == 3
    other = table_schema({"id": TEXT, "body": TEXT})
    with pytest.raises(SchemaChanged, match=r"column before\.id is int64 for other sources, and string here"):
        ensure(driver, "crm.asia", other, layout=layout, sid=Sid("sid", "asia", "crm"))


def test_what_is_rescued_at_one_source_is_null_at_the_others(any_lake: Lake) -> None:
    """The column comes when the first source needs it, while another has a plan from before."""
    driver = any_lake.driver()
    for source in (EU, US):
        ensure(driver, source)
    plan = driver.plan(ORDERS.table, US)
    parts = write(plan, net(ORDERS, [TWO]))
    rescued = pa.array([[("amount", "infinity")]], RESCUED_TYPE)
    effect = replace(net(ORDERS, [{**ONE, "amount": None}]), rescued=rescued)
    apply_for(driver, EU, START + 1, effect)
    driver.commit(plan, parts, truncated=False, position=START + 1)
    assert seen(any_lake) == {
        "eu": [{"id": 1, "note": "one", "_rescued": [("amount", "infinity")]}],
        "us": [TWO],
    }

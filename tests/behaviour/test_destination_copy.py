"""Copies, held against every destination: written unseen, caught up unseen, visible in one step with their position."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from destination_rows import (
    ORDERS,
    SOURCE,
    START,
    Lake,
    Row,
    apply,
    iceberg_config,
    in_buckets,
    net,
    ordered,
    table,
    write,
)
from penstock.decode.schema import arrow_schema
from penstock.destinations.contract import CopyPlan, TableDestination, WrittenPart
from penstock.destinations.iceberg.catalog import spark_settings
from penstock.errors import CopyNeeded, PositionLost, RangeVoid, StaleBase
from penstock.fold.net_effect import NetEffect
from penstock.model.table import TableSchema

EVENTS = table("events", "at int8, what text", key=())


def rows(numbers: Sequence[int], note: str = "x") -> list[Row]:
    return [{"id": n, "amount": n, "note": note} for n in numbers]


def opened(lake: Lake, schema: TableSchema = ORDERS) -> TableDestination:
    driver = lake.driver()
    assert driver.ensure_table(schema.table, schema, SOURCE, None) is None
    return driver


def batches(schema: TableSchema, content: Sequence[Row], size: int = 3) -> Iterator[pa.RecordBatch | pa.Table]:
    """As a reader gives them: record batches, and tables among them."""
    arrow = arrow_schema(schema)
    for start in range(0, len(content), size):
        batch = pa.RecordBatch.from_pylist(list(content[start : start + size]), schema=arrow)
        yield batch if start % 2 else pa.Table.from_batches([batch])


def copied(plan: CopyPlan, *ranges: Iterator[pa.RecordBatch | pa.Table]) -> list[WrittenPart]:
    """As executors do: with copies of the plan that came through pickle."""
    parts = []
    for content in ranges:
        there: CopyPlan = pickle.loads(pickle.dumps(plan))
        parts.append(pickle.loads(pickle.dumps(there.write_rows(content))))
    return parts


def copy_of(driver: TableDestination, schema: TableSchema, *ranges: Sequence[Row]) -> list[WrittenPart]:
    return copied(driver.plan_copy(schema.table, SOURCE), *(batches(schema, content) for content in ranges))


def caught_up(
    driver: TableDestination, schema: TableSchema, base: list[WrittenPart], position: int, *effects: NetEffect
) -> list[WrittenPart]:
    """The copy's parts with those of one more batch."""
    return base + write(driver.plan_catchup(schema.table, SOURCE, base, position), *effects)


def test_a_table_waits_for_its_copy(any_lake: Lake) -> None:
    driver = opened(any_lake)
    assert driver.position(ORDERS.table, SOURCE) is None
    assert any_lake.rows(ORDERS) == []
    with pytest.raises(PositionLost):
        driver.plan(ORDERS.table, SOURCE)
    assert opened(any_lake).position(ORDERS.table, SOURCE) is None
    assert any_lake.driver().ensure_table(ORDERS.table, ORDERS, SOURCE, START) is None
    with pytest.raises(PositionLost, match="another"):
        any_lake.driver().ensure_table(ORDERS.table, ORDERS, "another", None)


def test_a_copy_becomes_visible_with_its_position(any_lake: Lake) -> None:
    driver = opened(any_lake)
    parts = copy_of(driver, ORDERS, rows(range(10)), rows(range(10, 17)))
    assert [(part.rows, part.deletes, part.unresolved, part.empty) for part in parts] == [
        (10, 0, 0, False),
        (7, 0, 0, False),
    ]
    assert any_lake.rows(ORDERS) == []
    assert driver.history(ORDERS.table, SOURCE) == ""
    driver.commit_copy(ORDERS.table, SOURCE, parts, START, "a history")
    assert any_lake.rows(ORDERS) == ordered(ORDERS, rows(range(17)))
    assert driver.position(ORDERS.table, SOURCE) == START
    apply(driver, ORDERS, START + 1, net(ORDERS, rows([3, 20], "y"), [{"id": 12}]))
    expected = ordered(ORDERS, [row for row in rows(range(17)) if row["id"] not in (3, 12)] + rows([3, 20], "y"))
    assert any_lake.rows(ORDERS) == expected
    another = any_lake.driver()
    assert another.ensure_table(ORDERS.table, ORDERS, SOURCE, None) == START + 1
    assert another.history(ORDERS.table, SOURCE) == "a history"


def test_a_table_without_rows_is_copied_too(any_lake: Lake) -> None:
    driver = opened(any_lake)
    parts = copy_of(driver, ORDERS, [])
    assert [(part.rows, part.empty, part.bytes) for part in parts] == [(0, True, 0)]
    assert driver.parts_intact(parts) == [True]
    driver.commit_copy(ORDERS.table, SOURCE, parts, START)
    assert driver.position(ORDERS.table, SOURCE) == START
    assert any_lake.rows(ORDERS) == []
    apply(driver, ORDERS, START + 1, net(ORDERS, rows([1])))
    assert any_lake.rows(ORDERS) == rows([1])


def test_a_table_without_a_key_is_copied(any_lake: Lake) -> None:
    driver = opened(any_lake, EVENTS)
    same = [{"at": 1, "what": "same"}] * 4
    parts = copy_of(driver, EVENTS, same, same)
    parts = caught_up(driver, EVENTS, parts, START, net(EVENTS, same[:1]))
    driver.commit_copy(EVENTS.table, SOURCE, parts, START + 1)
    apply(driver, EVENTS, START + 2, net(EVENTS, same[:2]))
    any_lake.maintain(driver, EVENTS)
    assert any_lake.rows(EVENTS) == same[:1] * 11


def test_a_changed_key_ends_all_its_rows(any_lake: Lake, request: pytest.FixtureRequest) -> None:
    """A key that was read twice, under two snapshots, is changed, or deleted, by the log."""
    driver = opened(any_lake)
    parts = copy_of(driver, ORDERS, rows(range(8), "first"), rows(range(4, 12), "second"))
    moved = {"id": 30, "amount": 30, "note": None}
    kept = {"id": 6, "amount": 66, "note": None}
    effect = net(
        ORDERS,
        [*rows([4, 9, 20], "log"), moved, kept],
        [{"id": 5}, {"id": 0}, {"id": 99}],
        fetches=[("note", 3, {"id": 5}), ("note", 4, {"id": 6})],
    )
    parts = caught_up(driver, ORDERS, parts, START, effect)
    assert (parts[-1].fetched, parts[-1].unresolved) == (2, 0)
    assert parts[-1].deletes == 8  # 4, 5 and 6 twice, 9 and 0 once
    parts = caught_up(driver, ORDERS, parts, START + 1, net(ORDERS, rows([7, 20], "later"), [{"id": 4}]))
    assert any_lake.rows(ORDERS) == []
    driver.commit_copy(ORDERS.table, SOURCE, parts, START + 2)
    expected = {row["id"]: row for row in rows(range(8), "first") + rows(range(8, 12), "second")}
    expected |= {row["id"]: row for row in rows([9], "log") + rows([7, 20], "later")}
    expected |= {30: {**moved, "note": "second"}, 6: {**kept, "note": "second"}}
    for gone in (0, 4, 5):
        del expected[gone]
    assert any_lake.rows(ORDERS) == ordered(ORDERS, list(expected.values()))
    if (any_lake.warehouse / "catalog.db").is_file():
        assert read_by_spark(request.getfixturevalue("spark"), any_lake) == any_lake.rows(ORDERS)


def read_by_spark(spark: SparkSession, lake: Lake) -> list[Row]:
    session = spark.newSession()
    for key, value in spark_settings(iceberg_config(lake.root)).items():
        if key != "spark.sql.extensions":
            session.conf.set(key, value)
    return ordered(ORDERS, session.table("lake.public.orders").toArrow().to_pylist())


def test_the_stream_goes_on_over_keys_that_were_in_several_parts(any_lake: Lake) -> None:
    """Files of one copy have keys in common, dead but for one: none of them may be taken for the live one."""
    driver = opened(any_lake)
    parts = copy_of(driver, ORDERS, rows(range(10), "a"), rows(range(5, 15), "b"))
    parts = caught_up(driver, ORDERS, parts, START, net(ORDERS, rows(range(5, 10), "c"), [{"id": 0}]))
    parts = caught_up(driver, ORDERS, parts, START + 1, net(ORDERS, rows([1, 5, 6], "d"), [{"id": 7}]))
    driver.commit_copy(ORDERS.table, SOURCE, parts, START + 2)
    expected = {row["id"]: row for row in rows(range(10), "a") + rows(range(10, 15), "b")}
    expected |= {row["id"]: row for row in rows(range(5, 10), "c") + rows([1, 5, 6], "d")}
    del expected[0], expected[7]
    assert any_lake.rows(ORDERS) == ordered(ORDERS, list(expected.values()))
    upserts = [{"id": n, "amount": 100 + n, "note": None} for n in (5, 8, 2, 7)]
    fetches = [("note", number, {"id": row["id"]}) for number, row in enumerate(upserts)]
    plan = driver.plan(ORDERS.table, SOURCE)
    parts = write(plan, net(ORDERS, upserts, [{"id": 6}, {"id": 9}, {"id": 14}], fetches=fetches))
    if driver.capabilities.looks_up == "commit":
        with pytest.raises(CopyNeeded):
            driver.commit(plan, parts, truncated=False, position=START + 3)
        return
    assert (parts[0].fetched, parts[0].unresolved) == (3, 1)
    driver.commit(plan, parts, truncated=False, position=START + 3)
    for gone in (6, 9, 14):
        del expected[gone]
    expected |= {row["id"]: {**row, "note": note} for row, note in zip(upserts, ["d", "c", "a", None], strict=True)}
    assert any_lake.rows(ORDERS) == ordered(ORDERS, list(expected.values()))
    for step in range(4):
        any_lake.maintain(driver, ORDERS)
        changed = rows([2, 5, 11], f"{step}")
        expected |= {row["id"]: row for row in changed}
        apply(driver, ORDERS, START + 4 + step, net(ORDERS, changed))
        assert any_lake.rows(ORDERS) == ordered(ORDERS, list(expected.values()))


def test_cells_that_nobody_has_are_counted(any_lake: Lake) -> None:
    driver = opened(any_lake)
    parts = copy_of(driver, ORDERS, rows([1, 2]))
    upserts = [{"id": n, "amount": None, "note": None} for n in (1, 2, 3)]
    first = caught_up(driver, ORDERS, parts, START, net(ORDERS, [], [{"id": 2}]))
    fetches = [("note", number, {"id": number + 1}) for number in range(3)] + [("amount", 1, {"id": 2})]
    second = caught_up(driver, ORDERS, first, START + 1, net(ORDERS, upserts, fetches=fetches))
    assert (second[-1].fetched, second[-1].unresolved) == (1, 3)
    assert list(second[-1].unresolved_rows) == [1, 2]
    driver.discard(second[-1:])
    assert driver.parts_intact(second) == [True, True, False]
    driver.commit_copy(ORDERS.table, SOURCE, first, START + 2)
    assert any_lake.rows(ORDERS) == rows([1])


def test_a_truncate_while_catching_up(any_lake: Lake) -> None:
    driver = opened(any_lake)
    parts = copy_of(driver, ORDERS, rows(range(10)))
    plan = driver.plan_catchup(ORDERS.table, SOURCE, parts, START)
    parts = write(plan, net(ORDERS, rows([3, 4], "after"), truncated=True))
    assert parts[0].deletes == 0
    parts = caught_up(driver, ORDERS, parts, START + 1, net(ORDERS, rows([4], "later")))
    driver.commit_copy(ORDERS.table, SOURCE, parts, START + 2)
    assert any_lake.rows(ORDERS) == rows([3], "after") + rows([4], "later")


def test_a_catch_up_in_buckets(any_lake: Lake) -> None:
    driver = opened(any_lake)
    content = rows(range(60))
    parts = copy_of(driver, ORDERS, content[:40], content[30:])
    later = rows(range(20, 50), "y")
    parts = caught_up(driver, ORDERS, parts, START, *in_buckets(ORDERS, later, rows([1, 35, 59][:1]), 3))
    driver.commit_copy(ORDERS.table, SOURCE, parts, START + 1)
    expected = {row["id"]: row for row in content + later}
    del expected[1]
    assert any_lake.rows(ORDERS) == ordered(ORDERS, list(expected.values()))


def test_a_table_that_has_rows_is_copied_again(any_lake: Lake) -> None:
    driver = any_lake.driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    for step in range(3):
        apply(driver, ORDERS, START + 1 + step, net(ORDERS, rows(range(step, step + 5), f"old {step}")))
    before = any_lake.rows(ORDERS)
    parts = copy_of(driver, ORDERS, rows(range(100, 110), "new"), rows([0], "new"))
    parts = caught_up(driver, ORDERS, parts, START + 10, net(ORDERS, rows([105], "newest"), [{"id": 100}, {"id": 1}]))
    assert any_lake.rows(ORDERS) == before
    assert driver.position(ORDERS.table, SOURCE) == START + 3
    driver.commit_copy(ORDERS.table, SOURCE, parts, START + 11)
    expected = rows([0, *range(101, 105), *range(106, 110)], "new") + rows([105], "newest")
    assert any_lake.rows(ORDERS) == ordered(ORDERS, expected)
    assert driver.plan(ORDERS.table, SOURCE).position == START + 11
    apply(driver, ORDERS, START + 12, net(ORDERS, rows([2], "on"), [{"id": 0}]))
    assert any_lake.rows(ORDERS) == ordered(ORDERS, expected[1:] + rows([2], "on"))


def test_a_copy_without_rows_empties_a_table(any_lake: Lake) -> None:
    driver = any_lake.driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    apply(driver, ORDERS, START + 1, net(ORDERS, rows(range(5))))
    driver.plan_copy(ORDERS.table, SOURCE)
    driver.commit_copy(ORDERS.table, SOURCE, [], START + 2)
    assert any_lake.rows(ORDERS) == []
    assert driver.position(ORDERS.table, SOURCE) == START + 2


def test_a_copy_is_committed_once(any_lake: Lake) -> None:
    one, two = opened(any_lake), opened(any_lake)
    parts, others = copy_of(one, ORDERS, rows([1], "one")), copy_of(two, ORDERS, rows([1], "two"))
    one.commit_copy(ORDERS.table, SOURCE, parts, START)
    apply(one, ORDERS, START + 1, net(ORDERS, rows([2])))
    for driver, late in ((two, others), (one, parts)):
        with pytest.raises(StaleBase):
            driver.commit_copy(ORDERS.table, SOURCE, late, START)
    assert any_lake.rows(ORDERS) == rows([1], "one") + rows([2])
    assert one.position(ORDERS.table, SOURCE) == START + 1


def test_a_copy_is_no_base_of_a_batch(any_lake: Lake) -> None:
    driver = any_lake.driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    parts = copy_of(driver, ORDERS, rows([1]))
    plan = driver.plan_catchup(ORDERS.table, SOURCE, parts, START)
    with pytest.raises((StaleBase, TypeError)):
        driver.commit(plan, write(plan, net(ORDERS, rows([2]))), truncated=False, position=START + 1)
    assert any_lake.rows(ORDERS) == []


def test_a_copy_outlives_its_driver(any_lake: Lake) -> None:
    parts = copy_of(opened(any_lake), ORDERS, rows(range(5), "before"))
    driver = any_lake.driver()
    remembered = [driver.part_from_json(part.to_json()) for part in parts]
    assert driver.ensure_table(ORDERS.table, ORDERS, SOURCE, None, remembered) is None
    assert driver.parts_intact(remembered) == [True]
    remembered += copy_of(driver, ORDERS, rows(range(3, 8), "after"))
    done = caught_up(driver, ORDERS, remembered, START, net(ORDERS, rows([3, 4], "log")))
    driver.commit_copy(ORDERS.table, SOURCE, done, START + 1)
    expected = rows(range(3), "before") + rows([3, 4], "log") + rows(range(5, 8), "after")
    assert any_lake.rows(ORDERS) == expected


def test_what_a_reader_raises_goes_through(any_lake: Lake) -> None:
    driver = opened(any_lake)

    def breaking() -> Iterator[pa.RecordBatch | pa.Table]:
        yield from batches(ORDERS, rows(range(9)))
        raise RangeVoid("the table was rewritten")

    with pytest.raises(RangeVoid):
        driver.plan_copy(ORDERS.table, SOURCE).write_rows(breaking())
    assert list(any_lake.root.rglob("*.parquet")) == [] or not any_lake.warehouse.name
    driver.commit_copy(ORDERS.table, SOURCE, copy_of(driver, ORDERS, rows([1])), START)
    assert any_lake.rows(ORDERS) == rows([1])


KEYED: dict[str, Any] = {
    "id text": lambda n: {"id": ["", "a", "ä", "😀", "a" * 30][n % 5] + str(n // 5)},
    "id text, part int4": lambda n: {"id": "x" * (n % 4), "part": n // 4},
    "id int4": lambda n: {"id": (n - 20) * 2**26},
}


@pytest.mark.parametrize("columns", KEYED)
@pytest.mark.parametrize("seed", [1, 2])
def test_two_snapshots_and_the_log_equal_the_source(any_lake: Lake, columns: str, seed: int) -> None:
    """A source whose rows move between two ranges while they are read; the log from the first snapshot on heals it."""
    schema = table("moving", f"{columns}, version int4, note text", [c.split()[0] for c in columns.split(", ")])
    rng, source, place = random.Random(f"{columns}{seed}"), dict[int, Row](), dict[int, int]()
    log: list[dict[int, tuple[Row | None, bool]]] = []  # batches: key number → last image, whether its note was sent

    def change(step: int) -> None:
        batch: dict[int, tuple[Row | None, bool]] = {}
        for n in rng.sample(range(40), 10):
            if n in source and rng.random() < 0.3:
                del source[n]
                batch[n] = None, True
                continue
            sent = n not in source or rng.random() < 0.5
            note = f"{step}-{n}" if sent else source[n]["note"]
            source[n] = {**KEYED[columns](n), "version": step, "note": note}
            place[n] = rng.randrange(2)
            batch[n] = source[n], sent
        log.append(batch)

    def read(number: int) -> list[Row]:
        return [row for n, row in source.items() if place[n] == number]

    for step in range(5):
        change(step)
    log.clear()
    driver = opened(any_lake, schema)
    parts, known = copy_of(driver, schema, read(0)), {n for n in source if place[n] == 0}
    for step in range(5, 8):
        change(step)
    parts, known = parts + copy_of(driver, schema, read(1)), known | {n for n in source if place[n] == 1}
    for step in range(8, 10):
        change(step)
    for number, batch in enumerate(log):
        upserts = [(n, row, sent) for n, (row, sent) in batch.items() if row is not None]
        lost = [n for n, _, sent in upserts if not sent and n not in known]
        images = [row if sent or n in lost else {**row, "note": None} for n, row, sent in upserts]
        fetches = [
            ("note", place, KEYED[columns](n))
            for place, (n, _, sent) in enumerate(upserts)
            if not sent and n not in lost
        ]
        deletes = [KEYED[columns](n) for n, (row, _) in batch.items() if row is None]
        for n in lost:
            probe = net(schema, [KEYED[columns](n)], fetches=[("note", 0, KEYED[columns](n))])
            found = caught_up(driver, schema, parts, START + number, probe)[-1]
            assert (found.fetched, found.unresolved) == (0, 1)
        parts = caught_up(driver, schema, parts, START + number, net(schema, images, deletes, fetches=fetches))
        assert (parts[-1].fetched, parts[-1].unresolved) == (len(fetches), 0)
        known = (known - batch.keys()) | {n for n, _, _ in upserts}
    driver.commit_copy(schema.table, SOURCE, parts, START + 20)
    assert any_lake.rows(schema) == ordered(schema, list(source.values()))
    for step in range(10, 14):
        any_lake.maintain(driver, schema)
        log.clear()
        change(step)
        upserted = [row for row, _ in log[0].values() if row is not None]
        deleted = [KEYED[columns](n) for n, (row, _) in log[0].items() if row is None]
        apply(driver, schema, START + 20 + step, net(schema, upserted, deleted))
        assert any_lake.rows(schema) == ordered(schema, list(source.values())), step


def data_files(lake: Lake) -> list[str]:
    return sorted(path.name for path in (lake.warehouse / "public" / "orders" / "data").glob("*.parquet"))


def test_files_of_copies_that_nobody_goes_on_with_go(iceberg: Lake) -> None:
    driver = opened(iceberg)
    kept, forgotten = copy_of(driver, ORDERS, rows([1], "kept"), rows([2], "forgotten"))
    assert len(data_files(iceberg)) == 2
    again = iceberg.driver()
    again.ensure_table(ORDERS.table, ORDERS, SOURCE, None, [kept])
    assert again.parts_intact([kept, forgotten]) == [True, False]
    assert len(list((iceberg.root / "index").rglob("*.keys"))) == 1
    with pytest.raises(StaleBase):  # the first driver lives after all, and is shut out
        driver.commit_copy(ORDERS.table, SOURCE, [kept, forgotten], START)
    again.plan_copy(ORDERS.table, SOURCE)
    again.commit_copy(ORDERS.table, SOURCE, [kept], START)
    assert iceberg.rows(ORDERS) == rows([1], "kept")


def test_what_a_copy_did_not_need_goes_with_its_commit(iceberg: Lake) -> None:
    driver = opened(iceberg)
    parts = copy_of(driver, ORDERS, rows(range(5), "truncated away"))
    after = write(driver.plan_catchup(ORDERS.table, SOURCE, parts, START), net(ORDERS, rows([1]), truncated=True))
    driver.commit_copy(ORDERS.table, SOURCE, after, START + 1)
    assert len(data_files(iceberg)) == 1
    apply(driver, ORDERS, START + 2, net(ORDERS, rows([2])))
    abandoned = copy_of(driver, ORDERS, rows(range(5), "abandoned"))
    apply(driver, ORDERS, START + 3, net(ORDERS, rows([3])))
    assert driver.parts_intact(abandoned) == [True]
    assert iceberg.driver().ensure_table(ORDERS.table, ORDERS, SOURCE, None) == START + 3
    assert driver.parts_intact(abandoned) == [False]
    assert iceberg.rows(ORDERS) == rows([1, 2, 3])


def test_a_copy_is_one_step_in_the_history_of_its_table(iceberg: Lake, spark: SparkSession) -> None:
    """Who looks back finds the table before the copy and after it, and nothing between."""
    driver = iceberg.driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    apply(driver, ORDERS, START + 1, net(ORDERS, rows(range(5), "old")))
    apply(driver, ORDERS, START + 2, net(ORDERS, rows(range(2), "old")))
    parts = copy_of(driver, ORDERS, rows(range(3, 9), "new"))
    parts = caught_up(driver, ORDERS, parts, START + 3, net(ORDERS, [], [{"id": 4}]))
    driver.commit_copy(ORDERS.table, SOURCE, parts, START + 4)
    session = spark.newSession()
    for key, value in spark_settings(iceberg_config(iceberg.root)).items():
        if key != "spark.sql.extensions":
            session.conf.set(key, value)
    snapshots = session.sql("SELECT snapshot_id FROM lake.public.orders.snapshots ORDER BY committed_at").collect()
    counts = [
        session.sql(f"SELECT count(*) FROM lake.public.orders VERSION AS OF {snapshot[0]}").collect()[0][0]
        for snapshot in snapshots
    ]
    assert counts == [5, 5, 5]
    assert session.table("lake.public.orders.delete_files").count() == 1


def test_a_part_that_was_damaged_is_not_intact(iceberg: Lake) -> None:
    parts = copy_of(opened(iceberg), ORDERS, rows(range(5)), rows(range(5, 10)), rows(range(10, 15)))
    folder = iceberg.warehouse / "public" / "orders" / "data"
    written: Any = parts
    (folder / written[0].data.path.rpartition("/")[2]).unlink()
    with (folder / written[1].data.path.rpartition("/")[2]).open("ab") as file:
        file.write(b"more")
    assert iceberg.driver().parts_intact(parts) == [False, False, True]


def test_a_copy_goes_on_without_its_index(iceberg: Lake) -> None:
    driver = opened(iceberg)
    parts = copy_of(driver, ORDERS, rows(range(10), "a"), rows(range(5, 15), "b"))
    for sidecar in (iceberg.root / "index").rglob("*.keys"):
        sidecar.unlink()
    parts = caught_up(driver, ORDERS, parts, START, net(ORDERS, rows(range(4, 11), "c")))
    driver.commit_copy(ORDERS.table, SOURCE, parts, START + 1)
    expected = rows(range(4), "a") + rows(range(4, 11), "c") + rows(range(11, 15), "b")
    assert iceberg.rows(ORDERS) == ordered(ORDERS, expected)

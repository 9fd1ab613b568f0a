"""Tables without a key that are followed by their whole row, at every destination: always the multiset that the source
has, whatever was copied, merged, killed or altered in between."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from bag_source import Row, Source
from databases import Database
from destination_rows import SOURCE, START, Lake, write
from penstock.decode.choices import fitted
from penstock.decode.rescue import RESCUED, RESCUED_TYPE
from penstock.destinations.contract import TableDestination, WritePlan, WrittenPart
from penstock.destinations.postgres.type_map import POSTGRES_TYPES
from penstock.errors import RowsMissing, StaleBase
from penstock.fold.net_effect import NetEffect
from penstock.fold.whole_rows import fold_rows
from penstock.model.feed import Sid
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from pgoutput_messages import FLOAT8, INT8, RELATION, TEXT, Change, delete, insert, raw_changes, update
from postgres_lake import postgres_lake

NUMERIC = ColumnType(1700, "numeric", held_as="decimal(38,18)")
ARRAY = ColumnType(1007, "_int4", kind="array", element=ColumnType(23, "int4"))
HSTORE = ColumnType(90_000, "hstore")
TYPES = {"a": INT8, "note": TEXT, "amount": NUMERIC, "x": FLOAT8, "tags": ARRAY, "more": HSTORE}
BAG = TableSchema(
    TableId("public", "bag"),
    RELATION,
    tuple(Column(name, type, number=number) for number, (name, type) in enumerate(TYPES.items(), 1)),
    (),
    "full",
)
VALUES: list[Sequence[str | None]] = [
    ["1", "2", None],
    ["", "note", None],
    ["1.5", "1.50", "NaN", None],
    ["0", "-0", "NaN", None],
    ["{1,NULL}", "{}", "{{1},{2}}", None],
    ['"k"=>"v"', '"k"=>NULL', None],
]
EARLIER = {"sum": "amount"}
Shown = tuple[Any, ...]


def folded(changes: Sequence[Change], schema: TableSchema, *, buckets: int = 1) -> list[NetEffect]:
    log = [raw_changes(schema, changes)]
    return [fold_rows(log, position=0, bucket=one, buckets=buckets, schema=schema) for one in range(buckets)]


def apply(driver: TableDestination, schema: TableSchema, position: int, nets: Sequence[NetEffect]) -> None:
    plan = driver.plan(schema.table, SOURCE, schema)
    truncated = any(net.truncated for net in nets)
    driver.commit(plan, write(plan, *nets), truncated=truncated, position=position)


def messages(*sent: bytes) -> list[Change]:
    return [Change(10, place, message) for place, message in enumerate(sent)]


def shown(row: dict[str, Any], names: Sequence[str]) -> Shown:
    """A row from before a rename has what was rescued of it under the old name."""
    rescued = dict(row.get(RESCUED) or [])
    return tuple(repr(rescued.get(name, rescued.get(EARLIER.get(name, ""), row[name]))) for name in names)


def held(lake: Lake, schema: TableSchema) -> Counter[Shown]:
    names = [column.name for column in schema.columns]
    return Counter(shown(row, names) for row in lake.read(schema.table).to_pylist())


def expected(rows: Sequence[Row], schema: TableSchema = BAG) -> Counter[Shown]:
    """As a fold of nothing but inserts has them."""
    names = [column.name for column in schema.columns]
    net = folded(messages(*(insert(*row) for row in rows)), schema)[0]
    table = net.upserts
    if net.rescued is not None:
        table = table.append_column(pa.field(RESCUED, RESCUED_TYPE), net.rescued)
    return Counter(shown(row, names) for row in table.to_pylist())


def some_row(chance: random.Random) -> Row:
    return tuple(chance.choice(list(values)) for values in VALUES)


def disturb(source: Source, chance: random.Random, steps: int) -> list[Change]:
    begin = len(source.changes)
    for _ in range(steps):
        number = chance.randrange(len(source.rows)) if source.rows else None
        kind = chance.choices(["insert", "again", "update", "delete", "truncate"], [6, 4, 8, 5, 0.1])[0]
        if kind == "insert" or number is None:
            source.insert(some_row(chance))
        elif kind == "again":
            source.insert(source.rows[number])
        elif kind == "update":
            source.update(number, some_row(chance), [chance.random() < 0.5 for _ in VALUES])
        elif kind == "delete":
            source.delete(number)
        else:
            source.truncate()
    source.commit()
    return [change for change, _ in source.changes[begin:]]


@pytest.fixture
def driver(typed_lake: Lake) -> TableDestination:
    destination = typed_lake.driver()
    destination.ensure_table(BAG.table, BAG, SOURCE, START)
    return destination


@pytest.mark.parametrize("seed", [1, 2])
def test_a_random_stream_leaves_an_equal_multiset(typed_lake: Lake, driver: TableDestination, seed: int) -> None:
    chance, source = random.Random(seed), Source()
    for number in range(1, 16):
        changes = disturb(source, chance, 40)
        nets = folded(changes, BAG, buckets=chance.choice([1, 1, 3]))
        apply(driver, BAG, START + number, nets)
        if number % 3 == 0:
            typed_lake.maintain(driver, BAG)
        if number % 5 == 0:
            assert held(typed_lake, BAG) == expected(source.rows)
    driver = typed_lake.driver()  # after a restart, without the index
    driver.ensure_table(BAG.table, BAG, SOURCE, START)
    for path in (typed_lake.root / "index").rglob("*.keys"):
        path.unlink()
    apply(driver, BAG, START + 99, folded(disturb(source, chance, 60), BAG))
    assert held(typed_lake, BAG) == expected(source.rows)


@pytest.mark.parametrize("sid", [None, Sid("sid", "eu", "shop")])
def test_at_postgres_rows_are_the_texts_of_their_values(postgres: Database, sid: Sid | None) -> None:
    """It finds whole rows by their text, and its commit says how many are missing."""
    schema, chance, source = fitted(BAG, POSTGRES_TYPES), random.Random(3), Source()
    lake = postgres_lake(postgres)
    for number in range(1, 13):
        if number % 4 == 1:
            driver = lake.driver()
            driver.ensure_table(schema.table, schema, SOURCE, START, sid=sid)
        buckets = chance.choice([1, 3])
        apply(driver, schema, START + number, folded(disturb(source, chance, 40), schema, buckets=buckets))
        with postgres.connect() as connection:
            names = ", ".join(f"{name}::text" for name in TYPES)
            found = connection.execute(f"select {names} from public.bag".encode()).fetchall()
        assert Counter(found) == Counter(source.rows)
    gone = [delete(*source.rows[0], full=True)] * (source.rows.count(source.rows[0]) + 2)
    with pytest.raises(RowsMissing) as caught:
        apply(driver, schema, START + 99, folded(messages(*gone), schema))
    assert caught.value.rows == 2
    assert driver.position(schema.table, SOURCE) == START + 12
    assert postgres.value("select count(*) from public.bag") == len(source.rows)


def test_rows_that_are_not_there_are_missing_and_nothing_changes(typed_lake: Lake, driver: TableDestination) -> None:
    one: Row = ("1", "one", "1.0", "0", "{1}", None)
    apply(driver, BAG, START + 1, folded(messages(insert(*one), insert(*one)), BAG))
    for changes, missing in (
        ([delete(*one, full=True)] * 3, 1),
        ([delete("2", *one[1:], full=True)], 1),
        ([update(*one, row=("1", "one", "1.0", "-0", "{1}", None))], 1),
        ([delete("2", *one[1:], full=True), insert("2", *one[1:])], 1),
    ):
        plan = driver.plan(BAG.table, SOURCE)
        with pytest.raises(RowsMissing) as caught:
            write(plan, *folded(messages(*changes), BAG))
        assert caught.value.rows == missing
    apply(driver, BAG, START + 2, folded(messages(delete(*one, full=True)), BAG))
    assert held(typed_lake, BAG) == expected([one])
    apply(driver, BAG, START + 3, folded(messages(delete("1", "one", "1.00", *one[3:], full=True)), BAG))
    assert held(typed_lake, BAG) == expected([])
    with pytest.raises(RowsMissing):  # where it was, it is dead
        write(driver.plan(BAG.table, SOURCE), *folded(messages(delete(*one, full=True)), BAG))


def test_a_batch_cannot_be_applied_twice(typed_lake: Lake, driver: TableDestination) -> None:
    one: Row = ("1", "one", None, None, None, None)
    apply(driver, BAG, START + 1, folded(messages(*[insert(*one)] * 3), BAG))
    plan, nets = driver.plan(BAG.table, SOURCE), folded(messages(delete(*one, full=True)), BAG)
    parts, again = write(plan, *nets), write(plan, *nets)
    driver.commit(plan, parts, truncated=False, position=START + 2)
    with pytest.raises(StaleBase):
        driver.commit(plan, again, truncated=False, position=START + 2)
    assert held(typed_lake, BAG) == expected([one, one])


def test_the_next_batch_can_be_written_before_the_commit(typed_lake: Lake, driver: TableDestination) -> None:
    chance, source = random.Random(7), Source()
    apply(driver, BAG, START + 1, folded(disturb(source, chance, 30), BAG))
    plan: WritePlan | None = driver.plan(BAG.table, SOURCE)
    for number in range(2, 8):
        assert plan is not None
        nets = folded(disturb(source, chance, 20), BAG)
        parts = write(plan, *nets)
        if any(net.truncated for net in nets):
            driver.commit(plan, parts, truncated=True, position=START + number)
            plan = driver.plan(BAG.table, SOURCE)
            continue
        following = driver.plan_after(plan, parts, position=START + number)
        driver.commit(plan, parts, truncated=False, position=START + number)
        plan = following or driver.plan(BAG.table, SOURCE)
    assert held(typed_lake, BAG) == expected(source.rows)


def test_a_copy_is_caught_up_and_followed(typed_lake: Lake) -> None:
    driver = typed_lake.driver()
    driver.ensure_table(BAG.table, BAG, SOURCE, None)
    chance, source = random.Random(11), Source()
    disturb(source, chance, 80)
    copy = driver.plan_copy(BAG.table, SOURCE, BAG)
    snapshot = folded(messages(*(insert(*row) for row in source.rows)), BAG)[0]
    rows = snapshot.upserts
    if snapshot.rescued is not None:
        rows = rows.append_column(pa.field(RESCUED, RESCUED_TYPE), snapshot.rescued)
    half = rows.num_rows // 2
    parts: list[WrittenPart] = [copy.write_rows([rows.slice(0, half)]), copy.write_rows([rows.slice(half)])]
    for number in range(1, 6):
        plan = driver.plan_catchup(BAG.table, SOURCE, parts, START + number)
        nets = folded(disturb(source, chance, 30), BAG, buckets=2)
        if nets[0].truncated:
            parts = []
        parts += [part for part in write(plan, *nets) if not part.empty]
    driver.commit_copy(BAG.table, SOURCE, parts, START + 10)
    assert held(typed_lake, BAG) == expected(source.rows)
    for number in range(11, 15):
        apply(driver, BAG, START + number, folded(disturb(source, chance, 30), BAG))
        typed_lake.maintain(driver, BAG)
    assert held(typed_lake, BAG) == expected(source.rows)


def test_columns_come_go_and_are_renamed(typed_lake: Lake, driver: TableDestination) -> None:
    """A dropped column that is kept takes no part; a new one is NULL in rows from before it."""
    one: Row = ("1", "one", "NaN", "0", None, None)
    two: Row = ("1", "two", "NaN", "0", None, None)
    apply(driver, BAG, START + 1, folded(messages(*[insert(*one)] * 2, insert(*two)), BAG))
    grown = replace(BAG, columns=(*BAG.columns, Column("late", TEXT, number=7)), stamp=1)
    apply(driver, grown, START + 2, folded(messages(update(*one, "late", row=(*one, None))), grown))
    assert held(typed_lake, grown) == expected([(*one, None), (*one, "late"), (*two, None)], grown)
    renamed = replace(
        grown,
        columns=tuple(replace(one, name="sum") if one.name == "amount" else one for one in grown.columns),
        stamp=2,
    )
    apply(driver, renamed, START + 3, folded(messages(delete(*one, None, full=True)), renamed))
    left = replace(renamed, columns=tuple(one for one in renamed.columns if one.name != "note"), stamp=3)
    without: Row = ("1", "NaN", "0", None, None)
    apply(driver, left, START + 4, folded(messages(insert(*without, None), insert(*without, None)), left))
    assert held(typed_lake, left) == expected([(*without, "late"), *[(*without, None)] * 3], left)
    apply(driver, left, START + 5, folded(messages(*[delete(*without, None, full=True)] * 3), left))
    assert held(typed_lake, left) == expected([(*without, "late")], left)
    with pytest.raises(RowsMissing):
        write(driver.plan(BAG.table, SOURCE), *folded(messages(delete(*without, None, full=True)), left))


def test_sources_of_one_table_remove_their_own_rows(typed_lake: Lake) -> None:
    driver = typed_lake.driver()
    one: Row = ("1", "one", "NaN", "0", "{1}", None)
    for number, source in enumerate(("shop.a", "shop.b")):
        sid = Sid("sid", number, "shop")
        driver.ensure_table(BAG.table, BAG, source, START, sid=sid)
        plan = driver.plan(BAG.table, source)
        driver.commit(
            plan, write(plan, *folded(messages(*[insert(*one)] * 2), BAG)), truncated=False, position=START + 1
        )
    plan = driver.plan(BAG.table, "shop.a")
    gone = folded(messages(*[delete(*one, full=True)] * 2), BAG)
    driver.commit(plan, write(plan, *gone), truncated=False, position=START + 2)
    rows = typed_lake.read(BAG.table).to_pylist()
    assert [row["sid"] for row in rows] == [1, 1]
    with pytest.raises(RowsMissing):
        write(driver.plan(BAG.table, "shop.a"), *folded(messages(delete(*one, full=True)), BAG))

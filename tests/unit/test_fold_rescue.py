"""Values that do not fit, in tables that keep a part, versions or events: through fold and the memory twin."""

from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.decode.rescue import RESCUED, RESCUED_TYPE, counted
from penstock.destinations.memory import MemoryDestination
from penstock.errors import ValueDoesNotFit
from penstock.fold.clone import fold_clone
from penstock.fold.envelope import fold_events, read_events
from penstock.fold.history import fold_history
from penstock.fold.layout import Layout
from penstock.fold.net_effect import NetEffect
from penstock.fold.projection import kept_schema, project_effect, project_rows
from penstock.model.feed import ColumnChoice, Period, Projection
from penstock.model.rescue import RescueCount, merged
from penstock.runtime.copy.task import counting
from pgoutput_messages import INT8, TIMESTAMPTZ, UNSENT, Stream, delete, insert, numeric, table_schema, update

COLUMNS = {"id": INT8, "n": numeric(5, 1), "at": TIMESTAMPTZ, "secret": numeric(5, 1), "gone": numeric(5, 1)}
PRICES = table_schema(COLUMNS)
FULL = table_schema(COLUMNS, identity="full")
PROJECTION = Projection(
    "at IS NULL OR at > '2000-01-01'",
    (ColumnChoice("n", name="price"), ColumnChoice("secret", masked=True), ColumnChoice("gone", dropped=True)),
    (("region", "eu"),),
    "salt",
)
SINCE = "2024-01-01 00:00:00+00"
BEFORE = "1999-01-01 00:00:00+00"


def masked(text: str) -> str:
    return hashlib.sha256(f"salt{text}".encode()).hexdigest()


def beside(net: NetEffect) -> dict[int, Any]:
    assert net.rescued is not None
    net.rescued.validate(full=True)
    return dict(zip(net.upserts["id"].to_pylist(), net.rescued.to_pylist(), strict=True))


def counts(net: NetEffect) -> list[tuple[str, int, str]]:
    return [(one.column, one.cells, one.sample) for one in net.rescues]


STREAM = (
    Stream()
    .transaction(insert("1", "NaN", SINCE, "Infinity", "NaN"), insert("2", "1.0", "infinity", "2.0", "1.0"))
    .transaction(insert("3", "NaN", BEFORE, "NaN", "NaN"), insert("4", "1.0", SINCE, "NaN", "NaN"))
)


def test_what_was_rescued_follows_the_columns() -> None:
    net = project_effect(PROJECTION, PRICES, fold_clone([STREAM.raw(PRICES)], position=0))
    rows = {row["id"]: row for row in net.upserts.to_pylist()}
    assert sorted(rows) == [1, 2, 4], "a rescued cell is NULL for `where`"
    assert beside(net) == {1: [("price", "NaN")], 2: [("at", "infinity")], 4: None}
    assert [rows[id]["secret"] for id in (1, 2, 4)] == [masked("Infinity"), masked("2.0"), masked("NaN")]
    assert counts(net) == [("price", 1, "NaN"), ("at", 1, "infinity")], "what is masked or dropped is not told"
    assert all(one.place for one in net.rescues)


def test_nothing_is_rescued_of_what_is_not_kept() -> None:
    stream = Stream().transaction(insert("1", "NaN", BEFORE, "1.0", "1.0"), insert("2", "1.0", SINCE, "NaN", "NaN"))
    net = project_effect(PROJECTION, PRICES, fold_clone([stream.raw(PRICES)], position=0))
    assert (net.rescued, net.rescues) == (None, ())
    assert net.upserts["secret"].to_pylist() == [masked("NaN")]


def test_the_copys_rows_are_kept_as_the_streams() -> None:
    whole = fold_clone([STREAM.raw(PRICES)], position=0)
    assert whole.rescued is not None
    read = whole.upserts.append_column(pa.field(RESCUED, RESCUED_TYPE), whole.rescued)
    net = project_effect(PROJECTION, PRICES, whole)
    kept = project_rows(PROJECTION, PRICES, read)
    assert kept.drop_columns([RESCUED]) == net.upserts
    assert kept[RESCUED].to_pylist() == net.rescued.to_pylist()  # type: ignore[union-attr]
    rescues: list[RescueCount] = []
    told = [RescueCount("n", 2, "NaN", "range 7 of its copy")]
    assert list(counting([kept, kept], told, rescues)) == [kept, kept]
    place = "range 7 of its copy"
    assert merged(rescues) == (RescueCount("price", 2, "NaN", place), RescueCount("at", 2, "infinity", place))
    nothing = project_rows(PROJECTION, PRICES, read.filter(pa.array([False, False, False, True])))
    assert RESCUED not in nothing.column_names


def test_a_fetched_cell_brings_it_along_under_its_new_name() -> None:
    lake, layout = MemoryDestination(), Layout(projection=PROJECTION)
    lake.ensure_table(PRICES.table, PRICES, "shop", 0, layout=layout)
    changes = Stream().transaction(insert("1", "NaN", None, "NaN", "NaN"))
    changes.transaction(update("1", UNSENT, SINCE, UNSENT, UNSENT))
    for position, until in ((0, 200), (200, 300)):
        plan = lake.plan(PRICES.table, "shop")
        net = fold_clone([changes.raw(PRICES)], position=position, until=until)
        part = plan.write(project_effect(PROJECTION, PRICES, net))
        lake.commit(plan, [part], truncated=False, position=until)
    (row,) = lake.rows(PRICES.table).to_pylist()
    assert (row["price"], row[RESCUED], row["secret"]) == (None, [("price", "NaN")], masked("NaN"))
    assert row["at"].year == 2024


def test_a_version_has_what_was_rescued_of_it() -> None:
    lake, layout = MemoryDestination(), Layout(period=Period(), projection=PROJECTION)
    lake.ensure_table(PRICES.table, PRICES, "shop", 0, layout=layout)
    texts = ["1.0", "NaN", "NaN", "Infinity", "2.0"]
    stream = Stream().transaction(insert("1", texts[0], None, "1.0", "1.0"))
    for text in texts[1:]:
        stream.transaction(update("1", text, None, "1.0", "NaN"))
    stream.transaction(update("1", "2.0", None, "NaN", "NaN"))
    for position in range(0, 700, 200):  # two transactions a batch
        plan = lake.plan(PRICES.table, "shop")
        net = fold_history([stream.raw(PRICES)], position=position, until=position + 200, since=plan.moment)
        part = plan.write(project_effect(PROJECTION, PRICES, net))
        lake.commit(plan, [part], truncated=False, position=position + 200, moment=net.last_commit_time)
    rows = sorted(lake.rows(PRICES.table).to_pylist(), key=lambda row: row["valid_from"])
    assert [(row["price"], row[RESCUED], row["secret"], row["valid_to"].second) for row in rows] == [
        (Decimal("1.0"), None, masked("1.0"), 2),
        (None, [("price", "NaN")], masked("1.0"), 4),
        (None, [("price", "Infinity")], masked("1.0"), 5),
        (Decimal("2.0"), None, masked("1.0"), 6),
        (Decimal("2.0"), None, masked("NaN"), 0),
    ]


def test_counts_of_a_history() -> None:
    net = fold_history([STREAM.raw(PRICES)], position=0)
    assert beside(net)[1] == [("n", "NaN"), ("secret", "Infinity"), ("gone", "NaN")]
    assert [(one.column, one.cells) for one in net.rescues] == [("n", 2), ("at", 1), ("secret", 3), ("gone", 3)]


def test_events_have_it_beside_their_images() -> None:
    stream = (
        Stream()
        .transaction(insert("1", "NaN", None, "1.0", "NaN"))
        .transaction(update("1", "2.0", "infinity", "1.0", "1.0", row=("1", "NaN", None, "1.0", "NaN")))
        .transaction(delete("1", "NaN", None, "Infinity", "1.0", full=True), insert("2", "2.0", None, None, None))
    )
    for buckets in (1, 3):
        folded = [fold_events([stream.raw(FULL)], position=0, bucket=n, buckets=buckets) for n in range(buckets)]
        found = [cells for net in folded for cells in (net.rescued or pa.nulls(net.upserts.num_rows)).to_pylist()]
        assert found == [
            [("after.n", "NaN"), ("after.gone", "NaN")],
            [("before.n", "NaN"), ("before.gone", "NaN"), ("after.at", "infinity")],
            [("before.n", "NaN"), ("before.secret", "Infinity")],
            None,
        ]
        assert [net.upserts.schema for net in folded] == [folded[0].upserts.schema] * buckets
        total = {one.column: one.cells for one in merged(one for net in folded for one in net.rescues)}
        expected = {"before.n": 2, "before.gone": 1, "before.secret": 1, "after.n": 1, "after.gone": 1, "after.at": 1}
        assert total == expected
    after = folded[0].upserts["after"].to_pylist()[0]
    assert (after["id"], after["n"]) == (1, None)


def test_events_of_what_is_kept() -> None:
    stream = (
        Stream()
        .transaction(insert("1", "NaN", None, "NaN", "NaN"), insert("2", "NaN", BEFORE, None, None))
        .transaction(update("1", "Infinity", BEFORE, "1.0", "1.0", row=("1", "NaN", None, "NaN", "NaN")))
    )
    net = fold_events([stream.raw(FULL)], position=0, projection=PROJECTION, markers=True)
    assert net.rescued is not None
    found = dict(zip(net.upserts["op"].to_pylist(), net.rescued.to_pylist(), strict=True))
    assert found == {
        "insert": [("after.price", "NaN")],
        "delete": [("before.price", "NaN")],
        "begin": None,
        "commit": None,
    }
    assert net.upserts["after"].to_pylist()[0]["secret"] == masked("NaN")
    assert counts(net) == [("after.price", 1, "NaN"), ("before.price", 1, "NaN")]


def test_rows_of_the_copy_as_events_have_it_too() -> None:
    whole = fold_clone([STREAM.raw(PRICES)], position=0)
    assert whole.rescued is not None
    rows = project_rows(PROJECTION, PRICES, whole.upserts.append_column(pa.field(RESCUED, RESCUED_TYPE), whole.rescued))
    kept = kept_schema(PROJECTION, PRICES)
    events = read_events(rows, PRICES, kept, position=100, moment=0, first=0)
    cells = [[("after.price", "NaN")], [("after.at", "infinity")], None]
    assert events[RESCUED].to_pylist() == cells
    assert (
        RESCUED
        not in read_events(rows.drop_columns([RESCUED]), PRICES, kept, position=100, moment=0, first=0).column_names
    )
    lake = MemoryDestination()
    lake.ensure_table(PRICES.table, PRICES, "shop", None, layout=Layout(projection=PROJECTION, events=True))
    part = lake.plan_copy(PRICES.table, "shop").write_rows([events])
    lake.commit_copy(PRICES.table, "shop", [part], 100)
    assert lake.rows(PRICES.table)[RESCUED].to_pylist() == cells


@pytest.mark.parametrize("fold", [fold_clone, fold_history, fold_events])
def test_strict_rescues_nothing(fold: Any) -> None:
    with pytest.raises(ValueDoesNotFit, match="'NaN'"):
        fold([STREAM.raw(PRICES)], position=0, strict=True)
    assert fold([STREAM.raw(PRICES)], position=0).rescued is not None


def test_counting_takes_the_newest_as_a_sample() -> None:
    cells = pa.array([[("n", "NaN")], None, [("n", "Infinity"), ("at", "x")]], RESCUED_TYPE)
    found = counted(cells, lambda column: f"of {column}")
    assert found == (RescueCount("n", 2, "Infinity", "of n"), RescueCount("at", 1, "x", "of at"))
    assert counted(None, str) == ()

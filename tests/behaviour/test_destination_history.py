"""Tables of versions, held against every destination: the memory twin and Iceberg."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal

import pytest

from destination_rows import SOURCE, Lake, write
from penstock.decode.rescue import RESCUED
from penstock.destinations.contract import TableDestination, WritePlan, WrittenPart
from penstock.errors import SchemaChanged, StaleBase
from penstock.fold.history import fold_history
from penstock.fold.layout import Layout
from penstock.fold.net_effect import NetEffect
from penstock.model.feed import Period
from penstock.model.table import TableSchema
from pgoutput_messages import (
    INT8,
    RELATION,
    TEXT,
    UNSENT,
    Stream,
    delete,
    insert,
    numeric,
    table_schema,
    truncate,
    update,
)
from versions_oracle import Row, Versions, found

THINGS = table_schema({"id": INT8, "body": TEXT, "note": TEXT})
LAYOUT = Layout(period=Period())


class Follower:
    """A driver of a table of versions, and the stream that it follows. The n-th transaction commits at second n."""

    def __init__(self, lake: Lake, schema: TableSchema = THINGS, layout: Layout = LAYOUT) -> None:
        self.lake, self.stream, self.schema, self.layout = lake, Stream(), schema, layout
        self.driver = self.restart()

    def restart(self) -> TableDestination:
        self.driver = self.lake.driver()
        self.driver.ensure_table(self.schema.table, self.schema, SOURCE, 0, layout=self.layout)
        return self.driver

    def fold(self, position: int, since: int, buckets: int = 1) -> list[NetEffect]:
        changes = self.stream.raw(self.schema)
        return [
            fold_history([changes], position=position, since=since, bucket=bucket, buckets=buckets)
            for bucket in range(buckets)
        ]

    def apply(self, buckets: int = 1, after: TableSchema | None = None) -> None:
        """With `after`, the structure moves there too."""
        self.schema = after or self.schema
        plan = self.driver.plan(self.schema.table, SOURCE, after)
        effects = self.fold(plan.position, plan.moment, buckets)
        moment = max(plan.moment, *(effect.last_commit_time for effect in effects))
        position = (self.stream.transactions + 1) * 100
        self.driver.commit(plan, write(plan, *effects), truncated=False, position=position, moment=moment)

    def versions(self) -> list[tuple[object, ...]]:
        return found(self.lake.rows(self.schema))


def second(number: int) -> datetime:
    return datetime.fromtimestamp(number, UTC)


def test_versions_open_close_and_come_back(any_lake: Lake) -> None:
    follower, expected = Follower(any_lake), Versions()
    row = {"id": 1, "body": "large", "note": "x"}
    follower.stream.transaction(insert("1", "large", "x"), insert("2", "b", None))
    follower.apply()
    expected.put(1, row, second(1))
    expected.put(2, {"id": 2, "body": "b", "note": None}, second(1))
    follower.stream.transaction(update("1", UNSENT, "y"))
    follower.stream.transaction(update("2", "b", None))
    follower.apply()
    expected.put(1, {**row, "note": "y"}, second(2))
    follower.stream.transaction(delete("1", None, None))
    follower.apply()
    expected.remove(1, second(4))
    follower.restart()
    follower.stream.transaction(insert("1", "again", None))
    follower.apply()
    expected.put(1, {"id": 1, "body": "again", "note": None}, second(5))
    assert follower.versions() == expected.rows()


def test_versions_are_written_over_what_is_not_committed_yet(any_lake: Lake) -> None:
    follower, expected = Follower(any_lake), Versions()
    row = {"id": 1, "body": "large", "note": "x"}
    plan: WritePlan | None = follower.driver.plan(THINGS.table, SOURCE)
    waiting: list[tuple[WritePlan, list[WrittenPart], int, int]] = []
    for changes in (
        (insert("1", "large", "x"), insert("2", "b", None)),
        (update("1", UNSENT, "y"), delete("2", None, None)),
        (update("1", UNSENT, "z"), insert("2", "c", None)),
    ):
        assert plan is not None
        follower.stream.transaction(*changes)
        effects = follower.fold(plan.position, plan.moment)
        moment, position = effects[0].last_commit_time, (follower.stream.transactions + 1) * 100
        waiting.append((plan, write(plan, *effects), position, moment))
        if len(waiting) > 1:
            first, parts, at, until = waiting.pop(0)
            follower.driver.commit(first, parts, truncated=False, position=at, moment=until)
        plan = follower.driver.plan_after(plan, waiting[0][1], position=position, moment=moment)
        if plan is None:  # its writes look at what is committed
            first, parts, at, until = waiting.pop(0)
            follower.driver.commit(first, parts, truncated=False, position=at, moment=until)
            plan = follower.driver.plan(THINGS.table, SOURCE)
    for last, parts, at, until in waiting:
        follower.driver.commit(last, parts, truncated=False, position=at, moment=until)
    expected.put(1, row, second(1))
    expected.put(2, {"id": 2, "body": "b", "note": None}, second(1))
    expected.put(1, {**row, "note": "y"}, second(2))
    expected.remove(2, second(2))
    expected.put(1, {**row, "note": "z"}, second(3))
    expected.put(2, {"id": 2, "body": "c", "note": None}, second(3))
    assert follower.versions() == expected.rows()


def test_versions_keep_what_they_held_in_a_column_that_goes(any_lake: Lake) -> None:
    """However they end, and in whichever commit; also if another column has the name by then."""
    columns = tuple(replace(one, number=number) for number, one in enumerate(THINGS.columns, start=1))
    follower = Follower(any_lake, replace(THINGS, columns=columns))
    follower.stream.transaction(*(insert(str(key), "b", f"old {key}") for key in (1, 2, 3, 4)))
    follower.apply()
    follower.stream.transaction(update("1", "b", "new"))
    follower.apply(after=replace(THINGS, columns=(*columns[:2], replace(columns[2], number=4))))
    follower.restart()
    follower.stream.transaction(delete("2", None, None))
    follower.apply()
    assert (4, None, "old 4", False) in told(follower)
    follower.stream.transaction(truncate(RELATION), insert("4", "b", "newer"))
    follower.apply()
    assert told(follower) == [
        (1, None, "old 1", False),
        (1, "new", None, True),
        (2, None, "old 2", True),
        (3, None, "old 3", True),
        (4, None, "old 4", False),
        (4, "newer", None, False),
    ]


def told(follower: Follower) -> list[tuple[object, ...]]:
    rows = follower.lake.rows(follower.schema)
    names = ("id", "note", "note_dropped_1", "deleted")
    return sorted((tuple(row[name] for name in names) for row in rows), key=lambda row: (row[0], row[2] is None))


def test_a_batch_cannot_be_applied_twice(any_lake: Lake) -> None:
    follower = Follower(any_lake)
    follower.stream.transaction(insert("1", "a", "x"))
    follower.apply()
    follower.stream.transaction(update("1", "b", "x"))
    plan = follower.driver.plan(THINGS.table, SOURCE)
    stale = write(plan, *follower.fold(plan.position, plan.moment))
    follower.apply()
    before = follower.versions()
    with pytest.raises(StaleBase):
        follower.driver.commit(plan, stale, truncated=False, position=300, moment=2_000_000)
    follower.driver.discard(stale)
    follower.restart()
    follower.apply()
    assert follower.versions() == before
    assert len(before) == 2


def test_another_layout_is_refused(any_lake: Lake) -> None:
    Follower(any_lake)
    for other in (Layout(), Layout(period=Period("kvsz_start", "kvsz_end", "kvsz_deleted"))):
        with pytest.raises(SchemaChanged):
            any_lake.driver().ensure_table(THINGS.table, THINGS, SOURCE, 0, layout=other)


@pytest.mark.parametrize(("seed", "first"), [(1, "always"), (2, "commit")])
def test_a_long_life_equals_the_oracle(any_lake: Lake, seed: int, first: Literal["always", "commit"]) -> None:
    """Inserts, updates with and without all cells, deletes, key changes, truncates, restarts and compaction."""
    layout = Layout(period=Period(first=first))
    rng, expected, follower = (
        random.Random(seed),
        Versions(from_commit=first == "commit"),
        Follower(any_lake, layout=layout),
    )
    rows: dict[int, dict[str, object]] = {}
    for batch in range(25):
        moved = False
        for _ in range(rng.randint(1, 3)):
            messages = []
            at = second(follower.stream.transactions + 1)
            if rng.random() < 0.04:
                messages.append(truncate())
                rows.clear()
            for key in rng.sample(range(20), rng.randint(1, 5)):
                deed = rng.choice(["write", "write", "touch", "delete", "move"])
                if key not in rows:
                    rows[key] = {"id": key, "body": f"{batch}", "note": rng.choice(["x", None])}
                    messages.append(insert(str(key), f"{batch}", rows[key]["note"]))  # type: ignore[arg-type]
                elif deed == "delete":
                    del rows[key]
                    messages.append(delete(str(key), None, None))
                elif deed == "move" and (free := next((n for n in range(20, 40) if n not in rows), None)) is not None:
                    rows[free] = {**rows.pop(key), "id": free}
                    messages.append(update(str(free), UNSENT, rows[free]["note"], key=(str(key), None, None)))  # type: ignore[arg-type]
                    moved = True
                elif deed == "touch":
                    rows[key] = {**rows[key], "note": rng.choice(["x", None])}
                    messages.append(update(str(key), UNSENT, rows[key]["note"]))  # type: ignore[arg-type]
                else:
                    rows[key] = {**rows[key], "body": f"{batch} {rng.random()}"}
                    messages.append(update(str(key), rows[key]["body"], rows[key]["note"]))  # type: ignore[arg-type]
            follower.stream.transaction(*messages)
            for key in range(40):
                if key in rows:
                    expected.put(key, rows[key], at)
                else:
                    expected.remove(key, at)
        follower.apply(buckets=1 if moved else rng.choice([1, 2]))
        any_lake.maintain(follower.driver, THINGS)
        if rng.random() < 0.1:
            follower.restart()
        if batch % 6 == 5:
            assert follower.versions() == expected.rows(), f"batch {batch}"
    assert follower.versions() == expected.rows()


PRICES = table_schema({"id": INT8, "n": numeric(5, 1), "note": TEXT})


def price(id: int, n: str, note: str | None) -> Row:
    """What the oracle says of a row: what does not fit is rescued."""
    fits = n.replace(".", "").isdigit()
    return {"id": id, "n": Decimal(n) if fits else None, "note": note, RESCUED: None if fits else [("n", n)]}


class Priced(Follower):
    def __init__(self, lake: Lake) -> None:
        super().__init__(lake, PRICES)

    def versions(self) -> list[tuple[object, ...]]:
        """In the order of the oracle's columns; without RESCUED where it has not come."""
        rows = self.lake.rows(PRICES)
        if rows and RESCUED not in rows[0]:
            return [("not there",)]
        names = ["id", "n", "note", RESCUED, "valid_from", "valid_to", "deleted"]
        return found([{name: row[name] for name in names} for row in rows])


def test_what_was_rescued_travels_with_its_version(any_lake: Lake) -> None:
    follower, expected = Priced(any_lake), Versions()
    follower.stream.transaction(insert("1", "1.0", "x"), insert("2", "2.0", "x"), insert("3", "3.0", "x"))
    follower.apply()
    assert follower.versions() == [("not there",)]
    for key in (1, 2, 3):
        expected.put(key, price(key, f"{key}.0", "x"), second(1))
    steps = [("NaN", "x"), ("NaN", "x"), ("Infinity", "x"), ("Infinity", "y"), ("5.0", "y"), ("NaN", "y")]
    for number, (n, note) in enumerate(steps, start=2):
        follower.stream.transaction(update("1", n, note))
        follower.apply()
        expected.put(1, price(1, n, note), second(number))
        if number == 4:
            follower.restart()
    assert follower.versions() == expected.rows()
    assert len(expected.closed[1]) == 5, "a change of the rescued text alone is one, and no change is none"
    follower.stream.transaction(update("1", UNSENT, "z"), update("9", "NaN", "k", key=("2", None, None)))
    follower.apply()
    expected.put(1, price(1, "NaN", "z"), second(8))
    expected.remove(2, second(8))
    expected.put(9, price(9, "NaN", "k"), second(8))
    follower.stream.transaction(delete("1", None, None))
    follower.apply()
    expected.remove(1, second(9))
    assert follower.versions() == expected.rows()
    follower.stream.transaction(insert("4", "-Infinity", None))
    follower.stream.transaction(truncate())
    follower.stream.transaction(insert("1", "NaN", None))
    follower.apply(buckets=2)
    expected.put(4, price(4, "-Infinity", None), second(10))
    for key in (3, 4, 9):
        expected.remove(key, second(11))
    expected.put(1, price(1, "NaN", None), second(12))
    assert follower.versions() == expected.rows()
    follower.stream.transaction(truncate())
    follower.apply()
    expected.remove(1, second(13))
    assert follower.versions() == expected.rows()


def test_compaction_keeps_what_was_rescued_of_versions(any_lake: Lake) -> None:
    rng, follower, expected = random.Random(3), Priced(any_lake), Versions()
    for number in range(1, 25):
        n, key = rng.choice(["NaN", "Infinity", "1.0", "2.0"]), rng.randrange(3)
        follower.stream.transaction(insert(str(key), n, "x") if key not in expected.open else update(str(key), n, "x"))
        follower.apply()
        expected.put(key, price(key, n, "x"), second(number))
        any_lake.maintain(follower.driver, PRICES)
        if number % 10 == 9:
            follower.restart()
    assert follower.versions() == expected.rows()

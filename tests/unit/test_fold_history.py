"""History: versions of written-out streams, through fold and the memory twin."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from penstock.destinations.memory import MemoryDestination
from penstock.errors import KeyRequired
from penstock.fold.history import fold_history
from penstock.fold.layout import Layout
from penstock.model.change import RawChanges
from penstock.model.feed import Period
from penstock.model.table import TableSchema
from pgoutput_messages import INT8, TEXT, UNSENT, Stream, delete, insert, table_schema, truncate, update

THINGS = table_schema({"id": INT8, "body": TEXT, "note": TEXT})
LAYOUT = Layout(period=Period())


class History:
    """A table of versions in memory, and the stream that it follows. The n-th transaction commits at second n."""

    def __init__(self, schema: TableSchema = THINGS) -> None:
        self.schema, self.stream, self.position = schema, Stream(), 0
        self.lake = MemoryDestination()
        self.lake.ensure_table(schema.table, schema, "shop", 0, layout=LAYOUT)

    def apply(self, *, buckets: int = 1, times: dict[int, int] | None = None) -> None:
        """Everything since the last call, as one batch. `times`: other commit times, in seconds by transaction."""
        changes = self.stream.raw(self.schema)
        if times:
            lsn = changes.batch.column("commit_position").to_pylist()
            moments = pa.array([times.get(one // 100, one // 100) * 1_000_000 for one in lsn], pa.int64())
            number = changes.batch.schema.get_field_index("commit_time")
            field = changes.batch.schema.field(number)
            changes = RawChanges(self.schema, changes.batch.set_column(number, field, moments.cast(field.type)))
        plan = self.lake.plan(self.schema.table, "shop")
        folded = [
            fold_history([changes], position=plan.position, since=plan.moment, bucket=bucket, buckets=buckets)
            for bucket in range(buckets)
        ]
        self.position = (self.stream.transactions + 1) * 100
        moment = max(plan.moment, *(net.last_commit_time for net in folded))
        parts = [plan.write(net) for net in folded]
        self.lake.commit(plan, parts, truncated=False, position=self.position, moment=moment)

    def versions(self) -> list[tuple[Any, ...]]:
        """(columns…, from, to, deleted), times as seconds; None for the beginning of time and for its end."""

        def seconds(at: datetime) -> int | None:
            return None if at.year in (1900, 9999) else int(at.timestamp())

        rows = [tuple(row.values()) for row in self.lake.rows(self.schema.table).to_pylist()]
        return sorted(((*row[:-3], seconds(row[-3]), seconds(row[-2]), row[-1]) for row in rows), key=repr)


def test_insert_update_delete_in_batches_of_their_own() -> None:
    history = History()
    for message in (insert("1", "a", "x"), update("1", "b", "x"), delete("1", None, None), insert("1", "c", "x")):
        history.stream.transaction(message)
        history.apply()
    assert history.versions() == [
        (1, "a", "x", None, 2, False),
        (1, "b", "x", 2, 3, True),
        (1, "c", "x", 4, None, False),
    ]


@pytest.mark.parametrize("buckets", [1, 3])
def test_the_same_in_one_batch(buckets: int) -> None:
    history = History()
    history.stream.transaction(*[insert(f"{n}", "a", "x") for n in range(9)])
    history.stream.transaction(*[update(f"{n}", "b", "x") for n in range(9)])
    history.stream.transaction(*[delete(f"{n}", None, None) for n in range(9)])
    history.stream.transaction(*[insert(f"{n}", "c", "x") for n in range(9)])
    history.apply(buckets=buckets)
    assert history.versions() == [
        version
        for n in range(9)
        for version in ((n, "a", "x", None, 2, False), (n, "b", "x", 2, 3, True), (n, "c", "x", 4, None, False))
    ]


def test_several_changes_in_one_transaction_make_one_version() -> None:
    history = History()
    history.stream.transaction(insert("1", "a", "x"), update("1", "b", "x"), insert("2", "a", "x"))
    history.stream.transaction(update("1", "c", "x"), update("1", "d", "x"))
    history.stream.transaction(
        delete("2", None, None), insert("2", "a", "y"), insert("3", "", ""), delete("3", None, None)
    )
    history.apply()
    assert history.versions() == [
        (1, "b", "x", None, 2, False),
        (1, "d", "x", 2, None, False),
        (2, "a", "x", None, 3, False),
        (2, "a", "y", 3, None, False),
    ]


def test_an_update_that_changes_nothing_opens_no_version() -> None:
    history = History()
    history.stream.transaction(insert("1", "a", None))
    history.stream.transaction(update("1", "a", None))
    history.apply()
    history.stream.transaction(update("1", UNSENT, None))
    history.stream.transaction(update("1", "b", None), update("1", "a", None))
    history.apply()
    assert history.versions() == [(1, "a", None, None, None, False)]


def test_unsent_cells_come_from_the_open_version_and_from_earlier_steps() -> None:
    history = History()
    history.stream.transaction(insert("1", "large", "x"))
    history.apply()
    history.stream.transaction(update("1", UNSENT, "y"))
    history.stream.transaction(update("1", "larger", "z"))
    history.stream.transaction(update("1", UNSENT, "w"))
    history.stream.transaction(update("2", UNSENT, "w", key=("1", None, None)))
    history.apply()
    assert history.versions() == [
        (1, "large", "x", None, 2, False),
        (1, "large", "y", 2, 3, False),
        (1, "larger", "w", 4, 5, True),
        (1, "larger", "z", 3, 4, False),
        (2, "larger", "w", None, None, False),
    ]


@pytest.mark.parametrize("buckets", [1, 2])
def test_truncate_closes_all_open_versions(buckets: int) -> None:
    history = History()
    history.stream.transaction(*[insert(f"{n}", "a", "x") for n in range(4)])
    history.stream.transaction(delete("3", None, None))
    history.apply()
    history.stream.transaction(update("1", "b", "x"))
    history.stream.transaction(truncate())
    history.stream.transaction(insert("2", "c", "x"))
    history.stream.transaction(truncate())
    history.stream.transaction(insert("1", "d", "x"), insert("7", "d", "x"))
    history.apply(buckets=buckets)
    assert history.versions() == [
        (0, "a", "x", None, 4, True),
        (1, "a", "x", None, 3, False),
        (1, "b", "x", 3, 4, True),
        (1, "d", "x", 7, None, False),
        (2, "a", "x", None, 4, True),
        (2, "c", "x", 5, 6, True),
        (3, "a", "x", None, 2, True),
        (7, "d", "x", None, None, False),
    ]


def test_keys_that_swap_are_two_versions_each() -> None:
    history = History()
    history.stream.transaction(insert("1", "a", "x"), insert("2", "b", "x"))
    history.apply()
    history.stream.transaction(
        update("9", UNSENT, "x", key=("1", None, None)),
        update("1", UNSENT, "x", key=("2", None, None)),
        update("2", UNSENT, "x", key=("9", None, None)),
    )
    history.apply()
    assert history.versions() == [
        (1, "a", "x", None, 2, False),
        (1, "b", "x", 2, None, False),
        (2, "a", "x", 2, None, False),
        (2, "b", "x", None, 2, False),
    ]


@pytest.mark.parametrize("together", [True, False])
def test_time_that_goes_back_makes_no_version_overlap(together: bool) -> None:
    history = History()
    steps = [
        (10, insert("1", "a", "x")),
        (20, update("1", "b", "x")),
        (15, update("1", "c", "x")),
        (20, update("1", "d", "x")),
        (12, delete("1", None, None)),
        (13, insert("1", "e", "x")),
        (30, update("1", "f", "x")),
    ]
    times = {number: at for number, (at, _) in enumerate(steps, start=1)}
    for _, message in steps:
        history.stream.transaction(message)
        if not together:
            history.apply(times=times)
    history.apply(times=times)
    found = [version for version in history.versions() if version[3] != version[4]]
    assert found == [(1, "a", "x", None, 20, False), (1, "e", "x", 20, 30, False), (1, "f", "x", 30, None, False)]


def test_a_row_that_ends_at_the_moment_it_began_is_still_told() -> None:
    history = History()
    times = {1: 5, 2: 8, 3: 8, 4: 9}
    for message in (insert("1", "a", "x"), update("1", "b", "x"), delete("1", None, None), insert("1", "c", "x")):
        history.stream.transaction(message)
        history.apply(times=times)
    assert history.versions() == [
        (1, "a", "x", None, 8, False),
        (1, "b", "x", 8, 8, True),
        (1, "c", "x", 9, None, False),
    ]


def test_a_table_without_a_key_has_no_history() -> None:
    keyless = table_schema({"body": TEXT}, key=())
    with pytest.raises(KeyRequired, match="history"):
        fold_history([Stream().transaction(insert("a")).raw(keyless)], position=0)


def test_the_worked_example() -> None:
    """kuvasz's documentation: a salary of 1000, then 1200 in 2023, 2000 in 2024, and deleted in June."""

    def at(year: int, month: int, day: int) -> int:
        return int(datetime(year, month, day, tzinfo=UTC).timestamp())

    history = History(table_schema({"id": INT8, "name": TEXT, "salary": INT8}))
    times = {1: at(2020, 1, 1), 2: at(2023, 1, 1), 3: at(2024, 1, 1), 4: at(2024, 6, 1)}
    messages = [
        insert("1", "John Doe", "1000"),
        update("1", "John Doe", "1200"),
        update("1", "John Doe", "2000"),
        delete("1", None, None),
    ]
    for message in messages:
        history.stream.transaction(message)
        history.apply(times=times)
    assert history.versions() == [
        (1, "John Doe", 1000, None, at(2023, 1, 1), False),
        (1, "John Doe", 1200, at(2023, 1, 1), at(2024, 1, 1), False),
        (1, "John Doe", 2000, at(2024, 1, 1), at(2024, 6, 1), True),
    ]

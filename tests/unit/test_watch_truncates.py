"""Whether partitions were truncated with their whole table: what the log proves, and what it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest

from penstock.changelog.log import ChangeLog
from penstock.changelog.writer import SegmentWriter
from penstock.model.partitions import Partition, Partitions
from penstock.model.table import TableId
from penstock.runtime.watch.truncates import MOST_TRANSACTIONS, WholeTruncates
from penstock.source.contract import Session
from raw_rows import ORDERS, raw_slice

LOW = Partition(TableId("public", "low"), 11, 21, True, "/1", written=700)  # the first transaction of `raw_slice`
HIGH = replace(LOW, relation=TableId("public", "high"), relation_id=12, file=22)
BEFORE = Partitions(500, (), position=100)
NAME = ORDERS.table


@dataclass
class At:
    """The session that `explain` is given: it only says where the source is."""

    position: int

    def head(self) -> int:
        return self.position


class Bench:
    """A log, and a source that is at `head`."""

    def __init__(self, log: ChangeLog, writer: SegmentWriter) -> None:
        self.writer, self.truncates, self.head = writer, WholeTruncates(log), 200

    def explain(
        self, *truncated: Partition, before: Partitions = BEFORE, horizon: int = 600
    ) -> frozenset[Partition] | None:
        return self.truncates.explain(
            session=cast(Session, At(self.head)),
            feed=NAME,
            relation_id=ORDERS.relation_id,
            truncated=truncated,
            before=before,
            now=Partitions(horizon, truncated, position=self.head),
        )

    def truncate(self, commit: int, end: int) -> None:
        self.writer.append(end, [raw_slice(ORDERS, [commit], ops=b"T")])


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    log = ChangeLog(str(tmp_path / "log"))
    with SegmentWriter(log) as writer:
        writer.begin(100, "77")
        yield Bench(log, writer)


def test_what_the_transaction_of_a_whole_truncate_wrote_last_was_truncated_with_it(bench: Bench) -> None:
    bench.truncate(150, 200)
    assert bench.explain(LOW, HIGH) == frozenset({LOW, HIGH})
    assert bench.truncates.in_doubt([NAME]) == 0


@pytest.mark.parametrize(
    "case",
    [
        "written by another transaction",
        "truncated by a subtransaction",
        "of another table",
        "older than the look before",
        "the look before did not say where it was",
        "so many transactions that numbers repeat",
        "rows came after it",
    ],
)
def test_without_a_proof_a_partition_was_truncated_by_itself(bench: Bench, case: str) -> None:
    low, before, horizon = LOW, BEFORE, 600
    match case:
        case "of another table":
            bench.writer.append(200, [raw_slice(replace(ORDERS, relation_id=5), [150], ops=b"T")])
        case "rows came after it":
            bench.writer.append(200, [raw_slice(ORDERS, [150, 150], ops=b"TI")])
        case _:
            bench.truncate(150, 200)
    match case:
        case "written by another transaction" | "truncated by a subtransaction":
            low = replace(LOW, written=701)
        case "older than the look before":
            before = replace(BEFORE, position=150)
        case "the look before did not say where it was":
            before = replace(BEFORE, position=None)
        case "so many transactions that numbers repeat":
            horizon = BEFORE.horizon + MOST_TRANSACTIONS
        case _:
            pass
    assert bench.explain(low, before=before, horizon=horizon) == frozenset()


def test_one_of_two_was_truncated_again(bench: Bench) -> None:
    bench.truncate(150, 200)
    assert bench.explain(LOW, replace(HIGH, written=731)) == frozenset({LOW})


def test_nothing_is_said_before_the_log_has_come_as_far_as_the_first_look_that_saw_it(bench: Bench) -> None:
    """Not the last one: a source that goes on would be ahead of the log for ever."""
    assert bench.explain(LOW) is None, "the log is empty"
    bench.writer.advance(190)
    bench.head = 300
    assert bench.explain(LOW) is None
    assert bench.truncates.in_doubt([NAME]) == 200
    bench.writer.advance(200)
    assert bench.explain(LOW) == frozenset()
    assert bench.truncates.in_doubt([NAME]) == 0


def test_what_happens_to_the_partition_in_between_is_another_doubt(bench: Bench) -> None:
    assert bench.explain(LOW) is None
    bench.head = 300
    assert bench.explain(replace(LOW, file=31, written=720)) is None
    assert bench.truncates.in_doubt([NAME]) == 300


def test_a_doubt_about_a_table_that_is_no_longer_compared_is_dropped(bench: Bench) -> None:
    assert bench.explain(LOW) is None
    assert bench.truncates.in_doubt([]) == 0
    assert bench.truncates.in_doubt([NAME]) == 0


def test_a_later_truncate_of_the_whole_is_for_the_next_look(bench: Bench) -> None:
    """The look saw the partition as an earlier transaction left it."""
    bench.writer.append(300, [raw_slice(ORDERS, [150, 250], ops=b"T")])
    assert bench.explain(LOW) is None
    later = replace(LOW, file=31, written=701)
    assert bench.explain(later) == frozenset({later})

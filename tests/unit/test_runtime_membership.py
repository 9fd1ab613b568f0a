"""What a start makes of a table by what the state store says of it, and what a look at the source does about one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from loop_bench import ORDERS, PEOPLE, Bench, drain
from penstock.config.model import Pipeline
from penstock.destinations.contract import InProcessRunner
from penstock.model.feed import Feed, Mode
from penstock.model.partitions import Partitions, Remark
from penstock.model.position import Position
from penstock.model.table import TableId, TableSchema
from penstock.model.table_state import State, TableStatus
from penstock.runtime.copier import Copier
from penstock.runtime.copying_table import CopyingTable
from penstock.runtime.membership import Membership, is_copying
from penstock.runtime.owners import Owners
from pgoutput_messages import insert, update

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEYED = replace(ORDERS, table=TableId("public", "later"), relation_id=3, identity="full")
KEYLESS = replace(KEYED, key=(), identity="nothing")
BY_ROW = replace(KEYED, key=())


class Unseen:
    """Progress that nobody looks at."""

    def update(
        self, table: TableId, rows: int, total_rows_estimate: int | None, bytes_done: int, bytes_total: int
    ) -> None: ...

    def finish(self, table: TableId) -> None: ...

    def drop(self, table: TableId) -> None: ...


class Watched:
    """A bench whose tables are members; copies are asked for, and never begin."""

    def __init__(self, folder: Path, mode: str) -> None:
        self.bench = Bench(folder / "log")
        described = {
            "version": 1,
            "name": "shop",
            "source": {"type": "postgres", "url": "postgresql://db/shop"},
            "tables": [{"match": "public.*", "mode": mode}],
            "destinations": [{"type": "iceberg", "warehouse": "warehouse"}],
        }
        pipeline = Pipeline.model_validate(described, context={"folder": folder})
        bench, runner = self.bench, InProcessRunner()
        bench.loop = bench.restart(PEOPLE)
        bench.follow(Feed(KEYLESS.table, KEYLESS.table, KEYLESS.table, Mode(mode)), KEYLESS)
        self.copier = Copier(pipeline, bench.lake, runner, bench.log, bench.state, self.joined, Unseen())
        self.membership = Membership(pipeline, bench.loop, self.copier, bench.state, 100, Owners())
        for schema in (KEYLESS, PEOPLE):
            self.membership.admit(schema)
        bench.seal(200, (KEYLESS, 110, insert("1", "new")))
        bench.seal(300, (KEYLESS, 210, update("1", "paid", row=("1", "new"))))
        drain(bench)

    def joined(self, copied: CopyingTable, position: Position) -> None:
        raise AssertionError("no copy is made here")

    def look(self, *found: TableSchema) -> TableStatus:
        self.membership.looked([*found, PEOPLE])
        self.membership.tend()
        return self.bench.state.table_status("lake")[KEYLESS.table]

    @property
    def told(self) -> list[str]:
        return [event.message for event in self.bench.state.events() if event.kind == "resync"]


@pytest.fixture
def watched(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Watched]:
    made = Watched(tmp_path, getattr(request, "param", "clone"))
    assert "without a key" in made.look(KEYLESS).reason
    yield made
    made.copier.stop()
    made.bench.loop.close()
    made.bench.writer.__exit__(None, None, None)


def test_a_table_that_was_errored_without_a_key_comes_back_with_one(watched: Watched) -> None:
    assert watched.look(KEYLESS).state is State.ERRORED, "still no key"
    assert not watched.copier.holds(KEYLESS.table)
    status = watched.look(KEYED)
    assert status.state is State.INIT
    assert "has one now: (id)" in status.reason
    assert watched.copier.holds(KEYLESS.table)
    assert not watched.copier.holds(PEOPLE.table)
    watched.look(KEYED)
    assert len(watched.told) == 1, "once, not at every look"


def test_a_table_that_was_errored_without_a_key_comes_back_with_whole_rows(watched: Watched) -> None:
    status = watched.look(BY_ROW)
    assert (status.state, "has REPLICA IDENTITY FULL now" in status.reason) == (State.INIT, True)
    assert watched.copier.holds(KEYLESS.table)


def test_a_key_that_no_update_would_tell_is_none(watched: Watched) -> None:
    assert watched.look(replace(KEYED, identity="nothing")).state is State.ERRORED


@pytest.mark.parametrize("watched", ["append"], indirect=True)
def test_what_a_table_keeps_by_its_key_is_left_to_a_person(watched: Watched) -> None:
    assert watched.look(BY_ROW).state is State.ERRORED
    status = watched.look(KEYED)
    assert status.state is State.ERRORED
    assert "in other modes drop it at the destination" in status.solution


def test_rows_of_partitions_that_are_gone_are_left_to_a_person(watched: Watched) -> None:
    kept = Remark(TableId("public", "orders_2023"), "kept", NOW)
    watched.bench.state.set_partitions("lake", KEYLESS.table, Partitions(7, (), (kept,)))
    for _ in range(2):
        status = watched.look(KEYED)
        assert (status.state, "keeps the rows of partitions" in status.reason) == (State.ERRORED, True)
    errors = [event for event in watched.bench.state.events() if event.kind == "errored"]
    assert len(errors) == 2, "that it has no key, and that it keeps rows: told once each"


def test_a_resync_that_had_failed_is_tried_again_at_the_next_start(watched: Watched) -> None:
    """The log has nothing for the table that it was to replace."""
    state, why = watched.bench.state, TableStatus(State.ERRORED, NOW, "no key", "Give it one", "manual")
    state.begin_copy("lake", PEOPLE.table, "copy", PEOPLE.fingerprint, [])
    state.set_table_status("lake", PEOPLE.table, why)
    watched.bench.loop.forget(PEOPLE.table)
    watched.membership.admit(PEOPLE)
    assert watched.copier.holds(PEOPLE.table)
    assert PEOPLE.table not in watched.bench.loop.tables


def test_a_table_that_was_errored_while_it_streamed_goes_on(watched: Watched) -> None:
    why = TableStatus(State.ERRORED, NOW, "cannot be decoded", "Report it", "manual")
    watched.bench.state.set_table_status("lake", PEOPLE.table, why)
    watched.bench.loop.forget(PEOPLE.table)
    watched.membership.admit(PEOPLE)
    assert not watched.copier.holds(PEOPLE.table)
    assert not watched.bench.loop.tables[PEOPLE.table].errored


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (TableStatus(State.INIT, NOW), True),
        (TableStatus(State.CATCHUP, NOW), True),
        (TableStatus(State.ERRORED, NOW, "it was rewritten", "Nothing", "at once"), True),
        (TableStatus(State.ERRORED, NOW, "no answer", "Wait", "in 20 s (try 2 of 5)"), True),
        (TableStatus(State.ERRORED, NOW, "no key", "Give it one", "manual"), False),
        (TableStatus(State.SYNC_DONE, NOW), False),
        (TableStatus(State.READY, NOW), False),
    ],
)
def test_a_copy_was_on_its_way_also_between_two_tries(status: TableStatus, expected: bool) -> None:
    assert is_copying(status) is expected

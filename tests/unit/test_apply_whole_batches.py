"""Batches whose tables are committed in one step, against the in-memory twin: what one table cannot take is its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from loop_bench import ORDERS, PEOPLE, Bench, Fallible, drain
from penstock.destinations.contract import TableCommit
from penstock.destinations.memory import MemoryDestination
from penstock.destinations.memory_tables import MemoryStore
from penstock.errors import CommitUnknown, DestinationUnreachable, StaleBase, TableError
from penstock.model.table import TableId
from penstock.model.table_state import State
from pgoutput_messages import insert, update


class Whole(Fallible):
    """A twin that commits whole batches, and whose next ones may fail as `failures` says."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.capabilities = MemoryDestination("lake", store, whole_batches=True).capabilities
        self.batches: list[list[TableId]] = []

    def commit_batch(self, commits: Sequence[TableCommit]) -> list[TableError | None]:
        failure = self.failures.pop(0) if self.failures else ""
        if failure == "stale":
            raise StaleBase("somebody else committed", "")
        if failure == "gone":
            raise DestinationUnreachable("no answer", "")
        if failure == "unknown, not done":
            raise CommitUnknown("no answer", "")
        made = super().commit_batch(commits)
        self.batches.append([one.plan.target for one in commits])
        if failure == "unknown, done":
            raise CommitUnknown("no answer", "")
        return made


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr("loop_bench.Fallible", Whole)
    bench = Bench(tmp_path / "log")
    bench.seal(200, (ORDERS, 110, insert("1", "new")), (PEOPLE, 110, insert("7", "Ada", "photo")))
    return bench


def batches(bench: Bench) -> list[list[TableId]]:
    assert isinstance(bench.lake, Whole)
    return bench.lake.batches


@pytest.mark.parametrize("failure", ["", "stale", "unknown, done", "unknown, not done"])
def test_all_tables_of_a_batch_are_committed_in_one_step_once(whole: Bench, failure: str) -> None:
    whole.lake.failures = [failure]
    drain(whole)
    assert (whole.rows(ORDERS), whole.rows(PEOPLE)) == ([(1, "new")], [(7, "Ada", "photo")])
    assert batches(whole) == [[ORDERS.table, PEOPLE.table]]
    assert whole.lake.commits == [], "nothing is committed table by table"
    assert [whole.state.progress("lake")[one.table].changes for one in (ORDERS, PEOPLE)] == [1, 1]


def test_a_destination_that_is_away_changes_nothing(whole: Bench) -> None:
    whole.lake.failures = ["gone"]
    with pytest.raises(DestinationUnreachable):
        whole.loop.step(now=True)
    assert (whole.rows(ORDERS), whole.rows(PEOPLE)) == ([], [])
    drain(whole)
    assert (whole.rows(ORDERS), whole.rows(PEOPLE)) == ([(1, "new")], [(7, "Ada", "photo")])


def test_what_one_table_refuses_is_its_own_and_the_others_are_committed(whole: Bench) -> None:
    whole.store.refusals[ORDERS.table] = TableError("table public.orders: a row violates a constraint", "Fix it")
    whole.seal(300, (ORDERS, 210, update("1", "paid")), (PEOPLE, 210, update("7", "Ada L.", "photo")))
    drain(whole)
    assert (whole.rows(ORDERS), whole.rows(PEOPLE)) == ([], [(7, "Ada L.", "photo")])
    status = whole.state.table_status("lake")
    assert (status[ORDERS.table].state, status[PEOPLE.table].state) == (State.ERRORED, State.READY)
    assert "violates" in status[ORDERS.table].reason
    assert whole.lake.position(ORDERS.table, "shop") == 100


def test_a_batch_that_is_always_refused_ends_table_by_table(whole: Bench) -> None:
    """One table that another writer keeps changing does not hold the others up."""
    whole.lake.failures = ["stale"] * 4
    drain(whole)
    assert sorted(whole.lake.commits) == [ORDERS.table, PEOPLE.table]
    assert batches(whole) == []
    assert (whole.rows(ORDERS), whole.rows(PEOPLE)) == ([(1, "new")], [(7, "Ada", "photo")])

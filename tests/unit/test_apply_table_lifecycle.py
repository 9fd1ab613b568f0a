"""What a start makes of a table by what the state store says of it, and what a look at the source does about one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import pytest

from loop_bench import ORDERS, PEOPLE, Bench, drain, numbered
from penstock.config.model import Pipeline
from penstock.destinations.contract import InProcessRunner
from penstock.errors import KeyRequired, NotPublished, Retry
from penstock.model.feed import Feed, Mode
from penstock.model.partitions import Partitions, Remark
from penstock.model.position import Position
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.model.table_marks import TableMarks
from penstock.model.table_state import State, TableStatus
from penstock.model.write_counters import WriteCounters
from penstock.runtime.apply.table_lifecycle import TableLifecycle
from penstock.runtime.apply.target_claims import TargetClaims
from penstock.runtime.capture.publisher import Publisher
from penstock.runtime.copy.copier import Copier
from penstock.runtime.copy.copying_table import CopyingTable
from penstock.runtime.copy.progress_view import Unseen
from penstock.runtime.watch.findings import Findings
from penstock.runtime.watch.source_watch import SourceWatch
from penstock.runtime.watch.table_watch import Look
from penstock.state.store import Health
from pgoutput_messages import insert, update
from running import await_condition

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEYED = replace(ORDERS, table=TableId("public", "later"), relation_id=3, identity="full")
KEYLESS = replace(KEYED, key=(), identity="nothing")
BY_ROW = replace(KEYED, key=())


class Watched:
    """A bench whose tables are members; copies are asked for, and never begin."""

    def __init__(self, folder: Path, mode: str) -> None:
        self.bench = Bench(folder / "log")
        described = {
            "version": 1,
            "name": "shop",
            "source": {"type": "postgres", "url": "postgresql://127.0.0.1:1/shop"},
            "tables": [{"match": "public.*", "mode": mode}],
            "destinations": [{"type": "iceberg", "warehouse": "warehouse"}],
            "copy": {"discover_every": "10ms"},
        }
        self.pipeline = pipeline = Pipeline.model_validate(described, context={"folder": folder})
        bench, runner = self.bench, InProcessRunner()
        bench.loop = bench.restart(PEOPLE)
        bench.follow(Feed(KEYLESS.table, KEYLESS.table, KEYLESS.table, Mode(mode)), KEYLESS)
        self.copier = Copier(pipeline, bench.lake, runner, bench.log, bench.state, self.joined, Unseen())
        self.membership = TableLifecycle(pipeline, bench.loop, self.copier, bench.state, 100, TargetClaims())
        bench.seal(200, (KEYLESS, 110, insert("1", "new")))
        bench.of_this_log()
        for schema in (KEYLESS, PEOPLE):
            self.membership.admit(schema)
        bench.seal(300, (KEYLESS, 210, update("1", "paid", row=("1", "new"))))
        drain(bench)

    def joined(self, copied: CopyingTable, position: Position) -> None:
        raise AssertionError("no copy is made here")

    def look(self, *found: TableSchema, position: Position = 0) -> TableStatus:
        self.membership.looked(Look([*found, PEOPLE], position))
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
    state, why = watched.bench.state, TableStatus(State.ERRORED, NOW, "no key", "Give it one", Retry.MANUAL)
    state.begin_copy("lake", PEOPLE.table, "copy", PEOPLE.fingerprint, [])
    state.set_table_status("lake", PEOPLE.table, why)
    watched.bench.loop.forget(PEOPLE.table)
    watched.membership.admit(PEOPLE)
    assert watched.copier.holds(PEOPLE.table)
    assert PEOPLE.table not in watched.bench.loop.tables


def test_a_table_that_was_errored_while_it_streamed_goes_on(watched: Watched) -> None:
    why = TableStatus(State.ERRORED, NOW, "cannot be decoded", "Report it", Retry.MANUAL)
    watched.bench.state.set_table_status("lake", PEOPLE.table, why)
    watched.bench.loop.forget(PEOPLE.table)
    watched.membership.admit(PEOPLE)
    assert not watched.copier.holds(PEOPLE.table)
    assert not watched.bench.loop.tables[PEOPLE.table].errored


FOLLOWED = numbered(PEOPLE, 1, 2, 3, storage=50, stamp=60, numbered=3)
ADDED = Column("extra", ColumnType(23, "int4"), number=4)
ALTERED: dict[str, tuple[TableSchema, str]] = {
    # what a look finds of a table that no row has told · why it is copied again
    "nothing": (FOLLOWED, ""),
    "VACUUM FULL, CLUSTER, TRUNCATE": (replace(FOLLOWED, storage=51), ""),
    "a column's statistics": (replace(FOLLOWED, stamp=61), ""),
    "ALTER TYPE USING": (replace(FOLLOWED, storage=51, stamp=61), "rows were written again"),
    "ADD COLUMN": (replace(FOLLOWED, columns=(*FOLLOWED.columns, ADDED), stamp=61, numbered=4), ""),
    "ADD COLUMN DEFAULT 7": (
        replace(FOLLOWED, columns=(*FOLLOWED.columns, replace(ADDED, filled="7")), stamp=61, numbered=4),
        "older rows show '7'",
    ),
    "ADD COLUMN serial": (
        replace(FOLLOWED, columns=(*FOLLOWED.columns, ADDED), storage=51, stamp=61, numbered=4),
        "rows were written again",
    ),
    "RENAME COLUMN": (
        replace(FOLLOWED, columns=(*FOLLOWED.columns[:2], replace(FOLLOWED.columns[2], name="picture")), stamp=61),
        "",
    ),
    "another key": (replace(FOLLOWED, key=("name",)), "its key changed"),
}


def look_at(watched: Watched, found: TableSchema, *, position: Position, **rest: Any) -> None:
    watched.membership.looked(Look([KEYLESS, found], position, **rest))
    watched.membership.tend()


@pytest.mark.parametrize("case", ALTERED)
def test_a_structure_that_no_row_has_told_is_compared_once_the_stream_has_passed_it(
    watched: Watched, case: str
) -> None:
    found, why = ALTERED[case]
    loop, tracked = watched.bench.loop, watched.bench.loop.tables[PEOPLE.table]
    tracked.schema = FOLLOWED
    assert loop.processed == 300
    look_at(watched, found, position=350)
    assert not watched.copier.holds(PEOPLE.table), "the stream may have it yet"
    assert not watched.membership.is_settled(350)
    watched.bench.seal(400, (KEYLESS, 310, insert("2", "new")))
    drain(watched.bench)
    watched.membership.tend()
    assert watched.membership.is_settled(350)
    assert watched.copier.holds(PEOPLE.table) is bool(why)
    if not why:
        names = [column.name for column in watched.bench.lake.structure(PEOPLE.table, "shop").columns]
        assert names == [column.name for column in found.columns], "a light change is followed without a row"
        assert [column.name for column in tracked.schema.columns] == names
    assert why in " ".join(watched.told)
    look_at(watched, found, position=350)
    assert len(watched.told) == int(bool(why)), "once"


def test_what_the_stream_tells_after_a_look_is_left_to_the_stream(watched: Watched) -> None:
    loop, tracked = watched.bench.loop, watched.bench.loop.tables[PEOPLE.table]
    tracked.schema = FOLLOWED
    look_at(watched, FOLLOWED, position=350)
    tracked.schema = replace(FOLLOWED, storage=51, stamp=61)  # as a batch leaves it, after the look
    watched.bench.seal(400, (KEYLESS, 310, insert("2", "new")))
    drain(watched.bench)
    watched.membership.tend()
    followed = {PEOPLE.table: (tracked, FOLLOWED)}  # a look that began before that batch and comes after it
    look_at(watched, FOLLOWED, position=350, followed=followed)
    assert not watched.copier.holds(PEOPLE.table)
    assert loop.tables[PEOPLE.table] is tracked


def test_a_look_from_before_a_copy_does_not_copy_again(watched: Watched) -> None:
    tracked = watched.bench.loop.tables[PEOPLE.table]
    earlier = replace(tracked)
    why = {PEOPLE.table: "it left the publication"}
    look_at(watched, PEOPLE, position=0, copy_again=why, followed={PEOPLE.table: (earlier, earlier.schema)})
    assert not watched.copier.holds(PEOPLE.table)
    look_at(watched, PEOPLE, position=0, copy_again=why, followed={PEOPLE.table: (tracked, tracked.schema)})
    assert watched.copier.holds(PEOPLE.table)
    assert watched.told == ["table public.people is copied again: it left the publication"]


def test_a_table_that_was_away_is_copied_when_it_comes_back(watched: Watched) -> None:
    state = watched.bench.state
    state.set_marks("lake", PEOPLE.table, TableMarks(1))
    watched.membership.looked(Look([KEYLESS], 0))
    watched.membership.tend()
    assert state.table_status("lake")[PEOPLE.table].state is State.ERRORED
    assert PEOPLE.table not in state.marks("lake"), "a later start must not take it for unchanged"
    watched.look(KEYLESS)
    assert watched.copier.holds(PEOPLE.table)
    assert "for a while" in watched.told[-1]


def test_looks_that_fail_are_shown(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    state = watched.bench.state

    def health() -> Health:
        return state.health()["source tables"]

    pipeline, publisher = watched.pipeline, Publisher(watched.pipeline, state)
    watch = SourceWatch(pipeline, state, publisher, [])
    watch.start()
    await_condition(lambda: "source tables" in state.health() and health().attempts >= 2, "two failures", 30)
    failing = health()
    assert (failing.state, "cannot connect" in failing.message, bool(failing.solution)) == ("retrying", True, True)
    await_condition(lambda: health().attempts > failing.attempts, "another failure", 30)
    assert health().since == failing.since, "since it fails"

    def broken(url: str, **_: object) -> NoReturn:
        raise ValueError("unforeseen")

    monkeypatch.setattr("penstock.source.postgres.source.connect", broken)
    await_condition(lambda: "unforeseen" in health().message, "an unexpected failure, after which it looks again", 30)
    watch.stop()
    assert health().state == "stopped"


def test_a_table_that_is_not_published_is_errored_and_copied_when_it_is(watched: Watched) -> None:
    state, name, membership = watched.bench.state, PEOPLE.table, watched.membership
    trouble = NotPublished("table public.people is not in publication p", "Run: ALTER PUBLICATION p ADD TABLE people")
    for _ in range(2):
        membership.found(Findings({name: trouble}))
        watched.look(KEYLESS)
        assert state.table_status("lake")[name].reason == trouble.what
        assert state.table_status("lake")[name].state is State.ERRORED
    assert sum(event.message == trouble.what for event in state.events()) == 1, "said once, not at every look"
    assert membership.set_aside == [name]
    state.add_request("lake", name, "resync")
    membership._asked_at = 0.0
    membership.tend()
    assert not watched.copier.holds(name), "what changes after such a copy would be lost"
    membership.found(Findings())
    watched.look(KEYLESS)
    assert watched.copier.holds(name)
    assert state.table_status("lake")[name].reason == "it was not published as it must be for a while"


def test_a_table_that_was_not_published_at_the_last_start_is_copied_at_the_next(watched: Watched) -> None:
    """Its position is within the log, and yet changes are missing between the two."""
    why = TableStatus(State.ERRORED, NOW, "not published", "Publish it", NotPublished.retry)
    watched.bench.state.set_table_status("lake", PEOPLE.table, why)
    watched.bench.loop.forget(PEOPLE.table)
    watched.membership.admit(PEOPLE)
    assert watched.copier.holds(PEOPLE.table)


def test_unsent_updates_make_a_table_errored_until_it_is_copied_again(watched: Watched) -> None:
    state, name, membership = watched.bench.state, PEOPLE.table, watched.membership
    before, after = WriteCounters("e", {2: 5}), WriteCounters("e", {2: 6})
    state.set_write_counters("lake", name, before)
    unsent = KeyRequired("rows were updated, which is not sent", "Give it a key")
    membership.found(Findings({name: unsent}, compared={name: before}))
    watched.look(KEYLESS)
    assert state.table_status("lake")[name].reason == unsent.what
    state.add_request("lake", name, "retry")
    membership._asked_at = 0.0
    membership.tend()
    assert state.table_status("lake")[name].state is State.ERRORED, "trying again does not bring the updates"
    membership.found(Findings({name: unsent}, compared={name: before}))
    state.set_write_counters("lake", name, after)  # a copy has begun since that look
    watched.bench.loop.tables[name].errored = False
    watched.look(KEYLESS)
    assert not watched.bench.loop.tables[name].errored


def test_counters_that_say_nothing_have_the_table_copied_again(watched: Watched) -> None:
    watched.membership.found(Findings(unknown={PEOPLE.table: "the counters were reset"}))
    watched.look(KEYLESS)
    assert watched.copier.holds(PEOPLE.table)
    assert watched.told == ["table public.people is copied again: the counters were reset"]


@pytest.mark.parametrize(
    ("before", "moved"),
    [
        (WriteCounters("e", {1: 4, 2: 6}), 0),
        (WriteCounters("e", {1: 4}), 6),
        (WriteCounters("e", {1: 3, 2: 6, 3: 9}), 1),
        (WriteCounters("e", {1: 5, 2: 5}), None),
        (WriteCounters("another", {1: 4, 2: 6}), None),
        (None, None),
    ],
    ids=["still", "new partition", "partition gone", "reset by hand", "reset", "never counted"],
)
def test_what_counters_tell(before: WriteCounters | None, moved: int | None) -> None:
    assert WriteCounters("e", {1: 4, 2: 6}).since(before) == moved


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (TableStatus(State.ERRORED, NOW, "not published", "Publish it", Retry.WHEN_PUBLISHED), True),
        (TableStatus(State.INIT, NOW), True),
        (TableStatus(State.CATCHUP, NOW), True),
        (TableStatus(State.ERRORED, NOW, "it was rewritten", "Nothing", Retry.AT_ONCE), True),
        (TableStatus(State.ERRORED, NOW, "no answer", "Wait", Retry.BACKOFF, next_try="in 20 s (try 2 of 5)"), True),
        (TableStatus(State.ERRORED, NOW, "no key", "Give it one", Retry.MANUAL), False),
        (TableStatus(State.SYNC_DONE, NOW), False),
        (TableStatus(State.READY, NOW), False),
    ],
)
def test_a_copy_was_on_its_way_also_between_two_tries(status: TableStatus, expected: bool) -> None:
    assert status.is_copying is expected


def test_a_table_of_another_history_is_copied_again(watched: Watched) -> None:
    """The log was removed and begun again: positions of the one before mean nothing in it."""
    bench, name = watched.bench, PEOPLE.table
    bench.loop.forget(name)
    bench.store.tables[name] = bench.store.tables[name].copied("shop", "another")
    watched.membership.admit(PEOPLE)
    assert bench.loop.tables[name].errored
    watched.membership.tend()
    assert watched.copier.holds(name)
    assert "another change log" in bench.state.table_status("lake")[name].reason


def test_a_table_that_is_ahead_of_the_log_is_copied_again(watched: Watched) -> None:
    bench, name = watched.bench, PEOPLE.table
    bench.loop.forget(name)
    bench.lake.advance(name, "shop", 100, 4000)
    watched.membership.admit(PEOPLE)
    watched.membership.tend()
    assert watched.copier.holds(name)
    assert "ahead of the change log's end" in bench.state.table_status("lake")[name].reason


def test_a_table_that_is_older_than_its_last_copy_is_copied_again(watched: Watched) -> None:
    """The lake was put back, and the state store was not: what made the copy necessary is noted there as done."""
    bench, name = watched.bench, PEOPLE.table
    for position, again in ((100, False), (101, True)):
        bench.loop.forget(name)
        bench.state.set_marks("lake", name, TableMarks(1, position=position))
        watched.membership.admit(PEOPLE)
        watched.membership.tend()
        assert watched.copier.holds(name) is again
    status = bench.state.table_status("lake")[name]
    assert (status.state, "somebody put the table back to an earlier state" in status.reason) == (State.INIT, True)
    assert name not in bench.state.marks("lake"), "until it is copied nothing is known of it, whatever happens"


def test_a_table_of_this_history_goes_on(watched: Watched) -> None:
    watched.bench.loop.forget(PEOPLE.table)
    watched.membership.admit(PEOPLE)
    watched.membership.tend()
    assert not watched.copier.holds(PEOPLE.table)
    assert not watched.bench.loop.tables[PEOPLE.table].errored


def test_a_copy_that_is_asked_for_again_during_its_hand_over_does_not_join(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    copier, state = watched.copier, watched.bench.state
    copier.add(Feed(KEYED.table, KEYED.table, KEYED.table), KEYED)
    first = copier._tables[KEYED.table]
    state.set_table_status("lake", KEYED.table, TableStatus(State.DATA_SYNC, NOW))

    def meanwhile(*_: object, **__: object) -> Position:
        copier.add(first.feed, first.schema, why="asked for again")
        return 300

    monkeypatch.setattr("penstock.runtime.copy.copier.catch_up", meanwhile)
    copier._hand_over(first, 300, 300, 0)
    assert copier._tables[KEYED.table] is not first, "the copy that was asked for is still to be made"
    assert state.table_status("lake")[KEYED.table].state is State.INIT
    assert not watched.bench.loop._joining


class Ruled:
    """A lake that outlives starts, and a pipeline file that changes between them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bench = Bench(folder / "log")
        self.bench.seal(300)
        self.bench.loop = self.bench.restart(PEOPLE)
        self.bench.loop.begin(100)

    def start(self, **rule: object) -> tuple[TableLifecycle, Copier]:
        described = {
            "version": 1,
            "name": "shop",
            "mask_salt": "pepper",
            "source": {"type": "postgres", "url": "postgresql://db/shop"},
            "tables": [{"match": "public.later", **rule}],
            "destinations": [{"type": "iceberg", "warehouse": "warehouse"}],
        }
        pipeline = Pipeline.model_validate(described, context={"folder": self.folder, "file": Path("shop.yaml")})
        bench = self.bench
        bench.loop.close()
        bench.loop = bench.restart(PEOPLE)
        copier = Copier(pipeline, bench.lake, InProcessRunner(), bench.log, bench.state, self.joined, Unseen())
        membership = TableLifecycle(pipeline, bench.loop, copier, bench.state, 100, TargetClaims())
        membership.admit(KEYED)
        membership.note_missing()
        return membership, copier

    def joined(self, copied: CopyingTable, position: Position) -> None:
        raise AssertionError("no copy is made here")

    def made(self, **rule: object) -> None:
        """The table as a copy under that rule leaves it."""
        self.start(**rule)
        plan = self.bench.lake.plan_copy(KEYED.table, "shop", KEYED)
        history = self.bench.log.history()
        self.bench.lake.commit_copy(KEYED.table, "shop", [plan.write_rows([])], 100, history or "")
        self.bench.state.end_copy("lake", KEYED.table)
        self.bench.state.forget_table("lake", KEYED.table)
        self.start(**rule)
        assert self.status.state is State.READY

    @property
    def status(self) -> TableStatus:
        return self.bench.state.table_status("lake")[KEYED.table]


@pytest.fixture
def ruled(tmp_path: Path) -> Iterator[Ruled]:
    made = Ruled(tmp_path)
    yield made
    made.bench.loop.close()
    made.bench.writer.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"where": "id > 1"}, "`where` changed from nothing to (id > 1)"),
        ({"columns": {"state": "mask"}}, "column state was kept and is now masked"),
        ({"set": {"tier": 1}}, "`set` has tier now"),
        ({"types": {"state": "text"}}, "`types` changed for column state, from its default type to text"),
    ],
)
def test_a_clone_is_copied_again_under_its_new_rule(ruled: Ruled, changed: dict[str, object], said: str) -> None:
    ruled.made()
    _, copier = ruled.start(**changed)
    assert (ruled.status.state, ruled.status.reason) == (State.INIT, said)
    assert copier.holds(KEYED.table)
    hidden = [event.message for event in ruled.bench.state.events() if event.kind == "hidden"]
    assert len(hidden) == ("columns" in changed), "what older snapshots hold is said"


@pytest.mark.parametrize("mode", ["append", "history", "events"])
def test_what_keeps_more_than_the_source_is_not_copied_over(ruled: Ruled, mode: str) -> None:
    ruled.made(mode=mode)
    membership, copier = ruled.start(mode=mode, where="id > 1")
    for _ in range(2):
        assert ruled.status.state is State.ERRORED
        assert "`where` changed" in ruled.status.reason
        assert "penstock drop shop.yaml public.later --yes" in ruled.status.solution
        assert not copier.holds(KEYED.table)
        ruled.bench.state.add_request(
            ruled.bench.lake.name, KEYED.table, "resync"
        )  # which would merge, and leave the old rows
        membership._asked_at = 0.0
        membership.tend()
    ruled.start(mode=mode)
    assert ruled.status.state is State.READY, "set back"


def test_a_mode_that_would_remove_rows_waits_for_the_operator(ruled: Ruled) -> None:
    ruled.made(mode="append")
    membership, copier = ruled.start(mode="clone")
    assert "its mode changed from append to clone" in ruled.status.reason
    ruled.bench.state.add_request(ruled.bench.lake.name, KEYED.table, "drop")
    membership._asked_at = 0.0
    membership.tend()
    assert copier.holds(KEYED.table)
    assert ruled.bench.lake.position(KEYED.table, "shop") is None, "made again, to be copied"
    assert ruled.status.state is State.INIT


def test_another_kind_of_table_names_the_command(ruled: Ruled) -> None:
    ruled.made()
    ruled.start(mode="history")
    assert ruled.status.state is State.ERRORED
    assert "another mode" in ruled.status.reason
    assert "penstock drop shop.yaml public.later --yes" in ruled.status.solution


def test_a_table_that_went_while_nothing_ran_is_not_ready(ruled: Ruled) -> None:
    ruled.made()
    gone = TableId("public", "later")
    ruled.start()
    membership, _ = ruled.start()
    membership._known.clear()  # as if the source had not shown it
    membership.note_missing()
    assert ruled.status.state is State.ERRORED
    assert "no longer at the source" in ruled.status.reason
    assert f"penstock forget shop.yaml {gone}" in ruled.status.solution


def test_a_mode_that_the_destination_does_not_take_makes_the_table_errored(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = watched.bench
    monkeypatch.setattr(bench.lake, "capabilities", replace(bench.lake.capabilities, modes=frozenset({Mode.EVENTS})))
    watched.membership.admit(PEOPLE)
    status = bench.state.table_status("lake")[PEOPLE.table]
    assert status.state is State.ERRORED
    assert "does not take tables of mode clone, but events" in status.reason

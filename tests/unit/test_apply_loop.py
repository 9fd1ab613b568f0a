"""The apply loop against the in-memory twin: batches, redo, unknown commits, errors that stay with their table."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from loop_bench import ORDERS, PEOPLE, Bench, LoopReader, drain, numbered, schema
from penstock.config.destinations import Maintenance
from penstock.config.model import BatchConfig, LogConfig
from penstock.destinations.contract import InProcessRunner, JobRunner, MaintenanceReport
from penstock.errors import DestinationUnreachable, SchemaChanged, StaleBase
from penstock.model.feed import Feed, Mode
from penstock.model.partitions import Partitions, Remark
from penstock.model.position import order_text
from penstock.model.table import TableId
from penstock.model.table_state import State
from penstock.model.upkeep import TableShape
from penstock.runtime.apply.batch_planner import WORTH_A_BUCKET, BatchPlanner, TableWork
from penstock.runtime.upkeep import housekeeping as housekeeping_module
from penstock.runtime.upkeep.housekeeping import Housekeeping
from penstock.runtime.upkeep.log_retention import LogRetention
from pgoutput_messages import INT8, TEXT, UNSENT, delete, insert, truncate, update


def test_changes_of_several_tables_arrive_and_positions_move(bench: Bench) -> None:
    bench.seal(200, (ORDERS, 110, insert("1", "new")), (PEOPLE, 110, insert("7", "Ada", "p")))
    bench.seal(300, (ORDERS, 210, update("1", "paid")), (ORDERS, 210, insert("2", "new")))
    drain(bench)
    assert bench.rows(ORDERS) == [(1, "paid"), (2, "new")]
    assert bench.rows(PEOPLE) == [(7, "Ada", "p")]
    assert bench.loop.processed == 300
    assert bench.lake.position(ORDERS.table, "shop") == 300
    assert bench.state.progress("lake")[ORDERS.table].changes == 3
    assert bench.state.processed("lake") == 300


def test_a_restart_between_two_tables_commits_neither_twice(bench: Bench) -> None:
    bench.seal(200, (ORDERS, 110, insert("1", "new")), (PEOPLE, 110, insert("7", "Ada", "p")))
    bench.lake.failures = ["", "gone"]
    with pytest.raises(DestinationUnreachable):
        bench.loop.step(now=True)
    assert len(bench.lake.commits) == 1
    before = set(bench.lake.commits)
    bench.loop.close()
    bench.restart()
    drain(bench)
    assert set(bench.lake.commits) == {ORDERS.table, PEOPLE.table} - before
    assert (bench.rows(ORDERS), bench.rows(PEOPLE)) == ([(1, "new")], [(7, "Ada", "p")])


def test_a_run_that_was_killed_behind_its_commit_is_recorded_by_the_next(bench: Bench) -> None:
    bench.seal(200, (ORDERS, 110, insert("1", "new")))
    bench.seal(300, (PEOPLE, 210, insert("7", "Ada", "p")))
    drain(bench)
    bench.state.set_processed("lake", 200)  # as the run had recorded it
    bench.loop.close()
    bench.restart()
    assert bench.state.processed("lake") == 300
    assert not bench.loop.step(now=True)


def test_the_same_loop_goes_on_after_the_destination_was_away(bench: Bench) -> None:
    bench.seal(200, (ORDERS, 110, insert("1", "new")), (PEOPLE, 110, insert("7", "Ada", "p")))
    bench.lake.failures = ["gone", "gone"]
    with pytest.raises(DestinationUnreachable):
        bench.loop.step(now=True)
    assert bench.loop.processed == 100
    drain(bench)
    assert (bench.rows(ORDERS), bench.rows(PEOPLE)) == ([(1, "new")], [(7, "Ada", "p")])


@pytest.mark.parametrize("failure", ["stale", "unknown, not done", "unknown, done"])
def test_a_commit_that_is_refused_or_unknown_takes_effect_once(bench: Bench, failure: str) -> None:
    bench.seal(200, (PEOPLE, 110, insert("7", "Ada", "p")), (PEOPLE, 120, insert("8", "Bob", "q")))
    bench.lake.failures = [failure]
    drain(bench)
    assert bench.rows(PEOPLE) == [(7, "Ada", "p"), (8, "Bob", "q")]
    assert bench.lake.commits == [PEOPLE.table]
    looked = failure != "unknown, done"
    assert bench.lake.presumed == [True, *([False] if looked else [])]


def test_a_table_that_cannot_take_its_changes_holds_up_no_other(bench: Bench) -> None:
    bench.seal(200, (ORDERS, 110, insert("no number", "new")), (PEOPLE, 110, insert("7", "Ada", "p")))
    bench.seal(300, (ORDERS, 210, insert("2", "new")), (PEOPLE, 210, insert("8", "Bob", "q")))
    drain(bench)
    status = bench.state.table_status("lake")
    assert status[ORDERS.table].state is State.ERRORED
    assert "no number" in status[ORDERS.table].reason
    assert status[PEOPLE.table].state is State.READY
    assert bench.rows(ORDERS) == []
    assert bench.rows(PEOPLE) == [(7, "Ada", "p"), (8, "Bob", "q")]


def test_a_structure_is_followed_with_its_rows(bench: Bench) -> None:
    before = numbered(ORDERS, 1, 2)
    wider = numbered(schema("orders", 1, id=INT8, state=TEXT, note=TEXT), 1, 2, 3)
    renamed = numbered(schema("orders", 1, id=INT8, stage=TEXT, note=TEXT), 1, 2, 3)
    bench.restart(replace(before, table=TableId("public", "later")), PEOPLE)
    before, wider, renamed = (replace(one, table=TableId("public", "later")) for one in (before, wider, renamed))
    bench.seal(200, (before, 110, insert("1", "new")), (before, 120, insert("2", "new")))
    drain(bench)
    bench.seal(300, (before, 210, update("1", "paid")), (wider, 220, insert("3", "new", "hi")))
    bench.seal(400, (renamed, 310, update("3", UNSENT, "ho")))
    drain(bench)
    assert bench.lake.rows(before.table).column_names == ["id", "stage", "note"]
    assert bench.rows(before) == [(1, "paid", None), (2, "new", None), (3, "new", "ho")]
    assert bench.loop.tables[before.table].schema.columns[1].name == "stage"
    told = [event.message for event in bench.state.events() if event.kind == "structure"]
    assert any("state renamed to stage" in message for message in told)


def test_a_structure_that_rows_cannot_follow_has_its_table_copied_again(bench: Bench) -> None:
    other = schema("orders", 99, id=INT8, state=TEXT)
    bench.seal(200, (other, 110, insert("1", "new")), (PEOPLE, 110, insert("7", "Ada", "p")))
    drain(bench)
    status = bench.state.table_status("lake")[ORDERS.table]
    assert status.state is State.INIT
    assert "created again" in status.reason
    assert bench.loop.resyncs.get_nowait() == (ORDERS.table, status.reason)
    assert bench.rows(ORDERS) == []
    assert bench.rows(PEOPLE) == [(7, "Ada", "p")]


def test_a_table_that_changed_under_another_name_is_copied_again(bench: Bench) -> None:
    elsewhere = replace(ORDERS, table=TableId("public", "moved"))
    bench.seal(200, (ORDERS, 110, insert("1", "new")), (elsewhere, 120, insert("2", "new")))
    drain(bench)
    table, why = bench.loop.resyncs.get_nowait()
    assert (table, "public.moved" in why) == (ORDERS.table, True)


def test_a_type_that_does_not_fit_may_be_an_error(bench: Bench) -> None:
    feed = Feed(ORDERS.table, ORDERS.table, ORDERS.table, on_type_change="error")
    bench.loop.forget(ORDERS.table)
    bench.follow(feed, ORDERS)
    bench.seal(200, (schema("orders", 1, id=INT8, state=INT8), 110, insert("1", "1")))
    drain(bench)
    status = bench.state.table_status("lake")[ORDERS.table]
    assert status.state is State.ERRORED
    assert "state changed from text to int8" in status.reason
    assert "resync" in status.solution


def test_an_errored_table_is_tried_again_at_the_next_start(bench: Bench) -> None:
    bench.seal(200, (ORDERS, 110, insert("1", "new")))
    bench.loop.mark_errored(bench.loop.tables[ORDERS.table], DestinationUnreachable("for a test", ""))
    drain(bench)
    assert bench.rows(ORDERS) == []
    bench.loop.close()
    bench.restart()
    drain(bench)
    assert bench.rows(ORDERS) == [(1, "new")]


@pytest.mark.parametrize(("mode", "state"), [(Mode.CLONE, State.INIT), (Mode.APPEND, State.ERRORED)])
def test_a_table_behind_the_logs_start_is_copied_again_if_that_loses_nothing(
    bench: Bench, mode: Mode, state: State
) -> None:
    bench.seal(200, (ORDERS, 110, insert("1", "new")))
    bench.seal(300, (ORDERS, 210, insert("2", "new")))
    for name in bench.log.segments()[:-1]:
        bench.log.remove(name)
    bench.loop.close()
    bench.restart()
    bench.loop.forget(ORDERS.table)
    bench.loop.track(Feed(ORDERS.table, ORDERS.table, ORDERS.table, mode), ORDERS, 100, 200)
    status = bench.state.table_status("lake")[ORDERS.table]
    assert status.state is state
    assert "begins at" in status.reason


def test_unsent_cells_keep_the_destinations_values_across_batches(bench: Bench) -> None:
    bench.seal(200, (PEOPLE, 110, insert("7", "Ada", "large photo")))
    drain(bench)
    bench.seal(300, (PEOPLE, 210, update("7", "Ada L.", UNSENT)))
    drain(bench)
    bench.seal(400, (PEOPLE, 310, update("9", "Ada L.", UNSENT, key=("7", None, None))))
    drain(bench)
    assert bench.rows(PEOPLE) == [(9, "Ada L.", "large photo")]
    assert bench.state.progress("lake")[PEOPLE.table].fetched == 2
    bench.loop.close()
    bench.restart()
    bench.seal(500, (PEOPLE, 410, update("9", "Ada", UNSENT)))
    drain(bench)
    assert bench.state.progress("lake")[PEOPLE.table].fetched == 3, "the count goes on over a restart"


def test_truncate_delete_and_reinsert(bench: Bench) -> None:
    bench.seal(200, (ORDERS, 110, insert("1", "a")), (ORDERS, 120, insert("2", "b")))
    drain(bench)
    bench.seal(300, (ORDERS, 210, insert("3", "c")), (ORDERS, 220, truncate(1)), (ORDERS, 230, insert("1", "again")))
    bench.seal(400, (ORDERS, 310, delete("1", None)), (ORDERS, 320, insert("1", "and again")))
    drain(bench)
    assert bench.rows(ORDERS) == [(1, "and again")]


def test_one_table_feeds_two_and_each_has_its_own_position(bench: Bench) -> None:
    kept = TableId("raw", "kept")
    bench.follow(Feed(TableId("public", "orders__append"), ORDERS.table, kept, Mode.APPEND), ORDERS)
    bench.seal(200, (ORDERS, 110, insert("1", "a")), (ORDERS, 120, insert("2", "b")))
    bench.seal(300, (ORDERS, 210, delete("1", None)), (ORDERS, 220, truncate(1)), (ORDERS, 230, insert("2", "c")))
    bench.lake.failures = ["", "gone"]
    with pytest.raises(DestinationUnreachable):
        bench.loop.step(now=True)
    assert {bench.lake.position(target, "shop") for target in (ORDERS.table, kept)} == {100, 300}
    drain(bench)
    assert bench.rows(ORDERS) == [(2, "c")]
    assert bench.rows(ORDERS, kept) == [(1, "a"), (2, "c")]
    assert bench.state.progress("lake")[TableId("public", "orders__append")].position == 300


def test_anomalies_are_counted_when_asked_for(bench: Bench) -> None:
    bench.follow(replace(Feed.clone(PEOPLE.table), anomalies=True), PEOPLE)
    bench.seal(200, (PEOPLE, 110, insert("7", "Ada", "p")), (ORDERS, 110, update("1", "new")))
    bench.seal(300, (PEOPLE, 210, delete("8", None, None)))
    drain(bench)
    bench.seal(400, (PEOPLE, 310, insert("7", "Ada", "q")), (PEOPLE, 320, update("9", "Bob", "r")))
    drain(bench)
    assert bench.rows(PEOPLE) == [(7, "Ada", "q"), (9, "Bob", "r")], "applied so that the table equals its source"
    counts = {one.kind: (one.changes, one.places) for one in bench.state.anomalies("lake")[PEOPLE.table]}
    assert {kind: changes for kind, (changes, _) in counts.items()} == {"delete": 1, "insert": 1, "update": 1}
    assert counts["insert"][1] == (order_text(310, 0),)
    assert ORDERS.table not in bench.state.anomalies("lake"), "nobody asked for it"


def test_anomalies_are_logged_with_their_keys_when_asked_for(bench: Bench) -> None:
    bench.follow(replace(Feed.clone(PEOPLE.table), anomalies=True, logs_anomalies=True), PEOPLE)
    with capture_logs() as said:
        bench.seal(200, *[(PEOPLE, 110, update(str(n), "Ada", "p")) for n in range(12)])
        drain(bench)
    lines = [one for one in said if one["event"] == "anomaly"]
    assert [one["key"] for one in lines] == [str(n) for n in range(10)]
    assert {(one["table"], one["kind"]) for one in lines} == {(str(PEOPLE.table), "update")}
    assert lines[3]["place"] == order_text(110, 3)
    assert [one["changes"] for one in said if one["event"] == "more anomalies"] == [2]
    assert bench.state.anomalies("lake")[PEOPLE.table][0].changes == 12


def test_a_batch_waits_for_company_until_it_is_old_or_large_enough(bench: Bench) -> None:
    bench.loop.close()
    bench.restart(limits=BatchConfig(max_age=3600.0, max_changes=3))
    bench.seal(200, (ORDERS, 110, insert("1", "a")))
    assert not bench.loop.step()
    bench.seal(300, (ORDERS, 210, insert("2", "a")), (ORDERS, 220, insert("3", "a")))
    assert bench.loop.step()
    assert bench.loop.processed == 300


def test_what_came_while_a_batch_was_applied_has_waited_since_then(bench: Bench) -> None:
    time = 0.0
    planner = BatchPlanner(bench.log, BatchConfig(max_age=0.5), clock=lambda: time)
    positions = {Feed.clone(ORDERS.table): 100}
    assert planner.next(100, positions) is None
    bench.seal(200, (ORDERS, 110, insert("1", "a")))
    time = 0.4
    assert planner.next(100, positions) is None
    time = 0.5
    assert planner.next(100, positions) is not None
    planner.take()
    time = 0.6
    assert planner.next(200, positions, beside=True) is None
    bench.seal(300, (ORDERS, 210, insert("2", "a")))
    time = 0.9  # the batch took 0.4 seconds
    assert planner.next(200, positions) is None
    time = 1.0
    second = planner.next(200, positions)
    assert second is not None
    assert second.end == 300


def test_a_batch_ends_at_its_limit_and_never_inside_a_transaction(bench: Bench) -> None:
    bench.loop.close()
    bench.restart(limits=BatchConfig(max_age=0.0, max_changes=1))
    bench.seal(200, (ORDERS, 110, insert("1", "a")), (ORDERS, 110, insert("2", "a")))
    bench.seal(300, (ORDERS, 210, insert("3", "a")))
    assert bench.loop.step(stopping=lambda: True)
    assert (bench.loop.processed, len(bench.rows(ORDERS))) == (200, 2)


def housekeeping(bench: Bench) -> Housekeeping:
    return Housekeeping(bench.loop, Maintenance(advance_idle_every=0.0))


def retain(bench: Bench, max_bytes: int = 1 << 30) -> None:
    """As the source does for a loop that is its only reader."""
    reader = LoopReader(bench.loop)
    LogRetention(bench.log, LogConfig(max_bytes=max_bytes), [reader], lambda needs: needs["lake"]).retain()


def test_idle_tables_move_on_and_the_log_lets_go(bench: Bench) -> None:
    bench.seal(200, (ORDERS, 110, insert("1", "a")))
    bench.seal(300, (ORDERS, 210, insert("2", "a")))
    drain(bench)
    retain(bench)
    assert bench.log.start() == 100, "people, which is idle, still holds the log"
    housekeeping(bench).run()
    assert bench.lake.position(PEOPLE.table, "shop") == 300
    retain(bench)
    assert bench.log.start() == 200, "the newest segment stays: it says where the log ends"


def test_maintenance_takes_turns_and_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TableId] = []

    def maintain(target: TableId, source: str, run: JobRunner) -> MaintenanceReport:
        asked.append(target)
        return MaintenanceReport(3, 2, 1, shape=TableShape(len(asked), 0, 10, 1, 1.0))

    monkeypatch.setattr(bench.lake, "maintain", maintain)
    monkeypatch.setattr(housekeeping_module, "MAINTAINED_TOGETHER", 1)
    keeper = Housekeeping(bench.loop, Maintenance(pause=0.0))
    for _ in range(5):
        keeper.run()
    assert asked == [ORDERS.table, PEOPLE.table, ORDERS.table, PEOPLE.table, ORDERS.table]
    told = bench.state.upkeep("lake")
    assert (told[ORDERS.table].merged_files, told[ORDERS.table].shape.files) == (3, 1)
    Housekeeping(bench.loop, Maintenance()).run()
    told = bench.state.upkeep("lake")
    assert (told[ORDERS.table].merged_files, told[PEOPLE.table].merged_files) == (6, 3)
    bench.loop.tables[ORDERS.table].errored = True
    asked.clear()
    Housekeeping(bench.loop, Maintenance()).run()
    assert asked == [PEOPLE.table]


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_maintenance_takes_longer_after_a_long_batch(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = Clock(), 0

    def maintain(target: TableId, source: str, run: JobRunner) -> MaintenanceReport:
        nonlocal asked
        asked += 1
        clock.now += 0.6
        return MaintenanceReport()

    monkeypatch.setattr(bench.lake, "maintain", maintain)
    monkeypatch.setattr(housekeeping_module, "MAINTAINED_TOGETHER", 1)
    monkeypatch.setattr(housekeeping_module, "time", clock)
    keeper = Housekeeping(bench.loop, Maintenance(pause=0.5))
    counts = []
    for batch in (0.0, 0.3, 0.55, 0.65, 60.0):
        clock.now += batch
        keeper.run()
        counts.append(asked)
        asked = 0
    assert counts == [1, 1, 1, 2, 2]


def test_a_destination_without_upkeep_is_never_asked_for_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.lake, "capabilities", replace(bench.lake.capabilities, maintained=False))
    monkeypatch.setattr(bench.lake, "maintain", lambda *_: pytest.fail("it was asked"))
    housekeeping(bench).run()
    assert bench.state.upkeep("lake") == {}


def test_several_tables_are_maintained_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2, timeout=30)

    def maintain(target: TableId, source: str, run: JobRunner) -> MaintenanceReport:
        together.wait()
        if target == ORDERS.table:
            raise StaleBase("somebody else has changed it", "Later")
        return MaintenanceReport(1, 0, 0, shape=TableShape(1, 0, 10, 1, 1.0))

    monkeypatch.setattr(bench.lake, "maintain", maintain)
    housekeeping(bench).run()
    assert list(bench.state.upkeep("lake")) == [PEOPLE.table]


def test_a_table_that_waits_to_be_taken_in_holds_the_log(bench: Bench) -> None:
    bench.restart(ORDERS)
    for end in (200, 300, 400, 500):
        bench.seal(end, (ORDERS, end - 50, insert(str(end), "a")), (PEOPLE, end - 50, insert(str(end), "Ada", "p")))
    drain(bench)
    bench.loop.join(Feed.clone(PEOPLE.table), PEOPLE, 100)  # its copy is committed, the others are at 500
    retain(bench)
    assert bench.log.start() == 100
    drain(bench)
    assert [row[0] for row in bench.rows(PEOPLE)] == [200, 300, 400, 500]
    retain(bench)
    assert bench.log.start() == 400


def test_a_table_joins_though_the_log_never_stands_still(bench: Bench) -> None:
    """One that comes while the others stream is level with them for a moment only: that moment must do."""
    bench.restart(ORDERS)
    bench.seal(200, (ORDERS, 150, insert("1", "a")), (PEOPLE, 150, insert("1", "Ada", "p")))
    drain(bench)
    bench.loop.join(Feed.clone(PEOPLE.table), PEOPLE, 100)
    for end in (300, 400):
        bench.seal(end, (ORDERS, end - 50, insert(str(end), "a")), (PEOPLE, end - 50, insert(str(end), "Ada", "p")))
        bench.loop.step(now=True)
    assert bench.state.table_status("lake")[PEOPLE.table].state is State.READY
    assert (len(bench.rows(PEOPLE)), len(bench.rows(ORDERS))) == (3, 3)


def test_a_table_whose_changes_are_gone_from_the_log_is_not_taken_in(bench: Bench) -> None:
    bench.restart(ORDERS)
    for end in (200, 300, 400, 500):
        bench.seal(end, (ORDERS, end - 50, insert(str(end), "a")), (PEOPLE, end - 50, insert(str(end), "Ada", "p")))
    drain(bench)
    retain(bench)
    assert bench.log.start() == 400
    bench.loop.join(Feed.clone(PEOPLE.table), PEOPLE, 100)
    drain(bench)
    status = bench.state.table_status("lake")[PEOPLE.table]
    assert status.state is State.INIT
    assert "the change log begins at" in status.reason
    assert bench.rows(PEOPLE) == []


def test_an_errored_table_holds_the_log_only_as_long_as_there_is_room(bench: Bench) -> None:
    bench.seal(200, (ORDERS, 110, insert("no number", "a")), (PEOPLE, 110, insert("7", "Ada", "p")))
    bench.seal(300, (PEOPLE, 210, insert("8", "Ada", "p")))
    drain(bench)
    retain(bench)
    assert bench.log.start() == 100
    retain(bench, max_bytes=1)
    assert bench.log.start() == 200
    status = bench.state.table_status("lake")[ORDERS.table]
    assert "no longer holds what it needs" in status.reason


def test_a_message_that_cannot_be_decoded_is_kept_and_its_table_alone_stops(bench: Bench) -> None:
    loop, cut = bench.loop, insert("2", "new")[:-1]
    bench.seal(200, (ORDERS, 150, insert("1", "new")), (ORDERS, 150, cut), (PEOPLE, 150, insert("1", "Ann", "p")))
    bench.seal(300, (ORDERS, 250, b"I"), (PEOPLE, 250, insert("2", "Bob", "q")))
    while loop.step(now=True):
        pass
    assert bench.rows(PEOPLE) == [(1, "Ann", "p"), (2, "Bob", "q")]
    assert bench.rows(ORDERS) == []
    status = bench.state.table_status("lake")
    assert (status[ORDERS.table].state, status[PEOPLE.table].state) == (State.ERRORED, State.READY)
    assert "penstock quarantine" in status[ORDERS.table].solution
    kept = [one.message for one in bench.state.quarantined("lake")]
    assert (kept[0].commit_position, kept[0].data[5:]) == (150, cut[5:])
    assert kept[0].schema.structure == ORDERS.structure


def test_a_table_of_events_goes_on_without_what_cannot_be_decoded(bench: Bench) -> None:
    """Also when its rows are shared out over several tasks, of which each must leave out the same."""
    events = Feed(ORDERS.table, ORDERS.table, TableId("public", "orders_events"), Mode.EVENTS)
    bench.restart(PEOPLE)
    bench.follow(events, ORDERS)
    rows, cut = 300, insert("7", "new")[:-1]
    note = "x" * (3 * WORTH_A_BUCKET // rows)
    bench.runner.by = InProcessRunner(slots=3)
    changes = [(ORDERS, 150, insert(str(number), note)) for number in range(rows)]
    bench.seal(200, *changes[:10], (ORDERS, 150, cut), *changes[10:], (PEOPLE, 150, insert("1", "Ann", "p")))
    bench.lake.failures = ["stale"]
    drain(bench)
    found = bench.lake.rows(events.target)["after"].to_pylist()
    assert sorted(row["id"] for row in found) == list(range(rows))
    assert bench.state.table_status("lake")[ORDERS.table].state is State.READY
    assert [one.message.data[5:] for one in bench.state.quarantined("lake")] == [cut[5:]]
    bench.seal(300, (ORDERS, 250, insert("1000", "later")))
    drain(bench)
    assert bench.lake.rows(events.target).num_rows == rows + 1
    assert bench.state.quarantined_counts("lake") == {ORDERS.table: 1}, "it stays for a person"


def test_messages_leave_quarantine_when_their_table_has_passed_them(bench: Bench) -> None:
    bench.seal(200, (ORDERS, 150, insert("1", "new")[:-1]), (PEOPLE, 150, insert("1", "Ann", "p")))
    bench.loop.step(now=True)
    assert bench.state.quarantined_counts("lake") == {ORDERS.table: 1}
    bench.loop.join(Feed.clone(ORDERS.table), ORDERS, 200)  # its copy, at a position after the message
    bench.loop.step(now=True)
    assert bench.state.quarantined_counts("lake") == {}


def test_a_table_that_keeps_rows_of_dropped_partitions_is_not_copied_again_by_itself(bench: Bench) -> None:
    moment = datetime(2026, 5, 4, tzinfo=UTC)
    kept = Partitions(7, (), (Remark(TableId("public", "orders_2020"), "kept", moment),))
    bench.state.set_partitions("lake", ORDERS.table, kept)
    with pytest.raises(SchemaChanged, match=r"public\.orders_2020"):
        bench.loop.want_resync(bench.loop.tables[ORDERS.table], "its type changed")
    assert bench.loop.resyncs.empty()
    bench.loop.want_resync(bench.loop.tables[PEOPLE.table], "its type changed")
    assert not bench.loop.resyncs.empty()


@pytest.mark.parametrize(
    ("size", "slots", "expected"),
    [(1, 8, 1), (WORTH_A_BUCKET + 1, 8, 2), (WORTH_A_BUCKET + 1, 1, 1), (4 * WORTH_A_BUCKET, 1, 2), (1 << 33, 1, 171)],
)
def test_buckets_are_as_few_as_speed_and_memory_allow(size: int, slots: int, expected: int) -> None:
    """Each of them reads all of the table's changes, unless they are so many that they are shared out."""
    work = TableWork(Feed.clone(ORDERS.table), versions=[ORDERS], bytes=size)
    assert work.buckets(slots) == expected
    work.moved_keys = 1
    assert work.buckets(slots) == (expected if work.shared(slots) else 1)
    work.feed = replace(work.feed, anomalies=True)
    assert work.buckets(slots) == 1


@pytest.mark.parametrize("mode", [Mode.CLONE, Mode.APPEND, Mode.HISTORY])
def test_an_update_of_a_row_that_the_lake_lacks_is_no_null_in_place_of_what_was_not_sent(
    bench: Bench, mode: Mode
) -> None:
    """The value is nowhere but at the source: the table is copied again, and the reason says how many rows it was."""
    feed = Feed(PEOPLE.table, PEOPLE.table, TableId("lake", "people"), mode)
    bench.follow(feed, PEOPLE)
    bench.seal(200, (ORDERS, 110, insert("1", "new")), (PEOPLE, 120, update("7", "Ada", UNSENT)))
    drain(bench)
    assert bench.loop.tables[feed.name].errored, "the table goes on with a value that nobody sent"
    status = bench.state.table_status("lake")[feed.name]
    assert (status.state, status.retry) == (State.INIT, "at once")
    assert (
        "1 updated row is missing in lake.people, and the source did not send 1 unchanged large value" in status.reason
    )
    assert bench.loop.resyncs.get(timeout=5) == (feed.name, status.reason)
    assert bench.rows(PEOPLE, feed.target) == []
    assert bench.rows(ORDERS) == [(1, "new")], "other tables go on"


@pytest.mark.parametrize("noticed", ["by a batch", "while idle"])
@pytest.mark.parametrize("mode", [Mode.CLONE, Mode.HISTORY])
def test_a_table_that_somebody_rolled_back_is_copied_again_or_errored(bench: Bench, mode: Mode, noticed: str) -> None:
    """A clone is copied again by itself. What a history has lost no copy brings back, so an operator decides."""
    feed = Feed(PEOPLE.table, PEOPLE.table, TableId("lake", "people"), mode)
    bench.follow(feed, PEOPLE)
    bench.seal(200, (ORDERS, 110, insert("1", "new")), (PEOPLE, 120, insert("7", "Ada", "p")))
    drain(bench)
    housekeeping(bench).run()
    bench.store.roll_back(feed.target, bench.lake.rows(feed.target).slice(0, 0))
    if noticed == "by a batch":
        bench.seal(300, (ORDERS, 210, insert("2", "new")), (PEOPLE, 220, insert("8", "Bob", "p")))
        drain(bench)
    else:
        housekeeping(bench).run()
    assert bench.loop.tables[feed.name].errored
    status = bench.state.table_status("lake")[feed.name]
    assert "rolled back" in status.reason
    if mode is Mode.CLONE:
        assert status.state is State.INIT
        assert bench.loop.resyncs.get(timeout=5)[0] == feed.name
    else:
        assert (status.state, status.retry) == (State.ERRORED, "manual")
        assert bench.loop.resyncs.empty()
    assert not bench.loop.tables[ORDERS.table].errored

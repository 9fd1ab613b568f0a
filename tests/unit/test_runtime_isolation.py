"""One table's trouble is its own: whatever goes wrong for it, at whatever step, the others go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from loop_bench import ORDERS, PEOPLE, Bench, drain, schema
from penstock.config.destinations import Maintenance
from penstock.config.model import BatchConfig
from penstock.destinations.memory_tables import MemoryPlan
from penstock.errors import (
    DestinationUnreachable,
    EnvironmentMissing,
    FileUnreadable,
    PenstockError,
    StaleBase,
)
from penstock.model.feed import ColumnChoice, Feed, Projection
from penstock.model.table import ColumnType, TableId
from penstock.model.table_state import State
from penstock.runtime import pins as runtime_pins
from penstock.runtime.pins import Pins
from penstock.runtime.spark.worker_entry import Failed, run_partition
from penstock.runtime.upkeep.housekeeping import Housekeeping
from pgoutput_messages import INT8, TEXT, insert

BOOM = "the sky fell"


def break_for_orders(
    monkeypatch: pytest.MonkeyPatch, on: object, method: str, error: BaseException | None = None
) -> None:
    """From now on the method raises for the table of orders."""
    original: Callable[..., Any] = getattr(on, method)

    def broken(first: Any, *others: Any, **options: Any) -> Any:
        table = first if isinstance(first, TableId) else first.target
        if table == ORDERS.table:
            raise error or RuntimeError(BOOM)
        return original(first, *others, **options)

    monkeypatch.setattr(on, method, broken)


def seal(bench: Bench, times: int = 1) -> None:
    """Segments with one new row for each of the two tables."""
    for _ in range(times):
        end = (bench.log.end() or 100) + 100
        key = str(end)
        bench.seal(end, (ORDERS, end - 90, insert(key, "new")), (PEOPLE, end - 80, insert(key, "Ada", "p")))


def assert_only_orders_is_errored(bench: Bench, *words: str) -> None:
    status = bench.state.table_status("lake")
    assert status[ORDERS.table].state is State.ERRORED
    for word in words:
        assert word in status[ORDERS.table].reason
    assert status[ORDERS.table].solution
    assert status[PEOPLE.table].state is State.READY
    seal(bench)
    before = len(bench.rows(PEOPLE))
    drain(bench)
    assert len(bench.rows(PEOPLE)) == before + 1, "the other table does not flow"
    assert bench.loop.processed == bench.log.end()


@pytest.mark.parametrize("step", ["plan", "write", "commit", "plan_after"])
@pytest.mark.parametrize("one_by_one", [False, True])
def test_an_unexpected_exception_in_a_batch_is_its_tables(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, step: str, one_by_one: bool
) -> None:
    if one_by_one:  # so that batches are written beside the commits of those before
        bench.loop.close()
        bench.restart(limits=BatchConfig(max_age=0.0, max_changes=1))
    seal(bench)
    drain(bench)
    with monkeypatch.context() as patch:
        break_for_orders(patch, MemoryPlan if step == "write" else bench.lake, step)
        seal(bench, 3)
        with capture_logs() as logs:
            drain(bench)
        if step == "plan_after" and not bench.loop.tables[ORDERS.table].errored:
            assert not one_by_one, "no plan was made ahead"
            return
        assert_only_orders_is_errored(bench, "unexpected RuntimeError", BOOM)
    (told,) = [entry for entry in logs if entry["event"] == "table errored"]
    assert "Traceback" in told["exception"]
    assert BOOM in told["exception"]
    bench.loop.resume(bench.loop.tables[ORDERS.table])
    drain(bench)
    assert len(bench.rows(ORDERS)) == len(bench.rows(PEOPLE)) == 5, "tried again, it takes every change once"


@pytest.mark.parametrize("step", ["advance", "maintain"])
def test_an_unexpected_exception_between_batches_is_its_tables(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    housekeeping = Housekeeping(bench.loop, Maintenance(advance_idle_every=0.0))
    bench.seal(200, (schema("other", 9, id=INT8), 110, insert("1")))
    drain(bench)
    break_for_orders(monkeypatch, bench.lake, step)
    housekeeping.run()
    assert_only_orders_is_errored(bench, "unexpected RuntimeError", BOOM)
    assert bench.lake.position(PEOPLE.table, "shop") == bench.loop.processed


def test_an_unexpected_exception_while_a_table_is_held_answers_who_asked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_pins, "LOOK_EVERY", 0.0)
    pins = Pins(bench.loop, bench.state)
    seal(bench)
    drain(bench)
    (number,) = bench.state.ask_pins(bench.lake.name, [ORDERS.table])
    pins.tend()
    assert bench.state.place_pin(number, 200)
    break_for_orders(monkeypatch, bench.lake, "bookmark")
    for _ in range(3):
        pins.tend()
        drain(bench)
    (pin,) = bench.state.pins()
    assert pin.answered
    assert BOOM in pin.reason
    assert_only_orders_is_errored(bench, BOOM)


def test_an_unexpected_exception_while_a_table_catches_up_is_its_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal(bench)
    drain(bench)
    bench.loop.tables[ORDERS.table].level = 100

    def broken(*_: object) -> None:
        raise KeyError(BOOM)

    monkeypatch.setattr("penstock.runtime.apply.loop.gather", broken)
    bench.loop.step()
    assert bench.loop.tables[ORDERS.table].errored
    monkeypatch.undo()
    assert_only_orders_is_errored(bench, "unexpected KeyError")


def test_a_masked_array_is_its_tables_trouble(bench: Bench) -> None:
    tags = schema("tags", 3, id=INT8, labels=ColumnType(1009, "_text", kind="array", element=TEXT))
    masked = Projection(columns=(ColumnChoice("labels", masked=True),), salt="s")
    feed = Feed(tags.table, tags.table, tags.table, projection=masked)
    position = bench.lake.ensure_table(tags.table, tags, "shop", 100)
    assert position is not None
    bench.loop.track(feed, tags, position, 100)
    bench.seal(200, (tags, 110, insert("1", "{a,b}")), (PEOPLE, 110, insert("7", "Ada", "p")))
    drain(bench)
    status = bench.state.table_status("lake")
    assert status[tags.table].state is State.ERRORED
    assert "column labels of type text[] cannot be masked" in status[tags.table].reason
    assert bench.rows(PEOPLE) == [(7, "Ada", "p")]


def test_a_file_that_is_lost_is_its_tables_trouble(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = FileUnreadable("file /lake/x.parquet is missing")
    seal(bench)
    break_for_orders(monkeypatch, MemoryPlan, "write", lost)
    drain(bench)
    assert_only_orders_is_errored(bench, "/lake/x.parquet")
    assert "resync" in bench.state.table_status("lake")[ORDERS.table].solution


@pytest.mark.parametrize(
    ("diagnosis", "raised"),
    [
        (DestinationUnreachable("the store is away"), DestinationUnreachable),
        (StaleBase("it is another table by now"), StaleBase),
    ],
)
def test_what_concerns_all_tables_is_raised_and_leaves_them_as_they_are(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, diagnosis: PenstockError, raised: type[PenstockError]
) -> None:
    seal(bench)
    with monkeypatch.context() as patch:
        break_for_orders(patch, MemoryPlan, "write", FileUnreadable("file /lake/x.parquet cannot be read"))
        patch.setattr(bench.lake, "diagnose", lambda *_: diagnosis)
        with pytest.raises(raised):
            drain(bench)
    assert {status.state for status in bench.state.table_status("lake").values()} == {State.READY}
    drain(bench)
    assert len(bench.rows(ORDERS)) == len(bench.rows(PEOPLE)) == 1


def test_java_that_has_ended_is_nobodys_table(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seal(bench)
    break_for_orders(monkeypatch, bench.lake, "plan", ConnectionRefusedError(111, "Connection refused"))
    with pytest.raises(EnvironmentMissing, match="Java process has ended"):
        drain(bench)
    assert {status.state for status in bench.state.table_status("lake").values()} == {State.READY}


@pytest.mark.parametrize("step", ["before a batch", "while it is written", "while it is idle"])
def test_a_table_dropped_at_the_destination_is_copied_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    housekeeping = Housekeeping(bench.loop, Maintenance(advance_idle_every=0.0))
    seal(bench)
    drain(bench)
    if step == "while it is written":
        bench.lake.before_commit = lambda: bench.store.tables.pop(ORDERS.table, None)
    else:
        del bench.store.tables[ORDERS.table]
    if step == "while it is idle":
        bench.seal(300, (PEOPLE, 210, insert("300", "Ada", "p")))
    else:
        seal(bench)
    drain(bench)
    housekeeping.run()
    table, why = bench.loop.resyncs.get_nowait()
    assert table == ORDERS.table
    assert "dropped at the destination" in why
    status = bench.state.table_status("lake")
    assert status[ORDERS.table].state is State.INIT
    assert status[PEOPLE.table].state is State.READY
    assert len(bench.rows(PEOPLE)) == 2


def test_a_writer_that_always_comes_first_stops_its_table_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seal(bench)
    break_for_orders(monkeypatch, bench.lake, "commit", StaleBase("somebody else committed"))
    drain(bench)
    assert_only_orders_is_errored(bench, "somebody else keeps committing to it")


def test_a_table_that_loses_its_last_column_is_errored_with_the_reason(bench: Bench) -> None:
    notes = replace(schema("notes", 4, note=TEXT), key=())
    bare = replace(notes, columns=())
    bench.follow(Feed.clone(notes.table), notes)
    bench.seal(200, (bare, 110, insert()), (PEOPLE, 110, insert("7", "Ada", "p")))
    drain(bench)
    status = bench.state.table_status("lake")[notes.table]
    assert status.state is State.ERRORED
    assert "it has no columns" in status.reason
    assert bench.loop.tables[notes.table].lacks_columns
    assert bench.rows(PEOPLE) == [(7, "Ada", "p")]


def test_what_a_task_raises_comes_back_with_its_traceback() -> None:
    def task(number: int) -> int:
        return 1 // number

    done, failed = run_partition(task, [(0, 1), (1, 0)])
    assert isinstance(failed, Failed)
    assert "unexpected ZeroDivisionError" in failed.error.what
    assert "return 1 // number" in getattr(failed.error, "trace", "")
    assert done.number == 0


@pytest.mark.parametrize("kind", [MemoryError, NotImplementedError, AssertionError, OSError, AttributeError])
def test_a_task_of_a_batch_never_raises(bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    """Whatever the exception: its job has tasks of other tables."""
    seal(bench)
    break_for_orders(monkeypatch, MemoryPlan, "write", kind(BOOM))
    drain(bench)
    assert_only_orders_is_errored(bench, f"unexpected {kind.__name__} while its changes were applied")

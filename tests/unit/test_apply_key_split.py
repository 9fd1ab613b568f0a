"""Huge parts of a batch are shared out: the log is read once, the outcome is what it was, and nothing is left."""

from __future__ import annotations

import errno
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loop_bench import ORDERS, PEOPLE, Bench, drain, huge_beyond, schema
from penstock.changelog.log import ChangeLog
from penstock.changelog.scratch import FOLDER, Scratch, remove_leftovers
from penstock.changelog.segment import Slice
from penstock.destinations.contract import InProcessRunner
from penstock.errors import DestinationUnreachable, LogFull, LogUnreachable
from penstock.model.change import RAW_SCHEMA
from penstock.model.feed import Feed, Mode
from penstock.model.table import TableId, TableSchema
from penstock.model.table_state import State
from penstock.runtime.apply import job
from penstock.runtime.apply.key_split import share
from penstock.runtime.apply.task import apply
from pgoutput_messages import INT8, TEXT, UNSENT, Unsent, delete, insert, truncate, update
from raw_rows import raw_slice

KEYLESS = TableSchema(TableId("public", "notes"), 3, ORDERS.columns, ())
TARGET = TableId("public", "kept")
OPEN = datetime(9999, 1, 1, tzinfo=UTC)
Task = TypeVar("Task")
Result = TypeVar("Result")


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """500 bytes are huge; the test may say otherwise."""
    huge_beyond(monkeypatch, 500)
    return partial(huge_beyond, monkeypatch)


def scratch(log: ChangeLog) -> list[Path]:
    return list((Path(log.folder) / FOLDER).rglob("*"))


def orders(count: int) -> list[tuple[TableSchema, int, bytes]]:
    return [(ORDERS, 110, insert(str(number), f"state {number}")) for number in range(count)]


change = st.tuples(st.sampled_from("iiiuuudm"), st.integers(0, 40), st.text("ab", max_size=30))
transactions = st.lists(st.lists(change, min_size=1, max_size=60), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(
    history=transactions,
    mode=st.sampled_from([Mode.CLONE, Mode.CLONE, Mode.APPEND, Mode.HISTORY, Mode.EVENTS]),
    keyed=st.booleans(),
    truncated=st.sampled_from([None, 0, 10]),
    slots=st.integers(1, 4),
    size=st.sampled_from([200, 500, 3000]),
)
def test_whatever_happens_shares_come_to_the_same(
    history: list[list[tuple[str, int, str]]],
    mode: Mode,
    keyed: bool,
    truncated: int | None,
    slots: int,
    size: int,
) -> None:
    table = ORDERS if keyed or mode is Mode.HISTORY else KEYLESS
    outcomes: list[tuple[object, ...]] = []
    for limit in (1 << 30, size):
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            huge_beyond(patch, limit)
            bench = Bench(Path(folder) / "log")
            bench.runner.by = InProcessRunner(slots)
            bench.follow(Feed(table.table, table.table, TARGET, mode), table)
            for number, rows in enumerate(history):
                bench.seal(200 + 100 * number, *changes(table, 110 + 100 * number, rows, truncated))
            drain(bench)
            status = bench.state.table_status("lake")[table.table]
            told = bench.state.progress("lake").get(table.table)
            outcomes.append((sorted(map(repr, bench.lake.rows(TARGET).to_pylist())), status.state, status.reason))
            if told is not None and truncated is None:
                outcomes[-1] = (*outcomes[-1], told.changes)
            assert not scratch(bench.log)
            bench.loop.close()
            bench.writer.__exit__(None, None, None)
    assert outcomes[0] == outcomes[1]


def changes(
    table: TableSchema, commit: int, rows: Sequence[tuple[str, int, str]], truncated: int | None
) -> list[tuple[TableSchema, int, bytes]]:
    """Inserts, updates, deletes and changes of keys, and a truncate at one place."""
    sent: list[tuple[TableSchema, int, bytes]] = []
    for place, (op, key, state) in enumerate(rows):
        if place == truncated:
            sent.append((table, commit, truncate(table.relation_id)))
        if not table.key or op == "i":
            message = insert(str(key), state)
        elif op == "m":
            message = update(str(key), state, key=(str((key + 7) % 41), None))
        else:
            message = update(str(key), state) if op == "u" else delete(str(key), None)
        sent.append((table, commit, message))
    return sent


@pytest.mark.parametrize(
    ("table", "mode"), [*((ORDERS, mode) for mode in Mode), (KEYLESS, Mode.CLONE), (KEYLESS, Mode.APPEND)]
)
def test_the_log_is_read_once_however_many_tasks_there_are(
    bench: Bench, limited: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, table: TableSchema, mode: Mode
) -> None:
    reads: Counter[tuple[str, int]] = Counter()
    verified = ChangeLog._verified_batch

    def counted(log: ChangeLog, text: str, reader: Any, item: Slice) -> pa.RecordBatch:
        reads[text, item.index] += 1
        return verified(log, text, reader, item)

    monkeypatch.setattr(ChangeLog, "_verified_batch", counted)
    bench.restart(PEOPLE)
    bench.follow(Feed(table.table, table.table, TARGET, mode), table)
    limited(4000)
    for number in range(12):
        ids = range(number * 20, number * 20 + 20)
        bench.seal(200 + 100 * number, *((table, 110, insert(str(id), "x" * 100)) for id in ids))
    drain(bench)
    assert bench.lake.rows(TARGET).num_rows == 240
    assert len(reads) == 12
    assert set(reads.values()) == {1}


def test_a_slice_that_is_too_large_for_a_task_of_events_is_cut(bench: Bench, limited: Callable[[int], None]) -> None:
    feed = Feed(ORDERS.table, ORDERS.table, TARGET, Mode.EVENTS)
    bench.restart(PEOPLE)
    bench.follow(feed, ORDERS)
    sizes: list[int] = []

    class Counting(InProcessRunner):
        def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
            results = super().run(function, tasks)
            sizes.extend(result.changes for result in results)  # type: ignore[attr-defined]
            return results

    bench.runner.by = Counting()
    bench.seal(200, *orders(100))
    drain(bench)
    assert bench.lake.rows(TARGET).num_rows == 100
    assert len(sizes) > 10
    assert max(sizes) < 12


class Again(InProcessRunner):
    """Runs every task of the first stage more than once, as Spark does when an executor is lost or slow."""

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        tries = [super().run(function, tasks)]
        if function.__name__ == share.__name__:
            tries += [super().run(function, tasks), super().run(function, tasks)]
        return [one[number % len(one)] for number, one in enumerate(zip(*tries, strict=True))]


def test_tasks_that_ran_twice_count_once(bench: Bench, limited: Callable[[int], None]) -> None:
    bench.runner.by = Again()
    bench.seal(200, *orders(100))
    drain(bench)
    assert bench.rows(ORDERS) == [(number, f"state {number}") for number in range(100)]
    assert not scratch(bench.log)


class Failing(InProcessRunner):
    """The second stage fails as a whole; `seen` is what was in scratch then."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "seen", [])

    seen: list[Path]

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        if function is apply and tasks[0].share is not None:  # type: ignore[attr-defined]
            self.seen.extend(scratch(tasks[0].log))  # type: ignore[attr-defined]
            raise DestinationUnreachable("a Spark job failed", "It is tried again")
        return super().run(function, tasks)


def test_a_batch_that_fails_leaves_nothing(bench: Bench, limited: Callable[[int], None]) -> None:
    failing = Failing()
    bench.runner.by = failing
    bench.seal(200, *orders(100))
    with pytest.raises(DestinationUnreachable):
        bench.loop.step(now=True)
    assert any(path.suffix == ".arrow" for path in failing.seen)
    assert not scratch(bench.log)
    bench.runner.by = InProcessRunner()
    drain(bench)
    assert len(bench.rows(ORDERS)) == 100


def test_what_a_killed_run_left_is_removed(bench: Bench) -> None:
    assert not remove_leftovers(bench.log)
    left = Scratch(bench.log)
    left.create()
    with left.writing() as (name, write):
        write(raw_slice(ORDERS, [110]).batch)
    assert [one.num_rows for one in left.read(name, [0])] == [1]
    bench.seal(200, *orders(1))
    assert [one.end for one in bench.log.segments()] == [200]
    assert remove_leftovers(bench.log)
    assert not scratch(bench.log)
    assert [one.end for one in bench.log.segments()] == [200]
    with pytest.raises(LogUnreachable, match=FOLDER):
        list(left.read(name, [0]))
    with pytest.raises(LogUnreachable, match=FOLDER), left.writing():
        pass


def test_scratch_of_a_log_in_an_object_store() -> None:
    log = ChangeLog("mock:///bucket/log")
    own, other = Scratch(log), Scratch(log)
    for one in (own, other):
        one.create()
        with one.writing() as (name, write):
            write(raw_slice(ORDERS, [110]).batch)
            write(raw_slice(ORDERS, [110, 110, 110]).batch)
        assert [batch.num_rows for batch in one.read(name, [1, 0])] == [3, 1]
    own.remove()
    assert log.bytes() == 0, "it is no part of the log"
    assert remove_leftovers(log)
    assert not remove_leftovers(log)


def test_no_room_for_scratch_is_said_and_tried_again(
    bench: Bench, limited: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.seal(200, *orders(100))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pa.ipc, "new_file", full)
        with pytest.raises(LogFull, match="no room beside the change log"):
            bench.loop.step(now=True)
    assert not scratch(bench.log)
    drain(bench)
    assert len(bench.rows(ORDERS)) == 100


def test_half_a_file_is_not_read(bench: Bench) -> None:
    own = Scratch(bench.log)
    own.create()
    with own.writing() as (name, write):
        write(pa.RecordBatch.from_pylist([], schema=RAW_SCHEMA))
    (path,) = [path for path in scratch(bench.log) if path.name == name]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(LogUnreachable, match=FOLDER):
        list(own.read(name, [0]))
    own.remove()
    own.remove()
    assert not scratch(bench.log)


@pytest.mark.parametrize("broken", [b"I?", insert("7", "new")[:-1]], ids=["no key", "no image"])
def test_all_that_cannot_be_decoded_is_kept_whichever_task_meets_it(
    bench: Bench, limited: Callable[[int], None], broken: bytes
) -> None:
    rows = orders(100)
    for place in (5, 40, 80):
        rows[place] = (ORDERS, 110, broken[:-1] + bytes([48 + place % 10]))
    bench.seal(200, *rows, (PEOPLE, 110, insert("1", "Ada", "p")))
    drain(bench)
    status = bench.state.table_status("lake")
    assert (status[ORDERS.table].state, status[PEOPLE.table].state) == (State.ERRORED, State.READY)
    kept = [one.message.ordinal for one in bench.state.quarantined("lake")]
    assert kept == [5, 40, 80]
    assert not scratch(bench.log)


def test_events_go_on_without_what_cannot_be_decoded_up_to_a_number(
    bench: Bench, limited: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.restart(PEOPLE)
    bench.follow(Feed(ORDERS.table, ORDERS.table, TARGET, Mode.EVENTS), ORDERS)
    rows = orders(100)
    for place in (5, 40, 80):
        rows[place] = (ORDERS, 110, insert("7", "new")[:-1])
    bench.seal(200, *rows)
    drain(bench)
    assert bench.lake.rows(TARGET).num_rows == 97
    assert [one.message.ordinal for one in bench.state.quarantined("lake")] == [5, 40, 80]
    monkeypatch.setattr(job, "MOST_MESSAGES_KEPT", 2)
    bench.seal(300, *((ORDERS, 210, message) for _, _, message in rows))
    drain(bench)
    assert bench.state.table_status("lake")[ORDERS.table].state is State.ERRORED
    assert "3 messages and more" in bench.state.table_status("lake")[ORDERS.table].reason
    assert len(bench.state.quarantined("lake")) == 3 + 2


def test_two_huge_tables_and_a_small_one_in_one_batch(bench: Bench, limited: Callable[[int], None]) -> None:
    photos = schema("photos", 5, id=INT8, photo=TEXT)
    bench.restart(ORDERS, PEOPLE, photos)
    pictures = [(photos, 110, insert(str(number), "p" * 50)) for number in range(50)]
    bench.seal(200, *orders(100), (PEOPLE, 110, insert("1", "Ada", "p")), *pictures)
    drain(bench)
    assert (len(bench.rows(ORDERS)), len(bench.rows(photos)), len(bench.rows(PEOPLE))) == (100, 50, 1)


class Kinds(InProcessRunner):
    """Counts the tasks of each kind."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "tasks", Counter())

    tasks: Counter[str]

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        self.tasks[function.__name__] += len(tasks)
        return super().run(function, tasks)


def moving(count: int, body: str | Unsent) -> list[tuple[TableSchema, int, bytes]]:
    """Every row takes the next key, the last one first; their photos come along or not."""
    return [
        (PEOPLE, 210, update(str(number + 1), f"moved {number}", body, key=(str(number), None, None)))
        for number in reversed(range(count))
    ]


@pytest.mark.parametrize("sent", [True, False])
@pytest.mark.parametrize("mode", [Mode.CLONE, Mode.APPEND, Mode.HISTORY])
def test_keys_that_move_are_shared_out_if_their_rows_come_along(
    bench: Bench, limited: Callable[[int], None], mode: Mode, sent: bool
) -> None:
    bench.restart(ORDERS)
    bench.follow(Feed(PEOPLE.table, PEOPLE.table, TARGET, mode), PEOPLE)
    kinds = Kinds()
    bench.runner.by = kinds
    bench.seal(200, *((PEOPLE, 110, insert(str(number), "Ada", "photo")) for number in range(60)))
    bench.loop.step(now=True)
    kinds.tasks.clear()
    later = [(PEOPLE, 210, update(str(number), "later", UNSENT)) for number in range(10, 20)]
    bench.seal(300, *moving(60, "photo" if sent else UNSENT), *later)
    drain(bench)
    shown = [row for row in bench.lake.rows(TARGET).to_pylist() if mode is not Mode.HISTORY or row["valid_to"] == OPEN]
    assert sorted((row["id"], row["name"], row["photo"]) for row in shown) == [
        (number, "later" if 10 <= number < 20 else f"moved {number - 1}", "photo") for number in range(1, 61)
    ]
    assert (kinds.tasks["apply"] > 10) == sent, "a row whose photo is with its old key is for the task that has that"
    assert kinds.tasks["share"] > 1
    assert not scratch(bench.log)

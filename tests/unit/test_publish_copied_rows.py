"""Rows that a table had before come first, as `read` events: each once per copy, and no change is lost or doubled."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from loop_bench import ORDERS, PEOPLE
from penstock.config.load import load
from penstock.decode.schema import arrow_schema
from penstock.destinations.stream_contract import CopyPlace
from penstock.errors import SourceUnreachable, ValueDoesNotFit
from penstock.model.place import place_at
from penstock.model.processor import ProcessorSpec
from penstock.model.table import TableId, TableSchema
from penstock.model.table_marks import TableMarks
from penstock.model.table_state import State
from penstock.model.write_counters import WriteCounters
from penstock.runtime.copy.connections import CopyConnections
from penstock.runtime.publish import row_copier
from penstock.runtime.publish.copied_rows import publish_rows
from penstock.runtime.publish.row_copier import RowCopier
from penstock.runtime.publish.task import place_name
from pgoutput_messages import delete, insert, update
from publish_bench import PublishBench, stream_feed

NAME = place_name(ORDERS.table)
FILE = """
version: 1
name: shop
source: {type: postgres, url: postgresql://app@db/shop}
tables: [{match: public.*}]
destinations: [{name: stream, type: files, path: ./changes, snapshot: true}]
"""


@dataclass(frozen=True)
class Range:
    number: int
    bytes: int = 10

    def to_json(self) -> str:
        return f"{self.number}"


@dataclass
class Table:
    """A table at its source: `rows` as of `position`, read in `ranges`."""

    position: int = 150
    rows: list[int] = field(default_factory=lambda: list(range(20)))
    ranges: int = 3
    error: Exception | None = None
    errors: list[Exception] = field(default_factory=list)  # one for each try
    held: threading.Event | None = None  # ranges but the first wait for it
    moment: int = 1_000_000
    snapshots: int = 0
    schema: TableSchema = ORDERS

    def connect(self) -> Table:
        return self

    def snapshot(self, **_: object) -> Table:
        self.snapshots += 1
        return self

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @contextmanager
    def session(self) -> Iterator[Table]:
        yield self

    def counters(self, schemas: Sequence[TableSchema]) -> dict[TableId, WriteCounters]:
        return {one.table: WriteCounters("e", {1: 1}) for one in schemas}

    def describe(self, _: object, __: TableId) -> TableSchema:
        return ORDERS

    def plan_ranges(self, _: TableSchema, *, range_bytes: int) -> list[Range]:
        return [Range(number) for number in range(self.ranges)]

    def marks(self, schemas: Sequence[TableSchema]) -> dict[TableId, TableMarks]:
        return {one.table: TableMarks(self.snapshots) for one in schemas}

    def partitions(self, _: Sequence[TableSchema]) -> Mapping[TableId, Any]:
        return {}

    def reader(self, schema: TableSchema) -> Table:
        self.schema = schema
        return self

    def read(self, part: Range, **_: object) -> Iterator[pa.RecordBatch]:
        if self.error is not None or self.errors:
            raise self.errors.pop() if self.errors else self.error or AssertionError
        if self.held is not None and part.number:
            assert self.held.wait(30)
        own = [row for row in self.rows if row % self.ranges == part.number]
        columns = {"id": [str(row) for row in own], "state": ["old"] * len(own)}
        wanted = arrow_schema(self.schema)
        yield pa.RecordBatch.from_pydict({name: columns[name] for name in wanted.names}, schema=wanted)


@dataclass
class Copying:
    bench: PublishBench
    table: Table
    folder: Path
    more: str = ""  # of the pipeline file
    copier: RowCopier = field(init=False)

    def restart(self) -> None:
        """A new process: nothing is left but the log, the stream and the state store."""
        (self.folder / "pipeline.yaml").write_text(FILE + self.more)
        pipeline, bench = load(self.folder / "pipeline.yaml"), self.bench
        self.copier = RowCopier(
            pipeline, bench.runner, bench.log, bench.state, CopyConnections(2), lambda: bench.loop.processed
        )
        bench.restart(rows=self.copier)
        self.copier.start()

    def copy(self) -> None:
        self.bench.loop.copy(self.bench.loop.tables[ORDERS.table], ORDERS)

    def drain(self, until: Any = None) -> None:
        end = time.monotonic() + 20
        while not (until() if until is not None else not self.is_copying):
            assert time.monotonic() < end, "it does not end"
            self.bench.loop.step(now=True)
            time.sleep(0.001)
        self.bench.drain()

    @property
    def is_copying(self) -> bool:
        return self.bench.loop.tables[ORDERS.table].copying

    @property
    def state(self) -> State:
        return self.bench.state.table_status("stream")[ORDERS.table].state

    def events(self) -> list[tuple[str, int]]:
        found = [event for share in self.bench.events() for event in share if event["table"] == "orders"]
        return [(event["op"], event["key"]["id"]) for event in found]

    def read_again(self) -> dict[str, list[int]]:
        """The ids of copied rows, by snapshot."""
        found: dict[str, list[int]] = {}
        for event in (event for share in self.bench.events() for event in share):
            if event["op"] == "read":
                found.setdefault(event["place"].split("/")[0], []).append(event["key"]["id"])
        return {snapshot: sorted(ids) for snapshot, ids in found.items()}


@pytest.fixture(params=[1, 3])
def copying(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Copying]:
    bench = PublishBench(tmp_path / "log", stream_feed(ORDERS), stream_feed(PEOPLE), shards=request.param)
    table = Table()
    monkeypatch.setattr(row_copier, "source_of", lambda _: table)
    monkeypatch.setattr(row_copier, "FIRST_RETRY_SECONDS", 0.01)
    made = Copying(bench, table, tmp_path)
    made.restart()
    yield made
    made.copier.stop()


def test_rows_come_first_and_then_what_follows_the_snapshot(copying: Copying) -> None:
    bench = copying.bench
    bench.seal(130, (ORDERS, 110, insert("3", "in the snapshot")), (PEOPLE, 120, insert("1", "Ann", "x")))
    bench.seal(
        200, (ORDERS, 140, delete("99", None)), (ORDERS, 160, update("3", "new")), (ORDERS, 170, delete("4", None))
    )
    copying.copy()
    copying.drain()
    bench.seal(300, (ORDERS, 210, insert("50", "c")))
    bench.drain()
    events = copying.events()
    assert sorted(events) == sorted(
        [*(("read", row) for row in range(20)), ("update", 3), ("delete", 4), ("insert", 50)]
    ), "no change before the snapshot, each one after it"
    for key in (3, 4):
        assert next(op for op, of in events if of == key) == "read", "rows come first"
    assert copying.read_again() == {f"{149:016x}": list(range(20))}
    assert all(shard.at.copies == {} and shard.at.behind == {} for shard in bench.store.shards["shop"])
    assert copying.state is State.READY
    assert bench.state.copy_of("stream", ORDERS.table) is None
    assert bench.state.copy_progress("stream")[ORDERS.table].rows == 20
    assert bench.state.marks("stream")[ORDERS.table].taken == 1, "the baseline is the snapshot's"
    (version,) = [one for one in bench.state.schema_versions() if one.table == ORDERS.table]
    assert {event["schema_version"] for share in bench.events() for event in share if event["op"] == "read"} == {
        version.fingerprint
    }


def test_other_tables_go_on_meanwhile(copying: Copying) -> None:
    bench, table = copying.bench, copying.table
    table.held = threading.Event()
    bench.seal(200, (ORDERS, 160, insert("50", "b")), (PEOPLE, 170, insert("1", "Ann", "x")))
    copying.copy()
    copying.drain(lambda: ("read", 0) in copying.events())
    bench.seal(300, (PEOPLE, 210, insert("2", "Bo", "x")))
    bench.drain()
    people = [event["key"]["id"] for share in bench.events() for event in share if event["table"] == "people"]
    assert sorted(people) == [1, 2]
    assert copying.state is State.DATA_SYNC
    assert ("insert", 50) not in copying.events()
    assert bench.loop.needed_from <= 150, "the log is kept for what follows the rows"
    assert not bench.loop.is_level
    table.held.set()
    copying.drain()
    assert sorted(copying.events()) == sorted([*(("read", row) for row in range(20)), ("insert", 50)])


def test_a_snapshot_that_is_ahead_of_the_log_waits_for_it(copying: Copying) -> None:
    copying.table.position = 450
    copying.bench.seal(200, (ORDERS, 160, update("3", "in the snapshot")))
    copying.copy()
    copying.drain()
    copying.bench.seal(400, (ORDERS, 310, update("4", "in the snapshot")))
    copying.bench.drain()
    assert not copying.bench.loop.is_level
    copying.bench.seal(600, (ORDERS, 440, update("5", "in the snapshot")), (ORDERS, 460, update("6", "new")))
    copying.bench.drain()
    copying.bench.drain()
    assert sorted(copying.events()) == sorted([*(("read", row) for row in range(20)), ("update", 6)])
    assert copying.state is State.READY


def test_a_snapshot_at_the_very_end_of_the_log_joins_at_once(copying: Copying) -> None:
    copying.table.position = 200
    copying.bench.seal(200, (ORDERS, 160, update("3", "in the snapshot")))
    copying.copy()
    copying.drain()
    assert copying.bench.loop.is_level
    assert copying.state is State.READY
    copying.bench.seal(300, (ORDERS, 210, update("4", "new")))
    copying.bench.drain()
    assert [event for event in copying.events() if event[0] != "read"] == [("update", 4)]


def test_an_empty_table_is_copied_too(copying: Copying) -> None:
    copying.table.rows, copying.table.ranges = [], 0
    copying.bench.seal(200, (ORDERS, 110, insert("1", "before")), (ORDERS, 160, insert("2", "after")))
    copying.copy()
    copying.drain()
    assert copying.events() == [("insert", 2)]
    assert copying.state is State.READY


def test_a_shard_that_was_published_before_a_failure_gets_no_row_twice(copying: Copying) -> None:
    bench = copying.bench
    bench.seal(200, (ORDERS, 160, update("3", "new")))
    bench.runner.fail_after, bench.runner.fails_at = 1, publish_rows
    copying.copy()
    with pytest.raises(ConnectionError):
        copying.drain()
    copying.drain()
    assert sorted(copying.events()) == sorted([*(("read", row) for row in range(20)), ("update", 3)])


def test_a_copy_that_was_cut_short_sends_its_rows_again_under_another_snapshot(copying: Copying) -> None:
    bench, table = copying.bench, copying.table
    table.held = threading.Event()
    bench.seal(200, (ORDERS, 160, update("3", "in the second snapshot")))
    copying.copy()
    copying.drain(lambda: ("read", 0) in copying.events())
    assert all(CopyPlace(at.copies[NAME].snapshot, 1) == at.copies[NAME] for at in [bench.store.shards["shop"][0].at])
    table.held.set()
    copying.copier.stop()
    table.position, table.rows = 250, list(range(10))
    bench.seal(300, (ORDERS, 260, update("4", "new")))
    copying.restart()
    assert bench.state.copy_of("stream", ORDERS.table) is not None, "the next start knows"
    copying.copy()
    copying.drain()
    assert copying.read_again()[f"{249:016x}"] == list(range(10))
    assert copying.read_again()[f"{149:016x}"] == [0, 3, 6, 9, 12, 15, 18], "what the first one had sent"
    assert [event for event in copying.events() if event[0] != "read"] == [("update", 4)]


def test_a_copy_that_ended_is_not_begun_again(copying: Copying) -> None:
    copying.bench.seal(140)
    copying.copy()
    copying.drain()
    copying.copier.stop()
    assert all(at.copies[NAME].complete for at in [one.at for one in copying.bench.store.shards["shop"]])
    copying.restart()
    copying.bench.seal(300, (ORDERS, 210, update("3", "new")))
    copying.bench.drain()
    assert sorted(copying.events()) == sorted([*(("read", row) for row in range(20)), ("update", 3)])
    assert copying.state is State.READY


def test_a_source_that_is_away_is_tried_again(copying: Copying) -> None:
    copying.bench.seal(160)
    copying.table.error = SourceUnreachable("the source is away", "")
    copying.copy()
    end = time.monotonic() + 20
    while copying.table.snapshots < 3 and time.monotonic() < end:
        copying.bench.loop.step(now=True)
    copying.table.error = None
    copying.drain()
    assert sorted(copying.events()) == [("read", row) for row in range(20)]


def test_a_range_is_read_again_under_the_same_snapshot(copying: Copying) -> None:
    copying.bench.seal(160)
    copying.table.errors = [SourceUnreachable("the connection is gone", "")] * 2
    copying.copy()
    copying.drain()
    assert copying.table.snapshots == 1
    assert sorted(copying.events()) == [("read", row) for row in range(20)]


def test_a_snapshot_is_given_up_when_the_destination_takes_nothing(copying: Copying) -> None:
    """The source's vacuum must not wait for a destination that is away."""
    copying.bench.seal(160)
    copying.more = "copy: {snapshot_for: 100ms}"
    copying.restart()
    copying.table.ranges = row_copier.PIECES_AHEAD + 2
    copying.copy()
    end = time.monotonic() + 20
    while copying.table.snapshots < 2 and time.monotonic() < end:
        time.sleep(0.01)
    assert copying.table.snapshots >= 2
    assert copying.events() == []
    copying.drain()
    assert sorted(copying.events()) == [("read", row) for row in range(20)]


def test_a_row_that_cannot_be_read_makes_the_table_errored(copying: Copying) -> None:
    copying.bench.seal(160)
    copying.table.error = ValueDoesNotFit("table public.orders: a value does not fit", "Correct it")
    copying.copy()
    copying.drain(lambda: copying.state is State.ERRORED)
    copying.table.error = None
    copying.copy()
    copying.drain()
    copying.bench.seal(300)
    copying.bench.drain()
    assert copying.state is State.READY
    assert len(copying.events()) == 20


def test_a_strict_run_takes_no_value_that_does_not_fit(copying: Copying) -> None:
    copying.bench.seal(160)
    copying.bench.feeds = (stream_feed(ORDERS, strict=True),)
    copying.restart()
    copying.table.rows = [1, 2**70]
    copying.copy()
    copying.drain(lambda: copying.state is State.ERRORED)
    assert f"'{2**70}' does not fit column id" in copying.bench.state.table_status("stream")[ORDERS.table].reason
    assert copying.events() == []


def test_a_refused_row_is_a_dead_letter(copying: Copying) -> None:
    bench = copying.bench
    bench.seal(160)
    bench.store.topics = set()
    copying.restart()
    bench.store.longest, copying.table.rows = 0, list(range(8))
    copying.copy()
    copying.drain()
    assert copying.events() == []
    assert len(bench.state.letters("stream")) == 8
    assert bench.store.topics == {"public.orders"}
    assert place_at(149) <= min(one.letter.place for one in bench.state.letters("stream"))


def test_processors_hold_for_rows_as_for_changes(copying: Copying) -> None:
    settings = {"select": "", "set": {"tenth": "10 / (id - 7)"}, "where": "id % 2 = 1"}
    processors = (ProcessorSpec("sql", json.dumps(settings)),)
    copying.bench.feeds = (stream_feed(ORDERS, processors=processors), stream_feed(PEOPLE))
    copying.copier.stop()
    copying.restart()
    copying.bench.seal(200, (ORDERS, 160, insert("50", "b")), (ORDERS, 170, insert("51", "b")))
    copying.copy()
    copying.drain()
    wanted = [*(("read", row) for row in range(1, 20, 2) if row != 7), ("insert", 51)]
    assert sorted(copying.events()) == sorted(wanted)
    (kept,) = copying.bench.state.letters("stream")
    assert (kept.letter.op, kept.letter.key, kept.letter.code) == ("read", b'{"id":7}', "expression")
    copying.bench.state.ask_letters([kept.id])
    copying.drain(lambda: not copying.bench.state.asked_letters("stream"))
    (kept,) = copying.bench.state.letters("stream")
    assert "it can be sent by another copy only" in kept.letter.reason
    assert sorted(copying.events()) == sorted(wanted)


def test_rows_that_were_acknowledged_and_lost_are_noticed_in_the_middle_of_the_copy(copying: Copying) -> None:
    copying.table.held = threading.Event()
    copying.bench.seal(200, (ORDERS, 160, update("3", "new")))
    copying.copy()
    copying.drain(lambda: ("read", 0) in copying.events())
    for shard in copying.bench.store.shards["shop"]:  # the server comes back as it was before
        shard.at, shard.turns = replace(shard.at, copies={}, behind={}), shard.turns + 1
        shard.records.clear()
    copying.table.held.set()
    copying.drain(lambda: copying.state is State.ERRORED)
    status = copying.bench.state.table_status("stream")[ORDERS.table]
    assert (status.code, "lost rows of its copy" in status.reason) == ("events-missing", True)


def test_rows_that_were_lost_after_the_copy_are_noticed_before_changes_follow(copying: Copying) -> None:
    copying.bench.seal(200, (ORDERS, 160, update("3", "new")))
    copying.copy()
    copying.drain()
    before = copying.events()
    copying.copier.stop()
    shard = copying.bench.store.shards["shop"][-1]
    shard.at = replace(shard.at, behind={NAME: place_at(150)}, copies={NAME: CopyPlace("s", 1)})
    copying.restart()
    copying.bench.drain()
    assert copying.state is State.ERRORED
    assert copying.events() == before, "no change is published over a hole"
    assert copying.bench.loop.tables[ORDERS.table].incomplete, "until an operator has its rows sent again"

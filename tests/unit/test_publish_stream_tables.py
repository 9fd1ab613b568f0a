"""Which tables a stream has: what the catalogue says, and what operators ask for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from loop_bench import ORDERS, PEOPLE, schema
from penstock.config.load import load
from penstock.destinations.memory_stream import MemoryPublisher
from penstock.destinations.stream_contract import Published, Records, ShardPlace
from penstock.errors import CopyNeeded, NotPublished, PenstockError, TablesRefused, ValueDoesNotFit
from penstock.model.feed import Feed
from penstock.model.partitions import Partition, Partitions
from penstock.model.table import TableId, TableSchema
from penstock.model.table_marks import TableMarks
from penstock.model.table_state import GONE, State
from penstock.model.write_counters import WriteCounters
from penstock.runtime.publish.row_copier import Begun, Piece, RowCopier
from penstock.runtime.publish.stream_tables import StreamTables
from penstock.runtime.publish.stream_watch import StreamLook, StreamWatch
from penstock.runtime.watch.catalogue import Catalogue
from penstock.source.contract import Session
from penstock.source.postgres.mark_comparison import (
    CatalogueMarks,
    Composite,
    EnumLabel,
    PublishedBy,
    may_be_written_again,
    why_copied_again,
    why_events_missing,
    with_additions,
)
from penstock.state.memory import MemoryStateStore
from penstock.state.store import RequestKind
from pgoutput_messages import INT8, insert, numeric, truncate
from publish_bench import PublishBench

PRICES = schema("prices", 3, id=INT8, price=numeric(5, 2))
FILE = """
version: 1
name: shop
source: {type: postgres, url: postgresql://app@db/shop}
tables: [{match: public.*, where: id < 100}]
destinations: [{name: stream, type: files, path: ./changes}]
log: {uri: ./log}
"""


HEAD = 10_000
SEEN = CatalogueMarks(10, "1:1", (PublishedBy("p", "1:1", ("2:1",)),), composites=(Composite(7, "address", 1),))
MARKS = SEEN.to_marks()
TROUBLE = NotPublished("table public.orders is not in the publication", "Add it")


class Source:
    """A source as looks see it: a session, and the tables of a stream that looks at it."""

    def __init__(self, bench: PublishBench, folder: Path) -> None:
        self.bench, self.file, self.text, self.state = bench, folder / "pipeline.yaml", FILE, bench.state
        self.marks, self.only = MARKS, None
        self.written, self.counts = WriteCounters("e", {1: 10}), True
        self.parts: Partitions | None = None
        self.troubles: dict[TableId, NotPublished] = {}
        self.inserts_only: frozenset[TableId] = frozenset()
        self.schemas: list[TableSchema] = []
        self.begin()

    only: TableId | None
    copier: Copier | None = None
    holds_rows: bool = False

    def begin(self) -> None:
        self.file.write_text(self.text)
        pipeline = load(self.file).strictly()
        self.watch = StreamWatch(pipeline, self.state)
        copies = self.copier is not None
        holds_rows = self.holds_rows
        self.tables = StreamTables(
            pipeline, self.bench.loop, self.state, self.seen, copies=copies, holds_rows=holds_rows
        )

    def restart(self, schemas: list[TableSchema] | None = None) -> None:
        if self.copier is not None:
            self.copier.wanted.clear()
        self.bench.restart(rows=self.copier)
        self.bench.loop.begin()
        self.begin()
        self.look(self.schemas if schemas is None else schemas)

    def seen(self, fresh: Collection[TableId] = ()) -> StreamLook:
        catalogue = Catalogue(self.schemas, self.troubles, self.inserts_only)
        return self.watch.look(cast(Session, _Session(self)), catalogue, fresh)

    def look(self, schemas: list[TableSchema]) -> None:
        self.schemas = schemas
        self.tables.looked(self.seen())
        assert not self.tables.is_settled
        self.tables.tend()
        assert self.tables.is_settled

    def ask(self, kind: str, schema: TableSchema) -> None:
        self.state.add_request("stream", schema.table, cast(RequestKind, kind))
        self.tables.tend()
        assert not self.state.requests("stream")


class _Session:
    def __init__(self, source: Source) -> None:
        self._source = source

    def marks(self, schemas: Sequence[TableSchema]) -> dict[TableId, TableMarks]:
        own = self._source
        return {one.table: own.marks if own.only in (None, one.table) else MARKS for one in schemas}

    def why_events_missing(self, before: TableMarks, now: TableMarks) -> str:
        return why_events_missing(before, now)

    def why_copied_again(self, before: TableMarks, now: TableMarks) -> str:
        return why_copied_again(before, now)

    def with_additions(self, before: TableMarks, now: TableMarks) -> TableMarks:
        return with_additions(before, now)

    def why_unsent(self, _: TableId, before: TableMarks, now: TableMarks) -> str:
        assert not may_be_written_again(before, now)
        return ""

    def partitions(self, schemas: Sequence[TableSchema]) -> dict[TableId, Partitions]:
        return {one.table: self._source.parts for one in schemas if self._source.parts is not None}

    def counters(self, schemas: Sequence[TableSchema]) -> dict[TableId, WriteCounters]:
        return {one.table: self._source.written for one in schemas}

    def counts_writes(self) -> bool:
        return self._source.counts

    def has_rows(self, _: Partition) -> bool:
        return True

    def has_rows_before(self, _: Partition, __: int) -> bool:
        return False

    def head(self) -> int:
        return HEAD


@pytest.fixture
def bench(tmp_path: Path) -> PublishBench:
    return PublishBench(tmp_path / "log")


@pytest.fixture
def source(tmp_path: Path, bench: PublishBench, monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setattr("penstock.runtime.publish.stream_tables.REQUESTS_EVERY", 0.0)
    return Source(bench, tmp_path)


def states(bench: PublishBench) -> dict[str, State]:
    return {name.name: status.state for name, status in bench.state.table_status("stream").items()}


def reason(bench: PublishBench, schema: TableSchema) -> str:
    return bench.state.table_status("stream")[schema.table].reason


def test_tables_of_the_catalogue_are_published_as_their_rule_says(bench: PublishBench, source: Source) -> None:
    source.look([ORDERS])
    source.look([ORDERS, PEOPLE])
    assert states(bench) == {"orders": State.READY, "people": State.READY}
    bench.seal(200, (ORDERS, 110, insert("1", "a")), (ORDERS, 120, insert("100", "beyond `where`")))
    bench.drain()
    assert bench.ids() == [1]


def test_a_table_that_was_not_captured_for_a_while_stays_errored(bench: PublishBench, source: Source) -> None:
    source.look([ORDERS, PEOPLE])
    source.troubles = {ORDERS.table: TROUBLE}
    source.look([ORDERS, PEOPLE])
    assert states(bench) == {"orders": State.ERRORED, "people": State.READY}
    bench.seal(200, (PEOPLE, 110, insert("1", "Ann", "x")))
    bench.drain()
    for request in ("retry", "resync"):
        source.ask(request, ORDERS)
        assert reason(bench, ORDERS) == TROUBLE.what, "nothing helps while it is not captured"
    source.troubles = {}
    for _ in range(2):
        source.look([ORDERS, PEOPLE])
        assert "events may be missing, because it was not captured for a while" in reason(bench, ORDERS)
    source.ask("retry", ORDERS)
    bench.seal(300, (ORDERS, 210, insert("2", "b")))
    bench.drain()
    source.restart()
    assert states(bench)["orders"] is State.ERRORED, "a restart brings no events back"
    source.ask("resync", ORDERS)
    bench.seal(400, (ORDERS, 310, insert("3", "c")))
    bench.drain()
    assert (bench.ids(table="people"), bench.ids(table="orders")) == ([1], [2, 3])
    assert states(bench)["orders"] is State.READY
    assert "were left out" in bench.state.events()[-1].message
    source.look([ORDERS, PEOPLE])
    assert states(bench)["orders"] is State.READY


def test_a_table_that_is_captured_only_later_is_new(bench: PublishBench, source: Source) -> None:
    source.troubles = {ORDERS.table: TROUBLE}
    source.look([ORDERS])
    assert states(bench)["orders"] is State.ERRORED
    source.troubles = {}
    source.look([ORDERS])
    assert states(bench)["orders"] is State.READY
    assert bench.state.marks("stream")[ORDERS.table] == source.marks


ALTERED = {
    "left and came back": (replace(SEEN, published=(PublishedBy("p", "1:1", ("9:9",)),)), "left publication p and"),
    "altered publication": (replace(SEEN, published=(PublishedBy("p", "1:2", ("2:1",)),)), "p was altered or created"),
    "another schema": (replace(SEEN, place="9:9"), "moved to another schema and back"),
    "composite": (replace(SEEN, composites=(Composite(7, "address", 2),)), "composite type address was altered"),
}


@pytest.mark.parametrize("what", ALTERED)
@pytest.mark.parametrize("stopped", [False, True])
def test_marks_that_differ_make_a_table_errored(bench: PublishBench, source: Source, what: str, stopped: bool) -> None:
    source.look([ORDERS, PEOPLE])
    source.marks, said = replace(ALTERED[what][0], taken=20).to_marks(), ALTERED[what][1]
    source.only = ORDERS.table
    if stopped:
        source.restart()
    else:
        source.look([ORDERS, PEOPLE])
    assert states(bench) == {"orders": State.ERRORED, "people": State.READY}
    assert said in reason(bench, ORDERS)
    assert "penstock resync pipeline.yaml public.orders" in bench.state.table_status("stream")[ORDERS.table].solution
    source.ask("resync", ORDERS)
    source.look([ORDERS, PEOPLE])
    assert states(bench)["orders"] is State.READY
    assert bench.state.marks("stream")[ORDERS.table] == source.marks


def test_renamed_enum_values_cost_no_events(bench: PublishBench, source: Source) -> None:
    label = EnumLabel(5, 1, 4, "mood", "happy", ("mood",))
    source.marks = replace(SEEN, labels=(label,)).to_marks()
    source.look([ORDERS])
    source.marks = replace(SEEN, labels=(replace(label, label="glad", xmin=2),), taken=20).to_marks()
    source.look([ORDERS])
    assert states(bench)["orders"] is State.READY


@pytest.mark.parametrize(
    ("counters", "said"),
    [
        (WriteCounters("e", {1: 11}), "1 row was updated or deleted"),
        (WriteCounters("e", {1: 12}), "2 rows were updated or deleted"),
        (WriteCounters("f", {1: 10}), "counters were reset"),
        (WriteCounters("e", {1: 10}), ""),
    ],
)
def test_writes_that_are_not_sent_are_noticed(
    bench: PublishBench, source: Source, counters: WriteCounters, said: str
) -> None:
    source.inserts_only = frozenset({ORDERS.table})
    source.look([ORDERS, PEOPLE])
    source.written = counters
    source.look([ORDERS, PEOPLE])
    assert states(bench) == {"orders": State.ERRORED if said else State.READY, "people": State.READY}
    assert said in reason(bench, ORDERS)
    source.ask("resync", ORDERS)
    source.look([ORDERS, PEOPLE])
    assert states(bench)["orders"] is State.READY


def test_writes_that_nobody_counts_are_not_trusted(bench: PublishBench, source: Source) -> None:
    source.inserts_only, source.counts = frozenset({ORDERS.table}), False
    source.look([ORDERS])
    assert "does not count them" in reason(bench, ORDERS)
    source.ask("resync", ORDERS)
    assert states(bench)["orders"] is State.ERRORED
    source.inserts_only = frozenset()
    source.look([ORDERS])
    assert states(bench)["orders"] is State.READY, "nothing of it was published before"


PART = Partition(TableId("public", "orders_1"), 11, 11, made_here=True, link="1:1")


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ((PART, replace(PART, relation_id=12, relation=TableId("public", "x"), file=12, made_here=False)), "attached"),
        ((replace(PART, file=99),), "was truncated"),
        ((replace(PART, link="1:2"),), "detached and attached again"),
        ((), ""),
        ((PART, replace(PART, relation_id=12, relation=TableId("public", "x"), file=12)), ""),
    ],
)
def test_partitions_that_no_change_reports(
    bench: PublishBench, source: Source, now: tuple[Partition, ...], said: str
) -> None:
    bench.writer.advance(HEAD)
    source.parts = Partitions(1, (PART,))
    source.look([ORDERS])
    source.parts = Partitions(2, now)
    for _ in range(2):
        source.look([ORDERS])
        assert states(bench)["orders"] is (State.ERRORED if said else State.READY)
    assert said in reason(bench, ORDERS)


def test_a_truncate_of_the_whole_table_is_told_from_that_of_a_partition(bench: PublishBench, source: Source) -> None:
    """By the log, once it has come as far as the look: until then nobody can say."""
    bench.loop.begin()
    source.parts = Partitions(1, (PART,), position=100)
    source.look([ORDERS])
    truncated = replace(PART, file=99, written=1)  # the transaction of every change of this bench
    source.parts = Partitions(2, (truncated,), position=HEAD)
    source.tables.looked(source.seen())
    source.tables.tend()
    wanted = [source.tables.wants_look]
    assert states(bench)["orders"] is State.READY
    bench.seal(HEAD, (ORDERS, 110, insert("1", "a")), (ORDERS, 110, truncate(ORDERS.relation_id)))
    bench.drain()
    wanted.append(source.tables.wants_look)
    assert not source.tables.is_settled
    source.look([ORDERS])
    wanted.append(source.tables.wants_look)
    assert wanted == [False, True, False], "when the log has come as far as the look"
    assert states(bench)["orders"] is State.READY
    assert bench.state.partitions("stream")[ORDERS.table] == source.parts
    source.parts = Partitions(3, (replace(truncated, file=100, written=8),), position=HEAD)
    source.look([ORDERS])
    assert "was truncated" in reason(bench, ORDERS), "by itself, for the log has no such transaction"


def test_a_table_without_a_record_is_not_trusted(bench: PublishBench, source: Source) -> None:
    source.look([ORDERS, PEOPLE])
    bench.state.set_marks("stream", ORDERS.table, None)
    source.restart()
    assert states(bench) == {"orders": State.ERRORED, "people": State.READY}
    assert "does not say since when it is published" in reason(bench, ORDERS)


def test_a_stream_without_a_record_is_not_trusted(bench: PublishBench, source: Source) -> None:
    bench.seal(200, (ORDERS, 110, insert("1", "a")))
    bench.loop.begin()
    source.look([ORDERS])
    bench.drain()
    bench.state = source.state = MemoryStateStore()
    source.restart()
    assert "the state store has no record of this stream" in reason(bench, ORDERS)
    source.look([ORDERS, PEOPLE])
    assert states(bench) == {"orders": State.ERRORED, "people": State.READY}, "people is new"


def test_a_table_that_no_rule_matched_for_a_while(bench: PublishBench, source: Source) -> None:
    source.look([ORDERS, PEOPLE])
    source.text = FILE.replace("match: public.*", "match: public.people")
    source.restart([PEOPLE])
    source.text = FILE
    source.restart([ORDERS, PEOPLE])
    assert states(bench) == {"orders": State.ERRORED, "people": State.READY}


def test_a_table_that_is_gone_is_shown_and_holds_nothing_up(bench: PublishBench, source: Source) -> None:
    source.look([ORDERS, PEOPLE])
    source.look([PEOPLE])
    assert GONE in reason(bench, ORDERS)
    assert source.tables.followed == 1
    bench.seal(200, (PEOPLE, 110, insert("1", "Ann", "x")))
    bench.drain()
    assert bench.loop.is_level
    source.look([ORDERS, PEOPLE])
    assert "it was gone from the source for a while" in reason(bench, ORDERS)


def test_what_operators_ask_for(bench: PublishBench, source: Source) -> None:
    source.look([PRICES])
    bench.seal(200, (PRICES, 110, insert("1", "NaN")))
    bench.drain()
    assert states(bench) == {"prices": State.ERRORED}
    bench.state.add_request("stream", PRICES.table, "retry")
    bench.state.add_request("other", PRICES.table, "resync")
    source.tables.tend()
    bench.drain()
    assert states(bench) == {"prices": State.ERRORED}, "its value still does not fit"
    bench.state.add_request("stream", PRICES.table, "resync")
    source.tables.tend()
    bench.seal(300, (PRICES, 210, insert("2", "2.00")))
    bench.drain()
    assert states(bench) == {"prices": State.READY}
    assert bench.ids() == [2]
    assert [request.destination for request in bench.state.requests()] == ["other"]


class Copier(RowCopier):
    """Notes whose rows are wanted, and reads none."""

    def __init__(self) -> None:
        self.wanted: list[str] = []

    def add(self, feed: Feed, schema: TableSchema) -> None:
        self.wanted.append(feed.name.name)

    def remove(self, table: TableId) -> None:
        self.wanted = [name for name in self.wanted if name != table.name]

    def needed_from(self) -> None:
        return None

    def begun(self) -> list[Begun]:
        return []

    def failed(self) -> list[tuple[TableId, PenstockError]]:
        return []

    def take(self, most_bytes: int) -> list[Piece]:
        return []


@pytest.fixture
def copying(source: Source, bench: PublishBench) -> Source:
    source.copier = Copier()
    bench.restart(rows=source.copier)
    source.begin()
    return source


def _copied(bench: PublishBench, schema: TableSchema) -> None:
    """As `RowPublication` leaves a table whose rows are published."""
    bench.state.set_marks("stream", schema.table, MARKS)
    bench.state.end_copy("stream", schema.table)
    table = bench.loop.tables[schema.table]
    table.copying = False
    bench.loop.retry(table)


def test_new_tables_begin_with_their_rows(bench: PublishBench, copying: Source) -> None:
    copying.look([ORDERS])
    copying.look([ORDERS, PEOPLE])
    assert copying.copier is not None
    assert copying.copier.wanted == ["orders", "people"]
    assert states(bench) == {"orders": State.INIT, "people": State.INIT}
    assert not bench.state.marks("stream"), "the snapshot's count"
    assert bench.state.copy_progress("stream")[ORDERS.table].fraction == 0
    _copied(bench, ORDERS)
    copying.restart()
    assert copying.copier.wanted == ["people"], "what did not end is begun again, and nothing else"
    assert states(bench) == {"orders": State.READY, "people": State.INIT}


def test_a_resync_sends_rows_again(bench: PublishBench, copying: Source) -> None:
    copying.look([ORDERS])
    _copied(bench, ORDERS)
    copying.marks = replace(SEEN, place="9:9", taken=20).to_marks()
    copying.look([ORDERS])
    assert states(bench)["orders"] is State.ERRORED
    status = bench.state.table_status("stream")[ORDERS.table]
    assert "To send its rows again, and then what follows: penstock resync" in status.solution
    assert copying.copier is not None
    copying.copier.wanted.clear()
    copying.ask("retry", ORDERS)
    assert copying.copier.wanted == []
    copying.ask("resync", ORDERS)
    assert copying.copier.wanted == ["orders"]
    copying.look([ORDERS])
    assert states(bench)["orders"] is State.INIT
    assert copying.copier.wanted == ["orders"]


def test_rows_that_a_destination_holds_are_copied_again_when_they_may_be_wrong(
    bench: PublishBench, copying: Source
) -> None:
    copying.holds_rows = True
    copying.restart([ORDERS])
    _copied(bench, ORDERS)
    copying.restart()
    assert copying.copier is not None
    assert (states(bench)["orders"], copying.copier.wanted) == (State.READY, [])
    copying.text = FILE.replace("id < 100", "id < 50")
    copying.restart()
    assert (states(bench)["orders"], copying.copier.wanted) == (State.INIT, ["orders"])
    copying.restart()
    assert copying.copier.wanted == ["orders"], "the copy has not ended"
    label = EnumLabel(5, 1, 4, "mood", "happy", ("mood",))
    copying.marks = replace(SEEN, labels=(label,), taken=20).to_marks()
    _copied(bench, ORDERS)
    bench.state.set_marks("stream", ORDERS.table, copying.marks)
    copying.copier.wanted.clear()
    copying.look([ORDERS])
    assert (states(bench)["orders"], copying.copier.wanted) == (State.READY, [])
    copying.marks = replace(SEEN, labels=(replace(label, label="glad", xmin=2),), taken=30).to_marks()
    copying.look([ORDERS])
    assert (states(bench)["orders"], copying.copier.wanted) == (State.INIT, ["orders"])


def test_a_table_whose_destination_needs_a_copy_gets_one(
    bench: PublishBench, copying: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = MemoryPublisher.publish

    def refusing(self: MemoryPublisher, records: Iterable[Records], upto: Callable[[], ShardPlace]) -> Published:
        given = list(records)
        if any(map(len, given)):
            raise TablesRefused({("public", "orders"): CopyNeeded("its structure is another", "Nothing")})
        return publish(self, given, upto)

    copying.look([ORDERS])
    _copied(bench, ORDERS)
    assert copying.copier is not None
    copying.copier.wanted.clear()
    bench.seal(200, (ORDERS, 110, insert("1", "a")))
    with monkeypatch.context() as patch:
        patch.setattr(MemoryPublisher, "publish", refusing)
        bench.loop.step(now=True)
    assert (states(bench)["orders"], bench.loop.is_level) == (State.ERRORED, False)
    copying.tables.tend()
    assert (states(bench)["orders"], copying.copier.wanted) == (State.INIT, ["orders"])


def test_a_copy_that_failed_waits_for_an_operator(bench: PublishBench, copying: Source) -> None:
    copying.look([ORDERS])
    assert copying.copier is not None
    bench.loop.mark_errored(bench.loop.tables[ORDERS.table], ValueDoesNotFit("too large", "Correct it"))
    copying.copier.wanted.clear()
    copying.look([ORDERS])
    assert copying.copier.wanted == []
    copying.ask("retry", ORDERS)
    assert copying.copier.wanted == ["orders"]
    copying.look([])
    assert copying.copier.wanted == [], "it is gone"
    copying.look([ORDERS])
    assert copying.copier.wanted == ["orders"], "its rows make up for what was missed"


def test_a_copy_begins_again_when_its_table_can_be_captured_again(bench: PublishBench, copying: Source) -> None:
    copying.look([ORDERS])
    assert copying.copier is not None
    copying.copier.wanted.clear()
    copying.troubles = {ORDERS.table: TROUBLE}
    copying.look([ORDERS])
    assert (states(bench)["orders"], copying.copier.wanted) == (State.ERRORED, [])
    copying.troubles = {}
    copying.look([ORDERS])
    assert (states(bench)["orders"], copying.copier.wanted) == (State.INIT, ["orders"])

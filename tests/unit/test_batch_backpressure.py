"""What waits is limited by its bytes: batches, what a task holds of a huge one, headers of the log, rows in doubt."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from loop_bench import ORDERS, PEOPLE, Bench, drain, huge_beyond
from penstock.changelog import log as change_log
from penstock.changelog.log import ChangeLog
from penstock.changelog.writer import SegmentWriter
from penstock.config.model import BatchConfig
from penstock.fold.sharing import joined, shares
from penstock.model.change import RawChanges
from penstock.model.feed import Feed, Mode
from penstock.model.table import TableId, TableSchema
from penstock.runtime.apply import batch_planner as batches
from penstock.runtime.apply.batch_planner import TableWork, gather
from pgoutput_messages import INT8, TEXT, Stream, delete, insert, table_schema, truncate, update
from raw_rows import PEOPLE as KEYLESS
from raw_rows import raw_slice

THINGS = table_schema({"id": INT8, "body": TEXT})


def work(schema: TableSchema, size: int, mode: Mode = Mode.CLONE, moved_keys: int = 0) -> TableWork:
    feed = Feed(schema.table, schema.table, schema.table, mode)
    return TableWork(feed, versions=[schema], bytes=size, moved_keys=moved_keys)


def test_a_huge_transaction_is_a_batch_of_its_own(bench: Bench) -> None:
    bench.seal(200, (ORDERS, 110, insert("1", "small")))
    bench.seal(300, (ORDERS, 210, insert("2", "h" * 5000)))
    bench.seal(400, (ORDERS, 310, insert("3", "small")))
    limits, positions = BatchConfig(max_bytes=1000), {Feed(ORDERS.table, ORDERS.table, ORDERS.table): 100}
    ends, at = [], 100
    while (batch := gather(bench.log, bench.log.segments(after=at), positions, limits)) is not None:
        at = batch.end
        ends.append((at, batch.full))
    assert ends == [(200, True), (300, True), (400, False)]


def test_a_share_has_a_limit_whatever_comes() -> None:
    for gigabytes in (1, 10, 100):
        huge = work(ORDERS, gigabytes << 30)
        assert huge.shared(2)
        assert huge.bytes / huge.buckets(2) <= batches.MOST_BUCKET_BYTES
    assert work(KEYLESS, 1 << 30).buckets(2) >= 16, "rows without a key can be shared out too"
    assert work(KEYLESS, 1 << 20).buckets(2) == 1
    assert work(ORDERS, 1 << 27, moved_keys=1).buckets(2) == 1, "an earlier image may be anywhere"
    assert work(ORDERS, 1 << 30, moved_keys=1).shared(2), "that is looked for when it is shared out"


class Slices:
    """Slices that come one at a time; `most_alive` is how many of them were ever there at once."""

    def __init__(self, count: int) -> None:
        self._count, self._made = count, list[weakref.ref[pa.RecordBatch]]()
        self.most_alive = 0

    def __iter__(self) -> Iterator[RawChanges]:
        for number in range(self._count):
            messages = [insert(str(number * 100 + row), "b" * 100) for row in range(100)]
            changes = Stream().transaction(*messages).raw(THINGS)
            self._made.append(weakref.ref(changes.batch))
            gc.collect()
            self.most_alive = max(self.most_alive, sum(made() is not None for made in self._made))
            yield changes


def test_what_is_shared_out_is_held_a_few_slices_at_a_time() -> None:
    size = next(iter(Slices(1))).batch.nbytes
    for at_once, most in ((1, 2), (3 * size + size // 2, 4)):
        slices, sizes = Slices(20), list[int]()
        for changes in joined(slices, at_once):
            for share in shares(changes, position=0, until=None, buckets=10):
                sizes.append(share.num_rows)
            del changes, share
        assert slices.most_alive <= most
        assert sum(sizes) == 2000
        assert len(sizes) == 10 * -(-20 // max(1, at_once // size))


def play(bench: Bench) -> None:
    bench.seal(200, *((ORDERS, 110, insert(str(number), "new")) for number in range(200)))
    bench.seal(300, *((ORDERS, 210, update(str(number), "paid")) for number in range(0, 200, 3)))
    bench.seal(400, (PEOPLE, 310, insert("1", "Ada", "p")), (PEOPLE, 310, insert("2", "Bob", "q")))
    bench.seal(500, *((ORDERS, 410, delete(str(number), None)) for number in range(0, 200, 7)))
    drain(bench)


def test_shares_come_to_the_same(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    huge_beyond(monkeypatch, 500)
    play(bench)
    left = [number for number in range(200) if number % 7]
    assert bench.rows(ORDERS) == [(number, "new" if number % 3 else "paid") for number in left]
    assert bench.rows(PEOPLE) == [(1, "Ada", "p"), (2, "Bob", "q")]
    bench.seal(
        600, (ORDERS, 510, truncate(ORDERS.relation_id)), *((ORDERS, 510, insert(str(n), "x")) for n in range(90))
    )
    drain(bench)
    assert bench.rows(ORDERS) == [(number, "x") for number in range(90)]


@pytest.mark.parametrize("mode", [Mode.HISTORY, Mode.EVENTS])
def test_shares_of_one_transaction_come_to_the_same_in_every_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    outcomes = []
    for limit in (1 << 30, 500):
        huge_beyond(monkeypatch, limit)
        bench = Bench(tmp_path / str(limit))
        feed = Feed(ORDERS.table, ORDERS.table, TableId("public", "kept"), mode)
        bench.follow(feed, ORDERS)
        bench.seal(200, *((ORDERS, 110, insert(str(number), "new")) for number in range(100)))
        bench.loop.step(now=True)
        bench.seal(
            300,
            *((ORDERS, 210, update(str(number), "paid")) for number in range(0, 100, 3)),
            *((ORDERS, 210, delete(str(number), None)) for number in range(0, 100, 7)),
            (ORDERS, 210, insert("1000", "last")),
        )
        for segment in bench.log.segments():
            found = gather(bench.log, [segment], {feed: 100}, BatchConfig())
            assert found is not None
            assert found.tables[feed.name].shared(2) == (limit == 500)
        drain(bench)
        kept = bench.lake.rows(feed.target).to_pylist()
        outcomes.append(sorted(map(repr, kept)))
        assert bench.state.progress("lake")[feed.name].changes == 100 + 34 + 15 + 1
        bench.loop.close()
        bench.writer.__exit__(None, None, None)
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0]) > 100


def test_anomalies_are_found_in_shares(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    huge_beyond(monkeypatch, 500)
    bench.follow(Feed(ORDERS.table, ORDERS.table, ORDERS.table, anomalies=True), ORDERS)
    bench.seal(200, *((ORDERS, 110, update(str(number), "new")) for number in range(50)))
    drain(bench)
    (told,) = bench.state.anomalies("lake")[ORDERS.table]
    assert (told.kind, told.changes) == ("update", 50)


def test_a_history_of_several_moments_is_not_shared() -> None:
    several = work(ORDERS, 1 << 30, Mode.HISTORY)
    several.first_commit, several.last_commit = 110, 120
    assert not several.shared(2)
    several.last_commit = 110
    assert several.shared(2)


def test_what_cannot_be_decoded_is_kept_up_to_its_bytes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.runtime.apply.task.MOST_BYTES_KEPT", 1000)
    bench.seal(200, *((ORDERS, 110, b"I" + b"?" * 300) for _ in range(20)))
    bench.seal(300, *((ORDERS, 210, b"I" + b"?" * 300) for _ in range(20)))
    drain(bench)
    kept = bench.state.quarantined("lake")
    assert 1 <= len(kept) <= 3


def test_headers_of_the_log_are_kept_up_to_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = ChangeLog(str(tmp_path))
    with SegmentWriter(log) as writer:
        writer.begin(100, "7")
        for end in range(200, 2200, 100):
            writer.append(end, [raw_slice(KEYLESS, [end - 50])])
    monkeypatch.setattr(change_log, "HEADER_BYTES_KEPT", 3000)
    reader = ChangeLog(str(tmp_path))
    names = reader.segments()
    sizes = [len(reader.header(name).to_bytes()) for name in names]
    kept = [header for header, _ in reader._headers.values()]
    assert sum(len(header.to_bytes()) for header in kept) <= 3000 < sum(sizes)
    assert [header.end for header in kept] == list(range(2200 - 100 * len(kept), 2200, 100)), "the newest ones"
    for name in names:
        reader.remove(name)
    assert reader._header_bytes == 0

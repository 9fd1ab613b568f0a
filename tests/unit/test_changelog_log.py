"""The change log: what is written is read back; what is damaged, missing or left over is found by name."""

from __future__ import annotations

import errno
import pickle
import threading
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.changelog import writer as writer_module
from penstock.changelog.log import ChangeLog
from penstock.changelog.segment import FORMAT, HEADER_KEY, MOST_CLEARED, SliceRows, compose, segment_name
from penstock.changelog.writer import SegmentWriter
from penstock.errors import LockedError, LogDamaged, LogFormatUnknown, LogFull, LogUnreachable
from penstock.model.table import Column, ColumnType
from raw_rows import ORDERS, PEOPLE, contents, raw_slice


@pytest.fixture
def log(tmp_path: Path) -> ChangeLog:
    return ChangeLog(str(tmp_path / "log"))


@pytest.fixture
def writer(log: ChangeLog) -> Iterator[SegmentWriter]:
    with SegmentWriter(log) as opened:
        opened.begin(100, "77")
        yield opened


def files(log: ChangeLog) -> list[Path]:
    return sorted(path for path in Path(log.folder).iterdir() if path.suffix == ".arrow")


def test_what_is_appended_is_read_back_with_its_schema_and_figures(log: ChangeLog, writer: SegmentWriter) -> None:
    writer.append(200, [raw_slice(ORDERS, [100, 150], 1, b"IT"), raw_slice(PEOPLE, [120])])
    writer.append(300, [raw_slice(ORDERS, [250])])
    first, second = log.segments()
    assert [(name.start, name.end) for name in (first, second)] == [(100, 200), (200, 300)]
    header = log.header(first)
    assert header.origin == "77"
    assert header.schemas == {ORDERS.fingerprint: ORDERS, PEOPLE.fingerprint: PEOPLE}
    orders = header.slices[0]
    assert (orders.rows, orders.first_commit, orders.last_commit, orders.moved_keys, orders.truncates) == (
        2,
        100,
        150,
        1,
        1,
    )
    assert orders.last_commit_time == 1_700_000_000_000_150
    assert contents(log) == [
        ("public.orders", 100, b"orders 100 0"),
        ("public.orders", 150, b"orders 150 1"),
        ("public.péople", 120, "péople 120 0".encode()),
        ("public.orders", 250, b"orders 250 0"),
    ]
    only = list(log.read(first.text, [PEOPLE.fingerprint]))
    assert [changes.schema for changes in only] == [PEOPLE]
    assert (log.start(), log.end(), len(log.segments())) == (100, 300, 2)
    assert [(item.table_schema, item.slice.rows) for item in log.slices(first)] == [(ORDERS, 2), (PEOPLE, 1)]


def test_single_slices_can_be_read_those_of_parts_too(log: ChangeLog, writer: SegmentWriter) -> None:
    writer.write_part(150, [raw_slice(ORDERS, [150]), raw_slice(PEOPLE, [150, 150])])
    writer.write_part(150, [raw_slice(ORDERS, [150, 150, 150])])
    writer.append(200, [raw_slice(PEOPLE, [150] * 4), raw_slice(ORDERS, [150] * 5)])
    (name,) = log.segments()

    def rows(numbers: list[int], fingerprints: list[str] | None = None) -> list[int]:
        return [changes.batch.num_rows for changes in log.read(name, fingerprints, numbers)]

    assert [item.slice.rows for item in log.slices(name)] == [1, 2, 3, 4, 5]
    assert rows([0, 1, 2, 3, 4]) == [1, 2, 3, 4, 5]
    assert (rows([2]), rows([3, 1]), rows([4, 0])) == ([3], [2, 4], [1, 5])
    assert rows([0, 1, 3], [PEOPLE.fingerprint]) == [2, 4]
    assert rows([]) == []


def test_the_size_of_a_file_is_known_before_it_is_written(log: ChangeLog, writer: SegmentWriter) -> None:
    for end, rows in ((200, 1), (300, 5000)):
        file = compose(writer.end or 0, end, "77", [raw_slice(ORDERS, [end - 1] * rows), raw_slice(PEOPLE, [end - 1])])
        writer.append(end, [raw_slice(ORDERS, [end - 1] * rows), raw_slice(PEOPLE, [end - 1])])
        size = log.segments()[-1].size
        assert size <= file.bytes <= size + 2000


def test_a_position_inside_a_segment_still_needs_that_segment(log: ChangeLog, writer: SegmentWriter) -> None:
    writer.append(200, [raw_slice(ORDERS, [150])])
    writer.append(300, [raw_slice(ORDERS, [250])])
    assert [name.start for name in log.segments(after=150)] == [100, 200]
    assert [name.start for name in log.segments(after=200)] == [200]
    assert log.segments(after=300) == []


def test_any_position_finds_the_segments_that_hold_and_follow_it(log: ChangeLog, writer: SegmentWriter) -> None:
    for end in (110, 120, 200, 210, 220, 300):
        if end % 100:
            writer.advance(end)
        else:
            writer.append(end, [raw_slice(ORDERS, [end - 1])])
    (Path(log.folder) / ("x" * 48)).write_bytes(b"not ours")
    (Path(log.folder) / ("0" * 48)).write_bytes(b"not ours")
    chain = log.segments()
    assert [(name.start, name.end) for name in chain] == [(100, 120), (120, 200), (200, 220), (220, 300)]
    for after in range(90, 310):
        assert log.segments(after) == [name for name in chain if name.end > after]
    assert (log.start(), log.end()) == (100, 300)


def test_a_hole_right_after_a_position_is_found(log: ChangeLog, writer: SegmentWriter) -> None:
    for end in (200, 300, 400):
        writer.append(end, [raw_slice(ORDERS, [end - 10])])
    files(log)[1].unlink()
    for after in (100, 199, 200, 250):
        with pytest.raises(LogDamaged, match="is missing"):
            log.segments(after)
    assert len(log.segments(after=300)) == 1


def test_an_empty_or_absent_log_has_no_ends(log: ChangeLog) -> None:
    assert log.segments() == []
    assert (log.start(), log.end(), log.bytes()) == (None, None, 0)


def test_sliced_and_offset_batches_are_written_as_what_they_show(log: ChangeLog, writer: SegmentWriter) -> None:
    whole = raw_slice(ORDERS, [110, 120, 130, 140])
    writer.append(200, [SliceRows(ORDERS, whole.batch.slice(1, 2))])
    assert [row[1] for row in contents(log)] == [120, 130]


def test_it_pickles_as_its_uri(log: ChangeLog, writer: SegmentWriter) -> None:
    writer.append(200, [raw_slice(ORDERS, [150])])
    log.header(log.segments()[0])
    content = pickle.dumps(log)
    assert contents(pickle.loads(content)) == contents(log)
    assert len(content) < 300


def test_successive_idle_positions_take_each_others_place(
    log: ChangeLog, writer: SegmentWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.append(200, [raw_slice(ORDERS, [150])])
    writer.advance(210)
    writer.advance(220)
    assert len(files(log)) == 3, "the replaced one outlives listings that were under way"
    assert [(name.start, name.end) for name in log.segments()] == [(100, 200), (200, 220)]
    monkeypatch.setattr(writer_module, "REPLACED_SECONDS", 0.0)
    writer.advance(230)
    assert [(name.start, name.end) for name in log.segments()] == [(100, 200), (200, 230)]
    writer.append(300, [raw_slice(ORDERS, [250])])
    writer.advance(310)
    assert [(name.start, name.end) for name in log.segments()] == [(100, 200), (200, 230), (230, 300), (300, 310)]
    assert len(files(log)) == 4


def test_a_reader_that_listed_a_replaced_idle_segment_finds_it_empty(
    log: ChangeLog, writer: SegmentWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "REPLACED_SECONDS", 0.0)
    writer.advance(110)
    (listed,) = log.segments()
    writer.advance(120)
    writer.advance(130)
    header = log.header(listed)
    assert (header.start, header.end, header.empty) == (100, 110, True)
    assert list(log.read(listed)) == []


def test_parts_come_first_and_belong_to_the_segment_that_lists_them(log: ChangeLog, writer: SegmentWriter) -> None:
    writer.write_part(150, [raw_slice(ORDERS, [150, 150])])
    writer.write_part(150, [raw_slice(PEOPLE, [150])])
    assert log.segments() == []
    writer.append(200, [raw_slice(ORDERS, [150])])
    writer.append(300, [raw_slice(ORDERS, [250])])
    name, other = log.segments()
    assert [item.slice.rows for item in log.slices(name)] == [2, 1, 1]
    assert [table for table, _, _ in contents(log, [name])] == ["public.orders"] * 2 + [
        "public.péople",
        "public.orders",
    ]
    assert log.header(other).parts == ()
    assert log.remove_garbage() == []
    log.remove(name)
    assert [path.name for path in files(log)] == [other.text]


def test_a_transaction_may_end_exactly_at_a_part(log: ChangeLog, writer: SegmentWriter) -> None:
    writer.write_part(150, [raw_slice(ORDERS, [150, 150])])
    writer.append(200, [])
    assert len(contents(log)) == 2
    writer.advance(210)
    assert len(log.segments()) == 2, "a segment of parts is not empty, so nothing may take its place"


def test_parts_that_are_abandoned_or_unlisted_are_garbage(log: ChangeLog, writer: SegmentWriter) -> None:
    writer.write_part(150, [raw_slice(ORDERS, [150])])
    writer.abandon_parts()
    assert files(log) == []
    writer.write_part(150, [raw_slice(ORDERS, [150])])
    writer.begin(100, "77")  # the transaction is sent again, and cut differently
    writer.write_part(150, [raw_slice(ORDERS, [150, 150])])
    writer.append(200, [raw_slice(PEOPLE, [150])])
    (Path(log.folder) / "part-0000000000000096-deadbeef-000000.arrow").write_bytes(b"left by a killed capture")
    (Path(log.folder) / "part-0000000000000fff-deadbeef-000000.arrow").write_bytes(b"left by a killed capture")
    (Path(log.folder) / "something.arrow.tmp").write_bytes(b"half")
    assert len(contents(log)) == 3
    assert len(log.remove_garbage()) == 3
    assert len(contents(log)) == 3


def test_leftovers_of_a_replacement_that_was_cut_short_go_when_a_writer_opens(log: ChangeLog) -> None:
    with SegmentWriter(log) as writer:
        writer.begin(100, "77")
        writer.advance(110)
        writer.advance(120)
    assert len(files(log)) == 2
    with SegmentWriter(log) as writer:
        assert writer.end == 120
        assert len(files(log)) == 1


def test_a_writer_goes_on_at_the_end_and_nowhere_else(log: ChangeLog, writer: SegmentWriter) -> None:
    writer.append(200, [raw_slice(ORDERS, [150])])
    with pytest.raises(ValueError, match="ends at"):
        writer.begin(150, "77")
    with pytest.raises(ValueError, match="ends at"):
        writer.append(200, [])


def test_a_missing_segment_is_a_hole_with_its_range(log: ChangeLog, writer: SegmentWriter) -> None:
    for end in (200, 300, 400):
        writer.append(end, [raw_slice(ORDERS, [end - 10])])
    files(log)[1].unlink()
    with pytest.raises(LogDamaged, match="0/C8 to 0/12C is missing") as caught:
        log.segments()
    assert caught.value.solution


def test_overlapping_segments_are_refused(log: ChangeLog, writer: SegmentWriter) -> None:
    writer.append(200, [raw_slice(ORDERS, [150])])
    writer.append(300, [raw_slice(ORDERS, [250])])
    other = ChangeLog(str(Path(log.folder).parent / "other"))
    with SegmentWriter(other) as second:
        second.begin(150, "77")
        second.append(350, [raw_slice(ORDERS, [180])])
    foreign = files(other)[0]
    foreign.rename(Path(log.folder) / foreign.name)
    with pytest.raises(LogDamaged, match="overlaps"):
        log.segments()


def test_of_segments_with_one_start_the_longest_counts(log: ChangeLog, writer: SegmentWriter) -> None:
    writer.append(200, [raw_slice(ORDERS, [150])])
    other = ChangeLog(str(Path(log.folder).parent / "other"))
    with SegmentWriter(other) as second:
        second.begin(100, "77")
        second.append(300, [raw_slice(ORDERS, [150, 250])])
    longer = files(other)[0]
    longer.rename(Path(log.folder) / longer.name)
    assert [(name.start, name.end) for name in log.segments()] == [(100, 300)]
    assert [row[1] for row in contents(log)] == [150, 250]


def test_every_flipped_byte_is_found_or_harmless(log: ChangeLog, writer: SegmentWriter) -> None:
    writer.append(200, [raw_slice(ORDERS, [110, 120], ops=b"IU"), raw_slice(PEOPLE, [130])])
    truth = contents(log)
    (path,) = files(log)
    good = path.read_bytes()
    found: list[str] = []
    for at in range(0, len(good), 3):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x41]) + good[at + 1 :])
        try:
            read = contents(ChangeLog(log.uri))
        except LogDamaged as error:
            found.append(error.what)
        else:
            assert read == truth, f"byte {at} changed what is read"
    assert len(found) > len(good) / 6
    assert all(path.name in what for what in found)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_shortened_segment_is_found(log: ChangeLog, writer: SegmentWriter, share: float) -> None:
    writer.append(200, [raw_slice(ORDERS, [110, 120])])
    (path,) = files(log)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(LogDamaged, match=path.name):
        contents(ChangeLog(log.uri))


@pytest.mark.parametrize("damage", ["remove", "shorten", "swap"])
def test_a_damaged_part_is_found(log: ChangeLog, writer: SegmentWriter, damage: str) -> None:
    writer.write_part(150, [raw_slice(ORDERS, [150])])
    writer.write_part(150, [raw_slice(ORDERS, [150, 150])])
    writer.append(200, [raw_slice(ORDERS, [150])])
    part, other = (path for path in files(log) if path.name.startswith("part-"))
    if damage == "remove":
        part.unlink()
    elif damage == "shorten":
        part.write_bytes(part.read_bytes()[:-10])
    else:
        part.write_bytes(other.read_bytes())
    with pytest.raises(LogDamaged, match=part.name):
        contents(ChangeLog(log.uri))


def test_a_segment_under_another_name_is_found(log: ChangeLog, writer: SegmentWriter) -> None:
    writer.append(200, [raw_slice(ORDERS, [150])])
    (path,) = files(log)
    _, _, crc = path.stem.split("-")
    renamed = path.rename(path.with_name(segment_name(100, 250, int(crc, 16))))
    with pytest.raises(LogDamaged, match=renamed.name):
        log.header(renamed.name)


def test_segments_that_are_removed_while_they_are_listed(
    log: ChangeLog, writer: SegmentWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention may remove a great many in a row: whoever looks meanwhile sees the others, and no damage."""
    for end in range(200, 2_100, 100):
        writer.append(end, [raw_slice(ORDERS, [end - 1])])
    found = ChangeLog._found
    gone: list[str] = []

    def shrinking(own: ChangeLog) -> Any:
        listed = found(own)
        oldest = sorted(text for text in listed if text.endswith(".arrow"))[0]
        gone.append(oldest)
        own.delete(oldest)
        return listed

    monkeypatch.setattr(ChangeLog, "_found", shrinking)
    for _ in range(5):
        chain = log.segments()
        assert chain[0].text > gone[-1]
        assert chain[-1].end == 2_000
    assert len(gone) == 5


def test_a_segment_that_was_replaced_since_it_was_listed_is_listed_again(
    log: ChangeLog, writer: SegmentWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.advance(200)
    found = ChangeLog._found
    listed = found(log)
    writer.advance(300)
    for text in listed:
        log.delete(text)
    given = [listed]
    monkeypatch.setattr(ChangeLog, "_found", lambda own: given.pop() if given else found(own))
    assert [(name.start, name.end) for name in log.segments()] == [(100, 300)]


def test_a_damaged_segment_that_nobody_needs_can_still_be_removed(log: ChangeLog, writer: SegmentWriter) -> None:
    writer.append(200, [raw_slice(ORDERS, [150])])
    writer.append(300, [raw_slice(ORDERS, [250])])
    files(log)[0].write_bytes(b"")
    log.remove(log.segments()[0])
    assert log.start() == 200


def test_a_log_of_another_format_is_refused_with_the_way_out_and_can_be_removed(log: ChangeLog) -> None:
    header = compose(100, 200, "77", ()).header_bytes.replace(f'"format":{FORMAT}'.encode(), b'"format":1')
    Path(log.folder).mkdir()
    columns = pa.schema([("commit_lsn", pa.uint64()), ("data", pa.binary())], {HEADER_KEY: header})
    path = Path(log.folder) / segment_name(100, 200, zlib.crc32(header))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, columns):
        pass
    known = rf"format 1; this penstock reads and writes format {FORMAT}"
    with pytest.raises(LogFormatUnknown, match=known) as refused:
        log.header(path.name)
    assert "penstock reset" in refused.value.solution
    with pytest.raises(LogFormatUnknown, match=known), SegmentWriter(log):
        pass
    log.remove_all()
    assert files(log) == []


def test_a_second_writer_is_refused(log: ChangeLog, writer: SegmentWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "LOCK_SECONDS", 0.0)
    with pytest.raises(LockedError, match="another capture"):
        SegmentWriter(log).__enter__()


def test_a_full_log_refuses_and_takes_it_later(log: ChangeLog) -> None:
    with SegmentWriter(log, max_bytes=12_000) as writer:
        writer.begin(100, "77")
        writer.append(200, [raw_slice(ORDERS, [150])])
        with pytest.raises(LogFull, match=r"log\.max_bytes"):
            writer.append(300, [raw_slice(ORDERS, [250] * 300)])
        with pytest.raises(LogFull):
            writer.write_part(250, [raw_slice(ORDERS, [250] * 300)])
        assert writer.end == 200
        writer.append(300, [raw_slice(ORDERS, [250])])
        assert [row[1] for row in contents(log)] == [150, 250]


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, LogFull), (errno.EDQUOT, LogFull), (errno.EIO, LogUnreachable)]
)
def test_a_store_that_fails_leaves_nothing_half_done(
    log: ChangeLog, writer: SegmentWriter, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    def fails(descriptor: int) -> None:
        raise OSError(number, "injected")

    with monkeypatch.context() as patch:
        patch.setattr(writer_module, "_fsync", fails)
        with pytest.raises(kind):
            writer.append(200, [raw_slice(ORDERS, [150])])
    assert log.segments() == []
    assert list(Path(log.folder).glob("*.tmp")) == []
    writer.append(200, [raw_slice(ORDERS, [150])])
    assert [row[1] for row in contents(log)] == [150]


def test_a_vanished_folder_is_unreachable_not_empty_for_the_writer(log: ChangeLog, writer: SegmentWriter) -> None:
    Path(log.folder).rename(Path(log.folder).with_name("elsewhere"))
    with pytest.raises(LogUnreachable):
        writer.append(200, [raw_slice(ORDERS, [150])])


def test_it_works_on_any_arrow_filesystem(tmp_path: Path) -> None:
    log = ChangeLog((tmp_path / "with space").as_uri())
    with SegmentWriter(log) as writer:
        writer.begin(100, "77")
        writer.append(200, [raw_slice(ORDERS, [150])])
    assert len(contents(ChangeLog(log.uri))) == 1


@pytest.mark.parametrize("kind", ["s3", "hdfs"])
def test_stores_without_fsync_get_one_put_or_a_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    class Remote:
        """A local folder that says it is something else."""

        def __init__(self, inner: Any) -> None:
            self._inner = inner
            self.type_name = kind

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    log = ChangeLog(str(tmp_path / "log"))
    log.filesystem = Remote(pa.fs.LocalFileSystem())
    assert not log.local
    with SegmentWriter(log) as writer:
        writer.begin(100, "77")
        writer.write_part(150, [raw_slice(ORDERS, [150])])
        writer.append(200, [raw_slice(ORDERS, [150])])
        writer.advance(210)
    assert len(contents(log)) == 2
    assert not list((tmp_path / "log").glob("*.tmp"))


def test_an_unknown_store_is_named() -> None:
    with pytest.raises(LogUnreachable, match="nonsense"):
        ChangeLog("nonsense://x/y")


def test_a_log_can_be_listed_while_it_is_being_made_and_changed(tmp_path: Path) -> None:
    """Readers never see a hole, a failure or an end that goes back, however they coincide with the writer."""
    log = ChangeLog(str(tmp_path / "log"))
    ends: list[int] = []
    trouble: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        reader = ChangeLog(log.uri)
        try:
            while not done.is_set():
                names = reader.segments()
                ends.append(names[-1].end if names else 0)
                for name in names[-2:]:
                    reader.header(name)
        except BaseException as error:  # noqa: BLE001  told below
            trouble.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    with SegmentWriter(log) as writer:
        writer.begin(100, "77")
        for end in range(110, 1110, 10):
            if end % 100 == 0:
                writer.append(end, [raw_slice(ORDERS, [end - 5])])
            else:
                writer.advance(end)
    done.set()
    thread.join()
    assert trouble == []
    assert ends == sorted(ends)


def test_tasks_of_one_process_share_what_they_know_of_a_log(tmp_path: Path) -> None:
    """Each would read the headers of all tables again, and there is a task for each table."""
    first, second = (pickle.loads(pickle.dumps(ChangeLog(str(tmp_path)))) for _ in range(2))
    assert first is second


def cleared(log: ChangeLog) -> list[tuple[int, int, int]]:
    newest = log.newest()
    assert newest is not None
    return [(one.relation_id, one.transaction, one.commit_position) for one in newest.cleared]


def test_the_newest_header_says_which_transactions_left_a_table_empty(log: ChangeLog, writer: SegmentWriter) -> None:
    """A transaction that writes to the table after its TRUNCATE did not, as far as anybody can tell."""
    assert log.newest() is None
    writer.append(200, [raw_slice(ORDERS, [150, 150, 160, 160], ops=b"ITTI")])
    assert cleared(log) == [(ORDERS.relation_id, 701, 150)], "rows came after the TRUNCATE of the second one"
    writer.append(300, [raw_slice(PEOPLE, [250], ops=b"T"), raw_slice(ORDERS, [260])])
    after = [(ORDERS.relation_id, 701, 150), (PEOPLE.relation_id, 700, 250)]
    assert cleared(log) == after
    writer.advance(400)
    writer.append(500, [raw_slice(ORDERS, [450])])
    for name in log.segments()[:-1]:
        log.remove(name)
    assert cleared(log) == after, "what is gone from the log is still known"
    writer.append(600, [raw_slice(ORDERS, [550], ops=b"T")])
    assert cleared(log) == [after[1], (ORDERS.relation_id, 700, 550)]


def test_rows_under_another_structure_come_after_a_truncate_too(log: ChangeLog, writer: SegmentWriter) -> None:
    wider = replace(ORDERS, columns=(*ORDERS.columns, Column("n", ColumnType(23, "int4"))))
    later = raw_slice(wider, [150, 150, 150], ops=b"I")
    later = replace(later, batch=later.batch.slice(2))  # the third change of the transaction
    writer.append(200, [raw_slice(ORDERS, [150, 150], ops=b"IT"), later])
    assert cleared(log) == []


def test_of_a_transaction_in_parts_nothing_is_known(log: ChangeLog, writer: SegmentWriter) -> None:
    writer.write_part(150, [raw_slice(ORDERS, [150], ops=b"T")])
    writer.append(200, [raw_slice(PEOPLE, [150], ops=b"T")])
    assert cleared(log) == []


def test_few_truncated_tables_are_remembered_also_by_the_next_writer(log: ChangeLog) -> None:
    with SegmentWriter(log) as first:
        first.begin(100, "77")
        for number in range(MOST_CLEARED + 3):
            first.append(200 + number, [raw_slice(replace(ORDERS, relation_id=number), [199 + number], ops=b"T")])
    with SegmentWriter(log) as second:
        second.begin(200 + MOST_CLEARED + 2, "77")
        second.append(1000, [raw_slice(PEOPLE, [900])])
    assert [relation_id for relation_id, _, _ in cleared(log)] == list(range(3, MOST_CLEARED + 3))

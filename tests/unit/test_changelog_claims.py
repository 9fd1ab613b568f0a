"""A log in a shared folder is extended by the one writer that took it over last, whenever another one wakes up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.changelog import writer as writer_module
from penstock.changelog.log import ChangeLog
from penstock.changelog.writer import SegmentWriter
from penstock.errors import LeaseLost, LogUnreachable
from raw_rows import ORDERS, contents, raw_slice


@pytest.fixture
def log(tmp_path: Path) -> ChangeLog:
    return ChangeLog(str(tmp_path / "log"))


def opened(log: ChangeLog) -> SegmentWriter:
    writer = SegmentWriter(log, shared=True)
    writer.__enter__()
    writer.begin(100 if writer.end is None else writer.end, "77")
    return writer


def append(writer: SegmentWriter, end: int) -> None:
    writer.append(end, [raw_slice(ORDERS, [end - 1])])


def spans(log: ChangeLog) -> list[tuple[int, int]]:
    return [(name.start, name.end) for name in log.segments()]


def test_a_writer_that_slept_is_refused_at_every_end_it_may_know(log: ChangeLog) -> None:
    first = opened(log)
    second = opened(log)  # before the first segment: both know an empty log
    append(second, 200)
    with pytest.raises(LeaseLost, match="another capture has taken over the change log"):
        append(first, 150)
    third = opened(log)
    with pytest.raises(LeaseLost):
        append(second, 250)
    append(third, 300)
    with pytest.raises(LeaseLost):
        second.advance(400)
    third.advance(400)
    third.advance(500)
    assert spans(log) == [(100, 200), (200, 300), (300, 500)]
    assert not [path for path in Path(log.folder).iterdir() if path.suffix == ".tmp"]


@pytest.mark.parametrize("wakes", [True, False])
def test_a_segment_that_its_writer_had_claimed_gets_its_name_from_the_next_one(
    log: ChangeLog, monkeypatch: pytest.MonkeyPatch, wakes: bool
) -> None:
    """The first writer is stopped between its claim and the segment's name, and goes on once the second has the log."""
    first, taken, link = opened(log), [], os.link
    append(first, 200)

    def stopped(source: Path, target: Path) -> None:
        if target.suffix == ".claim":
            link(source, target)
            return
        monkeypatch.setattr(os, "link", link)
        taken.append(opened(log))
        if not wakes:
            raise OSError("killed")
        link(source, target)

    monkeypatch.setattr(os, "link", stopped)
    if wakes:
        append(first, 300)
    else:
        with pytest.raises(LogUnreachable):
            append(first, 300)
    (second,) = taken
    assert second.end == 300, "what was claimed is a part of the log"
    with pytest.raises(LeaseLost):
        append(first, 400)
    append(second, 350)
    assert spans(log) == [(100, 200), (200, 300), (300, 350)]
    assert [data for _, _, data in contents(log)] == [b"orders 199 0", b"orders 299 0", b"orders 349 0"]


def test_what_failed_after_the_claim_is_sealed_by_another_try(log: ChangeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, link = opened(log), os.link

    def failing(source: Path, target: Path) -> None:
        if target.suffix == ".claim":
            link(source, target)
            return
        monkeypatch.setattr(os, "link", link)
        raise OSError("no answer")

    monkeypatch.setattr(os, "link", failing)
    with pytest.raises(LogUnreachable):
        append(writer, 200)
    append(writer, 200)
    append(writer, 300)
    assert spans(log) == [(100, 200), (200, 300)]


def test_a_lock_that_a_stopped_process_keeps_does_not_matter(log: ChangeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened(log)
    monkeypatch.setattr(writer_module, "LOCK_SECONDS", 60.0)
    second = opened(log)
    assert first._lock is not None
    assert second._lock is None
    os.close(first._lock)

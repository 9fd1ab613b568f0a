"""A shared log is extended by the one writer that took it over last, whenever another one wakes up."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from object_store import BUCKET, object_store
from penstock import s3_folder
from penstock.changelog import writer as writer_module
from penstock.changelog.claims import FolderFiles, StoreFiles
from penstock.changelog.log import ChangeLog
from penstock.changelog.writer import SegmentWriter
from penstock.errors import LeaseLost, LogUnreachable
from raw_rows import ORDERS, contents, raw_slice


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    with object_store() as environment:
        yield environment


@pytest.fixture(params=["folder", "s3"])
def log(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChangeLog:
    if request.param == "folder":
        return ChangeLog(str(tmp_path / "log"))
    for name, value in request.getfixturevalue("store").items():
        monkeypatch.setenv(name, value)
    s3_folder._client.cache_clear()
    return ChangeLog(f"s3://{BUCKET}/{tmp_path.name}/log")


def names(log: ChangeLog) -> list[str]:
    return [info.base_name for info in log._listing()]


def files(log: ChangeLog) -> type[FolderFiles] | type[StoreFiles]:
    return FolderFiles if log.local else StoreFiles


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
    assert not [name for name in names(log) if name.endswith(".tmp")]
    assert sum(name.endswith(".claim") for name in names(log)) == 3, "one of each writer"


@pytest.mark.parametrize("wakes", [True, False])
def test_a_segment_that_its_writer_had_claimed_gets_its_name_from_the_next_one(
    log: ChangeLog, monkeypatch: pytest.MonkeyPatch, wakes: bool
) -> None:
    """The first writer is stopped between its claim and the segment's name, and goes on once the second has the log."""
    first, taken, kind = opened(log), [], files(log)
    name = kind.name
    append(first, 200)

    def stopped(own: FolderFiles | StoreFiles, claim: str, segment: str) -> None:
        monkeypatch.setattr(kind, "name", name)
        taken.append(opened(log))
        if not wakes:
            raise OSError("killed")
        own.name(claim, segment)

    monkeypatch.setattr(kind, "name", stopped)
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
    writer, kind = opened(log), files(log)
    name = kind.name

    def failing(*_: object) -> None:
        monkeypatch.setattr(kind, "name", name)
        raise OSError("no answer")

    monkeypatch.setattr(kind, "name", failing)
    with pytest.raises(LogUnreachable):
        append(writer, 200)
    append(writer, 200)
    append(writer, 300)
    assert spans(log) == [(100, 200), (200, 300)]


@pytest.mark.parametrize("log", ["s3"], indirect=True)
def test_an_answer_that_was_lost_on_its_way(log: ChangeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client asks again by itself, and is told that there is such a file: its own."""
    writer, create = opened(log), s3_folder.S3Folder.create

    def twice(own: s3_folder.S3Folder, name: str, content: bytes) -> None:
        create(own, name, content)
        create(own, name, content)

    monkeypatch.setattr(s3_folder.S3Folder, "create", twice)
    append(writer, 200)
    assert spans(log) == [(100, 200)]


@pytest.mark.parametrize("log", ["s3"], indirect=True)
@pytest.mark.parametrize("lacking", ["the library", "the endpoint in the environment"])
def test_a_run_without_a_standby_needs_no_claims(log: ChangeLog, monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    """Its state is in Postgres, so that it has a lease; but its log may lie where nobody could claim anything."""
    if lacking == "the library":
        monkeypatch.setattr("penstock.changelog.claims.has_s3_client", lambda: False)
    else:
        host = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        log = ChangeLog(f"{log.uri}?endpoint_override={host}&scheme=http&region=us-east-1")
    append(opened(log), 200)
    assert spans(log) == [(100, 200)]
    assert not [name for name in names(log) if name.endswith(".claim")]


@pytest.mark.parametrize("log", ["folder"], indirect=True)
def test_a_lock_that_a_stopped_process_keeps_does_not_matter(log: ChangeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened(log)
    monkeypatch.setattr(writer_module, "LOCK_SECONDS", 60.0)
    second = opened(log)
    assert first._lock is not None
    assert second._lock is None
    os.close(first._lock)

"""A stream whose transactions do not fit together is read again, and nothing of it reaches the log."""

from __future__ import annotations

import struct
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import StreamOutOfStep
from penstock.source.postgres import capture
from penstock.source.postgres.capture import Capture, CaptureSettings
from penstock.source.postgres.resume import Resumption
from penstock.source.sink import Origin
from pgoutput_messages import insert

RESUMPTION = Resumption(100, 100, Origin("1"))
SETTINGS = CaptureSettings("postgresql://nowhere", "s", "p", 1 << 20, 0.0, 0.1)


def frame(message: bytes) -> bytes:
    return b"w" + struct.pack(">QQq", 5, 0, 0) + message


def begin(xid: int) -> bytes:
    return frame(struct.pack(">cQqI", b"B", 1000 + xid, 0, xid))


def commit(end: int) -> bytes:
    return frame(struct.pack(">cBQQq", b"C", 0, end - 8, end, 0))


class Stream:
    """Frames, then silence until it is told to stop."""

    complaint = None
    pgconn = None
    told_at = float("inf")

    def __init__(self, *frames: bytes) -> None:
        self._frames = list(frames)

    def get(self, _: int) -> tuple[int, bytes]:
        return (len(self._frames[0]), self._frames.pop(0)) if self._frames else (0, b"")

    def tell(self, position: int, *, reply: bool = False) -> None: ...
    def wait(self, seconds: float) -> None: ...
    def close(self) -> None: ...


class Sink:
    """Remember what would be in the log."""

    end = origin = last_commit = None

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def structure_of(self, relation_id: int) -> None: ...

    def begin(self, *_: object) -> None: ...

    def append(self, end: int, slices: Any, state: str | None = None) -> None:
        self.kept.append((end, slices))

    def advance(self, end: int, state: str | None = None) -> None: ...
    def write_part(self, *_: object) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("frames", "what"),
    [
        ((begin(1), frame(insert("1")), begin(2), frame(insert("2")), commit(3000)), "begins within"),
        ((begin(1), commit(2000), commit(3000)), "ends that did not begin"),
        ((commit(2000),), "ends that did not begin"),
        ((frame(insert("1")), begin(2), commit(3000)), "outside any transaction"),
        ((begin(1), commit(2000), frame(insert("1")), begin(2)), "outside any transaction"),
        ((frame(b"R" + struct.pack(">I", 7) + b"public\0t\0d\0\0"),), "outside any transaction"),
    ],
    ids=["second begin", "second commit", "commit alone", "row before", "row behind", "table described"],
)
def test_nothing_of_it_is_kept_and_it_is_read_again(
    monkeypatch: pytest.MonkeyPatch, frames: tuple[bytes, ...], what: str
) -> None:
    sink, stop, reports = Sink(), threading.Event(), list[dict[str, object]]()
    sessions = 0

    def opened(*_: object) -> Stream:
        nonlocal sessions
        sessions += 1
        return Stream(*frames)

    def report(said: dict[str, object]) -> None:
        reports.append(said)
        if sum(one["event"] == "waiting" for one in reports) == 2:
            stop.set()

    monkeypatch.setattr(capture, "ReplicationStream", opened)
    monkeypatch.setattr(capture, "replication_connection", lambda *_, **__: None)
    monkeypatch.setattr(capture, "connect", lambda *_, **__: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(capture, "require_unmoved", lambda *_: None)
    monkeypatch.setattr(Capture, "_start", lambda *_: RESUMPTION)
    monkeypatch.setattr(capture, "_delay", lambda _: 0.001)
    Capture(SETTINGS, sink, stop, report).run()
    waits = [one for one in reports if one["event"] == "waiting"]
    assert (len(waits), sessions) == (2, 2)
    assert all(what in str(one["error"]) for one in waits)
    assert sink.kept == []
    assert StreamOutOfStep("", "").retry == "backoff"

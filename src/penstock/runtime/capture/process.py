"""The capture process: joins the source's capture to the change log's writer.

`python -m penstock.runtime.capture.process FILE [--shared] [--wait] [SOURCE]` is started by supervisor.py. Its standard
input is a pipe from its parent: when that ends, for whatever reason, so does this process, at once: an orphan never
holds the slot. SIGTERM seals and confirms what is whole, then exits 0. With --shared it takes the log over from whoever
else writes to it, and may lose it so. With --wait it begins when a line comes from its parent. It reports as JSON lines
on standard output:

    {"event": "started", "position": POSITION, "reading": [NAME]}   what is read, in the source's own names
    {"event": "verified", "position": POSITION}               the log's end is a point of the server's own past
    {"event": "sealed", "end": POSITION, "bytes": N}          at most four a second; N since the last such line
    {"event": "waiting", "error": …, "solution": …, "attempts": N}
    {"event": "ignored", "messages": N, "trusted": BOOL}      logical messages that do not prove who wrote them, in all
    {"event": "failed", "kind": CLASS OF errors.py, "what": …, "solution": …}     then it exits with the error's code

`run_capture` is the same without a parent, for `penstock capture`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from penstock.changelog.log import ChangeLog
from penstock.changelog.segment import SliceRows
from penstock.changelog.writer import SegmentWriter
from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.errors import PenstockError
from penstock.model.position import Position
from penstock.model.table import TableSchema
from penstock.runtime.process.signals import SignalFlag
from penstock.source.contract import Report, SegmentSettings, StopFlag
from penstock.source.factory import source_of
from penstock.source.sink import CapturedSlice, LastCommit, Origin

ORPHANED = 3
SHARED, WAIT = "--shared", "--wait"


class LogSink:
    """A SegmentSink that writes to the change log."""

    def __init__(self, writer: SegmentWriter, log: ChangeLog | None = None) -> None:
        """`log` is where structures are looked up; None: none is known."""
        self._writer, self._log = writer, log
        self._begun: Origin | None = None
        self._structures: dict[int, TableSchema] | None = None

    @property
    def end(self) -> Position | None:
        return self._writer.end

    @property
    def origin(self) -> Origin | None:
        last = self._writer.last
        return self._begun if last is None else Origin(last.origin, last.state)

    @property
    def last_commit(self) -> LastCommit | None:
        found = self._writer.last_commit
        return None if found is None else LastCommit(*found)

    def structure_of(self, relation_id: int) -> TableSchema | None:
        if self._structures is None:
            self._structures = {} if self._log is None else _newest_structures(self._log)
        return self._structures.get(relation_id)

    def begin(self, position: Position, origin: Origin) -> None:
        self._structures = None  # what was not sealed before is sent again
        self._writer.begin(position, origin.stream, state=origin.state)
        self._begun = origin

    def append(self, end: Position, slices: Sequence[CapturedSlice], state: str | None = None) -> None:
        self._writer.append(end, _rows(slices), state)

    def advance(self, end: Position, state: str | None = None) -> None:
        self._writer.advance(end, state)

    def write_part(self, commit_position: Position, slices: Sequence[CapturedSlice]) -> None:
        self._writer.write_part(commit_position, _rows(slices))


def _newest_structures(log: ChangeLog) -> dict[int, TableSchema]:
    """Return the structure of each relation's last change, by the headers of all segments."""
    found: dict[int, TableSchema] = {}
    for name in log.segments():
        for part in log.slices(name):
            found[part.table_schema.relation_id] = part.table_schema
    return found


def _rows(slices: Sequence[CapturedSlice]) -> list[SliceRows]:
    return [SliceRows(item.schema, item.batch, item.moved_keys) for item in slices]


def require_free_log(pipeline: Pipeline) -> None:
    """LockedError when another capture writes the log: to be known before anything is made at the source."""
    with SegmentWriter(ChangeLog(pipeline.log_uri)):
        return


def run_capture(
    pipeline: Pipeline, stop: StopFlag, report: Report, *, patient: bool = False, shared: bool = False
) -> None:
    """Fill the change log until `stop` is set. `patient` waits for a source that cannot be reached at the start.

    `shared`: see `SegmentWriter`.
    """
    settings = SegmentSettings(
        segment_bytes=pipeline.log.segment_bytes,
        segment_age=pipeline.log.segment_age,
        idle_every=pipeline.log.idle_every,
        patient=patient,
        wanted=pipeline.wanted_events,
    )
    log = ChangeLog(pipeline.log_uri)
    with SegmentWriter(log, pipeline.log.max_bytes, shared=shared) as writer:
        source_of(pipeline.source).capture(pipeline, settings, LogSink(writer, log), stop, report)


def main(file: Path, *others: str) -> int:
    source = next((one for one in others if one not in (SHARED, WAIT)), None)
    stop = SignalFlag()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it drains, then sends SIGTERM
    if WAIT in others and not os.read(sys.stdin.fileno(), 1):
        return ORPHANED
    threading.Thread(target=_exit_with_parent, name="parent-watch", daemon=True).start()
    try:
        run_capture(load(file).source_view(source), stop, _report, patient=True, shared=SHARED in others)
    except PenstockError as error:
        kind = type(error).__name__
        _report({"event": "failed", "kind": kind, "what": error.what, "solution": error.solution})
        return error.exit_code
    return 0


def _exit_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(ORPHANED)


def _report(report: dict[str, object]) -> None:
    try:
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(ORPHANED)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))

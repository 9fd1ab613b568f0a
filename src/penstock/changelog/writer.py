"""Write the change log: make segments and parts durable, in order, with nothing half-done ever visible.

Locally a file is written under a temporary name, fsynced, renamed, and its folder fsynced; in an object store it is one
put. A call that raises has changed nothing that a reader sees, or has sealed exactly what it was asked for, so it may
simply be called again. Capture drives it through the runtime; log.py reads what it makes. A local log is locked while
a writer is open.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from penstock import failpoints
from penstock.changelog.chain import SegmentName
from penstock.changelog.claims import claims_in_folder, claims_in_store
from penstock.changelog.log import TEMPORARY, ChangeLog
from penstock.changelog.segment import (
    PartRef,
    SegmentFile,
    SegmentHeader,
    SliceRows,
    compose,
    newest_commit,
    part_commit,
    part_name,
    segment_name,
)
from penstock.errors import LeaseLost, LockedError, LogFull, LogUnreachable
from penstock.model.position import Position
from penstock.model.table import TableSchema

LOCK_FILE = ".lock"
LOCK_SECONDS = 3.0  # the capture of a run that was killed needs a moment to notice
USAGE_SECONDS = 2.0
REPLACED_SECONDS = 1.0  # a listing that began before the replacement may still count on the replaced one
ONE_PUT = frozenset({"s3", "gcs", "abfs"})
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class SegmentWriter:
    """A context manager. `end` is where the log ends, None while it is empty; `begin` comes before any append.

    `last_commit` is the last transaction that the log holds or held, as in SegmentHeader.
    """

    def __init__(self, log: ChangeLog, max_bytes: int | None = None, *, shared: bool = False) -> None:
        """`shared`: the log, in a folder or in S3, may be taken over from a writer that still lives (`claims.py`)."""
        self.log = log
        self._claims = claims_in_folder(log) if shared and log.local else None
        self._store_claims = claims_in_store(log) if shared and not log.local else None
        self.end: Position | None = None
        self.last: SegmentHeader | None = None
        self._max_bytes = max_bytes
        self.last_commit: tuple[Position, int] | None = None
        self._origin, self._state = "", ""
        self._history: str | None = None  # None: the log is empty, and nobody has begun it
        self._parts: list[PartRef] = []
        self._part_schemas: dict[str, TableSchema] = {}
        self._attempt = ""
        self._replaced: list[tuple[float, str]] = []
        self._used, self._used_at = 0, float("-inf")
        self._lock: int | None = None
        self._last_text = ""

    def __enter__(self) -> SegmentWriter:
        try:
            if self.log.local:
                _make_folder(Path(self.log.folder))
                self._lock = self._locked()
            else:
                self.log.filesystem.create_dir(self.log.folder, recursive=True)
            if self._claims is not None:
                self._claims.take_over()
            if self._store_claims is not None:
                self._store_claims.take_over()
        except OSError as error:
            raise self._store_error(error) from error
        try:
            self.log.remove_garbage()
            chain = self.log.segments()
            if chain:
                self.end, self._last_text = chain[-1].end, chain[-1].text
                self.last = self.log.header(chain[-1])
                self._history, self.last_commit = self.last.history, self._find_last_commit(chain)
        except BaseException:
            self._unlock()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._unlock()

    def _locked(self) -> int | None:
        """Lock the log; one that is taken over may stay locked by a process that does not move."""
        path = Path(self.log.folder) / LOCK_FILE
        if self._claims is None:
            return _locked(path)
        try:
            return _locked(path, patience=0.0)
        except LockedError:
            return None

    def begin(self, position: Position, origin: str, *, state: str = "") -> None:
        """Set where appending starts (the log's end, unless it is empty) and whose stream follows."""
        if self.end is not None and position != self.end:
            raise ValueError(f"the log ends at {self.end:x}, not at {position:x}")
        if self._history is None:
            self._history, self.last_commit = secrets.token_hex(8), (0, 0)
        self.end, self._origin, self._state = position, origin, state
        self.abandon_parts()

    def append(self, end: Position, rows: Sequence[SliceRows], state: str | None = None) -> None:
        """Seal `[self.end, end)`: whole transactions, or what remains of one whose earlier parts were written.

        `state` is the source's from `end` on; None: it stays."""
        start = self._start(end)
        self._state = self._state if state is None else state
        self._seal(self._composed(start, end, rows, self._parts, self._part_schemas))
        failpoints.reach("capture.segment_sealed")
        self._parts, self._part_schemas, self._attempt = [], {}, ""
        self._forget_replaced()

    def advance(self, end: Position, state: str | None = None) -> None:
        """Seal `[self.end, end)` as empty, replacing an empty segment right before it."""
        start, replaced = self._start(end), ""
        self._state = self._state if state is None else state
        if self.last is not None and self.last.empty:
            start, replaced = self.last.start, self._last_text
        self._seal(self._composed(start, end, ()))
        failpoints.reach("capture.idle_sealed")
        if replaced:
            self._replaced.append((time.monotonic(), replaced))
        self._forget_replaced()

    def write_part(self, commit_position: Position, rows: Sequence[SliceRows]) -> None:
        """Make an earlier part of one huge transaction durable. It counts once the next `append` lists it."""
        self._attempt = self._attempt or secrets.token_hex(4)
        file = self._composed(commit_position, commit_position, rows)
        name = part_name(commit_position, self._attempt, len(self._parts))
        self._require_room(file.bytes)
        self._store(name, file)
        self._parts.append(PartRef(name, file.crc, file.header.slices))
        self._part_schemas.update(file.header.schemas)
        failpoints.reach("capture.part_written")

    def abandon_parts(self) -> None:
        """Forget the parts of a transaction that will be sent again."""
        parts, self._parts, self._part_schemas, self._attempt = self._parts, [], {}, ""
        for part in parts:
            self.log.delete(part.name)

    def _start(self, end: Position) -> Position:
        if self.end is None:
            raise ValueError("begin() comes first")
        if end <= self.end:
            raise ValueError(f"the log ends at {self.end:x} already, {end:x} is no later end")
        return self.end

    def _seal(self, file: SegmentFile) -> None:
        name = segment_name(file.header.start, file.header.end, file.crc)
        self._require_room(file.bytes)
        self._store(name, file)
        self.end, self.last, self._last_text = file.header.end, file.header, name
        self.last_commit = file.header.last_commit

    def _composed(
        self,
        start: Position,
        end: Position,
        rows: Sequence[SliceRows],
        parts: Sequence[PartRef] = (),
        part_schemas: dict[str, TableSchema] | None = None,
    ) -> SegmentFile:
        return compose(
            start,
            end,
            self._origin,
            rows,
            parts,
            part_schemas,
            history=self._history or "",
            before=self.last_commit,
            state=self._state,
            cleared_before=() if self.last is None else self.last.cleared,
        )

    def _find_last_commit(self, chain: Sequence[SegmentName]) -> tuple[Position, int] | None:
        """Read it from the newest header that says it; segments of older versions say it by their slices only."""
        for name in reversed(chain):
            header = self.log.header(name)
            found = header.last_commit or newest_commit(header.all_slices)
            if found is not None:
                return found
        return None

    def _store(self, name: str, file: SegmentFile) -> None:
        path = self.log.path(name)
        try:
            if self.log.local:
                self._store_locally(Path(path), file)
            elif self._store_claims is not None and part_commit(name) is None:
                self._store_claims.seal(_content(file), name, file.header.end)
                failpoints.reach("capture.segment_written")
            elif self.log.filesystem.type_name in ONE_PUT:
                self._put(path, file)
                failpoints.reach("capture.segment_written")
            else:
                self._put(path + TEMPORARY, file)
                failpoints.reach("capture.segment_written")
                self.log.filesystem.move(path + TEMPORARY, path)
        except OSError as error:
            raise self._store_error(error) from error
        self._used += file.bytes

    def _store_locally(self, path: Path, file: SegmentFile) -> None:
        own = "" if self._claims is None else f".{secrets.token_hex(4)}"  # another writer may make the same segment
        temporary = path.with_name(path.name + own + TEMPORARY)
        try:
            with pa.OSFile(str(temporary), "wb") as sink:
                file.write_to(sink)
                _fsync(sink.fileno())
            failpoints.reach("capture.segment_written")
            if self._claims is None or part_commit(path.name) is not None:
                temporary.rename(path)
            else:
                self._claims.seal(temporary, path.name, file.header.end)
                temporary.unlink(missing_ok=True)
        except (OSError, LeaseLost):
            temporary.unlink(missing_ok=True)
            raise
        _fsync_folder(path.parent)

    def _put(self, path: str, file: SegmentFile) -> None:
        with self.log.filesystem.open_output_stream(path) as sink:
            file.write_to(sink)

    def _require_room(self, size: int) -> None:
        """Count what was written since the last listing; a listing says what retention has freed."""
        if self._max_bytes is None:
            return
        if self._used + size > self._max_bytes or time.monotonic() - self._used_at > USAGE_SECONDS:
            self._used, self._used_at = self.log.bytes(), time.monotonic()
        if self._used + size > self._max_bytes:
            raise LogFull(
                f"the change log {self.log.uri} is full ({self._used} bytes; log.max_bytes is {self._max_bytes}); "
                "the source keeps its own log until there is room again",
                "See `penstock status` for the table or destination that holds it up, or raise log.max_bytes",
            )

    def _forget_replaced(self) -> None:
        due = time.monotonic() - REPLACED_SECONDS
        while self._replaced and self._replaced[0][0] <= due:
            try:
                self.log.delete(self._replaced[0][1])
            except LogUnreachable:
                return  # a leftover harms nobody; it goes next time
            self._replaced.pop(0)

    def _store_error(self, error: OSError) -> LogFull | LogUnreachable:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        if error.errno in _NO_ROOM:
            return LogFull(
                f"no room for the change log {self.log.uri}: {why}; the source keeps its own log until there is room",
                "Free space there, or move the log (log.uri) to where there is more",
            )
        return LogUnreachable(
            f"writing to the change log {self.log.uri} failed: {why}",
            "Check log.uri and that its store can be reached and written",
        )

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextmanager
def locked(log: ChangeLog) -> Iterator[None]:
    """Keep writers away from a local log meanwhile, whatever state it is in. LockedError when one is open."""
    if not log.local:
        yield
        return
    try:
        _make_folder(Path(log.folder))
        descriptor = _locked(Path(log.folder) / LOCK_FILE)
    except OSError as error:
        raise LogUnreachable(f"the change log {log.uri} cannot be locked: {error}", "Check log.uri") from error
    try:
        yield
    finally:
        os.close(descriptor)


def _content(file: SegmentFile) -> bytes:
    sink = pa.BufferOutputStream()
    file.write_to(sink)
    return bytes(sink.getvalue())


def _fsync(descriptor: int) -> None:
    os.fsync(descriptor)


def _fsync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folder(path: Path) -> None:
    """Make the folder and those above it, durably: a log that vanished with its folder would look like a new one."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        _fsync_folder(folder.parent)


def _locked(path: Path, patience: float = LOCK_SECONDS) -> int:
    """Hold a system lock on the file, which names our process, until the descriptor is closed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise LockedError(
                f"another capture (process {holder or 'unknown'}) writes to the change log {path.parent}",
                "Stop that one first, or give this pipeline a log.uri of its own",
            ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor

"""A huge part of a batch, cut so that each task holds its own share of it and reads little else. On executors.

Where a share is some keys' changes, tasks of a first stage (`share`) read the log once, find which key bucket each row
is of, and write what they read to scratch, by bucket; the tasks that apply read their bucket's from there. Where any
rows will do (events; rows without a key), no stage is needed: a task is given its own pieces of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from penstock.changelog.log import ChangeLog
from penstock.changelog.scratch import Scratch
from penstock.decode.choices import chosen
from penstock.decode.sift import unfit
from penstock.decode.undecodable import Undecodable
from penstock.errors import PenstockError
from penstock.fold.sharing import ByRow, Entangled, joined, shares
from penstock.model.change import RawChanges
from penstock.model.feed import Feed
from penstock.model.position import Position
from penstock.model.table import TableId, TableSchema
from penstock.runtime.apply.table_boundary import unexpected

SHARED_AT_ONCE = 32 << 20  # of the log: what a task of the first stage holds, and then cuts into one batch a bucket
READ_AT_ONCE = 16 << 20  # of a share: its many small batches are joined up to this
MOST_MESSAGES_KEPT, MOST_BYTES_KEPT = 1000, 64 << 20  # of one batch; a table that is tried again brings the rest


@dataclass(frozen=True)
class Piece:
    """Rows of one slice of the log: part `part` of `parts` that have the same number of rows."""

    segment: str
    number: int  # of the slice in its segment
    bytes: int
    part: int = 0
    parts: int = 1


@dataclass(frozen=True)
class SharedFile:
    """What one task of the first stage wrote: for each version named, one batch for each bucket."""

    name: str
    versions: tuple[str, ...]  # fingerprints


@dataclass(frozen=True)
class Share:
    """Where a bucket's changes are; `files` are in stream order."""

    scratch: Scratch
    files: tuple[SharedFile, ...]


@dataclass(frozen=True)
class ShareTask:
    log: ChangeLog
    feed: Feed
    pieces: tuple[Piece, ...]
    versions: Mapping[str, TableSchema]  # as ApplyTask has them
    position: Position
    until: Position | None
    buckets: int
    scratch: Scratch
    weight: int
    by_row: ByRow | None = None


@dataclass(frozen=True)
class Shared:
    """The shares of a table's changes.

    `error` instead of `file` when the table cannot take its changes; neither when there are no shares of them, and one
    task must take all.
    """

    table: TableId  # the feed's name
    file: SharedFile | None = None
    error: PenstockError | None = None


def pieces_of(log: ChangeLog, slices: Iterable[tuple[str, str]], most_bytes: int) -> list[Piece]:
    """Return the slices (segment name, schema fingerprint) in stream order, those that are larger cut into parts."""
    wanted: dict[str, set[str]] = {}
    for segment, fingerprint in slices:
        wanted.setdefault(segment, set()).add(fingerprint)
    found = []
    for segment, fingerprints in wanted.items():
        for number, one in enumerate(log.slices(segment)):
            if one.table_schema.fingerprint in fingerprints:
                parts = max(1, min(-(-one.slice.bytes // most_bytes), one.slice.rows))
                size = one.slice.bytes // parts
                found += [Piece(segment, number, size, part, parts) for part in range(parts)]
    return found


def grouped(pieces: Sequence[Piece], most_bytes: int) -> list[tuple[Piece, ...]]:
    """Neighbours together, up to so many bytes; one piece at least."""
    groups: list[list[Piece]] = []
    size = 0
    for piece in pieces:
        if not groups or size + piece.bytes > most_bytes:
            groups.append([])
            size = 0
        groups[-1].append(piece)
        size += piece.bytes
    return [tuple(group) for group in groups]


def read_pieces(
    log: ChangeLog, feed: Feed, pieces: Iterable[Piece], versions: Mapping[str, TableSchema]
) -> Iterator[RawChanges]:
    for segment, some in groupby(pieces, lambda piece: piece.segment):
        of_slice: dict[int, list[Piece]] = {}
        for piece in some:
            of_slice.setdefault(piece.number, []).append(piece)
        for parts, changes in zip(of_slice.values(), log.read(segment, numbers=of_slice), strict=True):
            count = changes.batch.num_rows
            for piece in parts:
                low, high = count * piece.part // piece.parts, count * (piece.part + 1) // piece.parts
                rows = changes if piece.parts == 1 else replace(changes, batch=changes.batch.slice(low, high - low))
                yield versioned(rows, feed, versions)


def versioned(changes: RawChanges, feed: Feed, versions: Mapping[str, TableSchema]) -> RawChanges:
    """Return them as the feed carries them, with their columns numbered."""
    carried = chosen(changes.schema, feed.types, feed.type_map)
    return RawChanges(versions[carried.fingerprint], changes.batch)


def share(task: ShareTask) -> Shared:
    """Share out one task's pieces. A task never fails the job: whatever it meets is its result."""
    try:
        return Shared(task.feed.name, _shared(task))
    except Entangled:
        return Shared(task.feed.name)
    except Undecodable as error:
        changes = read_pieces(task.log, task.feed, task.pieces, task.versions)
        messages = unfit(
            changes, position=task.position, most=MOST_MESSAGES_KEPT, most_bytes=MOST_BYTES_KEPT // task.buckets
        )
        return Shared(task.feed.name, error=error.keeping(messages or error.messages))
    except PenstockError as error:
        return Shared(task.feed.name, error=error)
    except Exception as error:  # noqa: BLE001 - an error is the task's result: the job has other tables' tasks
        return Shared(task.feed.name, error=unexpected(task.feed.name, error))


def _shared(task: ShareTask) -> SharedFile:
    versions = []
    with task.scratch.writing() as (name, write):
        for changes in joined(read_pieces(task.log, task.feed, task.pieces, task.versions), SHARED_AT_ONCE):
            cut = shares(changes, position=task.position, until=task.until, buckets=task.buckets, by_row=task.by_row)
            for batch in cut:
                write(batch)
            versions.append(changes.schema.fingerprint)
    return SharedFile(name, tuple(versions))


def read_share(share: Share, bucket: int, buckets: int, versions: Mapping[str, TableSchema]) -> Iterator[RawChanges]:
    """Yield a bucket's changes in stream order."""
    return joined(_batches(share, bucket, buckets, versions), READ_AT_ONCE)


def _batches(share: Share, bucket: int, buckets: int, versions: Mapping[str, TableSchema]) -> Iterator[RawChanges]:
    by_fingerprint = {version.fingerprint: version for version in versions.values()}
    for file in share.files:
        numbers = range(bucket, len(file.versions) * buckets, buckets)
        for fingerprint, batch in zip(file.versions, share.scratch.read(file.name, numbers), strict=True):
            yield RawChanges(by_fingerprint[fingerprint], batch)

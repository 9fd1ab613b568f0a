"""pgoutput's messages, protocol version 1, as far as capture reads them: everything but row values.

Pure: bytes in, plain values out. Row changes are not looked into here or anywhere in `source/`; decode does that, from
the same bytes. A message stands after the 25-byte header of its XLogData frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from penstock.errors import SourceError
from penstock.model.position import Position

Bytes = bytes | bytearray | memoryview
Parsed = TypeVar("Parsed")

XLOG_DATA, KEEPALIVE = b"wk"
HEADER_BYTES = 25  # of XLogData: w, start of the change in the WAL, end of the WAL, clock
BEGIN, COMMIT, RELATION, TYPE, TRUNCATE, ORIGIN, MESSAGE = b"BCRYTOM"
ROW_CHANGES = frozenset(b"IUD")
OLD_KEY = ord("K")  # follows the relation of an update or delete that carries the old key
POSTGRES_EPOCH = 946_684_800_000_000  # 2000-01-01 in µs since 1970

_BEGIN = struct.Struct(">cQqI")
_COMMIT = struct.Struct(">cBQQq")
_KEEPALIVE = struct.Struct(">cQqB")
_STATUS = struct.Struct(">cQQQqB")


@dataclass(frozen=True)
class Begin:
    commit_lsn: Position
    commit_time: int  # µs since 1970
    xid: int


@dataclass(frozen=True)
class RelationColumn:
    name: str
    in_key: bool  # part of the replica identity
    type_oid: int
    modifier: int


@dataclass(frozen=True)
class Relation:
    """`identity` is pg_class.relreplident: d(efault), n(othing), f(ull), i(ndex)."""

    relation_id: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


def read_begin(message: Bytes) -> Begin:
    return _whole("Begin", message, _begin)


def read_commit_end(message: Bytes) -> Position:
    """Return the position after the transaction: `end_lsn`, not `commit_lsn`."""
    return _whole("Commit", message, lambda body: int(_COMMIT.unpack(body)[3]))


def read_relation(message: Bytes) -> Relation:
    return _whole("Relation", message, _relation)


def read_type(message: Bytes) -> tuple[int, str]:
    """Return a type's oid and its name without the schema."""
    return _whole("Type", message, _type)


def read_logical_message(message: Bytes, prefix: bytes) -> bytes | None:
    """Return the content of a transactional message that somebody wrote with pg_logical_emit_message under this prefix.

    None of any other message: its bytes are anybody's, of any size and encoding, and are not looked at."""
    begins = 10 + len(prefix) + 1
    if len(message) < begins + 4 or not message[1] & 1 or bytes(message[10:begins]) != prefix + b"\0":
        return None
    return bytes(message[begins + 4 :])


def read_any_message(message: Bytes) -> tuple[bytes, Bytes] | None:
    """Return prefix and content of a transactional logical message; None of one that is not, or that is damaged."""
    if len(message) < 15 or not message[1] & 1:
        return None
    prefix, end, rest = bytes(message[10:]).partition(b"\0")
    if not end or len(rest) < 4 or int.from_bytes(rest[:4], "big") != len(rest) - 4:
        return None
    return prefix, rest[4:]


def read_truncate(message: Bytes) -> tuple[int, ...]:
    """Return the relations that one TRUNCATE empties."""
    return _whole("Truncate", message, _truncate)


def read_keepalive(frame: Bytes) -> tuple[Position, bool]:
    """Up to where the server has sent everything, and whether it wants an answer at once."""

    def keepalive(body: bytes) -> tuple[Position, bool]:
        _, position, _, reply = _KEEPALIVE.unpack(body)
        return position, bool(reply)

    return _whole("keepalive", frame, keepalive)


def status_update(position: Position, now: int, *, reply: bool) -> bytes:
    """Tell the server that everything before `position` is durable here. `now` is µs since 1970."""
    return _STATUS.pack(b"r", position, position, position, now - POSTGRES_EPOCH, reply)


def _begin(body: bytes) -> Begin:
    _, commit_lsn, commit_time, xid = _BEGIN.unpack(body)
    return Begin(commit_lsn, commit_time + POSTGRES_EPOCH, xid)


def _relation(body: bytes) -> Relation:
    (relation_id,) = struct.unpack_from(">I", body, 1)
    schema, at = _text(body, 5)
    name, at = _text(body, at)
    identity, count = struct.unpack_from(">cH", body, at)
    at += 3
    columns = []
    for _ in range(count):
        flags = body[at]
        column, at = _text(body, at + 1)
        type_oid, modifier = struct.unpack_from(">Ii", body, at)
        at += 8
        columns.append(RelationColumn(column, bool(flags & 1), type_oid, modifier))
    if at != len(body):
        raise ValueError("bytes are left over")
    return Relation(relation_id, schema or "pg_catalog", name, identity.decode("ascii"), tuple(columns))


def _type(body: bytes) -> tuple[int, str]:
    (oid,) = struct.unpack_from(">I", body, 1)
    _, at = _text(body, 5)
    name, _ = _text(body, at)
    return oid, name


def _truncate(body: bytes) -> tuple[int, ...]:
    (count,) = struct.unpack_from(">I", body, 1)
    if len(body) != 6 + 4 * count:
        raise ValueError("its length does not fit its number of relations")
    return struct.unpack_from(f">{count}I", body, 6)


def _text(body: bytes, at: int) -> tuple[str, int]:
    """Return a nul-terminated string, and where the next field begins."""
    end = body.index(0, at)
    return body[at:end].decode(), end + 1


def _whole(kind: str, message: Bytes, parse: Callable[[bytes], Parsed]) -> Parsed:
    body = bytes(message)
    try:
        return parse(body)
    except (struct.error, ValueError, IndexError) as error:
        raise SourceError(
            f"the server sent a {kind} message that cannot be read ({error}): {body[:60].hex()}",
            "Check that nothing between here and the server alters the stream; otherwise report it as a bug",
        ) from error

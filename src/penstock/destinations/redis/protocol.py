"""Redis' protocol (RESP 2): commands put together by Arrow kernels, and answers read without an object per entry.

No socket is seen here; `client.py` has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.destinations.stream_contract import Records

BINARY = pa.binary()
Fields = Sequence[tuple[bytes, pa.Array]]  # name, and binary values; null: the entry has no such field


@dataclass(frozen=True)
class RedisError:
    """An answer that is an error: its first word, and all of it."""

    text: str

    @property
    def code(self) -> str:
        return self.text.partition(" ")[0]


class Incomplete(Exception):
    """More of the answer is to come."""


def command(*parts: bytes | str) -> bytes:
    """Return one command."""
    return b"*%d\r\n" % len(parts) + b"".join(map(_bulk, parts))


def xadds(records: Records, fields: Fields, maxlen: int | None) -> memoryview:
    """Return one XADD per record, to the stream that is its topic. A joined column lies in one buffer, row by row."""
    trim = [] if maxlen is None else [b"MAXLEN", b"~", b"%d" % maxlen]
    heads = [
        _bulk(b"XADD") + b"".join(map(_bulk, [name, *trim, b"*"])) for name in records.topics.dictionary.to_pylist()
    ]
    head = pa.array(heads, BINARY).take(records.topics.indices)
    words = np.full(len(records), 3 + len(trim))
    parts: list[pa.Array | pa.Scalar] = []
    for name, values in fields:
        words += 2 * np.asarray(values.is_valid())
        parts.append(_field(name, values))
    counts = pa.array(words).cast(pa.string()).cast(BINARY)
    made = pc.binary_join_element_wise(_text(b"*"), counts, _text(b"\r\n"), head, *parts, _text(b""))
    first, last = np.frombuffer(made.buffers()[1], np.int32)[[made.offset, made.offset + len(made)]]
    return memoryview(made.buffers()[2])[int(first) : int(last)]


def added(octets: bytes | bytearray, entries: int) -> bool | None:
    """Whether a transaction of so many XADD and one SET was carried out whole. None: more of the answer is to come.

    False: something else was answered, which `read` has to look into. The answer to MULTI comes first."""
    expected = b"+OK\r\n" + b"+QUEUED\r\n" * (entries + 1) + b"*%d\r\n" % (entries + 1)
    have = octets[: len(expected)]
    if have != expected[: len(have)] or octets.find(b"\n-", len(expected) - 1) >= 0:
        return False
    if len(octets) < len(expected) or octets.count(b"\n", len(expected)) < 2 * entries + 1:
        return None
    return octets.endswith(b"+OK\r\n")


def read(octets: bytes | bytearray, at: int = 0) -> tuple[Any, int]:
    """Return one answer, and where the next one begins. Incomplete when there is more to come."""
    end = octets.find(b"\r\n", at)
    if end < 0:
        raise Incomplete
    kind, rest = octets[at : at + 1], bytes(octets[at + 1 : end])
    at = end + 2
    if kind == b"+":
        return rest, at
    if kind == b"-":
        return RedisError(rest.decode(errors="replace")), at
    if kind == b":":
        return int(rest), at
    size = int(rest)
    if size < 0:
        return None, at
    if kind == b"$":
        if len(octets) < at + size + 2:
            raise Incomplete
        return bytes(octets[at : at + size]), at + size + 2
    if kind == b"*":
        found = []
        for _ in range(size):
            one, at = read(octets, at)
            found.append(one)
        return found, at
    raise ValueError(f"not an answer of Redis: {kind + rest[:40]!r}")


def _bulk(part: bytes | str) -> bytes:
    octets = part if isinstance(part, bytes) else part.encode()
    return b"$%d\r\n%s\r\n" % (len(octets), octets)


def _field(name: bytes, values: pa.Array) -> pa.Array:
    """Return a field with its value; nothing where the value is null."""
    ends = _text(b"\r\n")
    lengths = pc.binary_length(values).cast(pa.string()).cast(BINARY)
    made = pc.binary_join_element_wise(_text(_bulk(name) + b"$"), lengths, ends, values, ends, _text(b""))
    return made if not values.null_count else pc.fill_null(made, b"")


def _text(octets: bytes) -> pa.Scalar:
    return pa.scalar(octets, BINARY)

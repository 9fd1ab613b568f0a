"""NATS' client protocol: messages put together by Arrow kernels, and what the server sends taken apart.

No socket is seen here; `client.py` has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BINARY = pa.binary()
EXPECTED = "Nats-Expected-Last-Sequence"
_VERSION = b"NATS/1.0"

Headers = Sequence[tuple[str, pa.Array]]  # name, and binary values; null: the message has no such header


@dataclass(frozen=True)
class Message:
    """A message that was delivered to us."""

    subject: str
    data: bytes
    headers: bytes = b""

    @property
    def status(self) -> int:
        """The status of an answer without content: 503 when nobody listens. 0 without any."""
        first = self.headers.partition(b"\r\n")[0].removeprefix(_VERSION).split()
        return int(first[0]) if first and first[0].isdigit() else 0


@dataclass(frozen=True)
class Line:
    """Any other thing that the server says: INFO, PING, PONG, +OK, -ERR."""

    kind: str
    text: str = ""


class Parser:
    """Take apart what the server sends."""

    def __init__(self) -> None:
        self._octets = bytearray()

    def feed(self, octets: bytes) -> None:
        self._octets += octets

    def next(self) -> Message | Line | None:
        """Return the next thing that has arrived whole."""
        end = self._octets.find(b"\r\n")
        if end < 0:
            return None
        first = self._octets[:end].decode(errors="replace")
        kind, _, rest = first.partition(" ")
        kind = kind.upper()
        if kind not in ("MSG", "HMSG"):
            del self._octets[: end + 2]
            return Line(kind, rest)
        words = rest.split()
        total = int(words[-1])
        if len(self._octets) < end + 2 + total + 2:
            return None
        body = bytes(self._octets[end + 2 : end + 2 + total])
        del self._octets[: end + 2 + total + 2]
        split = int(words[-2]) if kind == "HMSG" else 0
        return Message(words[0], body[split:], body[:split])


def parse_headers(octets: bytes) -> dict[str, str]:
    """Return the headers of a message; of one that is there twice, the first."""
    found: dict[str, str] = {}
    for line in octets.decode(errors="replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name, value.strip())
    return found


def publish(subject: str, data: bytes, headers: Sequence[tuple[str, str]] = (), reply: str = "") -> bytes:
    """Return one message."""
    to = f"{subject} {reply}" if reply else subject
    if not headers:
        return f"PUB {to} {len(data)}\r\n".encode() + data + b"\r\n"
    head = _VERSION + b"\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers).encode() + b"\r\n"
    return f"HPUB {to} {len(head)} {len(head) + len(data)}\r\n".encode() + head + data + b"\r\n"


def chain(subjects: pa.Array, values: pa.Array, headers: Headers, *, after: int, replies: pa.Array) -> memoryview:
    """Return messages of which each must follow the one before it: the first one the sequence number `after`.

    `replies` says where each is acknowledged: a space and the subject, or nothing. A joined column lies in one buffer,
    row by row."""
    count = len(values)
    expected = pa.array(after + np.arange(count)).cast(pa.string()).cast(BINARY)
    parts = [_text(_VERSION + f"\r\n{EXPECTED}: ".encode()), expected, _text(b"\r\n")]
    parts += [_header(name, column) for name, column in headers]
    header = _join(*parts, _text(b"\r\n"))
    lengths = pc.binary_length(header)
    totals = pc.add(lengths, pc.binary_length(values))
    made = _join(
        _text(b"HPUB "), subjects, replies, _text(b" "), _number(lengths), _text(b" "), _number(totals), _text(b"\r\n"),
        header, values, _text(b"\r\n"),
    )  # fmt: skip
    first, last = np.frombuffer(made.buffers()[1], np.int32)[[made.offset, made.offset + count]]
    return memoryview(made.buffers()[2])[int(first) : int(last)]


def header_bytes(headers: Headers, count: int) -> pa.Array:
    """Return how many bytes the headers of each message take, at most."""
    sizes = pa.array(np.full(count, len(_VERSION) + len(EXPECTED) + 32))
    for name, column in headers:
        sizes = pc.add(sizes, pc.fill_null(pc.add(pc.binary_length(column).cast(pa.int64()), len(name) + 4), 0))
    return sizes


def _header(name: str, column: pa.Array) -> pa.Array:
    made = _join(_text(f"{name}: ".encode()), column, _text(b"\r\n"))
    return made if not column.null_count else pc.fill_null(made, b"")


def _number(column: pa.Array) -> pa.Array:
    return column.cast(pa.string()).cast(BINARY)


def _join(*parts: pa.Array | pa.Scalar) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _text(b""))


def _text(octets: bytes) -> pa.Scalar:
    return pa.scalar(octets, BINARY)

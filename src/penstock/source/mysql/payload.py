"""Compressed transactions of MySQL: an event that holds the events of a whole transaction after its GTID.

They are unpacked piece by piece: a transaction may be much larger than its event.
"""

from __future__ import annotations

from collections.abc import Iterator

import zstandard

from penstock.errors import SourceError
from penstock.source.mysql.events import HEADER

_END, _COMPRESSION = 0, 2
_ZSTD, _NONE = 0, 255
_PIECE = 1 << 20


def unpacked(event: bytes) -> Iterator[bytes]:
    """Yield the events of a payload event (which has no checksum any more). They have none, and no positions."""
    at, compression = HEADER, _ZSTD
    while True:
        kind, at = _number(event, at)
        if kind == _END:
            break
        size, at = _number(event, at)
        if kind == _COMPRESSION:
            compression, _ = _number(event, at)
        at += size
    buffer = bytearray()
    for piece in _pieces(event, at, compression):
        buffer += piece
        start = 0
        while len(buffer) - start >= HEADER:
            size = int.from_bytes(buffer[start + 9 : start + 13], "little")
            if size < HEADER:
                raise SourceError("a compressed transaction of the binlog cannot be read", "Check the server's disk")
            if len(buffer) - start < size:
                break
            yield bytes(memoryview(buffer)[start : start + size])
            start += size
        del buffer[:start]
    if buffer:
        raise SourceError("a compressed transaction of the binlog ends within an event", "Check the server's disk")


def _pieces(event: bytes, at: int, compression: int) -> Iterator[bytes]:
    if compression == _NONE:
        yield event[at:]
    elif compression == _ZSTD:
        try:
            with zstandard.ZstdDecompressor().stream_reader(memoryview(event)[at:]) as reader:
                while piece := reader.read(_PIECE):
                    yield piece
        except zstandard.ZstdError as error:
            raise SourceError(
                f"a compressed transaction of the binlog cannot be unpacked ({error})", "Check the server's disk"
            ) from error
    else:
        raise SourceError(
            f"the binlog has a transaction with compression {compression}, which is not known",
            "Report it, with the server's version",
        )


def _number(event: bytes, at: int) -> tuple[int, int]:
    first = event[at]
    if first < 251:
        return first, at + 1
    width = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(event[at + 1 : at + 1 + width], "little"), at + 1 + width

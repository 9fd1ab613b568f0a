"""Values that MariaDB packs: COMPRESSED columns, and types that the binlog has as BINARY (uuid, inet4, inet6)."""

from __future__ import annotations

import socket
import uuid
import zlib

import pyarrow as pa

UUID, INET4, INET6 = "uuid", "inet4", "inet6"
WIDTHS = {UUID: 16, INET4: 4, INET6: 16}
MOST_BYTES = 1 << 32  # of a value
_METHOD, _ZLIB, _RAW, _LENGTH = 0xF0, 0x80, 8, 7


def unpacked(values: pa.Array) -> pa.Array:
    """Return values of a COMPRESSED column. ValueError where one is damaged."""
    return pa.array([None if one is None else _unpacked(one) for one in values.to_pylist()], pa.binary())


def _unpacked(value: bytes) -> bytes:
    """Unpack a value.

    Its first byte says how: 0 for as it is, else zlib, and how many bytes of length come before the content.
    """
    if not value:
        return value
    head = value[0]
    if head == 0:
        return value[1:]
    if head & _METHOD != _ZLIB:
        raise ValueError(f"a compressed value is packed in a way that is not known ({head:#x})")
    start = 1 + (head & _LENGTH)
    size = int.from_bytes(value[1:start], "big")
    try:
        packer = zlib.decompressobj(-zlib.MAX_WBITS if head & _RAW else zlib.MAX_WBITS)
        content = packer.decompress(value[start:], size + 1)
    except zlib.error as error:
        raise ValueError(f"a compressed value is damaged ({error})") from None
    if len(content) != size or not packer.eof:
        raise ValueError("a compressed value has another length than it says")
    return content


def named_texts(name: str, values: pa.Array) -> pa.Array:
    """Return the texts of a type that is BINARY in the binlog, without the zeros at its end."""
    width = WIDTHS[name]
    texts = [None if one is None else _text(name, one, width) for one in values.to_pylist()]
    return pa.array(texts, pa.string())


def _text(name: str, value: bytes, width: int) -> str:
    if len(value) > width:
        raise ValueError(f"a value of type {name} has {len(value)} bytes")
    whole = value.ljust(width, b"\0")
    if name == UUID:
        return str(uuid.UUID(bytes=whole))
    return socket.inet_ntop(socket.AF_INET if name == INET4 else socket.AF_INET6, whole)

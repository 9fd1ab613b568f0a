"""One message read for an operator, as far as it can be read: what each part says, and where and why it ends.

Byte by byte and without trust, beside `messages.py`, which reads many at once and refuses what is not whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from penstock.model.quarantine import RawMessage

_OPERATIONS = {b"I": "INSERT", b"U": "UPDATE", b"D": "DELETE", b"T": "TRUNCATE"}
_IMAGES = {b"N": "new row", b"K": "old key", b"O": "old row"}
_SHOWN = 60  # characters of a value


class _Unreadable(Exception):
    pass


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self.at

    def take(self, count: int, what: str) -> bytes:
        if count < 0 or count > self.left:
            raise _Unreadable(f"{what} would be {count} bytes, and {self.left} are left")
        taken = self._data[self.at : self.at + count]
        self.at += count
        return taken

    def number(self, form: str, what: str) -> int:
        value: int = struct.unpack(form, self.take(struct.calcsize(form), what))[0]
        return value


def explain(message: RawMessage) -> list[str]:
    """Return lines, each with the place of its first byte; the last one says what could not be read, if anything."""
    reader = _Reader(message.data)
    lines = []
    try:
        for at, line in _parts(reader, message):
            lines.append(f"{at:>8}  {line}")
    except _Unreadable as end:
        lines.append(f"{reader.at:>8}  unreadable from here: {end}")
    else:
        if reader.left:
            lines.append(f"{reader.at:>8}  {reader.left} bytes that belong to nothing")
    return lines


def _parts(reader: _Reader, message: RawMessage) -> Iterator[tuple[int, str]]:
    operation = reader.take(1, "the operation")
    if operation not in _OPERATIONS:
        raise _Unreadable(f"{operation!r} is no operation of a row")
    yield 0, _OPERATIONS[operation]
    if operation == b"T":
        count = reader.number(">I", "the number of tables")
        reader.take(1, "the options")
        for _ in range(count):
            at = reader.at
            yield at, f"of relation {reader.number('>I', 'a relation')}"
        return
    at = reader.at
    relation = reader.number(">I", "the relation")
    whose = (
        "the table's own" if relation == message.schema.relation_id else f"the table's is {message.schema.relation_id}"
    )
    yield at, f"of relation {relation} ({whose})"
    while reader.left:
        at = reader.at
        kind = reader.take(1, "the kind of row")
        if kind not in _IMAGES:
            raise _Unreadable(f"{kind!r} is no kind of row")
        columns = reader.number(">h", "the number of columns")
        yield at, f"{_IMAGES[kind]} of {columns} columns (the table has {len(message.schema.columns)})"
        yield from _cells(reader, message, columns)
        if kind == b"N" or operation == b"D":
            return


def _cells(reader: _Reader, message: RawMessage, columns: int) -> Iterator[tuple[int, str]]:
    for place in range(columns):
        known = message.schema.columns[place] if place < len(message.schema.columns) else None
        name = f"{known.name} ({known.type.name})" if known else f"column {place + 1}"
        at = reader.at
        kind = reader.take(1, f"the kind of {name}")
        match kind:
            case b"n":
                yield at, f"  {name}: NULL"
            case b"u":
                yield at, f"  {name}: unchanged, not sent"
            case b"t":
                length = reader.number(">i", f"the length of {name}")
                text = reader.take(length, name).decode(errors="backslashreplace")
                shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({length} bytes)"
                yield at, f"  {name}: {shown!r}"
            case _:
                raise _Unreadable(f"{kind!r} is no kind of cell, for {name}")

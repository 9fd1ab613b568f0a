"""Located cells into typed Arrow columns. Called by fold, for the images that count; see `messages.py` for the places.

For one column, a BinaryArray over the batch's own bytes with the offsets [start0, end0, start1, end1, …] has the values
at its even places: one `take` gathers them, and the type's parser turns them into the column.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.decode.messages import TEXT, Cells, Messages, Octets, Places
from penstock.decode.types.codec import TypeCodec
from penstock.decode.types.registry import codec
from penstock.errors import ValueDoesNotFit

_SHOWN = 40  # characters of a value in a message


def column(messages: Messages, cells: Cells, index: int) -> pa.Array:
    """One column of the images; null where the cell is NULL or was not sent."""
    return values(messages, index, cells.rows, cells.kind[index], cells.start[index], cells.end[index])


def key_columns(messages: Messages, cells: Cells) -> list[pa.Array]:
    """The key columns, in the key's order. None of their cells may be missing."""
    require_key_cells(messages, cells)
    return [column(messages, cells, messages.schema.index(name)) for name in messages.schema.key]


def require_key_cells(messages: Messages, cells: Cells) -> None:
    for name in messages.schema.key:
        missing = cells.kind[messages.schema.index(name)] != TEXT
        if missing.any():
            raise messages.broken_all(cells.rows[missing].tolist(), f'its key column "{name}" has no value')


def values(messages: Messages, index: int, rows: Places, kind: Octets, start: Places, end: Places) -> pa.Array:
    """Typed values of single cells of column `index`, given in the order of their rows."""
    described = messages.schema.columns[index]
    type_codec = codec(described.type)
    if len(rows) == 0:
        return pa.array([], type_codec.arrow_type)
    texts = _texts(messages.bytes, kind, start, end)
    try:
        return type_codec.parse(texts)
    except ValueError as misfit:
        at = _first_misfit(type_codec, texts)
        text = texts[at].as_py().decode(errors="replace")
        shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
        raise ValueDoesNotFit(
            f'{messages.place(int(rows[at]))}: column "{described.name}" ({described.type.name}): '
            f"{shown!r} does not fit {type_codec.arrow_type}",
            "Give the row a value that fits, or the column another type, at the source; then `penstock resync`",
        ) from misfit


def _texts(data: pa.Buffer, kind: Octets, start: Places, end: Places) -> pa.Array:
    count = len(start)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2], offsets[1::2], offsets[-1] = start, end, end[-1]
    both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), data])
    sent = kind == TEXT
    even = np.arange(0, 2 * count, 2, dtype=np.int32)
    return both.take(pa.array(even, mask=None if sent.all() else ~sent))


def _first_misfit(type_codec: TypeCodec, texts: pa.Array) -> int:
    low, high = 0, len(texts)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            type_codec.parse(texts[low:middle])
        except ValueError:
            high = middle
        else:
            low = middle
    return low

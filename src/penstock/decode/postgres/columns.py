"""Located cells into typed Arrow columns. Called by `reader.py`; see `messages.py` for the places.

For one column, a BinaryArray over the batch's own bytes with the offsets [start0, end0, start1, end1, …] has the values
at its even places: one `take` gathers them, and the type's parser turns them into the column. Only when that fails is
anybody asked which cells it was: they are rescued if there is somewhere to keep them, and otherwise an error.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.decode.postgres.fitting import fitted, original
from penstock.decode.postgres.messages import TEXT, Cells, Messages
from penstock.decode.postgres.types.registry import codec
from penstock.decode.reader import Octets, Places
from penstock.decode.rescue import Into, shown
from penstock.errors import ValueDoesNotFit


def column(messages: Messages, cells: Cells, index: int, into: Into | None = None) -> pa.Array:
    """Return one column of the images; null where the cell is NULL or was not sent.

    Cells that do not fit go to `into`; without it, and in a key column, they are ValueDoesNotFit.
    """
    return values(messages, index, cells.rows, cells.kind[index], cells.start[index], cells.end[index], into)


def key_columns(messages: Messages, cells: Cells) -> list[pa.Array]:
    """Return the key columns, in the key's order. None of their cells may be missing."""
    require_key_cells(messages, cells)
    return [column(messages, cells, messages.schema.index(name)) for name in messages.schema.key]


def require_key_cells(messages: Messages, cells: Cells) -> None:
    for name in messages.schema.key:
        missing = cells.kind[messages.schema.index(name)] != TEXT
        if missing.any():
            raise messages.broken_all(cells.rows[missing].tolist(), f'its key column "{name}" has no value')


def values(
    messages: Messages,
    index: int,
    rows: Places,
    kind: Octets,
    start: Places,
    end: Places,
    into: Into | None = None,
) -> pa.Array:
    """Typed values of single cells of column `index`, given in the order of their rows."""
    described = messages.schema.columns[index]
    type_codec = codec(described.type)
    if len(rows) == 0:
        return pa.array([], type_codec.arrow_type)
    texts = _texts(messages.bytes, kind, start, end)
    try:
        return type_codec.parse(texts)
    except ValueError as unfit:
        misfit = unfit
    fitting, misfits = fitted(type_codec, texts)
    at = np.flatnonzero(misfits)
    if into is None or described.name in messages.schema.key:
        text = original(texts[int(at[0])].as_py())
        raise ValueDoesNotFit(
            f'{messages.place(int(rows[at[0]]))}: column "{described.name}" ({described.type.name}): '
            f"{shown(text)!r} does not fit {type_codec.arrow_type}",
            f"Give the row a value that fits, or carry the column as text (`types: {{{described.name}: text}}` under "
            "its rule in `tables:`); then `penstock resync`",
        ) from misfit
    originals = [original(text) for text in texts.take(pa.array(at)).to_pylist()]
    places = at + into.rows if isinstance(into.rows, int) else into.rows[at]
    into.rescued.keep(into.column, places, originals, messages.order(int(rows[at[0]])))
    return fitting


def _texts(data: pa.Buffer, kind: Octets, start: Places, end: Places) -> pa.Array:
    count = len(start)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2], offsets[1::2], offsets[-1] = start, end, end[-1]
    both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), data])
    sent = kind == TEXT
    even = np.arange(0, 2 * count, 2, dtype=np.int32)
    return both.take(pa.array(even, mask=None if sent.all() else ~sent))

"""Single cells put into decoded columns: the values that `unsent.py` found in earlier images of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.reader import Places
from penstock.decode.rescue import Into
from penstock.fold.unsent import FoundCells

_PIECE_SHIFT = 30  # one value has at most 1 GiB; pieces cut at 1 GiB stay within the 2 GiB that 32-bit offsets reach


def fill(
    chunks: Sequence[pa.Array],
    found: FoundCells,
    into: Into | None,
) -> list[pa.Array]:
    """Return a column, whose rows are numbered through its chunks, with the found cells in their places.

    `into` is where cells go that do not fit.
    """
    filled: list[pa.Array] = []
    begin = 0
    for chunk in chunks:
        inside = np.flatnonzero((found.rows >= begin) & (found.rows < begin + len(chunk)))
        if len(inside) == 0:
            filled.append(chunk)
        else:
            for low, high in _pieces(chunk, found.rows[inside] - begin, found.sizes[inside]):
                here = inside[(found.rows[inside] >= begin + low) & (found.rows[inside] < begin + high)]
                filled.append(_patched(chunk[low:high], begin + low, found, here, into))
        begin += len(chunk)
    return filled


def _pieces(chunk: pa.Array, rows: Places, added: Places) -> list[tuple[int, int]]:
    """Return ranges of rows that one array holds, filled."""
    if not (pa.types.is_string(chunk.type) or pa.types.is_binary(chunk.type)):
        return [(0, len(chunk))]
    size: Places = np.array(pc.fill_null(pc.binary_length(chunk), 0), np.int64)
    size[rows] += added
    piece = np.cumsum(size) >> _PIECE_SHIFT
    return list(pairwise([0, *(np.flatnonzero(np.diff(piece)) + 1).tolist(), len(chunk)]))


def _patched(chunk: pa.Array, begin: int, found: FoundCells, cells: Places, into: Into | None) -> pa.Array:
    arrays = [chunk]
    picked = np.arange(len(chunk))
    end = len(chunk)
    for number in np.unique(found.source[cells]).tolist():
        of_source = cells[found.source[cells] == number]
        of_source = of_source[np.argsort(found.at[of_source])]
        kept = None if into is None else replace(into, rows=found.rows[of_source])
        decoded = found.values(number, found.at[of_source], kept)
        arrays.append(decoded if decoded.type == chunk.type else decoded.cast(chunk.type))
        picked[found.rows[of_source] - begin] = end + np.arange(len(of_source))
        end += len(of_source)
    return pa.concat_arrays(arrays).take(pa.array(picked))

"""Rescue: a cell whose value its column cannot hold is null there, and its original text is kept beside the row.

A source's decoder finds such cells; `Rescued` gathers those of all columns of some rows, and makes of them what
destinations put into the column RESCUED: a map from column to text, null for a row that has none. Used for the stream
and for the copy, so both say the same. Columns in which everything fits do not come here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.rescue import RescueCount, merged

RESCUED = "_rescued"
RESCUED_TYPE = pa.map_(pa.string(), pa.string())
_SHOWN = 40  # characters of a value in a message


Places = npt.NDArray[np.int64]


class Rescued:
    """The rescued cells of rows that are numbered from 0."""

    def __init__(self) -> None:
        self._rows: list[Places] = []
        self._names: list[str] = []
        self._texts: list[list[str]] = []
        self._counts: dict[str, RescueCount] = {}

    def keep(self, column: str, rows: Places, texts: Sequence[str], place: str) -> None:
        """Keep one or more cells of a column; `place` is where the first of them came from."""
        self._rows.append(rows)
        self._names.append(column)
        self._texts.append(list(texts))
        count = RescueCount(column, len(texts), shown(texts[0]), place)
        self._counts = {one.column: one for one in merged([*self._counts.values(), count])}

    @property
    def counts(self) -> tuple[RescueCount, ...]:
        return tuple(self._counts.values())

    def cells(self, rows: int) -> pa.Array | None:
        """Return an array of RESCUED_TYPE, one for each row; None when nothing was rescued."""
        if not self._rows:
            return None
        names = [name for name, texts in zip(self._names, self._texts, strict=True) for _ in texts]
        texts = [text for some in self._texts for text in some]
        return rescued_cells(rows, np.concatenate(self._rows), names, texts)


@dataclass(frozen=True)
class Into:
    """Where the cells of a column go that do not fit: the column's name there, and the rows that the cells belong to.

    `rows` is the first of them when they follow one another.
    """

    rescued: Rescued
    column: str
    rows: Places | int = 0


def rescued_cells(rows: int, places: Places, names: Sequence[str], texts: Sequence[str]) -> pa.Array:
    """Return cells given by row, column and text, as an array of RESCUED_TYPE."""
    order = np.argsort(places, kind="stable")
    offsets = np.searchsorted(places[order], np.arange(rows + 1)).astype(np.int32)
    taken = pa.array(order)
    return pa.MapArray.from_arrays(
        pa.array(offsets),
        pa.array(names, pa.string()).take(taken),
        pa.array(texts, pa.string()).take(taken),
        mask=pa.array(np.diff(offsets) == 0),
    )


def with_cells(
    rescued: pa.Array | None,
    rows: int,
    places: Places,
    names: Sequence[str],
    texts: Sequence[str],
) -> pa.Array | None:
    """Combine what was rescued of some rows with further cells.

    Each of those is of another row or column than all that are there.
    """
    if len(places) == 0:
        return rescued
    if rescued is None:
        return rescued_cells(rows, places, names, texts)
    at, known_names, known_texts = entries(rescued)
    return rescued_cells(rows, np.concatenate([at, places]), [*known_names, *names], [*known_texts, *texts])


def entries(cells: pa.Array) -> tuple[Places, list[str], list[str]]:
    """Return row, column and text of every cell that an array of RESCUED_TYPE holds."""
    some = cells.drop_null().to_pylist()
    rows = np.repeat(np.flatnonzero(np.asarray(cells.is_valid())), np.array([len(one) for one in some], np.int64))
    found = [cell for one in some for cell in one]
    return rows, [name for name, _ in found], [text for _, text in found]


def renamed(cells: pa.Array, names: Mapping[str, str]) -> pa.Array | None:
    """Return the cells of the columns that `names` has, under other names; None when there are none of them."""
    rows, columns, texts = entries(cells)
    kept = np.array([name in names for name in columns], np.bool_)
    if not kept.any():
        return None
    chosen = np.flatnonzero(kept).tolist()
    return rescued_cells(len(cells), rows[kept], [names[columns[n]] for n in chosen], [texts[n] for n in chosen])


def followed(cells: pa.Array, names: Mapping[str, str | None]) -> pa.Array:
    """Return the cells under the names that their columns have now.

    Cells whose column is None in `names` are left out, and those of columns that it does not have stay as they are.
    """
    rows, columns, texts = entries(cells)
    now = [(place, name) for place, one in enumerate(columns) if (name := names.get(one, one)) is not None]
    kept = np.array([place for place, _ in now], np.int64)
    return rescued_cells(len(cells), rows[kept], [name for _, name in now], [texts[place] for place, _ in now])


def whole(cells: pa.ChunkedArray | pa.Array) -> pa.Array | None:
    """Return a column of RESCUED_TYPE as one array; None when it holds nothing."""
    if isinstance(cells, pa.ChunkedArray):
        cells = pa.concat_arrays(cells.chunks) if cells.num_chunks else pa.array([], cells.type)
    return None if cells.null_count == len(cells) else cells


def counted(cells: pa.Array | None, place_of: Callable[[str], str]) -> tuple[RescueCount, ...]:
    """Count the cells per column; `place_of` says where one of a column's came from."""
    if cells is None:
        return ()
    _, columns, texts = entries(cells)
    samples = dict(zip(columns, texts, strict=True))
    return tuple(RescueCount(one, columns.count(one), shown(text), place_of(one)) for one, text in samples.items())


def rescued_of(cells: pa.Array, column: str) -> pa.Array:
    """Return the rescued texts of one column, null where there is none, from an array of RESCUED_TYPE."""
    return pc.map_lookup(cells, pa.scalar(column), "first")


def shown(text: str) -> str:
    """Enough of a value for a message."""
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"

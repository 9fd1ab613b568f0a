"""Where row images begin and end in bytes of a binlog, and where each of their cells lies. Lengths only, no values.

An image is a bitmap of its NULLs, then the values of the others. Nothing loops over rows: runs of columns of one width
are one step for all rows at once, and what is NULL among them is looked up by the bitmap's bytes. Only columns that
say their length are visited one by one. Used by capture, to cut events into rows, and by reader.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.decode.mysql.types import fixed_width, length_bytes
from penstock.decode.reader import Mask, Octets, Places
from penstock.model.table import Column

PAD = 16  # zeros behind the bytes, so that a read of 8 bytes never passes their end
FEW = 24  # events: rows of so few are found one by one


class Unwalkable(ValueError):
    """Bytes that are no row images of the table."""


def padded(content: bytes | memoryview) -> Octets:
    octets = np.zeros(len(content) + PAD, np.uint8)
    octets[: len(content)] = np.frombuffer(content, np.uint8)
    return octets


def view(octets: Octets, number: str) -> npt.NDArray[Any]:
    """Return numbers of a type that begin at any byte."""
    return np.ndarray((octets.size - np.dtype(number).itemsize + 1,), number, octets.data, 0, (1,))


@dataclass(frozen=True)
class _Step:
    """Fixed bytes less those of NULLs, then one column that says its length (`length` 0: none)."""

    fixed: int
    less: tuple[tuple[int, Places], ...]  # byte of the bitmap, and what its bits take away
    length: int
    place: int


@dataclass(frozen=True)
class Cells:
    """One column of some images: where each value starts and ends, and which are NULL."""

    start: Places
    end: Places
    null: Mask


class RowLayout:
    """Images that have all of the columns."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.widths = [fixed_width(column.type) for column in columns]
        self.lengths = [
            length_bytes(column.type) if width is None else 0
            for column, width in zip(columns, self.widths, strict=True)
        ]
        self.nulls = (len(columns) + 7) // 8
        self._steps: list[_Step] = []
        fixed, less = 0, dict[int, Places]()
        for place, (width, length) in enumerate(zip(self.widths, self.lengths, strict=True)):
            if width is None:
                self._steps.append(_Step(fixed, tuple(less.items()), length, place))
                fixed, less = 0, {}
                continue
            fixed += width
            taken = less.setdefault(place >> 3, np.zeros(256, np.int64))
            taken[np.arange(256) >> (place & 7) & 1 == 1] += width
        self._steps.append(_Step(fixed, tuple(less.items()), 0, 0))

    def after(self, octets: Octets, at: Places) -> Places:
        """Return where the images end that begin at `at`, which may lie past the bytes: the caller compares."""
        last = octets.size - PAD
        if at.size and int(at.max()) + self.nulls > last:
            raise Unwalkable("an image ends before its columns")
        position = at + self.nulls
        for step in self._steps:
            position = position + step.fixed
            for byte, table in step.less:
                position -= table[octets[at + byte]]
            if step.length:
                if position.size and int(position.max()) > last:
                    raise Unwalkable("a value reaches past its end")
                there = (octets[at + (step.place >> 3)] >> (step.place & 7) & 1) == 0
                position = position + np.where(there, step.length + _lengths(octets, position, step.length), 0)
        return position

    def after_one(self, octets: bytes, at: int) -> int:
        """Do the same for one image."""
        position = at + self.nulls
        for step in self._steps:
            position += step.fixed
            for byte, table in step.less:
                position -= int(table[octets[at + byte]])
            if step.length and not octets[at + (step.place >> 3)] >> (step.place & 7) & 1:
                position += step.length + int.from_bytes(octets[position : position + step.length], "little")
        return position

    def cells(self, octets: Octets, at: Places, columns: int) -> tuple[list[Cells], Places]:
        """Return the first columns of images, which were walked before, and where these columns end."""
        position = at + self.nulls
        found: list[Cells] = []
        for place in range(columns):
            null = (octets[at + (place >> 3)] >> (place & 7) & 1).astype(np.bool_)
            width, length = self.widths[place], self.lengths[place]
            if width is not None:
                start = position
                position = start + np.where(null, 0, width)
            else:
                start = position + np.where(null, 0, length)
                position = start + np.where(null, 0, _lengths(octets, position, length))
            found.append(Cells(start, position, null))
        return found, position


def _lengths(octets: Octets, at: Places, size: int) -> Places:
    if size == 1:
        return octets[at].astype(np.int64)
    number = view(octets, "<u4")[at].astype(np.int64)
    return number & (1 << 8 * size) - 1


def locate(layout: RowLayout, octets: Octets, starts: Places, ends: Places, images: int) -> tuple[Places, Places]:
    """Cut events into rows of so many images each.

    Return each row's event and start, in order; a row ends where the next begins, or with its event. Unwalkable when
    the rows do not fill an event exactly.
    """
    whose: list[Places] = []
    found: list[Places] = []
    steps: list[Places] = []
    index, cursor, limit, step = np.arange(len(starts)), starts, ends, 0
    active = cursor < limit
    index, cursor, limit = index[active], cursor[active], limit[active]
    while len(index) > FEW:
        whose.append(index)
        found.append(cursor)
        steps.append(np.full(len(index), step))
        for _ in range(images):
            cursor = layout.after(octets, cursor)
        if (cursor > limit).any():
            raise Unwalkable("a row reaches past its event")
        active = cursor < limit
        index, cursor, limit = index[active], cursor[active], limit[active]
        step += 1
    if len(index):
        _one_by_one(layout, octets, (index, cursor, limit), images, step, (whose, found, steps))
    if not whose:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    event, start = np.concatenate(whose), np.concatenate(found)
    order = np.lexsort((np.concatenate(steps), event))
    return event[order], start[order]


def _one_by_one(
    layout: RowLayout,
    octets: Octets,
    events: tuple[Places, Places, Places],
    images: int,
    step: int,
    into: tuple[list[Places], list[Places], list[Places]],
) -> None:
    content = octets.tobytes()
    rows: list[tuple[int, int, int]] = []
    for index, begin, end in zip(*(one.tolist() for one in events), strict=True):
        at, row = begin, step
        while at < end:
            rows.append((index, at, row))
            for _ in range(images):
                if at + layout.nulls > end:
                    raise Unwalkable("an image ends before its columns")
                at = layout.after_one(content, at)
            row += 1
        if at != end:
            raise Unwalkable("a row reaches past its event")
    columns = np.array(rows, np.int64).reshape(-1, 3)
    for target, values in zip(into, columns.T, strict=True):
        target.append(np.ascontiguousarray(values))

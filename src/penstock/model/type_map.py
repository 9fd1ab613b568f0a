"""Define type maps: which types a destination's columns can have, and how its columns may be widened, as data.

Decoding gives each value the widest Arrow type that holds it exactly. A destination that lacks one of these types says
so here, and the source's dialect then gives it the closest type that it has (`ColumnType.held_as`). A value that does
not fit that type is rescued. Used by `decode/choices.py`, which fits schemas to a map, and by `fold/evolution.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

TEXT = "text"
MOST_DIGITS = 76  # of Arrow's widest decimal

Widening = tuple[pa.DataType, pa.DataType]
_WIDENINGS: frozenset[Widening] = frozenset(
    {
        (pa.int16(), pa.int32()),
        (pa.int16(), pa.int64()),
        (pa.int32(), pa.int64()),
        (pa.float32(), pa.float64()),
    }
)


@dataclass(frozen=True)
class TypeMap:
    """What a destination's columns can hold.

    `any_number` is how numbers are carried whose declaration allows more digits than `digits`: as their text, or as a
    `decimal(p,s)`, in which case a declared scale is kept if it fits. `widenings` lists the types that a column may be
    widened from and to with its rows in place; decimals of one scale may get more digits everywhere. With `own_texts`
    values other than integers and booleans are carried as the text that their source writes, for a destination that
    reads it; sources that write no texts are not concerned.
    """

    int16: bool = True
    time: bool = True  # of day, to the microsecond
    digits: int = MOST_DIGITS  # of its widest decimal
    any_number: str = TEXT
    widenings: frozenset[Widening] = _WIDENINGS
    own_texts: bool = False

    def widens(self, before: pa.DataType, after: pa.DataType) -> bool:
        """Return whether a column of the one type can become one of the other, every value staying the same."""
        if pa.types.is_decimal(before) and pa.types.is_decimal(after):
            return bool(before.scale == after.scale and before.precision < after.precision <= self.digits)
        return (before, after) in self.widenings


WIDEST = TypeMap()
# For streams, whose events have values as the source writes them: what values are while they are compared and masked.
AS_WRITTEN = TypeMap(time=False, any_number="decimal(38,18)")

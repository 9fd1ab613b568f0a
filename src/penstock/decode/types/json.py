"""json and jsonb: their text, byte for byte, as a string. See codec.py for the shape of these modules.

Nothing is parsed: numbers of any size, key order and (for json) duplicate keys and white space stay what they were.
"""

from __future__ import annotations

from penstock.decode.types import text
from penstock.decode.types.codec import TypeCodec
from penstock.model.table import ColumnType

OIDS = frozenset({114, 3802})


def codec(type: ColumnType) -> TypeCodec:
    return text.codec(type)

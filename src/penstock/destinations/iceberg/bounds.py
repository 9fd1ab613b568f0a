"""Read between which keys a data file's rows are, from what its writer told Iceberg of its columns.

Files that hold none of the keys that a batch touches need not be opened: `key_index` passes them over. Only whole
numbers and texts are compared; of a long text Iceberg keeps the beginning, rounded outwards.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.file_list import Bounds

_WHOLE = {4: "<i", 8: "<q"}


def described_bounds(description: Mapping[str, Any], column: LakeColumn | None) -> Bounds | None:
    """Return the bounds of a column that the description of a file of ours has."""
    if column is None:
        return None
    lower, upper = (_of(description.get(name), column.id) for name in ("lower-bounds", "upper-bounds"))
    return bounds(lower, upper, column)


def bounds(lower: str, upper: str, column: LakeColumn) -> Bounds | None:
    """Return the bounds of a column from Iceberg's octets, as hexadecimal texts; "" where there is none."""
    if not lower or not upper:
        return None
    low, high = _value(bytes.fromhex(lower), column.type), _value(bytes.fromhex(upper), column.type)
    return None if low is None or high is None else Bounds(column.id, low, high)


def _of(bounds: Mapping[str, Any] | None, column: int) -> str:
    if bounds is None or column not in bounds["keys"]:
        return ""
    return str(bounds["values"][bounds["keys"].index(column)])


def _value(octets: bytes, type: pa.DataType) -> int | bytes | None:
    if pa.types.is_integer(type) and len(octets) in _WHOLE:
        return int(struct.unpack(_WHOLE[len(octets)], octets)[0])
    return octets if pa.types.is_string(type) else None

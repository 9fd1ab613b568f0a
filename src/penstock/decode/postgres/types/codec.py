"""What a type family gives: the Arrow type of its columns and the parser of their texts.

Every module of this folder has the same shape: SERVED, the lines of the table of types that it answers for, each with
the function that makes a codec. `registry.py` joins them; `decode/postgres/columns.py` and the copy call `parse`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.model.table import ColumnType

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TypeCodec:
    """`parse` takes a BinaryArray of texts (null: SQL NULL) to an array of `arrow_type`, null where it was null.

    A text that `arrow_type` cannot hold makes it raise ValueError (pyarrow's ArrowInvalid is one); never a wrong value.
    `misfits`, where a family has one, recognises many of those texts at once; it need not know all of them.
    """

    arrow_type: pa.DataType
    parse: Callable[[pa.Array], pa.Array]
    misfits: Callable[[pa.Array], Mask] | None = None


@dataclass(frozen=True)
class Served:
    """A line of the table of types: which source types, and what becomes of them. The words are for people."""

    types: Mapping[str, int]  # name in the catalogue, OID; 0 where a server gives it when an extension is made
    codec: Callable[[ColumnType], TypeCodec]
    arrow: str
    iceberg: str
    exact: str  # what is the same afterwards
    rescued: str = ""  # what does not fit


def as_text(texts: pa.Array) -> pa.Array:
    """Return the same bytes as strings without checking their encoding.

    For parsers that refuse whatever is not ASCII.
    """
    return pa.Array.from_buffers(pa.string(), len(texts), texts.buffers(), texts.null_count, texts.offset)


def cast_codec(arrow_type: pa.DataType) -> TypeCodec:
    """For types whose Postgres text is what Arrow's own cast reads."""
    return TypeCodec(arrow_type, lambda texts: as_text(texts).cast(arrow_type))

"""What a type family gives: the Arrow type of its columns and the parser of their texts.

Every module of this folder has the same shape: `OIDS`, the source types it serves, and `codec(type)`. `registry.py`
joins them; `decode/columns.py` calls `parse`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class TypeCodec:
    """`parse` takes a BinaryArray of texts (null: SQL NULL) to an array of `arrow_type`, null where it was null.

    A text that `arrow_type` cannot hold makes it raise ValueError (pyarrow's ArrowInvalid is one); never a wrong value.
    """

    arrow_type: pa.DataType
    parse: Callable[[pa.Array], pa.Array]


def as_text(texts: pa.Array) -> pa.Array:
    """The same bytes as strings, without a look at their encoding: for parsers that refuse whatever is not ASCII."""
    return pa.Array.from_buffers(pa.string(), len(texts), texts.buffers(), texts.null_count, texts.offset)


def cast_codec(arrow_type: pa.DataType) -> TypeCodec:
    """For types whose Postgres text is what Arrow's own cast reads."""
    return TypeCodec(arrow_type, lambda texts: as_text(texts).cast(arrow_type))

"""Text, exactly as sent (char(n) with its padding), and whatever no other module serves.

Arrow checks that it is UTF-8: a database with encoding SQL_ASCII may hold what is not.
See codec.py for the shape of these modules.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.decode.postgres.types.codec import Served, TypeCodec
from penstock.model.table import ColumnType


def codec(type: ColumnType) -> TypeCodec:
    return _CODEC


def as_sent(*names_and_oids: tuple[str, int], exact: str = "its text, as Postgres writes it") -> Served:
    """Return a line of types that are carried as their text."""
    return Served(dict(names_and_oids), codec, "string", "string", exact)


def _parse(texts: pa.Array) -> pa.Array:
    return texts.cast(pa.string())


_CODEC = TypeCodec(pa.string(), _parse)

SERVED = (
    as_sent(("text", 25), ("varchar", 1043), ("name", 19), ("char", 18), ("citext", 0), exact="every character"),
    as_sent(("bpchar", 1042), exact="every character, char(n) with its padding"),
)

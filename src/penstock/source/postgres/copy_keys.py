"""Single rows of a table by their keys, as conditions for copy_read.py: Arrow columns in, SQL out.

A key's values are written as Postgres writes them, so that each column's own type reads them back. Conditions are cut
into pieces that an index answers. Where equality is wider than sameness (a collation without regard to case) more rows
may satisfy them than were meant: the caller looks at the keys of what it gets.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.source.postgres.statements import literal, quoted, quoted_list

KEYS_A_QUERY = 500


def key_conditions(key: Sequence[str], rows: pa.Table) -> list[str]:
    """Conditions that together are true of these keys; `rows` has the key's columns as decode makes them."""
    columns = [[literal(text) for text in _texts(rows[name])] for name in key]
    conditions = []
    for start in range(0, rows.num_rows, KEYS_A_QUERY):
        piece = [column[start : start + KEYS_A_QUERY] for column in columns]
        if len(piece) == 1:
            conditions.append(f"{quoted(key[0])} IN ({', '.join(piece[0])})")
        else:
            tuples = ", ".join(f"({', '.join(values)})" for values in zip(*piece, strict=True))
            conditions.append(f"({quoted_list(key)}) IN ({tuples})")
    return conditions


def _texts(column: pa.ChunkedArray) -> list[str]:
    type = column.type
    if pa.types.is_binary(type):
        return ["\\x" + value.hex() for value in column.to_pylist()]
    if pa.types.is_float32(type):
        return [str(value) for value in column.to_numpy()]
    if pa.types.is_float64(type):
        return [repr(value) for value in column.to_pylist()]
    if pa.types.is_temporal(type):
        # Years past 9999 have a sign in Arrow's text, and none in Postgres's.
        return [str(text).removeprefix("+") for text in column.cast(pa.string()).to_pylist()]
    return [str(text) for text in column.cast(pa.string()).to_pylist()]

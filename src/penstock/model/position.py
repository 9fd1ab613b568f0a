"""Positions: an unsigned 64-bit number with an order, and nothing more outside `source/`.

A position is exclusive: everything before it is contained. A transaction is skipped if and only if
`commit_lsn < position`.
"""

from __future__ import annotations

Position = int


def position_text(position: Position) -> str:
    """Fixed-width hexadecimal, so that text order is stream order."""
    return f"{position:016x}"


def parse_position(text: str) -> Position:
    return int(text, 16)


def order_text(commit_lsn: Position, tx_ordinal: int) -> str:
    """The place of one change in the stream; text order is stream order."""
    return f"{commit_lsn:016x}/{tx_ordinal:016x}"


def parse_order(text: str) -> tuple[Position, int]:
    """The inverse of `order_text`. ValueError when the text is none."""
    commit_lsn, divider, tx_ordinal = text.partition("/")
    if not divider:
        raise ValueError(f"{text} is not the place of a change")
    return int(commit_lsn, 16), int(tx_ordinal, 16)

"""Define positions: unsigned 64-bit numbers with an order, and nothing more outside `source/`.

A position is exclusive: everything before it is contained. A transaction is skipped if and only if
`commit_position < position`. Users see and give positions as Postgres writes them (`0/16B3748`); where text is stored
and sorted, they are 16 hexadecimal digits.
"""

from __future__ import annotations

import re

Position = int

LAST = 2**63 - 1  # an ordinal behind all changes of a transaction

_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_ORDINAL = re.compile(r"-?[0-9]{1,19}")  # -1: before the first change; LAST: the commit
_STORED = re.compile(r"[0-9A-Fa-f]{16}")
_STORED_ORDER = re.compile(r"([0-9A-Fa-f]{16})/([0-9A-Fa-f]{16})")


def position_text(position: Position) -> str:
    """Format a position as Postgres does: `16/B374D848`."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def stored_text(position: Position) -> str:
    """Format a position in fixed-width hexadecimal, so that text order is stream order."""
    return f"{position:016x}"


def parse_position(text: str) -> Position:
    """Parse either format. ValueError for any other text."""
    if (parts := _LSN.fullmatch(text)) is not None:
        return (int(parts[1], 16) << 32) | int(parts[2], 16)
    if _STORED.fullmatch(text):
        return int(text, 16)
    raise ValueError(f"{text} is no position; one looks like 0/16B3748")


def order_text(commit_position: Position, ordinal: int) -> str:
    """Return the place of one change in the stream: its transaction's commit, and its number there. `0/16B3740:2`."""
    return f"{position_text(commit_position)}:{ordinal}"


def parse_order(text: str) -> tuple[Position, int]:
    """Return the inverse of `order_text`; a position alone stands for the end of the transaction committed there.

    Texts of earlier versions (two numbers of 16 hexadecimal digits) are read too. ValueError when the text is none of
    these.
    """
    if (stored := _STORED_ORDER.fullmatch(text)) is not None:
        return int(stored[1], 16), int(stored[2], 16)
    commit_position, divider, ordinal = text.partition(":")
    if not divider:
        return parse_position(text), LAST
    if not _ORDINAL.fullmatch(ordinal):
        raise ValueError(f"{text} is not the place of a change")
    return parse_position(commit_position), int(ordinal)

"""Dead letters: events that a stream goes on without, because the event itself is to blame.

It cannot be rendered, is too large, or the destination refuses it. A letter is kept first, and then the stream goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.table import TableId


@dataclass(frozen=True)
class DeadLetter:
    """`place` is the record's own, which with the table is unique. `value` is the rendered record, or what there was of
    the event when it could not be rendered. `code` is a short word for the kind of trouble, `reason` says it in full.
    """

    table: TableId
    place: str
    key: bytes | None
    value: bytes | None
    code: str
    reason: str

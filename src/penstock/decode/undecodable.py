"""The error for messages that cannot be decoded, with the messages themselves; raised by decoders and folds."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import MessageNotDecodable
from penstock.model.quarantine import RawMessage


class Undecodable(MessageNotDecodable):
    """`messages` are to be kept in quarantine.

    `rows` are the numbers, in the batch at hand, of all that failed the check which raised it: `sift.py` leaves those
    out and goes on.
    """

    messages: tuple[RawMessage, ...] = ()
    rows: tuple[int, ...] = ()

    def keeping(self, messages: Sequence[RawMessage]) -> Undecodable:
        """Return the same error with other messages to keep; without row numbers, which mean nothing elsewhere."""
        error = Undecodable(self.what, self.solution)
        error.messages = tuple(messages)
        return error

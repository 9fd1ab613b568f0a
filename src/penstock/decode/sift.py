"""Tells the messages of a raw batch that can be decoded from those that cannot. For batches in which one has failed.

A message is fit when its images and keys are found whole; whether a value fits its column's type is no question here.
Each pass leaves out all messages that fail the same check, so the passes are as many as there are ways to be broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from penstock.decode.dialect import read
from penstock.decode.undecodable import Undecodable
from penstock.model.change import RawChanges
from penstock.model.position import Position
from penstock.model.quarantine import RawMessage, raw_message


def sift(changes: RawChanges) -> tuple[RawChanges, list[RawMessage]]:
    """Return the fit messages, and the others with their reasons; both in stream order."""
    left = np.arange(changes.batch.num_rows)
    reasons: dict[int, str] = {}
    fit = changes
    while True:
        try:
            read(fit).check()
        except Undecodable as error:
            failed = list(error.rows)
            reasons.update(dict.fromkeys(left[failed].tolist(), error.messages[0].reason))
            left = np.delete(left, failed)
            fit = RawChanges(changes.schema, changes.batch.take(pa.array(left)))
        else:
            return fit, [raw_message(changes, row, reasons[row]) for row in sorted(reasons)]


def unfit(changes: Iterable[RawChanges], *, position: Position, most: int, most_bytes: int) -> list[RawMessage]:
    """Return the messages of commit_position >= position that cannot be decoded, up to so many and so many bytes.

    At least one is returned, if there is one.
    """
    found: list[RawMessage] = []
    for one in changes:
        wanted = np.asarray(one.batch.column("commit_position")) >= np.uint64(position)
        found += sift(RawChanges(one.schema, one.batch.filter(pa.array(wanted))))[1]
        if len(found) > most or sum(len(message.data) for message in found) > most_bytes:
            break
    return limited(found, most, most_bytes)


def limited(messages: Sequence[RawMessage], most: int, most_bytes: int) -> list[RawMessage]:
    """Return the first of them, up to so many and so many bytes; one at least, if there is one."""
    sizes = np.cumsum([len(message.data) for message in messages])
    return list(messages[: max(1, min(most, int(np.searchsorted(sizes, most_bytes, side="right"))))])

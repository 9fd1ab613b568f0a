"""`penstock.Destination`: the class that a user extends to send events anywhere. It needs to know nothing of Spark.

Calls come one at a time, from one thread. `write_events` is all that must be written.
"""

from __future__ import annotations

from enum import Enum

from penstock.destinations.python.batch import Events
from penstock.model.table import TableId


class Delivery(Enum):
    """What a returned call of `write_events` means."""

    DURABLE = "durable"  # the events survive anything
    ACCEPTED = "accepted"  # they do once `flush` has returned


DURABLE, ACCEPTED = Delivery.DURABLE, Delivery.ACCEPTED


class Destination:
    """Where events go. Extend it and write `write_events`.

    **Order.** Events of a stream come in the order of their commits. A batch may begin or end inside a transaction.

    **Delivery.** A batch whose call has returned (and, if it was only ACCEPTED, was flushed) is not sent again. One
    that was interrupted is sent again, whole or in other pieces: without a position of its own a destination gets
    events at least once. One that has `position` gets each exactly once.

    **Exactly once.** Store `events.position` with the events, in one transaction, and have `position` return what is
    stored. If others may write at the same time (`where: executors`), store it only where `events.previous` is still
    there, and raise `penstock.Overtaken` otherwise. A batch without events has a position to store, too.

    **Errors.** OSError (and so ConnectionError and TimeoutError) and `penstock.DestinationUnreachable` mean that nobody
    answers: the batch is sent again, later each time, and no table is blamed. `penstock.RecordRefused` names events
    that are refused: they become dead letters. Any other exception is the table's that the events belong to: it
    becomes Errored with the exception's text, and the other tables go on.
    """

    def startup(self) -> None:
        """Get ready. Called once, before anything else."""

    def shutdown(self) -> None:
        """Let go of everything. Called once, at the end, unless the process is killed."""

    def begin_copy(self, table: TableId) -> None:
        """Remove what is held of a table: all of its rows follow. Called again when a copy was interrupted."""

    def write_rows(self, rows: Events) -> Delivery | None:
        """Take rows of a copy, as `Read` events of one table. By default they go to `write_events`."""
        return self.write_events(rows)

    def write_events(self, events: Events) -> Delivery | None:
        """Take a batch of events. Nothing returned means DURABLE."""
        raise NotImplementedError(f"{type(self).__name__} has no write_events")

    def flush(self) -> None:
        """Return when everything that was accepted is durable."""

    def position(self, stream: str) -> str | None:
        """Return what was last stored as `events.position` for the stream; None before the first batch.

        Without a method of its own a destination has no position, and penstock keeps one for it."""
        raise NotImplementedError


def keeps_position(destination: Destination) -> bool:
    """Return whether a destination stores positions itself."""
    return type(destination).position is not Destination.position

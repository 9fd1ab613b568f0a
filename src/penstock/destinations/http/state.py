"""What a shard's newest record says: how far it is, and what is being sent."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.destinations.stream_contract import ShardPlace


@dataclass(frozen=True)
class Outbox:
    """A publication: its file, where it leads, and how much of it is sent.

    `cuts` are the sizes of the parts of the present request, from row `sent` on, if that has been cut. `refused` are
    rows that the receiver refused, with its reasons. `is_closed`: no more of it will be sent."""

    file: str
    number: int
    rows: int
    upto: ShardPlace
    sent: int = 0
    cuts: tuple[int, ...] = ()
    refused: dict[int, str] = field(default_factory=dict)
    is_closed: bool = False


@dataclass(frozen=True)
class State:
    """`publications` is how many there have been.

    `outboxes` has the one that is under way, and those before it that were sent but for what the receiver refused: the
    place moves when nothing is refused any more.
    """

    at: ShardPlace
    publications: int = 0
    outboxes: tuple[Outbox, ...] = ()
    not_before: float = 0.0  # seconds since 1970: the receiver asked to be left alone until then

    @property
    def unsent(self) -> Outbox | None:
        """The publication that is not sent completely, if there is one."""
        return self.outboxes[-1] if self.outboxes and not self.outboxes[-1].is_closed else None

    def to_record(self) -> dict[str, Any]:
        """Return the state as JSON has it."""
        outboxes = [{**asdict(one), "upto": one.upto.to_text()} for one in self.outboxes]
        return {**asdict(self), "at": self.at.to_text(), "outboxes": outboxes}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> State:
        outboxes = tuple(
            Outbox(
                **{
                    **one,
                    "upto": ShardPlace.from_text(one["upto"]),
                    "cuts": tuple(one["cuts"]),
                    "refused": {int(row): reason for row, reason in one["refused"].items()},
                }
            )
            for one in record["outboxes"]
        )
        return cls(ShardPlace.from_text(record["at"]), record["publications"], outboxes, record["not_before"])

"""Which destinations must have what the source wrote before it counts as delivered, as arithmetic over names.

The slot never waits for a destination: everything is in the change log first. The policy decides what `status`,
`run --once` and `wait` call delivered, and which destinations hold the log (docs/several-destinations.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from penstock.config.section import Section


class CommitPolicyConfig(Section):
    """`commit_policy:` of the file."""

    mode: Literal["required", "all", "quorum"] = "required"
    quorum: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True)
class CommitPolicy:
    """`least` of the destinations `among` must have it."""

    among: frozenset[str]
    least: int

    def is_met(self, done: Mapping[str, bool]) -> bool:
        """Whether what `done` says of each destination is enough."""
        return sum(done.get(name, False) for name in self.among) >= self.least

    def reached(self, positions: Mapping[str, int]) -> int:
        """Return the position that enough destinations have reached; one that is not named stands at 0."""
        ordered = sorted((positions.get(name, 0) for name in self.among), reverse=True)
        return ordered[self.least - 1]


def policy_of(config: CommitPolicyConfig, destinations: Sequence[tuple[str, bool]]) -> CommitPolicy:
    """`destinations`: their names, and whether each is required. ValueError when the policy can never hold."""
    everyone = frozenset(name for name, _ in destinations)
    if config.mode == "quorum":
        if config.quorum is None:
            raise ValueError("has mode quorum, and not how many: say `quorum: 2`")
        if config.quorum > len(everyone):
            raise ValueError(f"asks for {config.quorum} destinations, and there are {len(everyone)}")
        return CommitPolicy(everyone, config.quorum)
    if config.quorum is not None:
        raise ValueError(f"names a quorum, and its mode is {config.mode}; say `mode: quorum`")
    if config.mode == "all":
        return CommitPolicy(everyone, len(everyone))
    required = frozenset(name for name, is_required in destinations if is_required)
    if not required:
        raise ValueError("has mode required, and no destination is required; say `required: true` of one of them")
    return CommitPolicy(required, len(required))

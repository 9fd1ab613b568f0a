"""How long the change log is kept for several readers, by the commit policy of the file."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.config.commit_policy import CommitPolicy
from penstock.runtime.log_reader import LogNeed


def needed_by(policy: CommitPolicy, needs: Mapping[str, LogNeed]) -> LogNeed:
    """Make one need of those of all destinations.

    What as many destinations as the policy asks for still need is never removed. What the others need is held, like
    that of Errored and copying tables, up to the log's limits; so is what a destination needs that has failed for good.
    """
    needed = policy.reached({name: need.needed_from for name, need in needs.items()})
    return LogNeed(needed, min(needed, *(need.held_from for need in needs.values())))

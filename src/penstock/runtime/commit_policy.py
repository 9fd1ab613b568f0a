"""How long the change log is kept for several readers, by the commit policy of the file."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.config.commit_policy import CommitPolicy
from penstock.runtime.log_reader import NEVER, LogNeed


def needed_by(policy: CommitPolicy, needs: Mapping[str, LogNeed]) -> LogNeed:
    """Make one need of those of all destinations.

    What as many destinations as the policy asks for still need is never removed. What the others need is held, like
    that of Errored and copying tables, up to the log's limits; so is what a destination needs that has failed for good.
    Those that have failed are not ranked: the policy then needs as many of the live ones, or all of them if fewer live.
    """
    failed = {name for name, need in needs.items() if need.needed_from == NEVER}
    live = policy.among - failed
    needed = NEVER
    if live:
        ranked = CommitPolicy(live, min(policy.least, len(live)))
        needed = ranked.reached({name: need.needed_from for name, need in needs.items()})
    return LogNeed(needed, min(needed, *(need.held_from for need in needs.values())))

"""Whether the server's pipelines are healthy (none has failed) and ready (what the policy asks for is near enough).

Neighbours: `routes/probes.py` answers Kubernetes with it, `penstock status --exit-code` scripts.
"""

from __future__ import annotations

from penstock.config.model import Pipeline
from penstock.control.readiness import late_sources
from penstock.server.fleet import Member


def is_ready(member: Member) -> bool:
    """Whether a pipeline that is meant to run does, and delivers as its commit policy and `ready.max_lag` say.

    One that an operator has stopped or paused is left out of account.
    """
    shown = member.shown_status
    if shown in ("stopped", "stopping", "paused"):
        return True
    known = member.observatory is not None and not member.observatory.is_stale
    return shown == "running" and known and not _is_late(member.loaded(), member)


def _is_late(pipeline: Pipeline, member: Member) -> bool:
    return bool(late_sources(pipeline, member.status()))

"""How pipelines look to clients: DeltaForge's fields where it has them, and our own beside them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, Field

from penstock.control.spec import shown_spec
from penstock.control.status.report import DestinationReport, Status
from penstock.control.text.commands import with_file
from penstock.control.text.secrets import scrub
from penstock.model.position import position_text
from penstock.server.fleet import Member


class Trouble(BaseModel):
    code: str
    message: str
    solution: str


class Checkpoint(BaseModel):
    """How far one destination is. `age_seconds` is its lag: the age of the oldest change that it lacks."""

    sink_id: str
    position: str | None
    age_seconds: float | None


class Ops(BaseModel):
    """`sink_errors` says of each destination that does not work why."""

    uptime_seconds: float | None
    restarts: int
    dlq_entries: int
    sink_errors: dict[str, str]
    checkpoints: list[Checkpoint]


class PipelineAnswer(BaseModel):
    """One pipeline.

    `spec` is its file, without secrets. `file_changed`: the file says something else by now than what the run was
    started with.
    """

    name: str
    status: str
    file: str
    file_changed: bool = False
    labels: dict[str, str] = Field(default_factory=dict)
    tenant: str | None = None
    spec: dict[str, Any] | None = None
    ops: Ops | None = None
    error: Trouble | None = None


def pipeline_answer(member: Member, *, with_ops: bool = False) -> PipelineAnswer:
    pipeline = member.pipeline
    return PipelineAnswer(
        name=member.name,
        status=member.shown_status,
        file=str(member.file),
        file_changed=member.is_changed,
        labels={} if pipeline is None else dict(pipeline.labels),
        tenant=None if pipeline is None else pipeline.tenant,
        spec=None if pipeline is None else shown_spec(pipeline),
        ops=_ops(member) if with_ops and pipeline is not None else None,
        error=trouble(member),
    )


def trouble(member: Member) -> Trouble | None:
    """Say why a pipeline does not run, if it should."""
    if member.problem is not None:
        found = member.problem
        return Trouble(code=_code(found.code), message=scrub(found.what), solution=scrub(found.solution))
    run = member.run.view()
    if not run.message:
        return None
    solution = {
        "failed": "Do what the message says, then start the pipeline",
        "restarting": "It is started again by itself",
    }.get(run.status, "")
    return Trouble(code=_code(run.code or "ended"), message=with_file(run.message, str(member.file)), solution=solution)


def checkpoints(status: Status) -> list[Checkpoint]:
    return [_checkpoint(one) for one in status.destinations]


def _checkpoint(one: DestinationReport) -> Checkpoint:
    at = None if one.position is None else position_text(one.position)
    return Checkpoint(sink_id=one.full_name, position=at, age_seconds=one.lag_seconds)


def _ops(member: Member) -> Ops:
    status, run = member.status(), member.run.view()
    running = run.status == "running"
    wrong = {
        one.full_name: scrub(one.health.message)
        for one in status.destinations
        if one.health is not None and one.health.state in ("retrying", "failed")
    }
    return Ops(
        uptime_seconds=(datetime.now(UTC) - run.since).total_seconds() if running else None,
        restarts=run.restarts,
        dlq_entries=sum(table.letters.kept for table in status.tables),
        sink_errors=wrong,
        checkpoints=checkpoints(status),
    )


def _code(code: str) -> str:
    return code.replace("-", "_").upper()

"""Pipelines: list, look at, start, stop, pause and edit them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from penstock.control import pauses
from penstock.control.status import view as status_view
from penstock.control.text.secrets import scrub
from penstock.control.wait import await_delivery, positions_now
from penstock.model.position import position_text
from penstock.server import editing
from penstock.server.access import Admin, Operator, Viewer
from penstock.server.answers import Checkpoint, PipelineAnswer, checkpoints, pipeline_answer
from penstock.server.documents import Document
from penstock.server.problems import Refused, described
from penstock.server.service import MemberDep, ServiceDep

router = APIRouter(prefix="/pipelines", tags=["pipelines"], responses=described(400, 401, 403, 404, 422))
LOG_LINES = 200


@router.get("")
def list_pipelines(
    _holder: Viewer,
    service: ServiceDep,
    label: Annotated[list[str] | None, Query(description="`key:value`, or `key` alone; several must all hold.")] = None,
) -> list[PipelineAnswer]:
    """List the pipelines, or those with labels."""
    wanted = [_label(text) for text in label or []]
    shown = [pipeline_answer(member) for member in service.fleet.members()]
    return [one for one in shown if all(_has(one.labels, key, value) for key, value in wanted)]


@router.post("", status_code=201, responses=described(409, 429, 503))
def create_pipeline(document: Document, _holder: Admin, service: ServiceDep) -> PipelineAnswer:
    """Check a pipeline, save it in the server's folder and start it."""
    with service.patient.take():
        return pipeline_answer(editing.create(service, document))


@router.get("/{name}")
def get_pipeline(member: MemberDep, _holder: Viewer) -> PipelineAnswer:
    """Show one pipeline, with how it fares."""
    return pipeline_answer(member, with_ops=True)


@router.patch("/{name}", responses=described(409, 429, 503))
def patch_pipeline(member: MemberDep, document: Document, _holder: Admin, service: ServiceDep) -> PipelineAnswer:
    """Merge an object into the pipeline's file, check that, save it and start the pipeline again.

    No other pipeline is touched, and the previous file is kept beside it. A key that is null is removed.
    """
    with service.patient.take():
        return pipeline_answer(editing.patch(service, member, document))


@router.delete("/{name}", status_code=204, responses=described(409))
def delete_pipeline(member: MemberDep, _holder: Admin, service: ServiceDep) -> Response:
    """Stop a pipeline and move its file away. Its slot, log, state and tables stay: see docs/operations.md."""
    editing.delete(service, member)
    return Response(status_code=204)


@router.post("/{name}/pause")
def pause_pipeline(
    member: MemberDep,
    _holder: Operator,
    destination: Annotated[str | None, Query(description="Only this destination.")] = None,
) -> PipelineAnswer:
    """Let the pipeline, or one destination, stand still. Capture goes on, so no WAL piles up at the source."""
    pauses.pause(member.loaded(), destination)
    member.changed()
    return pipeline_answer(member)


@router.post("/{name}/resume")
def resume_pipeline(
    member: MemberDep,
    _holder: Operator,
    service: ServiceDep,
    destination: Annotated[str | None, Query(description="Only this destination.")] = None,
) -> PipelineAnswer:
    """Let what was paused go on; start the pipeline if it was stopped."""
    pauses.resume(member.loaded(), destination)
    member.changed()
    return pipeline_answer(service.fleet.begin(member.name))


@router.post("/{name}/start")
def start_pipeline(member: MemberDep, _holder: Operator, service: ServiceDep) -> PipelineAnswer:
    """Have the pipeline run, now and after restarts of the server."""
    return pipeline_answer(service.fleet.begin(member.name))


@router.post("/{name}/stop")
def stop_pipeline(member: MemberDep, _holder: Operator, service: ServiceDep) -> PipelineAnswer:
    """Let the pipeline finish its batch and end.

    It stays stopped until it is started. Nothing is captured meanwhile, so the source keeps WAL for it.
    """
    return pipeline_answer(service.fleet.end(member.name))


@router.post("/{name}/wait", responses=described(429, 503))
def wait_for_delivery(
    member: MemberDep,
    _holder: Operator,
    service: ServiceDep,
    timeout: Annotated[float, Query(ge=0, le=60, description="Seconds, at most.")] = 30.0,
) -> dict[str, Any]:
    """Wait until what the source has written by now is delivered, as the commit policy says it."""
    with service.patient.take():
        positions = positions_now(member.loaded())
        await_delivery(member.loaded(), positions, timeout)
    return {"delivered": {name: position_text(position) for name, position in positions.items()}}


@router.get("/{name}/status")
def get_status(member: MemberDep, _holder: Viewer) -> dict[str, Any]:
    """Show what `penstock status --json` does, and what is paused."""
    shown = status_view.as_json(member.status())
    paused = pauses.pauses_of(member.loaded())
    return {**shown, "pauses": [{"what": one.what, "since": one.since.isoformat()} for one in paused]}


@router.get("/{name}/checkpoints")
def get_checkpoints(member: MemberDep, _holder: Viewer) -> list[Checkpoint]:
    """Show how far each destination is."""
    member.loaded()
    return checkpoints(member.status())


@router.get("/{name}/history")
def get_history(
    member: MemberDep,
    _holder: Viewer,
    seconds: Annotated[float, Query(gt=0, le=3600, description="How far back.")] = 3600.0,
) -> dict[str, list[Any]]:
    """Return the figures of the last hour, column by column, for charts."""
    member.loaded()
    assert member.observatory is not None
    samples = member.observatory.samples(seconds)
    names = sorted({name for one in samples for name in one.destinations})
    found: dict[str, list[Any]] = {
        "at": [round(one.at, 1) for one in samples],
        "lag_seconds": [one.lag_seconds for one in samples],
        "rate": [round(one.rate, 2) for one in samples],
        "wal_bytes": [one.wal_bytes for one in samples],
        "log_bytes": [one.log_bytes for one in samples],
        "memory_bytes": [one.memory_bytes for one in samples],
        "batch_seconds": [one.batch_seconds for one in samples],
    }
    for name in names:
        found[f"lag {name}"] = [one.destinations.get(name, (None, 0.0))[0] for one in samples]
        found[f"rate {name}"] = [round(one.destinations.get(name, (None, 0.0))[1], 2) for one in samples]
    return found


@router.get("/{name}/log")
def get_log(
    member: MemberDep,
    _holder: Operator,
    service: ServiceDep,
    lines: Annotated[int, Query(ge=1, le=2000)] = LOG_LINES,
) -> dict[str, list[str]]:
    """Return the last lines that the pipeline's process has logged."""
    file = service.fleet.home / "logs" / f"{member.name}.log"
    if not file.exists():
        return {"lines": []}
    with file.open("rb") as log:
        log.seek(max(0, file.stat().st_size - 2**20))
        text = log.read().decode(errors="replace")
    return {"lines": [scrub(line) for line in text.splitlines()[-lines:]]}


def _label(text: str) -> tuple[str, str | None]:
    key, colon, value = text.partition(":")
    if not key:
        raise Refused(400, "INVALID_LABEL", f"{text} is no label", "Ask with ?label=key:value, or ?label=key")
    return key, value if colon else None


def _has(labels: dict[str, str], key: str, value: str | None) -> bool:
    return key in labels and value in (None, labels[key])

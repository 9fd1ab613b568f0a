"""`/health` and `/ready`: for Kubernetes and load balancers, without a token and without anything to hide."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from penstock.server.access import holder_of
from penstock.server.answers import pipeline_answer
from penstock.server.readiness import is_ready
from penstock.server.service import ServiceDep

router = APIRouter(tags=["probes"])


@router.get("/health", responses={503: {"description": "A pipeline has failed"}})
async def health(service: ServiceDep) -> JSONResponse:
    """Say whether every pipeline that is to run does; 503 only when one has failed and needs an operator.

    It asks nobody and waits for no thread: a server that is busy, or whose pipelines' stores are away, is healthy."""
    members = service.fleet.members()
    failed = [member.name for member in members if member.is_failed]
    if failed:
        return JSONResponse({"status": "unhealthy", "failed_pipelines": failed}, 503)
    return JSONResponse({"status": "healthy", "pipelines": len(members)})


@router.get("/ready", responses={503: {"description": "A pipeline is not up, or too far behind"}})
def ready(request: Request, service: ServiceDep) -> JSONResponse:
    """Say whether what the sources write is delivered, by each commit policy and within `ready.max_lag`."""
    members = service.fleet.members()
    late = [member.name for member in members if not is_ready(member)]
    known = holder_of(request) is not None
    shown: list[dict[str, Any]] = []
    for member in members:
        one = pipeline_answer(member)
        shown.append({"name": one.name, "status": one.status, **({"spec": one.spec} if known else {})})
    if late:
        return JSONResponse({"status": "not_ready", "waiting_for": late, "pipelines": shown}, 503)
    return JSONResponse({"status": "ready", "pipelines": shown})

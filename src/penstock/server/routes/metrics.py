"""`/metrics`: what Prometheus scrapes."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from penstock.server.access import Viewer
from penstock.server.exposition import exposition
from penstock.server.problems import described
from penstock.server.service import ServiceDep

router = APIRouter(tags=["server"], responses=described(401, 403))
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(_holder: Viewer, service: ServiceDep) -> PlainTextResponse:
    """Return all figures in Prometheus' text format."""
    text = exposition(service.fleet.members(), service.settings.tables_in_metrics)
    return PlainTextResponse(text, media_type=CONTENT_TYPE)

"""What there is at the source, and which rule takes it: what the map editor shows."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from penstock.control.discovery import discovered
from penstock.server.access import Operator
from penstock.server.problems import described
from penstock.server.service import MemberDep, ServiceDep

router = APIRouter(prefix="/pipelines/{name}", tags=["tables"], responses=described(400, 401, 403, 404, 422, 429, 503))


@router.get("/sources")
def list_sources(member: MemberDep, _holder: Operator, service: ServiceDep) -> list[dict[str, Any]]:
    """List the tables that the role can see at each source, and what the file makes of each."""
    with service.patient.take():
        return discovered(member.loaded())

"""What there is at the source, which rule takes it, and what a rule would make of it: what the map editor shows."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from penstock.control.discovery import discovered
from penstock.control.preview import preview
from penstock.server.access import Admin, Operator
from penstock.server.problems import described
from penstock.server.service import MemberDep, ServiceDep

router = APIRouter(prefix="/pipelines/{name}", tags=["tables"], responses=described(400, 401, 403, 404, 422, 429, 503))


@router.get("/sources")
def list_sources(member: MemberDep, _holder: Operator, service: ServiceDep) -> list[dict[str, Any]]:
    """List the tables that the role can see at each source, and what the file makes of each."""
    with service.patient.take():
        return discovered(member.loaded())


class PreviewBody(BaseModel):
    """A table at the source, and the rule to try on it, with the keys that it has in a pipeline file."""

    table: str = Field(min_length=1, max_length=300)
    rule: dict[str, Any] = Field(default_factory=dict)


@router.post("/preview")
def preview_rule(member: MemberDep, body: PreviewBody, _holder: Admin, service: ServiceDep) -> dict[str, Any]:
    """Show a table's first rows as a rule would have them arrive: masked, renamed, without what it leaves out.

    It takes an admin, because a rule that masks nothing shows rows as they are at the source.
    """
    with service.patient.take():
        return preview(member.loaded(), body.table, body.rule).as_json()

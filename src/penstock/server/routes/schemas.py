"""The schema registry, by DeltaForge's routes. `db` is the schema of the table at the source."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from penstock.control.schemas import versions, view
from penstock.server.access import Operator, Viewer
from penstock.server.problems import Refused, described
from penstock.server.service import MemberDep

router = APIRouter(prefix="/pipelines/{name}/schemas", tags=["schemas"], responses=described(400, 401, 403, 404, 422))


@router.get("")
def list_schemas(member: MemberDep, _holder: Viewer) -> list[dict[str, Any]]:
    """List the newest structure of every table."""
    newest: dict[str, dict[str, Any]] = {}
    for one in view.as_json(versions.look(member.loaded()))["versions"]:
        newest[one["table"]] = one
    return list(newest.values())


@router.get("/{db}/{table}")
def get_schema(
    member: MemberDep,
    db: str,
    table: str,
    _holder: Viewer,
    at: Annotated[str | None, Query(description="What held at this position.")] = None,
) -> dict[str, Any]:
    """Show the newest structure of a table, or the one that held at a position."""
    found = _versions(member, db, table, at)
    if not found:
        raise Refused(404, "SCHEMA_NOT_FOUND", f"no structure of {db}.{table} is known there")
    return found[-1]


@router.get("/{db}/{table}/versions")
def list_versions(member: MemberDep, db: str, table: str, _holder: Viewer) -> list[dict[str, Any]]:
    """List the versions of a table's structure, with what each changed."""
    return _versions(member, db, table, None)


@router.post("/reload")
def reload_schemas(member: MemberDep, _holder: Operator) -> dict[str, Any]:
    """Answer as DeltaForge does. There is nothing to reload: structures are read from the change stream itself."""
    return {"reloaded": len(list_schemas(member, _holder))}


@router.post("/{db}/{table}/reload")
def reload_schema(member: MemberDep, db: str, table: str, _holder: Operator) -> dict[str, Any]:
    """Answer as DeltaForge does, with the table's newest structure."""
    return get_schema(member, db, table, _holder)


def _versions(member: MemberDep, db: str, table: str, at: str | None) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = view.as_json(versions.look(member.loaded(), f"{db}.{table}", at))["versions"]
    except versions.UnknownTable as error:
        raise Refused(404, "SCHEMA_NOT_FOUND", error.what, error.solution) from error
    return found

"""The schema registry, by DeltaForge's routes and with its fields. `db` is the schema of the table at the source.

The versions of one table are what `penstock schemas --json` says of them, with those fields beside it.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from penstock.control.schemas import versions, view
from penstock.control.schemas.versions import ShownVersion
from penstock.fold.evolution import type_text
from penstock.model.position import position_text
from penstock.server.access import Operator, Viewer
from penstock.server.problems import Refused, described
from penstock.server.service import MemberDep

router = APIRouter(prefix="/pipelines/{name}/schemas", tags=["schemas"], responses=described(400, 401, 403, 404, 422))


@router.get("")
def list_schemas(member: MemberDep, _holder: Viewer) -> list[dict[str, Any]]:
    """List the newest structure of every table."""
    newest = {one.table: one for one in versions.look(member.loaded()).versions}
    return [_summary(one) for one in newest.values()]


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
    newest = found[-1]
    schema = newest.version.schema
    columns = [
        {
            "name": column.name,
            "column_type": type_text(schema, column),
            "data_type": column.type.name,
            "nullable": column.nullable,
            "ordinal_position": place,
            "default_value": column.filled,
            "extra": "generated" if column.generated else None,
            "is_primary_key": column.name in schema.key,
        }
        for place, column in enumerate(schema.columns, 1)
    ]
    return {**_summary(newest), "columns": columns, "loaded_at": newest.version.at.isoformat()}


@router.get("/{db}/{table}/versions")
def list_versions(member: MemberDep, db: str, table: str, _holder: Viewer) -> list[dict[str, Any]]:
    """List the versions of a table's structure, with what each changed."""
    found = _versions(member, db, table, None)
    return [
        {
            **view.version_json(one),
            "column_count": len(one.version.schema.columns),
            "registered_at": one.version.at.isoformat(),
        }
        for one in found
    ]


@router.post("/reload")
def reload_schemas(member: MemberDep, _holder: Operator) -> dict[str, Any]:
    """Answer as DeltaForge does. There is nothing to reload: structures are read from the change stream itself."""
    return _reloaded(member.name, list_schemas(member, _holder))


@router.post("/{db}/{table}/reload")
def reload_schema(member: MemberDep, db: str, table: str, _holder: Operator) -> dict[str, Any]:
    """Answer as DeltaForge does, with the table's newest structure."""
    return get_schema(member, db, table, _holder)


def _versions(member: MemberDep, db: str, table: str, at: str | None) -> list[ShownVersion]:
    try:
        return list(versions.look(member.loaded(), f"{db}.{table}", at).versions)
    except versions.UnknownTable as error:
        raise Refused(404, "SCHEMA_NOT_FOUND", error.what, error.solution) from error


def _summary(one: ShownVersion) -> dict[str, Any]:
    schema = one.version.schema
    return {
        "database": str(one.table).removesuffix(f".{schema.table.name}"),
        "table": schema.table.name,
        "column_count": len(schema.columns),
        "primary_key": list(schema.key),
        "fingerprint": f"sha256:{one.version.fingerprint}",
        "registry_version": one.version.version,
        "sequence": one.version.sequence,
        "position": position_text(one.version.position),
        "guessed": schema.guessed,
    }


def _reloaded(pipeline: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    tables = [
        {"database": one["database"], "table": one["table"], "status": "ok", "changed": False, "error": None}
        for one in found
    ]
    return {"pipeline": pipeline, "tables_reloaded": len(tables), "tables": tables, "elapsed_ms": 0}

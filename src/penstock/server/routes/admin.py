"""The server itself: check a pipeline file, and how much is logged."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Body
from pydantic import BaseModel

from penstock.config.load import load
from penstock.control.check.view import as_json
from penstock.control.check.whole import check_pipeline
from penstock.runtime.process.log_level import SWITCH, LevelName
from penstock.server.access import Admin, Operator, Viewer
from penstock.server.problems import described
from penstock.server.service import ServiceDep

router = APIRouter(tags=["server"], responses=described(401, 403, 422))


class LogLevelBody(BaseModel):
    level: LevelName


@router.post("/validate", responses=described(400, 503))
def validate(
    _holder: Operator,
    service: ServiceDep,
    document: Annotated[dict[str, Any], Body(description="A pipeline file as an object.")],
) -> dict[str, Any]:
    """Check a pipeline as `penstock check --json` does, without saving it."""
    folder = service.fleet.folder or service.fleet.home
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", prefix=".validate.", suffix=".check", dir=folder) as trial:
        yaml.safe_dump(document, trial, sort_keys=False, allow_unicode=True)
        trial.flush()
        pipeline = load(Path(trial.name))
        checked = check_pipeline(pipeline)
        return as_json("", pipeline.name, checked.seen, checked.found)


@router.get("/log-level")
def get_log_level(_holder: Viewer) -> LogLevelBody:
    """Say from which level on the server logs."""
    return LogLevelBody(level=SWITCH.level)


@router.put("/log-level")
def put_log_level(body: LogLevelBody, _holder: Admin, service: ServiceDep) -> LogLevelBody:
    """Change how much is logged, from now on, by the server and by the pipelines that it runs."""
    SWITCH.set(body.level)
    for member in service.fleet.members():
        member.set_log_level(body.level)
    return body

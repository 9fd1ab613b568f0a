"""The server itself: check a pipeline file, and how much is logged."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Body
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from penstock.config.load import load
from penstock.control.check.view import as_json
from penstock.control.check.whole import check_pipeline
from penstock.control.text.commands import with_file
from penstock.control.text.secrets import scrub
from penstock.errors import ConfigError
from penstock.runtime.process.log_level import SWITCH, LevelName
from penstock.server.access import Admin, Operator, Viewer
from penstock.server.problems import Problem, described
from penstock.server.service import ServiceDep

router = APIRouter(tags=["server"], responses=described(401, 403, 422))


class LogLevelBody(BaseModel):
    level: LevelName


class InvalidAnswer(Problem):
    """An error, with DeltaForge's names for it beside ours."""

    valid: bool = False
    error: str


@router.post("/validate", responses={**described(503), 400: {"model": InvalidAnswer}})
def validate(
    _holder: Operator,
    service: ServiceDep,
    document: Annotated[dict[str, Any], Body(description="A pipeline file as an object.")],
) -> Any:
    """Check a pipeline as `penstock check --json` does, without saving it."""
    folder = service.fleet.folder or service.fleet.home
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", prefix=".validate.", suffix=".check", dir=folder) as trial:
        yaml.safe_dump(document, trial, sort_keys=False, allow_unicode=True)
        trial.flush()
        try:
            pipeline = load(Path(trial.name))
        except ConfigError as error:
            what = scrub(with_file(error.what.replace(f"{trial.name}: ", ""), "FILE"))
            invalid = InvalidAnswer(code="CONFIG", message=what, solution=scrub(error.solution), error=what)
            return JSONResponse(invalid.model_dump(), 400)
        checked = check_pipeline(pipeline)
        kinds = {source.type for source in pipeline.sources}
        return {
            "valid": not any(one.finding.level == "error" for one in checked.found),
            "pipeline": pipeline.name,
            "source_type": " ".join(sorted(kinds)),
            "sink_count": len(pipeline.destinations),
            **as_json("", pipeline.name, checked.seen, checked.found),
        }


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

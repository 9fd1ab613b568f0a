"""The server itself: check a pipeline file, and how much is logged."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from penstock.config.load import load
from penstock.control.check.view import as_json
from penstock.control.check.whole import check_pipeline
from penstock.errors import ConfigError
from penstock.runtime.process.log_level import SWITCH, LevelName
from penstock.server.access import Admin, Viewer
from penstock.server.documents import Document, as_file, yaml_of
from penstock.server.problems import Problem, described, plain_problem
from penstock.server.service import ServiceDep

router = APIRouter(tags=["server"], responses=described(401, 403, 422))


class LogLevelBody(BaseModel):
    level: LevelName


class InvalidAnswer(Problem):
    """An error, with DeltaForge's names for it beside ours."""

    valid: bool = False
    error: str


@router.post("/validate", responses={**described(429, 503), 400: {"model": InvalidAnswer}})
def validate(
    _holder: Admin,
    service: ServiceDep,
    document: Document,
) -> Any:
    """Check a pipeline as `penstock check --json` does, without saving it.

    It takes an admin: a pipeline file may name variables of the server's environment, classes, and any host.
    """
    folder = service.fleet.folder or service.fleet.home
    folder.mkdir(parents=True, exist_ok=True)
    with service.patient.take():
        try:
            with as_file(yaml_of(document), folder) as trial:
                pipeline = load(trial)
        except ConfigError as error:
            problem = plain_problem("CONFIG", error.what, error.solution)
            invalid = InvalidAnswer(**problem.model_dump(), error=problem.message)
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

"""Answer every error the same way: a status, and `{"code", "message", "solution"}` without secrets.

Codes of penstock's own errors are those of errors.py in capitals; those of the server are here. DeltaForge's clients
know PIPELINE_NOT_FOUND and its sisters.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from penstock.control.text.commands import with_file
from penstock.control.text.secrets import scrub
from penstock.errors import (
    CheckFailed,
    ConfigError,
    LockedError,
    PenstockError,
    UsageError,
)

UNPROCESSABLE = 422


class Problem(BaseModel):
    """What every error answers with."""

    code: str
    message: str
    solution: str


class Refused(Exception):
    """Say no to a request, with a status and a code of the server's own."""

    def __init__(self, status: int, code: str, message: str, solution: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.solution = status, code, message, solution


def pipeline_not_found(name: str, known: list[str]) -> Refused:
    there = f"There are {', '.join(known)}" if known else "There is none yet"
    return Refused(404, "PIPELINE_NOT_FOUND", f"there is no pipeline {name}", there)


def answer(status: int, code: str, message: str, solution: str = "") -> JSONResponse:
    shown = plain_problem(code, message, solution).model_dump()
    return JSONResponse(shown, status_code=status, headers=_challenge(status))


def plain_problem(code: str, message: str, solution: str) -> Problem:
    """Say what is wrong without secrets, in text that can be sent."""
    return Problem(code=code, message=_plain(scrub(message)), solution=_plain(scrub(solution)))


def _plain(text: str) -> str:
    """Return text that can be sent: what a client sent, and is repeated here, may have half of a surrogate pair."""
    return text.encode(errors="backslashreplace").decode()


def _challenge(status: int) -> dict[str, str] | None:
    return {"WWW-Authenticate": "Bearer"} if status == 401 else None


def status_of(error: PenstockError) -> int:
    """Return the HTTP status that says what an error means to a client."""
    if isinstance(error, UsageError):
        return 404 if " has no table " in error.what else 400
    if isinstance(error, ConfigError | CheckFailed):
        return UNPROCESSABLE
    if isinstance(error, LockedError):
        return 409
    return 503 if error.exit_code == 3 else 409


def of_penstock(request: Request, error: PenstockError) -> JSONResponse:
    file = str(getattr(request.state, "file", "FILE"))
    code = error.code.replace("-", "_").upper()
    return answer(status_of(error), code, with_file(error.what, file), with_file(error.solution, file))


def of_refused(error: Refused) -> JSONResponse:
    return answer(error.status, error.code, error.message, error.solution)


def of_invalid(error: RequestValidationError) -> JSONResponse:
    """Say which part of a request is wrong. What was given is not repeated: it may be a secret."""
    said = []
    for one in error.errors():
        place = ".".join(str(part) for part in one["loc"])
        said.append(f"{place}: {one['msg']}")
    return answer(UNPROCESSABLE, "INVALID_REQUEST", "; ".join(said), "See /docs for what this route takes")


def of_http(error: HTTPException) -> JSONResponse:
    codes = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}
    solution = "See /docs for the routes that there are" if error.status_code in codes else ""
    return answer(error.status_code, codes.get(error.status_code, "HTTP_ERROR"), str(error.detail), solution)


def described(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Describe error answers for OpenAPI."""
    return {code: {"model": Problem} for code in codes}

"""What every route works with: the fleet, the tokens, the jobs and the settings of one server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from penstock.server.fleet import Fleet, Member
from penstock.server.jobs import Jobs
from penstock.server.limits import RateLimit, Slots
from penstock.server.tokens import TokenFile

MOST_BODY_BYTES = 2**20
REQUESTS_PER_SECOND = 500.0
MOST_PATIENT = 8
WRONG_TOKENS_PER_SECOND, WRONG_TOKENS_AT_ONCE = 0.2, 10.0


@dataclass(frozen=True)
class Settings:
    """How a server behaves.

    `edit` allows changes of pipeline files; `tables_in_metrics` is how many tables a pipeline may have before its
    metrics leave single tables out.
    """

    no_auth: bool = False
    secure: bool = False  # reached by TLS: cookies go over nothing else
    edit: bool = False
    rate: float = REQUESTS_PER_SECOND
    most_body_bytes: int = MOST_BODY_BYTES
    query_rows: int = 1000
    query_seconds: float = 30.0
    tables_in_metrics: int = 500


@dataclass
class Service:
    """`patient` holds those that wait for a source or for a delivery: the threads of all others stay free."""

    fleet: Fleet
    tokens: TokenFile
    settings: Settings = field(default_factory=Settings)
    jobs: Jobs = field(default_factory=Jobs)
    patient: Slots = field(default_factory=lambda: Slots(MOST_PATIENT, "requests wait for a source"))
    wrong_tokens: RateLimit = field(default_factory=lambda: RateLimit(WRONG_TOKENS_PER_SECOND, WRONG_TOKENS_AT_ONCE))


def service_of(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


ServiceDep = Annotated[Service, Depends(service_of)]


def member_of(name: str, request: Request, service: ServiceDep) -> Member:
    """Return the pipeline that a route names; its errors then name its file."""
    member = service.fleet.get(name)
    request.state.file = member.file
    return member


MemberDep = Annotated[Member, Depends(member_of)]

"""The web page: rendered here, with small scripts that speak to the same routes as every other client."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, select_autoescape
from markupsafe import Markup

from penstock.control import dead_letters, pauses, quarantine
from penstock.control.status.report import SourceSection, Status, TableReport, errored
from penstock.control.text.commands import with_file
from penstock.control.text.figures import (
    UNKNOWN,
    bytes_text,
    count_text,
    moment_text,
    percent_text,
    rate_text,
    seconds_text,
)
from penstock.control.text.secrets import scrub
from penstock.model.position import Position, position_text
from penstock.model.table_state import GONE
from penstock.server.access import COOKIE, Operator, Viewer, cookie_of, holder_of
from penstock.server.answers import pipeline_answer
from penstock.server.editing import written
from penstock.server.fleet import Member
from penstock.server.observatory import wal_kept
from penstock.server.problems import Problem, Refused
from penstock.server.service import MemberDep, ServiceDep
from penstock.server.tokens import SESSION_SECONDS, Role
from penstock.state.store import CopyProgress

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"
TEMPLATES = Environment(loader=FileSystemLoader(FOLDER / "templates"), autoescape=select_autoescape(default=True))
GOOD = {"running", "ok", "Ready"}
BAD = {"failed", "Errored", "unreachable"}
QUIET = {"stopped", "NotFollowed", "not begun"}
MESSAGES_SHOWN = 200
HEADINGS = (
    ("table", "As at the source", ""),
    ("state", "Ready, being copied, or Errored with the reason", ""),
    ("destination", "Where it goes", "optional"),
    ("lag", "Age of its oldest change in the log that it lacks", "number"),
    ("changes", "Row changes applied since its record began", "number optional"),
    ("rate", "Changes per second in the last batch", "number optional"),
    ("copy", "How far its initial copy is", ""),
    ("files", "Data and delete files", "number optional"),
    ("read cost", "Cost of a full read, relative to compact files", "number optional"),
    ("rescued", "Values that fit no column, kept as text", "number optional"),
    ("anomalies", "Changes that did not suit what was there", "number optional"),
)
CHARTS = (
    ("Lag", "age of the oldest change that the slowest table lacks", "lag_seconds", "s"),
    ("Rate", "row changes applied per second", "rate", "n"),
    ("Batch time", "average since the last look", "batch_seconds", "s"),
    ("Memory", "of the run with all its processes", "memory_bytes", "b"),
    ("WAL and log", "kept by the source, and by the change log", "wal_bytes|log_bytes", "b"),
)
router = APIRouter()


def tone(text: str) -> str:
    """Return the colour of a state: its first or its last word says it."""
    words = {text, text.rpartition(" ")[2]}
    return "ok" if words & GOOD else "bad" if words & BAD else "" if words & QUIET else "warn"


def position(at: Position | None) -> str:
    return UNKNOWN if at is None else position_text(at)


def time_left(copy: CopyProgress) -> str:
    """Say how long a copy takes from now on, if it goes on as it did."""
    if copy.started is None or not copy.fraction:
        return ""
    passed = (datetime.now(UTC) - copy.started).total_seconds()
    return seconds_text(passed / copy.fraction - passed)


def wrapping(name: object) -> Markup:
    """Let a long name break behind its dots and underscores only."""
    return Markup("<wbr>").join(re.split(r"(?<=[._])", str(name)))


TEMPLATES.globals.update(
    wrapping=wrapping,
    tone=tone,
    position=position,
    left=time_left,
    bytes=bytes_text,
    seconds=seconds_text,
    count=count_text,
    rate=rate_text,
    percent=percent_text,
    moment=moment_text,
)


@router.get("/", response_class=HTMLResponse)
def root() -> Response:
    return RedirectResponse("/ui", 303)


@router.get("/signin", response_class=HTMLResponse)
def signin_page(request: Request, service: ServiceDep) -> Response:
    if holder_of(request) is not None:
        return RedirectResponse("/ui", 303)
    return _page("signin.html", request, service)


@router.post("/signin", response_class=HTMLResponse)
def signin(request: Request, service: ServiceDep, token: Annotated[str, Form(max_length=1000)]) -> Response:
    """Take a token and give a cookie, which expires, and which scripts cannot read."""
    holder = service.tokens.holder(token.strip())
    if holder is None:
        too_many = not service.wrong_tokens.take(request.client.host if request.client else "")
        return _page("signin.html", request, service, status_code=429 if too_many else 401, wrong=True, wait=too_many)
    answer = RedirectResponse("/ui", 303)
    answer.set_cookie(
        COOKIE,
        service.tokens.session(holder),
        max_age=SESSION_SECONDS,
        httponly=True,
        samesite="strict",
        secure=service.settings.secure,
    )
    return answer


@router.post("/signout")
def signout() -> Response:
    answer = RedirectResponse("/signin", 303)
    answer.delete_cookie(COOKIE)
    return answer


@router.get("/ui", response_class=HTMLResponse)
def overview(request: Request, service: ServiceDep, _holder: Viewer) -> Response:
    """Show each pipeline with its state, lag, rate, tables by state and the last error with its way out."""
    return _page("overview.html", request, service, pipelines=[_summary(one) for one in service.fleet.members()])


@router.get("/docs", response_class=HTMLResponse)
def docs(request: Request, service: ServiceDep, _holder: Viewer) -> Response:
    return _page("docs.html", request, service, paths=request.app.openapi()["paths"])


@router.get("/ui/pipelines/{name}", response_class=HTMLResponse)
def pipeline_page(request: Request, service: ServiceDep, member: MemberDep, _holder: Viewer) -> Response:
    """Show the flow with live figures on it, charts of the last hour, and what happened."""
    shown = pipeline_answer(member)
    seen = member.status() if member.pipeline is not None else None
    paused = pauses.pauses_of(member.pipeline) if member.pipeline is not None else []
    return _page(
        "pipeline.html",
        request,
        service,
        name=member.name,
        file=shown.file,
        status=shown.status,
        error=shown.error,
        notes=_notes(member),
        seen=seen,
        sources=[] if seen is None else _sources(member, seen),
        rates={} if seen is None else _rates(seen),
        events=[] if seen is None else list(reversed(seen.events)),
        pauses=paused,
        is_paused=any(one.destination is None for one in paused),
        paused_destinations={one.destination for one in paused if one.table is None},
        charts=CHARTS,
    )


@router.get("/ui/pipelines/{name}/tables", response_class=HTMLResponse)
def tables_page(request: Request, service: ServiceDep, member: MemberDep, _holder: Viewer) -> Response:
    tables = member.status().tables
    return _page(
        "tables.html",
        request,
        service,
        name=member.name,
        tables=tables,
        states=sorted({one.shown_state for one in tables}),
        several=len({one.destination for one in tables}) > 1,
        headings=HEADINGS,
    )


@router.get("/ui/pipelines/{name}/tables/{table}", response_class=HTMLResponse)
def table_page(request: Request, service: ServiceDep, member: MemberDep, table: str, _holder: Viewer) -> Response:
    """Show one table: its state at each destination, comparison, first rows, and versions of its structure."""
    reports = [one for one in member.status().tables if str(one.table) == table]
    if not reports:
        raise Refused(404, "TABLE_NOT_FOUND", f"pipeline {member.name} has no table {table}")
    named = reports[0].table
    prefix = "" if named.source is None else f"{named.source}:"
    return _page(
        "table.html",
        request,
        service,
        name=member.name,
        table=table,
        reports=reports,
        readable=_readable(member, reports),
        gone=GONE,
        schema=f"{prefix}{named.name.schema}",
        bare=named.name.name,
        with_file=lambda text: with_file(text, str(member.file)),
    )


@router.get("/ui/pipelines/{name}/messages", response_class=HTMLResponse)
def messages_page(request: Request, service: ServiceDep, member: MemberDep, _holder: Viewer) -> Response:
    pipeline = member.loaded()
    return _page(
        "messages.html",
        request,
        service,
        name=member.name,
        kept=[quarantine.as_json(one) for one in quarantine.kept(pipeline)[:MESSAGES_SHOWN]],
        letters=[dead_letters.as_json(one) for one in dead_letters.kept(pipeline)[:MESSAGES_SHOWN]],
    )


@router.get("/ui/pipelines/{name}/map", response_class=HTMLResponse)
def map_page(request: Request, service: ServiceDep, member: MemberDep, _holder: Operator) -> Response:
    """Show the tables at the source and the rules that take them; the script fills it in."""
    member.loaded()
    rules = written(member).get("tables", [])
    return _page("map.html", request, service, name=member.name, rules=json.dumps(rules, default=str))


def error_page(request: Request, status: int, problem: Problem) -> HTMLResponse:
    """Show an error to an operator: what is wrong, and the way out."""
    return _page("error.html", request, request.app.state.service, status_code=status, problem=problem)


def _summary(member: Member) -> dict[str, Any]:
    shown = pipeline_answer(member)
    found: dict[str, Any] = {"name": shown.name, "status": shown.status, "error": shown.error, "file": shown.file}
    found["notes"] = _notes(member)
    if member.pipeline is None:
        return {**found, "figures": None, "wrong": []}
    status = member.status()
    lags = [one.lag_seconds for one in status.destinations if one.lag_seconds is not None]
    kept = [wal_kept(one.source.details) for one in _sections(member, status)]
    figures = {
        "lag": seconds_text(max(lags, default=None)),
        "rate": rate_text(sum(table.rate for table in status.tables)),
        "wal": bytes_text(
            sum(one for one in kept if one is not None) if any(one is not None for one in kept) else None
        ),
    }
    wrong = [
        (f"{table.table} is Errored: {table.error}", with_file(table.solution, shown.file))
        for table in errored(status.tables)[:3]
    ]
    wrong += [
        (f"source: {one.source.problem.what}", one.source.problem.solution)
        for one in _sections(member, status)
        if one.source.problem is not None
    ]
    states = sorted(Counter(table.shown_state for table in status.tables).items())
    return {**found, "figures": figures, "wrong": wrong, "states": states}


def _notes(member: Member) -> list[tuple[str, str]]:
    """Say what makes the figures of a pipeline untrue: a changed file, or that nobody could look."""
    found = []
    if member.is_changed and member.run.is_up:
        found.append(
            ("the pipeline file has changed since this run began", "Stop and start the pipeline to take it up")
        )
    blind = member.observatory.blind_because if member.observatory is not None else ""
    if blind:
        found.append((f"these figures are old: {scrub(blind)}", "The server's log says more; it looks again by itself"))
    return found


def _sections(member: Member, status: Status) -> tuple[SourceSection, ...]:
    return status.source_views or (SourceSection(member.loaded().sources[0].name, status.source, status.log),)


def _sources(member: Member, status: Status) -> list[dict[str, Any]]:
    return [
        {
            "name": one.name,
            "source": one.source,
            "log": one.log,
            "wal": wal_kept(one.source.details),
            "destinations": [part for part in status.destinations if part.source in (None, one.name)],
        }
        for one in _sections(member, status)
    ]


def _rates(status: Status) -> dict[str, float]:
    found: dict[str, float] = {}
    for table in status.tables:
        name = table.destination if table.table.source is None else f"{table.table.source}:{table.destination}"
        found[name] = found.get(name, 0.0) + table.rate
    return found


def _readable(member: Member, reports: list[TableReport]) -> list[dict[str, str]]:
    """Return the destinations that hold rows of a table, with the table's name in the SQL of each."""
    kinds = {one.name: one.type for one in member.loaded().lakes}
    return [
        {"destination": one.destination, "sql": f"{quoted(one.target.schema, kind)}.{quoted(one.target.name, kind)}"}
        for one in reports
        for kind in [kinds.get(one.destination)]
        if kind is not None
    ]


def quoted(name: str, kind: str) -> str:
    """Quote a name as the SQL of a type of destination does: Postgres and DuckDB by the standard, Spark by its own."""
    mark = '"' if kind in ("postgres", "duckdb") else "`"
    return f"{mark}{name.replace(mark, 2 * mark)}{mark}"


def _page(template: str, request: Request, service: ServiceDep, status_code: int = 200, **values: Any) -> HTMLResponse:
    cookie, holder = cookie_of(request.headers), holder_of(request)
    shown = {
        "holder": holder,
        "page_token": service.tokens.page_token(cookie) if cookie and holder is not None else "",
        "edit": service.settings.edit,
        "may_act": holder is not None and holder.role.allows(Role.OPERATOR),
        "may_remove": holder is not None and holder.role.allows(Role.ADMIN),
        **values,
    }
    return HTMLResponse(TEMPLATES.get_template(template).render(**shown), status_code)

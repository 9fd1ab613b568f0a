"""Tables of a pipeline: list them, have them copied, tried, paused, forgotten or verified."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from penstock.control import pauses
from penstock.control.status import view as status_view
from penstock.control.status.report import TableReport
from penstock.control.tables import requests
from penstock.control.tables import view as tables_view
from penstock.server.access import Admin, Operator, Viewer
from penstock.server.fleet import Member
from penstock.server.problems import Refused, described
from penstock.server.service import MemberDep, ServiceDep
from penstock.state.store import RequestKind

router = APIRouter(prefix="/pipelines/{name}", tags=["tables"], responses=described(400, 401, 403, 404, 422))
VERIFY_SECONDS = 3600.0
REPLAY_SECONDS = 6 * 3600.0
Destination = Annotated[str | None, Query(description="Only at this destination.")]
Names = Annotated[list[str], Field(max_length=1000)]


class AskedAnswer(BaseModel):
    """What became of a request. `taken_up_by` is the process that does it; null: the next run does."""

    asked: list[str]
    asked_before: list[str]
    in_order: list[str]
    taken_up_by: int | None


class ResyncBody(BaseModel):
    """Which tables to copy again: names and patterns, or all."""

    tables: Names = Field(default_factory=list)
    all: bool = False


class VerifyBody(BaseModel):
    """Which tables to compare; all when none is named. With `repair`, rows that differ are put right."""

    tables: Names = Field(default_factory=list)
    repair: bool = False
    destination: str | None = None
    timeout: float = Field(default=300.0, ge=1, le=3600)


class ReplayBody(BaseModel):
    """Which changes to publish again: from a position or time on, up to another, or to the log's end.

    `into` names new tables in a destination of tables, such as `audit.{table}`.
    """

    destination: str = Field(min_length=1, max_length=200, pattern=r"^[^-]")
    since: str = Field(alias="from", min_length=1, max_length=100, pattern=r"^[^-]")
    to: str | None = Field(default=None, max_length=100, pattern=r"^[^-]")
    tables: Names = Field(default_factory=list)
    source: str | None = Field(default=None, max_length=200, pattern=r"^[^-]")
    into: str | None = Field(default=None, max_length=200, pattern=r"^[^-]")


class PauseAnswer(BaseModel):
    changed: list[str]
    before: list[str]
    taken_up_by: int | None


@router.get("/tables")
def list_tables(
    member: MemberDep,
    _holder: Viewer,
    state: Annotated[str | None, Query(description="Only tables in this state, such as Errored.")] = None,
    match: Annotated[str | None, Query(description="Only tables whose name has this text in it.")] = None,
) -> dict[str, Any]:
    """List the tables as `penstock tables --json` does, with what `penstock status --json` knows of each."""
    shown = tables_view.as_json(member.tables())
    more = {(one.destination, str(one.table)): one for one in member.status().tables}
    rows = [
        _with_figures(row, more.get((row["destination"], row["table"])), str(member.file)) for row in shown["tables"]
    ]
    wanted = [row for row in rows if state in (None, row["state"]) and (match is None or match in row["table"])]
    return {**shown, "tables": wanted}


@router.get("/tables/{table}")
def get_table(member: MemberDep, table: str, _holder: Viewer) -> dict[str, Any]:
    """Show one table at each of its destinations."""
    found = list_tables(member, _holder)
    rows = [row for row in found["tables"] if row["table"] == table]
    if not rows:
        raise Refused(404, "TABLE_NOT_FOUND", f"pipeline {member.name} has no table {table}", "GET …/tables lists them")
    return {"table": table, "destinations": rows}


@router.post("/resync")
def resync_tables(
    member: MemberDep, body: ResyncBody, _holder: Operator, destination: Destination = None
) -> AskedAnswer:
    """Copy tables again, by name, by pattern or all. Readers see the present ones until the new ones are complete."""
    return _ask(member, "resync", body.tables, destination, everything=body.all)


@router.post("/tables/{table}/resync")
def resync_table(member: MemberDep, table: str, _holder: Operator, destination: Destination = None) -> AskedAnswer:
    """Copy a table again. Readers see the present one until the new one is complete."""
    return _ask(member, "resync", [table], destination)


@router.post("/tables/{table}/retry")
def retry_table(member: MemberDep, table: str, _holder: Operator, destination: Destination = None) -> AskedAnswer:
    """Try an Errored table again now."""
    return _ask(member, "retry", [table], destination)


@router.post("/tables/{table}/drop")
def drop_table(
    member: MemberDep,
    table: str,
    _holder: Admin,
    yes: Annotated[bool, Query(description="Must be true: what only the destination has is lost.")] = False,
    destination: Destination = None,
) -> AskedAnswer:
    """Drop a table at the destination, so that it is made again and copied."""
    if not yes:
        raise Refused(400, "NOT_CONFIRMED", "dropping a table cannot be undone", "If that is meant: ?yes=true")
    return _ask(member, "drop", [table], destination)


@router.post("/tables/{table}/forget")
def forget_table(member: MemberDep, table: str, _holder: Operator, destination: Destination = None) -> dict[str, str]:
    """Remove the records of a table that is no longer followed. Its table at the destination stays."""
    forgotten = requests.forget(member.loaded().destination_view(destination), table)
    member.changed()
    return {"forgotten": str(forgotten)}


@router.post("/tables/{table}/pause")
def pause_table(member: MemberDep, table: str, _holder: Operator, destination: Destination = None) -> PauseAnswer:
    """Let a table stand still until it is resumed, also across restarts."""
    done = pauses.pause(member.loaded(), destination, [table])
    member.changed()
    return PauseAnswer(changed=list(done.changed), before=list(done.before), taken_up_by=done.pid)


@router.post("/tables/{table}/resume")
def resume_table(member: MemberDep, table: str, _holder: Operator, destination: Destination = None) -> PauseAnswer:
    """Let a table go on from where it stopped."""
    done = pauses.resume(member.loaded(), destination, [table])
    member.changed()
    return PauseAnswer(changed=list(done.changed), before=list(done.before), taken_up_by=done.pid)


@router.post("/verify", status_code=202, responses=described(429))
def verify_tables(member: MemberDep, body: VerifyBody, holder: Operator, service: ServiceDep) -> dict[str, Any]:
    """Compare tables with the source at one position, in the background: the answer names the job to ask for."""
    words = ["verify", str(member.loaded().file), "--json", "--timeout", str(body.timeout)]
    words += ["--repair"] if body.repair else []
    words += [] if body.destination is None else ["--destination", body.destination]
    member.loaded().only(body.destination)
    bad = next((name for name in body.tables if name.startswith("-")), None)
    if bad is not None:
        raise Refused(404, "TABLE_NOT_FOUND", f"there is no table {bad}")
    return service.jobs.begin(
        "verify", member.name, [*words, "--", *body.tables], seconds=VERIFY_SECONDS, by=holder.name
    ).as_json()


@router.post("/replay", status_code=202, responses=described(429))
def replay_log(member: MemberDep, body: ReplayBody, holder: Operator, service: ServiceDep) -> dict[str, Any]:
    """Publish changes that the change log still has again, in the background: the answer names the job."""
    member.loaded().only(body.destination)
    words = ["replay", str(member.loaded().file), "--json", "--destination", body.destination, "--from", body.since]
    words += [] if body.to is None else ["--to", body.to]
    words += [] if body.source is None else ["--source", body.source]
    words += [] if body.into is None else ["--into", body.into]
    words += [word for name in body.tables for word in ("--table", name)]
    return service.jobs.begin("replay", member.name, words, seconds=REPLAY_SECONDS, by=holder.name).as_json()


@router.get("/jobs")
def list_jobs(member: MemberDep, _holder: Operator, service: ServiceDep) -> list[dict[str, Any]]:
    """List the jobs of a pipeline, the newest last."""
    return [job.as_json() for job in service.jobs.of(member.name)]


@router.get("/jobs/{job}")
def get_job(member: MemberDep, job: str, _holder: Operator, service: ServiceDep) -> dict[str, Any]:
    """Show what has become of a job."""
    return service.jobs.get(member.name, job).as_json()


def _ask(
    member: Member, kind: RequestKind, tables: list[str], destination: str | None, *, everything: bool = False
) -> AskedAnswer:
    asked = requests.ask(member.loaded().only(destination), kind, tables, everything=everything)
    member.changed()
    return AskedAnswer(
        asked=[str(one) for one in asked.new],
        asked_before=[str(one) for one in asked.before],
        in_order=[str(one) for one in asked.in_order],
        taken_up_by=asked.pid,
    )


def _with_figures(row: dict[str, Any], report: TableReport | None, file: str) -> dict[str, Any]:
    return row if report is None else {**status_view.table_json(report, file), **row}

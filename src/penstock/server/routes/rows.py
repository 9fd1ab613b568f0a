"""Rows and events: read-only SQL over a destination, and changes as they come (server-sent events)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from penstock.control.query.log_events import EVERYTHING, LogEvent, LogEvents, asked, parse_after
from penstock.control.text.secrets import scrub
from penstock.errors import PenstockError, UsageError
from penstock.render.format import ENVELOPES, Envelope, EventFormat
from penstock.server.access import Operator
from penstock.server.limits import Slot, Slots
from penstock.server.problems import Refused, described
from penstock.server.service import MemberDep, ServiceDep

router = APIRouter(prefix="/pipelines/{name}", tags=["rows"], responses=described(400, 401, 403, 404, 422))
MOST_STREAMS = 16
HEARTBEAT_SECONDS = 5.0
_streams = Slots(MOST_STREAMS, "clients follow events")


class QueryBody(BaseModel):
    """One statement that reads. `limit` is at most the server's own."""

    sql: str = Field(min_length=1, max_length=20_000)
    destination: str | None = None
    limit: int = Field(default=100, ge=1)


class QueryAnswer(BaseModel):
    """`truncated`: there are more rows than these."""

    rows: list[dict[str, Any]]
    truncated: bool
    seconds: float


@router.post("/query", responses=described(429, 504))
def query(member: MemberDep, body: QueryBody, holder: Operator, service: ServiceDep) -> QueryAnswer:
    """Run a statement over a destination's tables. It only reads, and has a limit of rows and of time."""
    pipeline = member.loaded().destination_view(body.destination)
    limit, seconds = min(body.limit, service.settings.query_rows), service.settings.query_seconds
    began = time.monotonic()
    words = ["query", str(pipeline.file), "--format", "json", "--limit", str(limit + 1)]
    words += ["--destination", pipeline.destination.name, "--", body.sql]
    job = service.jobs.begin("query", member.name, words, seconds=seconds, by=holder.name)
    service.jobs.wait(job, seconds + 5)
    if job.state != "done":
        timed_out = job.code in ("", "ENDED")
        raise Refused(
            504 if timed_out else 400,
            "QUERY_TIMEOUT" if timed_out else job.code,
            f"the query did not end within {seconds:g} s" if timed_out else job.message,
            "Ask for less" if timed_out else "",
        )
    rows = job.result if isinstance(job.result, list) else []
    return QueryAnswer(rows=rows[:limit], truncated=len(rows) > limit, seconds=round(time.monotonic() - began, 3))


@router.get("/events", response_class=StreamingResponse, responses=described(429))
def events(
    member: MemberDep,
    _holder: Operator,
    table: Annotated[list[str] | None, Query(description="Only of these tables.")] = None,
    after: Annotated[str | None, Query(description="Behind this place, position or time.")] = None,
    format: Annotated[str, Query(description=f"One of {', '.join(ENVELOPES)}.")] = "native",
    follow: Annotated[bool, Query(description="Go on with what comes.")] = True,
    last_event_id: Annotated[str | None, Header()] = None,
) -> StreamingResponse:
    """Stream changes out of the change log as server-sent events, in the order in which they happened."""
    if format not in ENVELOPES:
        raise UsageError(f"format {format} is unknown", f"It may be {', '.join(ENVELOPES)}")
    given = last_event_id or after
    behind = EVERYTHING if given is None else parse_after(given)
    source, feeds = asked(member.loaded(), table or [])
    log = LogEvents(source, feeds, EventFormat(Envelope(format), split_moves=format != "faucet"), lambda _said: None)
    if given is not None and not log.reaches(behind):
        raise Refused(410, "LOG_PASSED", f"the change log begins at {log.start_text}", "Leave `after` out")
    events: Iterator[LogEvent | None] = log.following(behind) if follow else log.events(behind)
    sent = _sent(events, _streams.take())
    return StreamingResponse(sent, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def _sent(events: Iterator[LogEvent | None], slot: Slot) -> Iterator[str]:
    """Write server-sent events, each with its place as its id, so that a client that connects again goes on there.

    A comment now and then notices a client that has left.
    """
    spoke = 0.0
    with slot:
        try:
            for one in events:
                now = time.monotonic()
                if one is not None:
                    yield f"id: {one.place}\ndata: {one.text}\n\n"
                    spoke = now
                elif now - spoke > HEARTBEAT_SECONDS:
                    yield ": waiting\n\n"
                    spoke = now
        except PenstockError as error:
            said = {"code": error.code.replace("-", "_").upper(), "message": error.what, "solution": error.solution}
            yield f"event: error\ndata: {scrub(json.dumps(said, ensure_ascii=False))}\n\n"

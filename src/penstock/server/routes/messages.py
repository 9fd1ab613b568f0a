"""Dead letters (by DeltaForge's routes) and messages in quarantine."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from penstock.control import dead_letters, quarantine
from penstock.server.access import Admin, Operator, Viewer
from penstock.server.problems import described
from penstock.server.service import MemberDep

router = APIRouter(prefix="/pipelines/{name}", tags=["messages"], responses=described(400, 401, 403, 404, 422))
Limit = Annotated[int, Query(ge=1, le=10_000)]
Sink = Annotated[str | None, Query(description="Only those of this destination.")]
Id = Annotated[int, Field(ge=0)]


class AckBody(BaseModel):
    """Everything up to this id is dealt with."""

    up_to_seq: int = Field(ge=0)


class IdsBody(BaseModel):
    """Which ones; all when none is named."""

    ids: list[Id] = Field(default_factory=list, max_length=10_000)


@router.get("/journal/dlq")
def list_letters(
    member: MemberDep,
    _holder: Viewer,
    limit: Limit = 100,
    sink_id: Sink = None,
    error_kind: Annotated[str | None, Query(description="Only those with this code.")] = None,
) -> list[dict[str, Any]]:
    """List dead letters, oldest first: which event, and why the stream went on without it."""
    kept = dead_letters.kept(member.loaded().only(sink_id))
    shown = [dead_letters.as_json(one) for one in kept if error_kind in (None, one.kept.letter.code)]
    return [_letter(one) for one in shown[:limit]]


@router.get("/journal/dlq/count")
def count_letters(member: MemberDep, _holder: Viewer, sink_id: Sink = None) -> dict[str, int]:
    """Count dead letters."""
    return {"count": len(dead_letters.kept(member.loaded().only(sink_id)))}


@router.get("/journal/dlq/{number}")
def get_letter(member: MemberDep, number: int, _holder: Operator) -> dict[str, Any]:
    """Show one dead letter with what it holds; bytes are hexadecimal."""
    pipeline = member.loaded()
    (one,) = dead_letters.chosen(pipeline, dead_letters.kept(pipeline), [str(number)])
    return _letter(dead_letters.whole_json(one))


@router.post("/journal/dlq/ack")
def ack_letters(member: MemberDep, body: AckBody, _holder: Operator, sink_id: Sink = None) -> dict[str, int]:
    """Remove dead letters up to an id: they are dealt with."""
    pipeline = member.loaded().only(sink_id)
    ids = [str(one.kept.id) for one in dead_letters.kept(pipeline) if one.kept.id <= body.up_to_seq]
    return {"acked": len(dead_letters.remove(pipeline, ids)) if ids else 0}


@router.post("/journal/dlq/drop")
def drop_letters(member: MemberDep, body: IdsBody, _holder: Operator) -> dict[str, int]:
    """Remove single dead letters: they are dealt with. Without any, nothing is removed."""
    ids = [str(number) for number in body.ids]
    return {"dropped": len(dead_letters.remove(member.loaded(), ids)) if ids else 0}


@router.post("/journal/dlq/retry")
def retry_letters(member: MemberDep, body: IdsBody, _holder: Operator) -> dict[str, Any]:
    """Send dead letters again, behind what the stream has published by then."""
    asked = dead_letters.ask(member.loaded(), [str(number) for number in body.ids])
    return {
        "asked": [one.kept.id for one in asked.new],
        "asked_before": [one.kept.id for one in asked.before],
        "rows_of_tables": [one.kept.id for one in asked.rows],
        "taken_up_by": asked.pid,
    }


@router.delete("/journal/dlq")
def purge_letters(member: MemberDep, _holder: Admin, sink_id: Sink = None) -> dict[str, int]:
    """Remove all dead letters. Their events are lost."""
    return {"purged": len(dead_letters.remove(member.loaded().only(sink_id), []))}


@router.get("/quarantine")
def list_quarantine(member: MemberDep, _holder: Viewer, limit: Limit = 100) -> list[dict[str, Any]]:
    """List messages that could not be decoded: table, place and reason."""
    return [quarantine.as_json(one) for one in quarantine.kept(member.loaded())[:limit]]


@router.get("/quarantine/{number}")
def get_quarantined(member: MemberDep, number: int, _holder: Operator) -> dict[str, Any]:
    """Show one message: what can be read of it, and its bytes in hexadecimal."""
    pipeline = member.loaded()
    (one,) = quarantine.chosen(pipeline, quarantine.kept(pipeline), [str(number)])
    return quarantine.whole_json(one)


@router.post("/quarantine/replay")
def replay_quarantine(member: MemberDep, body: IdsBody, _holder: Operator) -> dict[str, Any]:
    """Try messages with the decoder of this penstock. A table whose messages all decode is tried again."""
    done = quarantine.replay(member.loaded(), [str(number) for number in body.ids])
    member.changed()
    return {
        "decoded": [one.id for one in done.decoded],
        "refused": [{"id": one.id, "reason": reason} for one, reason in done.refused],
        "tables_tried_again": [str(table) for table in done.again],
        "passed_over": [one.id for one in done.passed],
        "taken_up_by": done.pid,
    }


@router.post("/quarantine/drop")
def drop_quarantine(member: MemberDep, body: IdsBody, _holder: Admin) -> dict[str, Any]:
    """Give messages up. A table that stopped at one of them is copied again."""
    done = quarantine.drop(member.loaded(), [str(number) for number in body.ids])
    member.changed()
    return {"dropped": [one.id for one in done.dropped], "tables_copied_again": [str(table) for table in done.resynced]}


def _letter(one: dict[str, Any]) -> dict[str, Any]:
    """Return a dead letter with DeltaForge's names beside our own."""
    return {"seq": one["id"], "sink_id": one["destination"], "error_kind": one["code"], **one}

"""Where reading may go on: the position after the log's end, or the gap that forbids it.

A gap is never passed over. LSNs are reused after a failover or a restore, so besides the slot's own position the
server's identity and the history of its timeline must say that the log's end is a point of *this* server's past.
capture.py asks before every START_REPLICATION. What cannot be seen here, a server that was put back to an earlier
state of its disk and has moved past the log's end since, shows in what it sends again: see overlap.py.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from psycopg import pq

from penstock.errors import GapError, SourceError, SourceMisconfigured, SourceUnreachable
from penstock.model.position import Position
from penstock.source.postgres.connect import Connection, replication_connection, source_errors
from penstock.source.postgres.slot import PLUGIN, SlotState, lsn_text, parse_lsn, slot_state
from penstock.source.sink import Origin

START_OVER = (
    "Start over with `penstock reset`: it drops the slot, removes the change log, and every table is copied again"
)


@dataclass(frozen=True)
class ServerStream:
    """Whose WAL it is: positions mean the same only under one system identifier, along one line of timelines.

    `replica`: it was read from a replica, which may follow its primary to another timeline, or be promoted, in the
    middle of a stream; `timeline` is the one at the stream's beginning.
    """

    system_id: str
    timeline: int
    replica: bool = False

    def to_origin(self) -> Origin:
        return Origin(json.dumps(asdict(self), sort_keys=True))

    @classmethod
    def from_origin(cls, origin: Origin) -> ServerStream:
        """Read what `to_origin` wrote. The stream of a source of another kind is that of a server with another name."""
        try:
            return cls(**json.loads(origin.stream))
        except (TypeError, ValueError):
            return cls(origin.stream, 0)


@dataclass(frozen=True)
class Server:
    """What IDENTIFY_SYSTEM says. `position` is up to where its WAL is durable (on a replica: received and replayed)."""

    stream: ServerStream
    position: Position
    database: str


@dataclass(frozen=True)
class Resumption:
    """How reading goes on.

    `position` is where the log goes on, `read_from` where the slot stands, which is that or before it.
    """

    position: Position
    read_from: Position
    origin: Origin


def resume_position(
    stream: pq.abc.PGconn, connection: Connection, slot: str, end: Position | None, origin: Origin | None
) -> Resumption:
    """Return where to start, and whose stream it is. `end` and `origin` are the log's, None when it is empty."""
    server = identify(stream, connection)
    state = slot_state(connection, slot)
    if end is None or origin is None:
        first = _first_position(slot, state, server)
        return Resumption(first, first, server.stream.to_origin())
    known = ServerStream.from_origin(origin)
    _require_same_server(slot, end, known, server)
    _require_same_history(stream, slot, end, known, server)
    if server.position < end:
        _behind(slot, end, server)
    if state is None:
        raise gap(slot, end, "the slot no longer exists")
    _require_ours(state, server)
    if state.invalidation is not None:
        raise gap(slot, end, f"the server has given the slot up ({state.invalidation})")
    confirmed = _confirmed(state)
    if confirmed > end:
        raise gap(slot, end, f"the slot has moved on to {lsn_text(confirmed)}, past the log's end")
    return Resumption(end, confirmed, server.stream.to_origin())


def find_gap(
    url: str, connection: Connection, slot: str, end: Position | None, origin: Origin | None
) -> GapError | None:
    """Return the gap between the log and the server, as far as it shows without reading the slot.

    None when none shows, or while somebody reads the slot, who will find it.
    """
    state = slot_state(connection, slot)
    if end is None or (state is not None and state.active_pid is not None):
        return None
    try:
        stream = replication_connection(url)
    except SourceUnreachable:
        return None  # no sender is free, or the role may not replicate: findings of their own
    try:
        resume_position(stream, connection, slot, end, origin)
    except GapError as found:
        return found
    except SourceError:
        return None
    finally:
        stream.finish()
    return None


def require_unmoved(connection: Connection, slot: str, read_from: Position) -> None:
    """Nobody else can move a slot that a stream holds; somebody may have until then, which the next try judges."""
    state = slot_state(connection, slot)
    if state is None or state.confirmed_flush_lsn != read_from:
        raise SourceUnreachable(
            f"slot {slot} was moved by somebody else while it was being opened", "Nothing: it is tried again"
        )


def identify(stream: pq.abc.PGconn, connection: Connection) -> Server:
    row = _row(stream, "IDENTIFY_SYSTEM")
    with source_errors("asking whether the server is a replica"):
        replica = connection.execute("SELECT pg_is_in_recovery()").fetchone()
    stream_of = ServerStream(row["systemid"], int(row["timeline"]), replica is not None and bool(replica[0]))
    return Server(stream_of, parse_lsn(row["xlogpos"]), row["dbname"])


def gap(slot: str, end: Position, reason: str) -> GapError:
    return GapError(
        f"changes after {lsn_text(end)}, where the change log ends, cannot be read from slot {slot}: {reason}",
        START_OVER,
    )


def slot_went_away(slot: str) -> GapError:
    """Return the gap that the end of a temporary slot's connection leaves."""
    return GapError(
        f"temporary slot {slot} went with its connection, so what happened since cannot be read",
        "Run again: every table is copied again. With `slot_type: permanent` a run goes on where it was",
    )


def fork_position(history: str, timeline: int) -> Position | None:
    """Return where `timeline` was left, by a timeline history file; None when it is not an ancestor."""
    for line in history.splitlines():
        fields = line.split("\t")
        if len(fields) >= 2 and fields[0].strip() == str(timeline):
            return parse_lsn(fields[1].strip())
    return None


def _first_position(slot: str, state: SlotState | None, server: Server) -> Position:
    if state is None:
        raise SourceMisconfigured(f"slot {slot} does not exist", "`penstock run` makes it when the change log is empty")
    _require_ours(state, server)
    if state.invalidation is not None:
        raise SourceMisconfigured(
            f"slot {slot} cannot be read any more: the server has given it up ({state.invalidation})",
            "Drop it (`penstock slots drop`) and run again",
        )
    return _confirmed(state)


def _confirmed(state: SlotState) -> Position:
    if state.confirmed_flush_lsn is None:
        raise SourceUnreachable(f"slot {state.name} is still being made", "Wait for long transactions to end")
    return state.confirmed_flush_lsn


def _require_ours(state: SlotState, server: Server) -> None:
    if state.plugin != PLUGIN:
        raise SourceMisconfigured(
            f"slot {state.name} is for {state.plugin or 'physical replication'}, not {PLUGIN}",
            "Name another slot in source.slot",
        )
    if state.database != server.database:
        raise SourceMisconfigured(
            f"slot {state.name} belongs to database {state.database}, not {server.database}",
            "Name another slot in source.slot, or that database in source.url",
        )


def _require_same_server(slot: str, end: Position, known: ServerStream, server: Server) -> None:
    if server.stream.system_id != known.system_id:
        raise gap(
            slot,
            end,
            f"this is another server (system identifier {server.stream.system_id}; the log is of {known.system_id})",
        )


def _require_same_history(stream: pq.abc.PGconn, slot: str, end: Position, known: ServerStream, server: Server) -> None:
    current = server.stream.timeline
    if current == known.timeline:
        return
    if current < known.timeline:
        raise gap(slot, end, f"the server is on timeline {current}, before the log's timeline {known.timeline}")
    fork = fork_position(_row(stream, f"TIMELINE_HISTORY {current}")["content"], known.timeline)
    if fork is None:
        raise gap(slot, end, f"the server's timeline {current} does not descend from the log's {known.timeline}")
    if fork < end and not known.replica:  # a replica may have gone over to that timeline in the middle of its stream
        raise gap(
            slot,
            end,
            f"the server's timeline {current} left the log's timeline {known.timeline} at {lsn_text(fork)}, "
            "before the log's end",
        )


def _behind(slot: str, end: Position, server: Server) -> None:
    if server.stream.replica:
        raise SourceUnreachable(
            f"the replica has replayed up to {lsn_text(server.position)}, the change log ends at {lsn_text(end)}",
            "Wait until the replica has caught up",
        )
    raise gap(slot, end, f"the server is at {lsn_text(server.position)}, before the log's end: it was restored")


def _row(stream: pq.abc.PGconn, command: str) -> dict[str, str]:
    result = stream.exec_(command.encode())
    if result.status != pq.ExecStatus.TUPLES_OK or result.ntuples != 1:
        message = " ".join(result.get_error_message().split())
        if stream.status != pq.ConnStatus.OK:
            raise SourceUnreachable(f"{command} failed: {message}", "Check the server's log")
        raise SourceError(f"{command} failed: {message}", "Check the server's log")
    return {(result.fname(i) or b"").decode(): (result.get_value(0, i) or b"").decode() for i in range(result.nfields)}

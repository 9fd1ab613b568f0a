"""The replication slot: its state, its making and its end.

A slot is of pgoutput, in the source's database, and made after its publication (publication.py): a slot that is older
than its publication cannot be read on servers before 18. Reading from it is capture.py's work. A temporary one belongs
to the connection that reads it, and goes with it.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import LiteralString

import psycopg
from psycopg import pq, sql

from penstock.errors import SlotBusy, SourceMisconfigured, SourceUnreachable
from penstock.model.position import Position
from penstock.source.postgres.connect import Connection, replication_connection, source_errors

PLUGIN = "pgoutput"
_TELL_EVERY_SECONDS = 5.0
_ENDING_SECONDS = 3.0
_CREATE = "CREATE_REPLICATION_SLOT {} LOGICAL {} NOEXPORT_SNAPSHOT"
_CREATE_TEMPORARY = "CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL {} NOEXPORT_SNAPSHOT"
_CREATE_FOR_FAILOVER = "CREATE_REPLICATION_SLOT {} LOGICAL {} (SNAPSHOT 'nothing', FAILOVER true)"


@dataclass(frozen=True)
class SlotState:
    """What `pg_replication_slots` says. `database` and `plugin` are None for a physical slot.

    `invalidation` is why the server gave the slot up (its changes are lost), None while it is usable.
    `retained_bytes` is the WAL that the server keeps for it.
    """

    name: str
    plugin: str | None
    database: str | None
    active_pid: int | None
    confirmed_flush_lsn: Position | None
    wal_status: str | None
    invalidation: str | None
    retained_bytes: int
    temporary: bool = False


def parse_lsn(text: str) -> Position:
    """Return a position from what the server writes: `16/B374D848`."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def lsn_text(position: Position) -> str:
    """Return a position as the server writes it: `16/B374D848`."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def flush_position(connection: Connection) -> Position:
    """Return up to where the server's WAL is durable; on a replica, up to where it is replayed."""
    with source_errors("reading the WAL position"):
        row = connection.execute(
            "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()"
            " ELSE pg_current_wal_flush_lsn() END::text"
        ).fetchone()
    assert row is not None
    return parse_lsn(row[0])


def slot_state(connection: Connection, name: str) -> SlotState | None:
    """Return the slot as it is now; None when there is none of that name."""
    with source_errors(f"reading slot {name}"):
        row = connection.execute(
            """
            SELECT plugin::text, database::text, active_pid, confirmed_flush_lsn::text, wal_status,
                   to_jsonb(s) ->> 'invalidation_reason', (to_jsonb(s) ->> 'conflicting')::bool,
                   coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                                                 ELSE pg_current_wal_lsn() END, restart_lsn), 0)::bigint,
                   temporary
            FROM pg_replication_slots s WHERE slot_name = %s
            """,
            (name,),
        ).fetchone()
    if row is None:
        return None
    plugin, database, active_pid, confirmed, wal_status, reason, conflicting, retained, temporary = row
    if reason is None and conflicting:
        reason = "conflict with recovery"
    if reason is None and wal_status == "lost":
        reason = "the WAL it needs was removed"
    return SlotState(
        name=name,
        plugin=plugin,
        database=database,
        active_pid=active_pid,
        confirmed_flush_lsn=parse_lsn(confirmed) if confirmed else None,
        wal_status=wal_status,
        invalidation=reason,
        retained_bytes=max(retained, 0),
        temporary=temporary,
    )


def create_slot(connection: Connection, url: str, name: str, waiting: Callable[[str], None] | None = None) -> Position:
    """Create the slot and return its consistent point: every transaction with `commit_lsn >=` it will be sent.

    On 17 and later it is one that replicas may synchronise. Postgres first waits for transactions that were running to
    end. Every few seconds of that, `waiting` is given who they are, as `connection` sees them. Interrupting it (Ctrl-C)
    leaves no slot behind.
    """
    pgconn = replication_connection(url)
    try:
        return _created(
            pgconn, connection, _CREATE_FOR_FAILOVER if _can_fail_over(connection) else _CREATE, name, waiting
        )
    finally:
        pgconn.finish()


def create_temporary_slot(
    pgconn: pq.abc.PGconn, connection: Connection, name: str, waiting: Callable[[str], None]
) -> Position:
    """Create a slot that lasts as long as `pgconn`, and return its consistent point, as `create_slot` does.

    What `waiting` raises ends it. SlotBusy while the one of a run before is on its way out.
    """
    state = slot_state(connection, name)
    if state is not None and state.temporary:
        raise SlotBusy(f"temporary slot {name} is another run's", "Stop the process that reads it, or wait for its end")
    return _created(pgconn, connection, _CREATE_TEMPORARY, name, waiting)


def _created(
    pgconn: pq.abc.PGconn,
    connection: Connection,
    statement: LiteralString,
    name: str,
    waiting: Callable[[str], None] | None,
) -> Position:
    command = sql.SQL(statement).format(sql.Identifier(name), sql.SQL(PLUGIN))
    pgconn.send_query(command.as_bytes(connection))
    try:
        result = _await_result(pgconn, lambda: _tell(connection, pgconn.backend_pid, waiting))
    except BaseException:
        pgconn.get_cancel().cancel()
        raise
    if result.status != pq.ExecStatus.TUPLES_OK:
        raise _not_created(name, result)
    columns = {result.fname(i): i for i in range(result.nfields)}
    point = result.get_value(0, columns[b"consistent_point"])
    assert point is not None
    return parse_lsn(point.decode())


def _can_fail_over(connection: Connection) -> bool:
    """Return whether replicas can keep the slot in step, so that a promoted one has it; none needs to."""
    if connection.info.server_version < 170000:
        return False
    with source_errors("asking whether the server is a replica"):
        row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
    return row is not None and not row[0]


def advance_slot(connection: Connection, state: SlotState, to: Position, head: Position) -> None:
    """Have the slot stand at a position, so that an empty log begins there.

    SourceMisconfigured when the slot has let go of it, or the server has not written it yet; SlotBusy while somebody
    reads.
    """
    stands = state.confirmed_flush_lsn or 0
    if to < stands:
        raise SourceMisconfigured(
            f"source.start_lsn is {lsn_text(to)}, and slot {state.name} begins at {lsn_text(stands)}, behind it",
            "Leave start_lsn out: the change log then begins where the slot stands",
        )
    if to > head:
        raise SourceMisconfigured(
            f"source.start_lsn is {lsn_text(to)}, and the server is at {lsn_text(head)} only",
            "Give a position that the server has written, or leave start_lsn out",
        )
    try:
        if to > stands:
            connection.execute("SELECT pg_replication_slot_advance(%s, %s)", (state.name, lsn_text(to)))
    except psycopg.errors.ObjectInUse as error:
        raise SlotBusy(
            f"slot {state.name} is in use: {str(error).strip().splitlines()[0]}", "Stop what reads it first"
        ) from error
    except psycopg.Error as error:
        with source_errors(f"moving slot {state.name} to source.start_lsn"):
            raise error


def drop_slot(connection: Connection, name: str) -> None:
    """Remove the slot. SlotBusy when somebody reads from it; nothing happens when there is none."""
    try:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    except psycopg.errors.UndefinedObject:
        return
    except psycopg.errors.ObjectInUse as error:
        raise SlotBusy(
            f"slot {name} is in use: {str(error).strip().splitlines()[0]}", "Stop the pipeline that reads it first"
        ) from error
    except psycopg.Error as error:
        with source_errors(f"dropping slot {name}"):
            raise error


def end_reader(connection: Connection, name: str) -> str | None:
    """End the session that reads the slot, and wait until it is gone; return which that was, None if nobody reads.

    A role may end its own sessions; for another's it needs to be a member of `pg_signal_backend`.
    """
    with source_errors(f"ending who reads slot {name}"):
        row = connection.execute(
            "SELECT active_pid, pg_terminate_backend(active_pid) FROM pg_replication_slots"
            " WHERE slot_name = %s AND active_pid IS NOT NULL",
            (name,),
        ).fetchone()
        if row is None:
            return None
        deadline = time.monotonic() + _ENDING_SECONDS
        while (state := slot_state(connection, name)) is not None and state.active_pid == row[0]:
            if time.monotonic() > deadline:
                raise SlotBusy(f"process {row[0]} reads slot {name} and does not end", "It is waited for")
            time.sleep(0.05)
    return f"process {row[0]}"


def _await_result(pgconn: pq.abc.PGconn, tell: Callable[[], None]) -> pq.abc.PGresult:
    """Wait for the result while signals are heard, which a blocking libpq call would prevent."""
    told = time.monotonic()
    while pgconn.is_busy():
        readable, _, _ = select.select([pgconn.socket], [], [], 0.2)
        if readable:
            pgconn.consume_input()
        if time.monotonic() - told >= _TELL_EVERY_SECONDS:
            told = time.monotonic()
            tell()
    result = pgconn.get_result()
    if result is None:
        raise SourceUnreachable("the server closed the connection while it made the slot", "Look at the server's log")
    return result


def _tell(connection: Connection, backend_pid: int, waiting: Callable[[str], None] | None) -> None:
    if waiting is None:
        return
    with source_errors("reading who holds up the slot"):
        rows = connection.execute(
            "SELECT pid, coalesce(usename, '?'), coalesce(application_name, ''), xact_start::text"
            " FROM pg_stat_activity WHERE pid = ANY (pg_blocking_pids(%s)) ORDER BY xact_start",
            (backend_pid,),
        ).fetchall()
        replica = connection.execute("SELECT pg_is_in_recovery()").fetchall()[0][0]
    if not rows and replica:
        waiting("the primary's next record of running transactions; SELECT pg_log_standby_snapshot() there makes one")
        return
    told = [
        f"pid {pid} ({' '.join(filter(None, [user, name]))}{f', since {since}' if since else ''})"
        for pid, user, name, since in rows
    ]
    waiting("; ".join(told) or "unknown")


def _not_created(name: str, result: pq.abc.PGresult) -> SourceMisconfigured | SourceUnreachable:
    message = " ".join(result.get_error_message().split())
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    what = f"cannot make replication slot {name}: {message}"
    ways_out = {
        "42710": "Use another name in source.slot, or drop that slot",
        "53400": "Raise max_replication_slots and restart the server, or drop a slot that nobody needs",
        "42501": "Give the role the right: ALTER ROLE … REPLICATION (on Amazon RDS: GRANT rds_replication TO …)",
        "55000": "ALTER SYSTEM SET wal_level = 'logical', then restart the server",
    }
    if state in ways_out:
        return SourceMisconfigured(what, ways_out[state])
    return SourceUnreachable(what, "Look at the server's log, then try again")

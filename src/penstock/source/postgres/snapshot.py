"""An exported snapshot and its place in the stream: what copy_ranges.py plans in and copy_read.py reads in.

Making a logical slot gives both: the snapshot sees exactly the transactions with `commit_lsn <` its position. The slot
is temporary and nobody reads from it; slot, snapshot and connection live and die together.

Postgres makes the snapshot only when every transaction that had already written, of any database of the server, and
every prepared one has ended. `waiting` is given their names; after `timeout` it is SnapshotBlocked, which is tried
again later.
"""

from __future__ import annotations

import secrets
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

import psycopg
from psycopg import pq

from penstock.errors import SnapshotBlocked, SourceError, SourceMisconfigured, SourceUnreachable
from penstock.model.position import Position
from penstock.source.postgres.connect import (
    Connection,
    connect,
    endpoint,
    replication_connection,
    source_errors,
    without_password,
)
from penstock.source.postgres.slot import PLUGIN, parse_lsn
from penstock.source.postgres.statements import literal

SLOT_PREFIX = "penstock_copy_"
APPLICATION_NAME = "penstock copy"

_TELL_EVERY_SECONDS = 1.0
_LOOK_EVERY_SECONDS = 0.1
_CANCEL_SECONDS = 5.0
_SHOWN = 80  # characters of a query

_BLOCKERS = """
    WITH awaited AS (
        SELECT transactionid FROM pg_locks WHERE pid = %s AND locktype = 'transactionid' AND NOT granted
    ), holding AS (
        SELECT l.pid, min(age(l.transactionid)) AS age, min(l.transactionid::text) AS xid
        FROM pg_locks l, awaited w
        WHERE l.locktype = 'transactionid' AND l.granted AND age(l.transactionid) >= age(w.transactionid)
        GROUP BY l.pid, CASE WHEN l.pid IS NULL THEN l.transactionid::text END
    )
    SELECT CASE WHEN h.pid IS NULL THEN 'prepared' ELSE 'transaction' END, h.pid,
           coalesce(extract(epoch FROM clock_timestamp() - coalesce(p.prepared, a.xact_start)), 0)::float8,
           coalesce(a.query, ''), coalesce(p.gid, '')
    FROM holding h
    LEFT JOIN pg_stat_activity a ON a.pid = h.pid
    LEFT JOIN pg_prepared_xacts p ON h.pid IS NULL AND p.transaction::text = h.xid
    ORDER BY 3 DESC
"""


@dataclass(frozen=True)
class Blocker:
    """A transaction that must end before there is a snapshot: an open one by its pid, a prepared one by its name."""

    what: Literal["transaction", "prepared"]
    pid: int | None
    age_seconds: float
    query: str
    name: str

    def __str__(self) -> str:
        if self.what == "prepared":
            return f"prepared transaction {self.name} ({self.age_seconds:.0f} s old)"
        return f"pid {self.pid} (transaction of {self.age_seconds:.0f} s, last query: {self.query or 'not shown'})"

    @property
    def end_it(self) -> str:
        """The statement that ends it."""
        if self.what == "prepared":
            return f"ROLLBACK PREPARED {literal(self.name)}"
        return f"SELECT pg_terminate_backend({self.pid})"


class ExportedSnapshot:
    """`name` is for SET TRANSACTION SNAPSHOT, while this is open. What it sees is everything before `position`."""

    def __init__(self, name: str, position: Position, pgconn: pq.abc.PGconn) -> None:
        self.name = name
        self.position = position
        self.moment: int | None = None  # the source's time soon after it was made, in microseconds since 1970
        self._pgconn = pgconn

    def note_moment(self, connection: Connection) -> None:
        """Read the source's clock, the first time that it is called."""
        if self.moment is None:
            row = connection.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").fetchone()
            assert row is not None
            self.moment = row[0]

    def alive(self) -> bool:
        """Whether the connection still holds the snapshot: the server may have ended both."""
        try:
            while self._pgconn.status == pq.ConnStatus.OK and _readable(self._pgconn, 0):
                self._pgconn.consume_input()
        except psycopg.Error:
            return False
        return self._pgconn.status == pq.ConnStatus.OK

    def close(self) -> None:
        self._pgconn.finish()

    def __enter__(self) -> ExportedSnapshot:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def export_snapshot(url: str, *, timeout: float, waiting: Callable[[list[Blocker]], None]) -> ExportedSnapshot:
    """Make a snapshot; while that has to wait, `waiting` is called about once per second with what it waits for.

    SnapshotBlocked after `timeout` seconds. Whatever is raised, here or by `waiting`, leaves no slot behind.
    """
    pgconn = replication_connection(url, application_name=APPLICATION_NAME)
    try:
        slot = f"{SLOT_PREFIX}{secrets.token_hex(8)}"
        pgconn.send_query(f"CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL {PLUGIN} EXPORT_SNAPSHOT".encode())
        try:
            _await_result(pgconn, url, timeout, waiting)
        except BaseException:
            _cancel(pgconn)
            raise
        result = pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.TUPLES_OK:
            raise _not_made(url, result)
        columns = {result.fname(i): result.get_value(0, i) for i in range(result.nfields)}
        point, name = columns[b"consistent_point"], columns[b"snapshot_name"]
        assert point is not None
        assert name is not None
        return ExportedSnapshot(name.decode(), parse_lsn(point.decode()), pgconn)
    except BaseException:
        pgconn.finish()
        raise


@contextmanager
def snapshot_connection(url: str, snapshot: str) -> Iterator[Connection]:
    """Open a session whose one read-only transaction sees the snapshot.

    For discover, plan_ranges, row_filter and estimate.
    """
    connection = connect(url, application_name=APPLICATION_NAME)
    with connection:
        try:
            connection.execute(begin_in(snapshot).encode())
        except psycopg.Error as error:
            raise snapshot_gone(url, snapshot, str(error)) from None
        yield connection
        connection.execute("ROLLBACK")


def begin_in(snapshot: str) -> str:
    """Return the statements that begin a transaction in the snapshot."""
    return f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {literal(snapshot)}"


def snapshot_gone(url: str, snapshot: str, message: str) -> SourceUnreachable:
    reason = " ".join(without_password(message, url).split())
    return SourceUnreachable(
        f"the snapshot {snapshot} of Postgres at {endpoint(url)} cannot be used: {reason}",
        "The connection that held it has ended; the copy goes on under a new snapshot",
    )


def _await_result(pgconn: pq.abc.PGconn, url: str, timeout: float, waiting: Callable[[list[Blocker]], None]) -> None:
    began = told = time.monotonic()
    watching: Connection | None = None
    try:
        while _busy(pgconn, url):
            now = time.monotonic()
            late = now - began >= timeout
            if not late and now - told < _TELL_EVERY_SECONDS:
                _readable(pgconn, _LOOK_EVERY_SECONDS)
                continue
            watching = watching or connect(url, application_name=APPLICATION_NAME)
            blockers = _blockers(watching, pgconn.backend_pid)
            told = time.monotonic()
            waiting(blockers)
            if late:
                raise _blocked(url, timeout, blockers, replica=_is_replica(watching))
    finally:
        if watching is not None:
            watching.close()


def _busy(pgconn: pq.abc.PGconn, url: str) -> bool:
    try:
        if _readable(pgconn, 0):
            pgconn.consume_input()
        return bool(pgconn.is_busy())
    except psycopg.Error as error:
        reason = " ".join(without_password(str(error), url).split())
        raise SourceUnreachable(
            f"the connection to Postgres at {endpoint(url)} broke while a snapshot was made: {reason}",
            "Check the server and its log; it is tried again",
        ) from None


def _readable(pgconn: pq.abc.PGconn, seconds: float) -> bool:
    return bool(select.select([pgconn.socket], [], [], seconds)[0])


def _cancel(pgconn: pq.abc.PGconn) -> None:
    """End the making of the slot: its backend waits for a lock and would not notice that we have gone."""
    try:
        pgconn.get_cancel().cancel()
        until = time.monotonic() + _CANCEL_SECONDS
        while pgconn.is_busy() and time.monotonic() < until:
            if _readable(pgconn, _LOOK_EVERY_SECONDS):
                pgconn.consume_input()
    except psycopg.Error:
        return  # the connection is broken: the server ends what it was doing for it


def _blockers(connection: Connection, backend_pid: int) -> list[Blocker]:
    with source_errors("reading what holds up a snapshot"):
        rows = connection.execute(_BLOCKERS, (backend_pid,)).fetchall()
    return [Blocker(what, pid, age, _shortened(query), name) for what, pid, age, query, name in rows]


def _shortened(query: str) -> str:
    line = " ".join(query.split())
    return line if len(line) <= _SHOWN else line[:_SHOWN] + "…"


def _is_replica(connection: Connection) -> bool:
    with source_errors("reading whether the source is a replica"):
        return connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)


def _blocked(url: str, timeout: float, blockers: Sequence[Blocker], *, replica: bool) -> SnapshotBlocked:
    what = f"no snapshot of Postgres at {endpoint(url)} within {timeout:g} s: it waits for "
    if replica and not blockers:
        return SnapshotBlocked(
            f"{what}its primary to report the running transactions",
            "It is tried again; to help it, run on the primary: SELECT pg_log_standby_snapshot()",
        )
    if not blockers:
        return SnapshotBlocked(f"{what}a transaction that was not seen", "It is tried again")
    ends = "; ".join(blocker.end_it for blocker in blockers)
    return SnapshotBlocked(
        f"{what}{'; '.join(map(str, blockers))}", f"It is tried again; to help it, end these transactions: {ends}"
    )


def _not_made(url: str, result: pq.abc.PGresult | None) -> SourceError:
    if result is None:
        return SourceUnreachable(
            f"Postgres at {endpoint(url)} closed the connection while a snapshot was made", "Look at the server's log"
        )
    message = " ".join(without_password(result.get_error_message(), url).split())
    what = f"cannot make a snapshot of Postgres at {endpoint(url)}: {message}"
    match (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode():
        case "53400":
            return SourceMisconfigured(
                what,
                "A copy needs a slot for itself: raise max_replication_slots and restart the server, or drop a slot "
                "that nobody needs",
            )
        case "42501":
            return SourceMisconfigured(
                what, "Give the role the right: ALTER ROLE … REPLICATION (on Amazon RDS: GRANT rds_replication TO …)"
            )
        case "55000":
            return SourceMisconfigured(what, "ALTER SYSTEM SET wal_level = 'logical', then restart the server")
    return SourceUnreachable(what, "Look at the server's log; it is tried again")

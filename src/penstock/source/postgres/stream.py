"""One replication stream: START_REPLICATION, waiting for bytes, standby status, and what its errors mean.

capture.py reads frames with `get` in its hot loop and leaves the rest to the methods here. Nothing is interpreted.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence

import psycopg
from psycopg import pq, sql

from penstock.errors import SlotBusy, SourceError, SourceMisconfigured, SourceUnreachable
from penstock.model.position import Position
from penstock.source.postgres.connect import Connection, endpoint, without_password
from penstock.source.postgres.pgoutput import status_update
from penstock.source.postgres.resume import gap
from penstock.source.postgres.slot import lsn_text

_LOOK = "Check the server and its log; capture goes on where it was once the server answers"


class PublicationUnseen(SourceUnreachable):
    """The second publication does not exist at a place in the WAL that has to be read."""


class ReplicationStream:
    """`complaint` is set once the server has said that it leaves changes out; nothing after that may be sealed."""

    def __init__(self, pgconn: pq.abc.PGconn, url: str) -> None:
        self.pgconn, self._url = pgconn, url
        self.get = pgconn.get_copy_data
        self.told_at = time.monotonic()
        self.complaint: SourceError | None = None
        self._slot, self._told = "", 0
        self._extra: frozenset[str] = frozenset()  # publications that may be missing
        pgconn.notice_handler = self._notice

    def start(self, connection: Connection, slot: str, publications: Sequence[str], position: Position) -> None:
        """SlotBusy when another process reads the slot.

        `connection` is for quoting only. Publications after the first may be missing at some places in the WAL:
        PublicationUnseen then, or since 18 nothing.
        """
        self._slot, self._told = slot, position
        self._extra = frozenset(publications[1:])
        names = ", ".join(sql.Identifier(name).as_string(connection) for name in publications)
        command = sql.SQL(
            "START_REPLICATION SLOT {} LOGICAL {} (proto_version '1', publication_names {}, messages 'true')",
        ).format(sql.Identifier(slot), sql.SQL(lsn_text(position)), sql.Literal(names))
        result = self.pgconn.exec_(command.as_bytes(connection))
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise self._error(result, f"cannot read slot {slot}")

    def wait(self, seconds: float) -> None:
        """Wait until the server has sent something, for at most that long."""
        try:
            if seconds > 0:
                select.select([self.pgconn.socket], [], [], seconds)
            self.pgconn.consume_input()
        except (psycopg.Error, OSError, ValueError) as error:
            raise self.lost(str(error)) from error

    def tell(self, position: Position, *, reply: bool = False) -> None:
        """Standby status: everything before `position` is durable. With `reply` the server says where it stands."""
        try:
            self.pgconn.put_copy_data(status_update(position, time.time_ns() // 1000, reply=reply))
            self.pgconn.flush()
        except psycopg.Error as error:
            raise self.lost(str(error)) from error
        self.told_at, self._told = time.monotonic(), position

    def ended(self) -> SourceError:
        """Say why the server has ended the stream."""
        try:
            result = self.pgconn.get_result()
        except psycopg.Error as error:
            return self.lost(str(error))
        if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
            return self.lost("the server ended the stream")
        return self._error(result, "the server ended the stream")

    def lost(self, message: str) -> SourceUnreachable:
        reason = " ".join(without_password(message, self._url).split())
        return SourceUnreachable(f"the stream from Postgres at {endpoint(self._url)} broke: {reason}", _LOOK)

    def close(self) -> None:
        self.pgconn.finish()

    def _notice(self, result: pq.abc.PGresult) -> None:
        """Since 18 a publication that is missing at that place of the WAL is a warning: its changes are left out."""
        severity = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED)
        message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
        if severity == b"WARNING" and "publication" in message and not self._is_extra(message):
            self.complaint = self._without_publication(message)

    def _is_extra(self, message: str) -> bool:
        """Return whether it is about a publication without which the stream goes on.

        A table that is added to it when it is there again is copied.
        """
        return any(f'"{name}"' in message for name in self._extra)

    def _without_publication(self, message: str) -> SourceError:
        return gap(self._slot, self._told, f"the publication does not exist at that place of the WAL ({message})")

    def _error(self, result: pq.abc.PGresult, doing: str) -> SourceError:
        message = " ".join(without_password(result.get_error_message(), self._url).split())
        what = f"{doing}: {message}"
        match (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode():
            case "55006":
                return SlotBusy(what, "Stop the process that reads the slot, or name another slot in source.slot")
            case "42704" if self._is_extra(message):
                return PublicationUnseen(what, "Nothing: capture goes on without it, and reads it again later")
            case "42704" if "publication" in message:
                return self._without_publication(message)
            case "42501":
                return SourceMisconfigured(what, "Give the role the right to replicate: ALTER ROLE … REPLICATION")
        return SourceUnreachable(what, _LOOK)

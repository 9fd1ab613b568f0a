"""Where in the binlog a copy's read stands: exactly, where that can be known, or between two places.

MariaDB says it of each transaction. MySQL does not: a read that begins after `visible_position` was asked for sees at
least everything before that, and at most what is in the binlog (`positions.head`) when it has begun. For a table with a
key that is enough, since the log is replayed from the first place until the second is passed. Of a table without one a
change must not be applied to rows that have it already: `begin_exact` begins again until nothing of the table lies
between both places. No lock is taken for any of it.
"""

from __future__ import annotations

import time

from penstock.errors import SourceError, SourceUnreachable
from penstock.model.position import Position
from penstock.model.table import TableId
from penstock.source.mysql.connect import Address, Connection, is_mariadb, named_rows, rows
from penstock.source.mysql.positions import FIRST_OFFSET, head, position_of
from penstock.source.mysql.resume import await_visible

EXACT_SECONDS = 30.0
MOST_EVENTS = 1000  # between both places; with more it is begun again at once
_OF_TRANSACTIONS = frozenset(
    {"Gtid", "Anonymous_Gtid", "Xid", "Rows_query", "Write_rows", "Update_rows", "Delete_rows"}
)


def begin_snapshot(connection: Connection, address: Address) -> Position | None:
    """Begin a transaction, and return the position before which is exactly what it sees. None: MySQL does not say."""
    rows(connection, address, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
    if not is_mariadb(connection):
        return None
    status = {
        str(name).lower(): value for name, value in rows(connection, address, "SHOW STATUS LIKE 'binlog_snapshot_%'")
    }
    if not status.get("binlog_snapshot_file"):
        raise SourceError("the server does not say where its snapshot stands in the binlog", "Check log_bin")
    file, offset = str(status["binlog_snapshot_file"]), int(status["binlog_snapshot_position"])
    return position_of(file, offset, address.epoch)


def visible_position(connection: Connection, address: Address) -> Position:
    """Return a position before which everything can be seen by readers, of a MySQL server.

    The end of the binlog is none: a transaction is in it before readers see it.
    """
    if rows(connection, address, "SELECT @@GLOBAL.gtid_mode")[0][0] == "ON":
        position = position_of(*head(connection, address), address.epoch)
        await_visible(connection, address)
        return position
    rows(connection, address, "FLUSH BINARY LOGS")  # a new file begins when all of the former one is visible
    return position_of(head(connection, address)[0], FIRST_OFFSET, address.epoch)


def begin_exact(connection: Connection, address: Address, table: TableId) -> Position:
    """Begin a transaction at a MySQL server, and return a position that its read of the table is exactly of."""
    deadline = time.monotonic() + EXACT_SECONDS
    while True:
        low = visible_position(connection, address)
        rows(connection, address, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        file, offset = head(connection, address)
        if low == position_of(file, offset, address.epoch) or _has_nothing_of(connection, address, table, file, low):
            return low
        rows(connection, address, "ROLLBACK")
        if time.monotonic() > deadline:
            raise SourceUnreachable(
                f"table {table} has no primary key, and changes so often that no exact place of its copy was found",
                f"Give it a primary key, or wait for a quieter time: it is tried again. ALTER TABLE {table} ADD …",
            )
        time.sleep(0.01)


def _has_nothing_of(connection: Connection, address: Address, table: TableId, file: str, begin: Position) -> bool:
    """Return whether the binlog has no change of the table from there on, up to now."""
    if position_of(file, 0, address.epoch) >> 32 != begin >> 32:
        return False
    statement = f"SHOW BINLOG EVENTS IN '{file}' FROM {begin & 0xFFFFFFFF} LIMIT {MOST_EVENTS}"
    found = named_rows(connection, address, statement)
    return len(found) < MOST_EVENTS and not any(
        _may_change(str(one["event_type"]), str(one["info"]), table) for one in found
    )


def _may_change(kind: str, info: str, table: TableId) -> bool:
    if kind == "Table_map":
        return info.lower().endswith(f"({table.schema}.{table.name})".lower())
    return kind not in _OF_TRANSACTIONS and not (kind == "Query" and info == "BEGIN")

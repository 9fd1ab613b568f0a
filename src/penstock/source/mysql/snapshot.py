"""A snapshot of a source as the rest of penstock knows it.

MariaDB's is a transaction with a known place in the binlog. Other connections cannot share it: each range is read at a
place of its own (copy_read.py), never before this one.

MySQL's has bounds instead: everything before `position` could be seen when it was made, and nothing from `passed` on
has been seen. The first is not the end of the binlog, where transactions stand before readers see them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

import pymysql

from penstock.decode.mysql.dialect import quoted
from penstock.decode.mysql.types import INTEGERS
from penstock.errors import SourceError
from penstock.model.partitions import Partitions
from penstock.model.position import Position
from penstock.model.table import TableId, TableSchema
from penstock.model.table_marks import TableMarks
from penstock.source.mysql.catalogue import discover
from penstock.source.mysql.comparison import MysqlSide
from penstock.source.mysql.connect import Address, Connection, connect, is_mariadb, rows
from penstock.source.mysql.copy_places import begin_snapshot, visible_position
from penstock.source.mysql.copy_read import KeyRange, MysqlTableReader, Own
from penstock.source.mysql.key_conditions import can_be_cut, literal_of, shown_for_literal
from penstock.source.mysql.positions import head, position_of
from penstock.source.snapshot_contract import ComparableTable, WantedTables

MOST_RANGES = 10_000
TRIES = 5  # to begin a transaction on MySQL while nothing is committed
NO_MARKS = TableMarks(0)  # the binlog says everything that happens to a table


def _quoted(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"


class MysqlSnapshotSession:
    def __init__(
        self, connection: Connection, address: Address, position: Position, own: Own, *, is_exact: bool = True
    ) -> None:
        """`own` is the snapshot's connection."""
        self._connection, self._address, self._position = connection, address, position
        self._own, self._is_exact = own, is_exact

    def describe(self, wanted: WantedTables, table: TableId) -> TableSchema | None:
        found = discover(self._connection, self._address, table.__eq__)
        return found[0].schema if found else None

    def estimated_rows(self, schema: TableSchema) -> int:
        return self._sizes(schema)[0]

    def plan_ranges(self, schema: TableSchema, *, range_bytes: int) -> Sequence[KeyRange]:
        """Cut by the first column of the key: evenly by its values if it is a whole number, else after so many rows.

        Never none: a table that is empty now may not have been when it is read.
        """
        table, (estimated, size) = schema.table, self._sizes(schema)
        count = min(max(1, -(-size // range_bytes)), MOST_RANGES)
        bounds: list[str] = []
        if count > 1 and schema.key:
            type = schema.column(schema.key[0]).type
            if type.oid in INTEGERS:
                bounds = self._even_bounds(schema, count)
            elif can_be_cut(type):
                bounds = self._bounds_by_rows(schema, max(1, estimated // count))
        starts: list[str | None] = [None, *bounds]
        ends: list[str | None] = [*bounds, None]
        return [
            KeyRange(table, number, size // len(starts), start, end)
            for number, (start, end) in enumerate(zip(starts, ends, strict=True))
        ]

    def _even_bounds(self, schema: TableSchema, count: int) -> list[str]:
        name = _quoted(schema.key[0])
        asked = f"SELECT MIN({name}), MAX({name}) FROM {quoted(schema.table)}"
        ((low, high),) = rows(self._connection, self._address, asked)
        if low is None or int(high) - int(low) < count:
            return []
        step = (int(high) - int(low) + 1) / count
        return [str(int(low) + int(step * number)) for number in range(1, count)]

    def _bounds_by_rows(self, schema: TableSchema, step: int) -> list[str]:
        """Go through the primary key, and take a value after so many rows. Each is above the one before."""
        type, name = schema.column(schema.key[0]).type, _quoted(schema.key[0])
        bounds: list[str] = []
        while len(bounds) < MOST_RANGES:
            behind = f"WHERE {name} > {bounds[-1]}" if bounds else ""
            found = rows(
                self._connection,
                self._address,
                f"SELECT {shown_for_literal(type, name)} FROM {quoted(schema.table)} {behind} ORDER BY {name}"
                f" LIMIT 1 OFFSET {step}",
            )
            if not found:
                break
            bounds.append(literal_of(type, str(found[0][0])))
        return bounds

    def reader(self, schema: TableSchema) -> MysqlTableReader:
        return MysqlTableReader(self._address, schema, self._position, self._own)

    def comparable(self, schema: TableSchema) -> ComparableTable:
        reader = self.reader(schema)
        if not self._is_exact:
            raise SourceError(
                f"table {schema.table} cannot be compared: MySQL does not say where a snapshot stands in the binlog,"
                " and something was committed each time while one began",
                "Run it again when there is less traffic",
            )
        reader.protect()
        return MysqlSide(schema, reader.selected)

    def marks(self, schemas: Sequence[TableSchema]) -> dict[TableId, TableMarks]:
        return {schema.table: NO_MARKS for schema in schemas}

    def why_copied_again(self, before: TableMarks, now: TableMarks) -> str:
        return ""

    def partitions(self, schemas: Sequence[TableSchema]) -> dict[TableId, Partitions]:
        return {}

    def _sizes(self, schema: TableSchema) -> tuple[int, int]:
        found = rows(
            self._connection,
            self._address,
            "SELECT TABLE_ROWS, DATA_LENGTH FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            (schema.table.schema, schema.table.name),
        )
        return (int(found[0][0] or 0), int(found[0][1] or 0)) if found else (0, 0)


class MysqlSnapshot:
    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection = connect(address, purpose="penstock copy")
        try:
            exact = begin_snapshot(self._connection, address) if is_mariadb(self._connection) else None
            self._is_exact = self._own_is_exact = exact is not None
            if exact is None:
                exact, self._own_is_exact = self._cut()
            self.position = exact
        except BaseException:
            self.close()
            raise
        self.moment = int(time.time() * 1_000_000)

    def __enter__(self) -> MysqlSnapshot:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _cut(self) -> tuple[Position, bool]:
        """Return a position that readers have passed, and whether the own transaction sees exactly what was before it.

        It does when nothing was committed while it began. Tried several times.
        """
        position = 0
        for _ in range(TRIES):
            position = visible_position(self._connection, self._address)
            begin_snapshot(self._connection, self._address)
            if position_of(*head(self._connection, self._address), self._address.epoch) == position:
                return position, True
            rows(self._connection, self._address, "ROLLBACK")
        return position, False

    @property
    def passed(self) -> Position:
        if self._is_exact:
            return self.position
        with self._asking() as connection:
            return position_of(*head(connection, self._address), self._address.epoch)

    @contextmanager
    def session(self) -> Iterator[MysqlSnapshotSession]:
        with self._asking() as connection:
            own = Own(self._connection)
            yield MysqlSnapshotSession(connection, self._address, self.position, own, is_exact=self._own_is_exact)

    @contextmanager
    def _asking(self) -> Iterator[Connection]:
        connection = connect(self._address, purpose="penstock copy")
        try:
            yield connection
        finally:
            connection._force_close()

    def alive(self) -> bool:
        try:
            self._connection.ping(reconnect=False)
        except (pymysql.Error, OSError):
            return False
        return True

    def close(self) -> None:
        self._connection._force_close()

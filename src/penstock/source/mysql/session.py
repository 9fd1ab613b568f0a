"""A connection to a MySQL or MariaDB source as the rest of penstock knows it (source/contract.py, `Session`).

The server needs nothing made for the pipeline: no publication, no slot. Binlogs are kept as its settings say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

import pyarrow as pa
import pymysql

from penstock.errors import GapError, NotPublished, SourceError, TableError
from penstock.model.partitions import Links, Partition, Partitions
from penstock.model.position import Position
from penstock.model.row_digest import Figures
from penstock.model.table import TableId, TableSchema
from penstock.model.table_marks import TableMarks
from penstock.model.write_counters import WriteCounters
from penstock.source.contract import Alteration, Fact, Retained, Retention, SourceHealth
from penstock.source.finding import Finding
from penstock.source.mysql.capture import READING
from penstock.source.mysql.catalogue import discover
from penstock.source.mysql.check import check_server, kept_seconds
from penstock.source.mysql.comparison import whole_figures
from penstock.source.mysql.connect import Address, Connection, is_mariadb, named_rows, rows
from penstock.source.mysql.copy_read import MysqlTableReader, Own
from penstock.source.mysql.positions import head, position_of
from penstock.source.mysql.resume import find_gap
from penstock.source.mysql.snapshot import NO_MARKS
from penstock.source.sink import Origin
from penstock.source.snapshot_contract import WantedTables


@dataclass(frozen=True)
class MysqlFollowing:
    troubles: Mapping[TableId, TableError]
    done: tuple[Alteration, ...] = ()
    inserts_only: frozenset[TableId] = frozenset()
    staying: tuple[Alteration, ...] = field(default=())


class MysqlSession:
    def __init__(self, connection: Connection, address: Address) -> None:
        self._connection, self._address = connection, address

    def __enter__(self) -> MysqlSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        with suppress(pymysql.Error, OSError):
            self._connection.close()

    @property
    def version(self) -> str:
        name = "MariaDB" if is_mariadb(self._connection) else "MySQL"
        return f"{name} {self._connection.get_server_info().removeprefix('5.5.5-').partition('-')[0]}"

    def check(self, wanted: WantedTables) -> list[Finding]:
        return check_server(self._connection, self._address, wanted)

    def discover(self, wanted: WantedTables) -> list[TableSchema]:
        return [one.schema for one in discover(self._connection, self._address, wanted.wants)]

    def head(self) -> Position:
        return position_of(*head(self._connection, self._address), self._address.epoch)

    def health(self) -> SourceHealth:
        file, offset = head(self._connection, self._address)
        logs = [str(one["log_name"]) for one in named_rows(self._connection, self._address, "SHOW BINARY LOGS")]
        dumps = rows(
            self._connection,
            self._address,
            "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'",
        )
        is_read = int(dumps[0][0]) > 0
        oldest, kept = min(logs, default="none"), kept_seconds(self._connection, self._address)
        facts = (
            Fact("binlog", f"{file}:{offset}", "ok" if is_read else "warning"),
            Fact("read by capture", "yes" if is_read else "no", "ok" if is_read else "warning"),
            Fact("oldest binlog", oldest),
            Fact("binlogs are kept", f"for {kept / 3600:g} hours" if kept else "for ever"),
        )
        details = {"binlog": {"file": file, "offset": offset, "oldest": oldest, "kept_seconds": kept, "read": is_read}}
        return SourceHealth(position_of(file, offset, self._address.epoch), is_read, facts, details)

    def find_gap(self, end: Position, origin: Origin) -> GapError | None:
        return find_gap(self._connection, self._address, end, origin)

    def install(self) -> None:
        """Install nothing: the binlog has statements that change a structure."""

    def readable(self) -> frozenset[str]:
        return frozenset({READING})

    def follow(
        self,
        wanted: WantedTables,
        schemas: Sequence[TableSchema],
        *,
        reading: frozenset[str],
        may_leave: bool,
        before: Callable[[Alteration], None],
    ) -> MysqlFollowing:
        tables = {schema.table for schema in schemas}
        found = discover(self._connection, self._address, tables.__contains__, cascades=True)
        troubles: dict[TableId, TableError] = {
            one.schema.table: NotPublished(f"table {one.schema.table}: {one.trouble}", one.solution)
            for one in found
            if one.trouble
        }
        return MysqlFollowing(troubles)

    def leaving(self, wanted: WantedTables) -> Sequence[Alteration]:
        return []

    def retain(self, log_end: Position | None) -> Retained:
        """Arrange nothing: the server keeps binlogs for as long as its settings say."""
        return Retained(self.head() if log_end is None else log_end, made=False)

    def retention(self) -> Retention | None:
        return None

    def release(self) -> None:
        """Free nothing: nothing is kept for the pipeline."""

    def cut_off(self) -> str | None:
        """End nothing: the server ends a reader when another comes with the same server id."""
        return None

    def marks(self, schemas: Sequence[TableSchema]) -> dict[TableId, TableMarks]:
        return {schema.table: NO_MARKS for schema in schemas}

    def partitions(self, schemas: Sequence[TableSchema]) -> dict[TableId, Partitions]:
        return {}

    def counters(self, schemas: Sequence[TableSchema]) -> dict[TableId, WriteCounters]:
        return {schema.table: WriteCounters("", {}) for schema in schemas}

    def counts_writes(self) -> bool:
        return False

    def first_rows(self, schema: TableSchema, most: int) -> pa.Table:
        return MysqlTableReader(self._address, schema, 0).first(self._connection, most)

    def has_rows(self, partition: Partition) -> bool:
        raise SourceError("partitions are not told apart here", "Report it as a bug")

    def has_rows_before(self, partition: Partition, horizon: int) -> bool:
        raise SourceError("partitions are not told apart here", "Report it as a bug")

    def links_since(self, before: Links, now: Links) -> Links:
        raise SourceError("partitions are not told apart here", "Report it as a bug")

    def why_copied_again(self, before: TableMarks, now: TableMarks) -> str:
        return ""

    def why_events_missing(self, before: TableMarks, now: TableMarks) -> str:
        return ""

    def with_additions(self, before: TableMarks, now: TableMarks) -> TableMarks:
        return before

    def why_unsent(self, table: TableId, before: TableMarks, now: TableMarks) -> str:
        return ""

    def why_renamed(self, table: TableId, before: TableMarks, now: TableMarks, *, partitioned: bool) -> str:
        return ""

    def figures(self, schema: TableSchema) -> Figures:
        reader = MysqlTableReader(self._address, schema, 0, Own(self._connection))
        return whole_figures(schema, reader.selected)

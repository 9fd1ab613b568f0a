"""MySQL and MariaDB as a source (source/contract.py). `source/factory.py` makes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from penstock.model.position import Position
from penstock.model.table import TableId
from penstock.source.contract import Report, SegmentSettings, StopFlag, StructureTrigger, Waiting
from penstock.source.mysql import positions
from penstock.source.mysql.capture import Capture
from penstock.source.mysql.connect import Address, connect, endpoint
from penstock.source.mysql.copy_read import KeyRange
from penstock.source.mysql.session import MysqlSession
from penstock.source.mysql.snapshot import MysqlSnapshot
from penstock.source.sink import SegmentSink
from penstock.source.snapshot_contract import WantedTables


class MysqlSection(Protocol):
    """What the file says of a source (`config.mysql_source.MysqlSource`)."""

    @property
    def address(self) -> Address: ...

    @property
    def replica_id(self) -> int: ...


class MysqlAdvice:
    def whole_rows(self, table: TableId) -> str:
        return "SET GLOBAL binlog_row_image = FULL"

    def identity(self, table: TableId) -> str:
        return "Give it a primary key"

    def give_up(self) -> str:
        return "Nothing is kept at the server for the pipeline"


class MysqlSource:
    def __init__(self, section: MysqlSection) -> None:
        self._section = section

    @property
    def endpoint(self) -> str:
        return endpoint(self._section.address)

    @property
    def advice(self) -> MysqlAdvice:
        return MysqlAdvice()

    @property
    def structure_trigger(self) -> StructureTrigger | None:
        return None

    @property
    def unknown_details(self) -> Mapping[str, object]:
        return {"binlog": None}

    def position_text(self, position: Position) -> str:
        return positions.position_text(position)

    def parse_position(self, text: str) -> Position:
        return positions.parse_position(text)

    def connect(self, *, purpose: str = "penstock") -> MysqlSession:
        address = self._section.address
        return MysqlSession(connect(address, purpose=purpose), address)

    def capture(
        self, wanted: WantedTables, settings: SegmentSettings, sink: SegmentSink, stop: StopFlag, report: Report
    ) -> None:
        Capture(self._section, wanted, settings, sink, stop, report).run()

    def snapshot(self, *, timeout: float, waiting: Waiting) -> MysqlSnapshot:
        return MysqlSnapshot(self._section.address)

    def range_from_json(self, text: str) -> KeyRange:
        return KeyRange.from_json(text)

    def why_void(self, recorded: Collection[KeyRange], planned: Collection[KeyRange]) -> str:
        """Return "": ranges of keys are the table in any plan: the first has no lower bound, the last no upper one."""
        return ""

"""Postgres as a source (source/contract.py): what the file's section names, and what is asked of it without a session.

`source/factory.py` makes it. Sessions are session.py's, snapshots table_reader.py's, the stream capture.py's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from penstock.errors import UsageError
from penstock.model.position import Position, parse_position
from penstock.model.table import TableId
from penstock.source.contract import Report, SegmentSettings, StopFlag, Waiting
from penstock.source.postgres import ddl_trigger
from penstock.source.postgres.capture import Capture, CaptureSettings
from penstock.source.postgres.connect import connect, endpoint, role_of
from penstock.source.postgres.copy_ranges import CopyRange, why_void
from penstock.source.postgres.session import PostgresSection, PostgresSession, slot_details
from penstock.source.postgres.slot import lsn_text
from penstock.source.postgres.snapshot import export_snapshot
from penstock.source.postgres.statements import literal, quoted_table
from penstock.source.postgres.table_reader import PostgresSnapshot
from penstock.source.sink import SegmentSink
from penstock.source.snapshot_contract import WantedTables


class PostgresAdvice:
    def __init__(self, slot: str) -> None:
        self._slot = slot

    def whole_rows(self, table: TableId) -> str:
        return f"ALTER TABLE {quoted_table(table)} REPLICA IDENTITY FULL"

    def identity(self, table: TableId) -> str:
        return f"Give it a primary key, or run {self.whole_rows(table)}"

    def give_up(self) -> str:
        return f"Free the WAL that the server keeps: SELECT pg_drop_replication_slot({literal(self._slot)})"


class DdlTrigger:
    """The optional event trigger (ddl_trigger.py) of one database."""

    name = ddl_trigger.TRIGGER

    def __init__(self, url: str) -> None:
        self._url = url

    def statements(self, *, remove: bool) -> Sequence[str]:
        return ddl_trigger.REMOVE if remove else ddl_trigger.install_statements(role_of(self._url))

    def install(self) -> None:
        with connect(self._url) as connection:
            ddl_trigger.install(connection)
            if (found := ddl_trigger.state(connection)) != "trusted":
                raise UsageError(
                    f"event trigger {self.name} at {endpoint(self._url)} is {found} after it was installed",
                    "The schema penstock may hold objects of another owner: drop that schema, then install it again",
                )

    def remove(self) -> bool:
        with connect(self._url) as connection:
            if ddl_trigger.state(connection) == "absent":
                return False
            ddl_trigger.remove(connection)
            return True


class PostgresSource:
    def __init__(self, section: PostgresSection) -> None:
        self._section, self._url = section, section.url.get_secret_value()

    @property
    def endpoint(self) -> str:
        return endpoint(self._url)

    @property
    def advice(self) -> PostgresAdvice:
        return PostgresAdvice(self._section.slot)

    @property
    def structure_trigger(self) -> DdlTrigger:
        return DdlTrigger(self._url)

    @property
    def unknown_details(self) -> Mapping[str, object]:
        return slot_details(self._section.slot, None, known=False)

    def position_text(self, position: Position) -> str:
        return lsn_text(position)

    def parse_position(self, text: str) -> Position:
        return parse_position(text)

    def connect(self, *, purpose: str = "penstock") -> PostgresSession:
        return PostgresSession(connect(self._url, application_name=purpose), self._section)

    def capture(
        self, wanted: WantedTables, settings: SegmentSettings, sink: SegmentSink, stop: StopFlag, report: Report
    ) -> None:
        own = CaptureSettings(
            url=self._url,
            slot=self._section.slot,
            publication=self._section.publication,
            segment_bytes=settings.segment_bytes,
            segment_age=settings.segment_age,
            idle_every=settings.idle_every,
            patient=settings.patient,
            wanted=settings.wanted,
            retries=self._section.retries,
            status_every=self._section.status_every,
            keepalive=self._section.keepalive,
            keeps_changes=self._section.keeps_changes,
        )
        Capture(own, sink, stop, report).run()

    def snapshot(self, *, timeout: float, waiting: Waiting) -> PostgresSnapshot:
        exported = export_snapshot(self._url, timeout=timeout, waiting=lambda who: waiting([str(one) for one in who]))
        return PostgresSnapshot(exported, self._url, self._section.publication)

    def range_from_json(self, text: str) -> CopyRange:
        return CopyRange.from_json(text)

    def why_void(self, recorded: Collection[CopyRange], planned: Collection[CopyRange]) -> str:
        return why_void(recorded, planned)

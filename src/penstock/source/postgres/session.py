"""A connection to a Postgres source as the rest of penstock knows it (source/contract.py, `Session`).

Each method is a step of one of the modules beside this one; what a step means is said there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol

import pyarrow as pa
import structlog
from pydantic import SecretStr

from penstock.errors import GapError, SourceMisconfigured
from penstock.model.partitions import Links, Partition, Partitions
from penstock.model.position import Position
from penstock.model.row_digest import Figures
from penstock.model.table import TableId, TableSchema
from penstock.model.table_marks import TableMarks
from penstock.model.write_counters import WriteCounters
from penstock.source.contract import Fact, Retained, Retention, SourceHealth
from penstock.source.finding import Finding
from penstock.source.postgres import ddl_trigger, resume
from penstock.source.postgres.catalogue import marks_of, partitions_of
from penstock.source.postgres.check import SourceNames, check_source
from penstock.source.postgres.check_slot import by_hand, drop_by_hand
from penstock.source.postgres.comparison import table_figures
from penstock.source.postgres.connect import Connection
from penstock.source.postgres.copy_read import first_rows
from penstock.source.postgres.discover import discover
from penstock.source.postgres.mark_comparison import (
    may_be_written_again,
    new_labels,
    why_copied_again,
    why_events_missing,
    with_additions,
)
from penstock.source.postgres.partitions import has_rows, has_rows_before, links_since
from penstock.source.postgres.publication import (
    SKIPS_MISSING,
    Publications,
    inserts_publication,
    publications,
    read_members,
    read_publications,
    slot_sees,
)
from penstock.source.postgres.publishing import Change, Published, planned, publish
from penstock.source.postgres.slot import (
    PLUGIN,
    SlotState,
    advance_slot,
    create_slot,
    drop_slot,
    end_reader,
    flush_position,
    lsn_text,
    slot_state,
)
from penstock.source.postgres.statements import quoted
from penstock.source.postgres.table_marks import was_used_before, was_written_again
from penstock.source.postgres.write_counters import are_kept, read_counters
from penstock.source.sink import Origin
from penstock.source.snapshot_contract import WantedTables

LOG = structlog.get_logger("source")
FIRST_ROWS_SECONDS = 10.0
_ANY_TABLE = TableId("\0", "\0")  # whose name no rule has


class PostgresSection(SourceNames, Protocol):
    """What the file says of a source (`config.sources.PostgresSource`)."""

    @property
    def url(self) -> SecretStr: ...

    @property
    def ddl_trigger(self) -> str: ...

    @property
    def start_lsn(self) -> Position | None: ...

    @property
    def keeps_changes(self) -> bool: ...

    @property
    def retries(self) -> int | None: ...

    @property
    def status_every(self) -> float: ...

    @property
    def keepalive(self) -> float: ...


class PostgresSession:
    def __init__(self, connection: Connection, section: PostgresSection) -> None:
        self.connection, self._section = connection, section

    def __enter__(self) -> PostgresSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.connection.close()

    @property
    def version(self) -> str:
        return f"Postgres {self.connection.info.parameter_status('server_version')}"

    def check(self, wanted: WantedTables) -> list[Finding]:
        findings = check_source(
            self.connection, self._section, self._wants(wanted), wanted.each_partition, wanted.modes
        )
        missing = self._missing_publication(wanted)
        return findings if missing is None else [Finding("error", *missing), *findings]

    def discover(self, wanted: WantedTables) -> list[TableSchema]:
        return discover(self.connection, self._wants(wanted), self._section.publication, wanted.each_partition)

    def _wants(self, wanted: WantedTables) -> Callable[[TableId], bool]:
        """Return which tables are wanted; of those that are by the publication, what it has now."""
        found: list[Publications] = []

        def wants(table: TableId) -> bool:
            if not wanted.wants(table) or not wanted.by_publication(table):
                return wanted.wants(table)
            if not found:
                found.append(read_publications(self.connection, self._section.publication))
            return found[0].covers(table)

        return wants

    def _missing_publication(self, wanted: WantedTables) -> tuple[str, str] | None:
        """Say what is wrong, and what to do, when a publication is to be followed that is not there."""
        name = self._section.publication
        if not wanted.by_publication(_ANY_TABLE) or read_publications(self.connection, name).main is not None:
            return None
        return (
            f"publication {name} is missing, and `tables` follows what it has",
            f"CREATE PUBLICATION {quoted(name)} FOR ALL TABLES WITH (publish_via_partition_root = true)",
        )

    def head(self) -> Position:
        return flush_position(self.connection)

    def health(self) -> SourceHealth:
        slot = slot_state(self.connection, self._section.slot)
        is_read = slot is not None and slot.active_pid is not None
        details = slot_details(self._section.slot, slot, known=True)
        return SourceHealth(self.head(), is_read, slot_facts(self._section.slot, slot), details)

    def find_gap(self, end: Position, origin: Origin) -> GapError | None:
        if not self._section.keeps_changes:
            return None  # the log is an earlier run's, which the next one throws away
        url = self._section.url.get_secret_value()
        return resume.find_gap(url, self.connection, self._section.slot, end, origin)

    def install(self) -> None:
        """Install the DDL trigger where the file allows it and the role may, unless somebody has disabled it."""
        if self._section.ddl_trigger != "auto" or ddl_trigger.state(self.connection) not in ("absent", "outdated"):
            return
        try:
            ddl_trigger.install(self.connection)
        except SourceMisconfigured as error:
            LOG.warning("DDL trigger not installed", what=error.what, solution=error.solution)
        else:
            LOG.info("DDL trigger installed", trigger=ddl_trigger.TRIGGER)

    def readable(self) -> frozenset[str]:
        """Return the publications that the slot sees. A new slot is made after both; since 18 that does not matter."""
        main, slot = self._section.publication, self._section.slot
        second = inserts_publication(main)
        any_slot = slot_state(self.connection, slot) is None or self.connection.info.server_version >= SKIPS_MISSING
        sees = any_slot or slot_sees(self.connection, slot, second)
        return frozenset(publications(main) if sees else [main])

    def follow(
        self,
        wanted: WantedTables,
        schemas: Sequence[TableSchema],
        *,
        reading: frozenset[str],
        may_leave: bool,
        before: Callable[[Change], None],
    ) -> Published:
        main = self._section.publication
        missing = self._missing_publication(wanted)
        if missing is not None:
            raise SourceMisconfigured(*missing)
        return publish(
            self.connection,
            main,
            schemas,
            wanted.name,
            inserts_read=inserts_publication(main) in reading,
            may_leave=may_leave,
            before=before,
        )

    def leaving(self, wanted: WantedTables) -> list[Change]:
        members = read_members(self.connection, self.discover(wanted))
        changes = planned(read_publications(self.connection, self._section.publication), members, wanted.name)
        return [change for change in changes if change.kind == "leave"]

    def retain(self, log_end: Position | None) -> Retained:
        name = self._section.slot
        state = slot_state(self.connection, name)
        if not self._section.keeps_changes:
            return self._to_be_made(state)
        start = self._section.start_lsn
        if log_end is not None and start is not None:
            LOG.info("start_lsn ignored: the change log has begun", start_lsn=lsn_text(start), end=lsn_text(log_end))
        if state is not None:
            if log_end is None and start is not None:
                advance_slot(self.connection, state, start, self.head())
                return Retained(start, made=False)
            return Retained(state.confirmed_flush_lsn or 0, made=False)
        if log_end is not None:
            raise GapError(
                f"the slot {name} is gone, so what happened since the change log's end cannot be read any more",
                resume.START_OVER,
            )
        if start is not None or not self._section.create_slot:
            why = "source.create_slot is false" if start is None else "source.start_lsn needs one that is there"
            raise SourceMisconfigured(f"slot {name} does not exist, and {why}", f"Make it: {by_hand(name)}")
        position = create_slot(
            self.connection,
            self._section.url.get_secret_value(),
            name,
            waiting=lambda who: LOG.warning("slot waits for open transactions", on=who),
        )
        LOG.warning(
            "permanent slot created: the server keeps WAL for it, also while nothing reads it, until its disk is full",
            slot=name,
            remove="penstock slots drop FILE --yes",
        )
        return Retained(position, made=True)

    def _to_be_made(self, state: SlotState | None) -> Retained:
        """Return where a temporary slot begins at the earliest: capture makes it, for it goes with its connection."""
        if state is not None and not state.temporary:
            raise SourceMisconfigured(
                f"slot {state.name} is permanent, and source.slot_type is temporary",
                f"Name another slot in source.slot, or drop it: {drop_by_hand(state.name)}",
            )
        return Retained(self.head(), made=False)

    def retention(self) -> Retention | None:
        name = self._section.slot
        slot = slot_state(self.connection, name)
        if slot is None:
            return None
        if slot.plugin != PLUGIN or slot.database != self.connection.info.dbname:
            raise SourceMisconfigured(
                f"slot {name} is not this pipeline's: it is of database {slot.database or 'none'}, for "
                f"{slot.plugin or 'physical replication'}",
                "Name the pipeline's own slot in source.slot",
            )
        reader = None if slot.active_pid is None else f"process {slot.active_pid}"
        return Retention(f"slot {name}", reader, slot.confirmed_flush_lsn, f"{slot.retained_bytes:,} bytes of WAL")

    def release(self) -> None:
        drop_slot(self.connection, self._section.slot)

    def cut_off(self) -> str | None:
        return end_reader(self.connection, self._section.slot)

    def marks(self, schemas: Sequence[TableSchema]) -> dict[TableId, TableMarks]:
        return marks_of(self.connection, self._section.publication, schemas)

    def partitions(self, schemas: Sequence[TableSchema]) -> dict[TableId, Partitions]:
        return partitions_of(self.connection, schemas)

    def counters(self, schemas: Sequence[TableSchema]) -> dict[TableId, WriteCounters]:
        found = read_counters(self.connection, [schema.relation_id for schema in schemas])
        return {schema.table: found[schema.relation_id] for schema in schemas}

    def counts_writes(self) -> bool:
        return are_kept(self.connection)

    def first_rows(self, schema: TableSchema, most: int) -> pa.Table:
        return first_rows(self._section.url.get_secret_value(), schema, most, statement_timeout=FIRST_ROWS_SECONDS)

    def has_rows(self, partition: Partition) -> bool:
        return has_rows(self.connection, partition)

    def has_rows_before(self, partition: Partition, horizon: int) -> bool:
        return has_rows_before(self.connection, partition, horizon)

    def links_since(self, before: Links, now: Links) -> Links:
        return links_since(self.connection, before, now)

    def why_copied_again(self, before: TableMarks, now: TableMarks) -> str:
        return why_copied_again(before, now)

    def why_events_missing(self, before: TableMarks, now: TableMarks) -> str:
        return why_events_missing(before, now)

    def with_additions(self, before: TableMarks, now: TableMarks) -> TableMarks:
        return with_additions(before, now)

    def why_unsent(self, table: TableId, before: TableMarks, now: TableMarks) -> str:
        if not may_be_written_again(before, now) or not was_written_again(self.connection, table):
            return ""
        return "its rows were written again, as by SET UNLOGGED and SET LOGGED, and changes in between are never sent"

    def why_renamed(self, table: TableId, before: TableMarks, now: TableMarks, *, partitioned: bool) -> str:
        for label in new_labels(before, now):
            if was_used_before(self.connection, table, label, partitioned=partitioned):
                return f"value {label.label!r} of enum {label.type} is new, and may have had another label in use"
        return ""

    def figures(self, schema: TableSchema) -> Figures:
        return table_figures(self.connection, schema)


def slot_details(name: str, slot: SlotState | None, *, known: bool) -> dict[str, object]:
    """Return what programs are given of the slot. Not `known`: the source does not answer."""
    confirmed = None if slot is None else slot.confirmed_flush_lsn
    return {
        "slot": {
            "name": name,
            "exists": slot is not None if known else None,
            "active": None if slot is None else slot.active_pid is not None,
            "confirmed": None if confirmed is None else lsn_text(confirmed),
            "retained_bytes": None if slot is None else slot.retained_bytes,
            "wal_status": None if slot is None else slot.wal_status,
            "invalidation": None if slot is None else slot.invalidation,
        }
    }


def slot_facts(name: str, slot: SlotState | None) -> tuple[Fact, ...]:
    """Return what an operator is shown of the slot."""
    label = f"slot {name}"
    if slot is None:
        return (Fact(label, "is not there yet", "warning"),)
    if slot.invalidation is not None:
        return (Fact(label, f"is lost: {slot.invalidation}", "error"),)
    confirmed = "none" if slot.confirmed_flush_lsn is None else lsn_text(slot.confirmed_flush_lsn)
    return (
        Fact(label, "active") if slot.active_pid else Fact(label, "not active", "warning"),
        Fact("confirmed", confirmed),
        Fact("WAL kept", slot.retained_bytes),
    )

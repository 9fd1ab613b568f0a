"""A snapshot of a Postgres source as the rest of penstock knows it: sessions in it, and readers that work anywhere.

snapshot.py makes it, copy_ranges.py plans in it, copy_read.py reads in it; comparison.py compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

import pyarrow as pa
import pyarrow.compute as pc

from penstock.fold.keys import encode_keys
from penstock.model.partitions import Partitions
from penstock.model.position import Position
from penstock.model.table import TableId, TableSchema
from penstock.model.table_marks import TableMarks
from penstock.source.postgres.catalogue import marks_of, partitions_of
from penstock.source.postgres.comparison import SourceSide, comparable
from penstock.source.postgres.connect import Connection, everywhere
from penstock.source.postgres.copy_keys import key_conditions
from penstock.source.postgres.copy_ranges import CopyRange, plan_ranges
from penstock.source.postgres.copy_read import CopySource, estimate, ignored, read_range, row_filter
from penstock.source.postgres.discover import discover
from penstock.source.postgres.mark_comparison import why_copied_again
from penstock.source.postgres.snapshot import ExportedSnapshot, snapshot_connection
from penstock.source.snapshot_contract import Rescuing, Seeing, WantedTables

WHOLE = 1 << 62  # bytes of a range: no relation is cut


def at_the_snapshot(position: Position) -> None:
    """`seen` for those who know: every range is read at the snapshot's own position."""


class PostgresTableReader:
    def __init__(self, source: CopySource) -> None:
        self._source = source

    @property
    def schema(self) -> TableSchema:
        return self._source.schema

    def read(
        self,
        part: CopyRange,
        *,
        statement_timeout: float,
        max_rows_per_second: float | None = None,
        strict: bool = False,
        rescuing: Rescuing = ignored,
        seen: Seeing = at_the_snapshot,
    ) -> Iterator[pa.RecordBatch]:
        return read_range(
            self._source,
            part,
            max_rows_per_second=max_rows_per_second,
            statement_timeout=statement_timeout,
            strict=strict,
            rescuing=rescuing,
        )

    def rows_by_key(
        self, keys: pa.Table, *, statement_timeout: float, strict: bool = False, rescuing: Rescuing = ignored
    ) -> Iterator[pa.RecordBatch]:
        """Find the rows by an index, in the table or in each leaf of it."""
        key = self.schema.key
        conditions, wanted = key_conditions(key, keys), encode_keys([keys[name] for name in key])
        with snapshot_connection(self._source.url, self._source.snapshot) as connection:
            relations = plan_ranges(connection, self.schema, range_bytes=WHOLE)
        for relation in relations:
            batches = read_range(
                self._source,
                relation,
                statement_timeout=statement_timeout,
                conditions=conditions,
                strict=strict,
                rescuing=rescuing,
            )
            for batch in batches:
                yield batch.filter(pc.is_in(encode_keys([batch[name] for name in key]), wanted))


class PostgresSnapshotSession:
    def __init__(self, connection: Connection, url: str, publication: str, snapshot: str) -> None:
        self._connection, self._url, self._publication, self._snapshot = connection, url, publication, snapshot

    def describe(self, wanted: WantedTables, table: TableId) -> TableSchema | None:
        found = discover(self._connection, table.__eq__, self._publication, wanted.each_partition)
        return found[0] if found else None

    def estimated_rows(self, schema: TableSchema) -> int:
        return estimate(self._connection, schema)[0]

    def plan_ranges(self, schema: TableSchema, *, range_bytes: int) -> Sequence[CopyRange]:
        return plan_ranges(self._connection, schema, range_bytes=range_bytes)

    def reader(self, schema: TableSchema) -> PostgresTableReader:
        filter = row_filter(self._connection, self._publication, schema.table)
        url = everywhere(self._url, self._connection)
        return PostgresTableReader(CopySource(url, self._snapshot, schema, filter))

    def comparable(self, schema: TableSchema) -> SourceSide:
        return comparable(self._connection, self._publication, schema)

    def marks(self, schemas: Sequence[TableSchema]) -> dict[TableId, TableMarks]:
        return marks_of(self._connection, self._publication, schemas)

    def why_copied_again(self, before: TableMarks, now: TableMarks) -> str:
        return why_copied_again(before, now)

    def partitions(self, schemas: Sequence[TableSchema]) -> dict[TableId, Partitions]:
        return partitions_of(self._connection, schemas)


class PostgresSnapshot:
    def __init__(self, exported: ExportedSnapshot, url: str, publication: str) -> None:
        self._exported, self._url, self._publication = exported, url, publication

    def __enter__(self) -> PostgresSnapshot:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def position(self) -> Position:
        return self._exported.position

    @property
    def passed(self) -> Position:
        return self._exported.position

    @property
    def moment(self) -> int:
        return self._exported.moment or 0

    @contextmanager
    def session(self) -> Iterator[PostgresSnapshotSession]:
        with snapshot_connection(self._url, self._exported.name) as connection:
            self._exported.note_moment(connection)
            yield PostgresSnapshotSession(connection, self._url, self._publication, self._exported.name)

    def alive(self) -> bool:
        return self._exported.alive()

    def close(self) -> None:
        self._exported.close()

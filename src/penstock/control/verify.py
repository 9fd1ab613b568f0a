"""`penstock verify`: source and lake compared at one position, and, when asked to, the differing rows put right.

A snapshot of the source and its position are joined by a cut of each table at that position (`cutting`), so both sides
are the same moment while everything goes on. When a run is up it makes the cuts; otherwise the pipeline is run here
for as long as it takes. docs/verify.md says why it is exact, and what it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.config.model import Pipeline
from penstock.control.compare import MOST_DIFFERENCES, Comparison, bucket_count, compare
from penstock.control.cutting import Asking, cut_tables
from penstock.control.query import reading_session
from penstock.control.repair import net_effect, written
from penstock.control.sides import SourceSide, lake_side
from penstock.control.tables import followed
from penstock.errors import PenstockError, SchemaChanged, TableError, UsageError
from penstock.model.feed import Feed, Mode
from penstock.model.position import Position
from penstock.model.table import TableId, TableSchema
from penstock.runtime.copier import WHOLE, ProgressView
from penstock.runtime.pipeline import run
from penstock.source.postgres.connect import Connection, source_errors
from penstock.source.postgres.copy_ranges import leaves, plan_ranges
from penstock.source.postgres.copy_read import CopySource, estimate, row_filter
from penstock.source.postgres.discover import discover
from penstock.source.postgres.snapshot import ExportedSnapshot, snapshot_connection
from penstock.source.postgres.statements import quoted_table
from penstock.state.cut import Cut
from penstock.state.lock import holder
from penstock.state.sql import SqlStateStore, find_store
from penstock.state.store import StateStore

SHOWN = 20  # rows of a table that a person is shown


@dataclass(frozen=True)
class Verified:
    """What became of one table. `comparison` is None when it could not be compared: `error` says why.

    `before` is the comparison that led to a repair; `error` beside a comparison says why there was none.
    """

    table: TableId
    position: Position | None
    comparison: Comparison | None = None
    error: PenstockError | None = None
    before: Comparison | None = None

    @property
    def equal(self) -> bool:
        return self.comparison is not None and self.comparison.equal


@dataclass(frozen=True)
class Verifying:
    """What to do, and how to speak of it."""

    names: tuple[str, ...]
    repair: bool
    timeout: float
    shown: int
    tell: Callable[[str], None]


def verify(pipeline: Pipeline, wish: Verifying, progress: ProgressView) -> list[Verified]:
    """Each table in the order of their names."""
    if pipeline.is_scoped or pipeline.sid is not None:
        raise UsageError(
            f"pipeline {pipeline.name}: tables whose rows carry their source's `sid` cannot be verified yet",
            "`penstock query` can count them by it",
        )
    store = find_store(pipeline.state_url)
    if store is None:
        raise UsageError(
            f"pipeline {pipeline.name} has not run yet, so there is nothing to compare",
            f"`penstock run {pipeline.file}` copies every table",
        )
    try:
        tables = _comparable(pipeline, store, wish)
        lock = pipeline.home / "lock"
        if holder(lock) is not None:
            wish.tell("starting Spark beside the run")
            with reading_session(pipeline) as spark:
                return _Verification(pipeline, wish, store, spark, lambda: holder(lock) is not None).of(tables)
        found: list[Verified] = []

        def errand(spark: SparkSession) -> None:
            found.extend(_Verification(pipeline, wish, store, spark, lambda: True).of(tables))

        wish.tell("no run is up: the pipeline runs here until it is done")
        run(pipeline, progress=progress, errand=errand)
        return found
    finally:
        store.close()


@dataclass(frozen=True)
class _Repair:
    """What a repair needs of the comparison that found it necessary."""

    comparison: Comparison
    schema: TableSchema


def _comparable(pipeline: Pipeline, store: SqlStateStore, wish: Verifying) -> list[Feed]:
    """The feeds whose tables are to equal their source. One of another mode that is named is refused."""
    wanted = followed(pipeline, store, wish.names)
    for feed in wanted:
        if not _is_equal_copy(feed):
            how = f"in mode {feed.mode}" if feed.mode is not Mode.CLONE else "kept in part (where, columns or set)"
            if wish.names:
                raise UsageError(
                    f"table {feed.name} is {how}, so it is not meant to equal its source", "Name tables in mode clone"
                )
            wish.tell(f"left out: {feed.name}, which is {how} and not meant to equal its source")
    return [feed for feed in wanted if _is_equal_copy(feed)]


def _is_equal_copy(feed: Feed) -> bool:
    return feed.mode is Mode.CLONE and not feed.projection


class _Verification:
    def __init__(
        self,
        pipeline: Pipeline,
        wish: Verifying,
        store: StateStore,
        spark: SparkSession,
        run_is_up: Callable[[], bool],
    ) -> None:
        self._pipeline, self._wish, self._spark = pipeline, wish, spark
        self._url, self._destination = pipeline.source.url.get_secret_value(), pipeline.destinations[0].name
        self._feeds: dict[TableId, Feed] = {}
        self._asking = Asking(store, self._url, wish.timeout, pipeline.copying.snapshot_timeout, wish.tell, run_is_up)

    def of(self, feeds: Sequence[Feed]) -> list[Verified]:
        self._feeds = {feed.name: feed for feed in feeds}
        tables = list(self._feeds)
        repairable: dict[TableId, _Repair] = {}
        with cut_tables(self._asking, tables) as (snapshot, cuts):
            found = {table: self._compared(snapshot, cuts[table], repairable) for table in tables}
        if repairable:
            found |= self._repaired(found, repairable)
        return [found[table] for table in sorted(found)]

    def _compared(
        self, snapshot: ExportedSnapshot, cut: Cut, repairable: dict[TableId, _Repair] | None = None
    ) -> Verified:
        """One table; in `repairable` goes what its repair takes, if one is wanted and possible."""
        if cut.state == "failed":
            return Verified(cut.table, None, error=TableError(cut.reason, cut.solution))
        self._wish.tell(f"comparing {cut.table}")
        try:
            with snapshot_connection(self._url, snapshot.name) as connection:
                feed = self._feeds[cut.table]
                source = self._source_side(connection, feed.table)
                snapshot_id = int(cut.snapshot) if cut.snapshot else None
                lake = lake_side(self._spark, self._destination, feed.target, source.schema, snapshot_id, cut.columns)
                rows, _ = estimate(connection, source.schema)
                keyed = bool(source.schema.key)
                comparison = compare(source, lake, buckets=bucket_count(rows), keyed=keyed, shown=self._wish.shown)
        except TableError as error:
            return Verified(cut.table, snapshot.position, error=error)
        result = Verified(cut.table, snapshot.position, comparison)
        if comparison.equal or repairable is None or not self._wish.repair:
            return result
        keeps = not source.only and not self._pipeline.drops_partitions(source.schema.table)
        why_not = not_repairable(source.schema, comparison, keeps_partitions=keeps)
        if why_not is not None:
            return replace(result, error=why_not)
        repairable[cut.table] = _Repair(comparison, source.schema)
        return result

    def _source_side(self, connection: Connection, table: TableId) -> SourceSide:
        """With a lock on the table: from here on nobody rewrites it, and if somebody has, it shows."""
        publication = self._pipeline.source.publication
        found = discover(connection, lambda one: one == table, publication)
        schemas = [self._pipeline.carried(schema) for schema in found]
        if not schemas:
            raise TableError(f"table {table} is not at the source", "`penstock tables` shows what became of it")
        with source_errors(f"locking table {table} for reading"):
            connection.execute(f"LOCK TABLE {quoted_table(table)} IN ACCESS SHARE MODE".encode())
            connection.execute("SET LOCAL row_security = off")
            row = connection.execute("SELECT relkind = 'r' FROM pg_class WHERE oid = %s", (schemas[0].relation_id,))
            only = row.fetchone() == (True,)
        leaves(connection, schemas[0])
        return SourceSide(connection, schemas[0], row_filter(connection, publication, table), only)

    def _repaired(
        self, found: Mapping[TableId, Verified], repairs: Mapping[TableId, _Repair]
    ) -> dict[TableId, Verified]:
        """The repaired tables, compared again at the position of their repair."""
        self._wish.tell(f"repairing {', '.join(map(str, sorted(repairs)))}")
        with ExitStack() as files:

            def rows(snapshot: ExportedSnapshot, table: TableId) -> str:
                path = self._rows(snapshot, table, repairs[table])
                files.callback(path.unlink, missing_ok=True)
                return str(path)

            with cut_tables(self._asking, sorted(repairs), rows) as (snapshot, cuts):
                again = {table: self._compared(snapshot, cuts[table]) for table in repairs}
        return {table: replace(one, before=found[table].comparison) for table, one in again.items()}

    def _rows(self, snapshot: ExportedSnapshot, table: TableId, repair: _Repair) -> Path:
        with snapshot_connection(self._url, snapshot.name) as connection:
            side = self._source_side(connection, self._feeds[table].table)
            if side.schema != repair.schema:
                raise SchemaChanged(f"table {table}: its structure has just changed", "Run it again")
            relations = plan_ranges(connection, side.schema, range_bytes=WHOLE)
            net = net_effect(
                CopySource(self._url, snapshot.name, side.schema, side.row_filter),
                relations,
                repair.comparison.differences,
                statement_timeout=self._pipeline.copying.statement_timeout,
            )
        return written(net, self._pipeline.home / "repairs")


def not_repairable(schema: TableSchema, comparison: Comparison, *, keeps_partitions: bool = False) -> TableError | None:
    """Why the differences must be left alone; None: they can be put right. `keeps_partitions`: rows that only the lake
    has may be meant to be there, for their partition was detached or dropped."""
    table = schema.table
    resync = f"Copy it again: penstock resync FILE {table}"
    if not schema.key:
        return TableError(f"table {table} has no key, so its rows cannot be repaired one by one", resync)
    if keeps_partitions and comparison.count("extra"):
        return TableError(
            f"table {table} has rows that the source has not; they may be of a partition that was detached or dropped "
            "and is kept, so nothing is repaired",
            f"If they are not wanted: `on_partition_drop: delete`, or penstock resync FILE {table}",
        )
    if not comparison.complete or len(comparison.differences) > MOST_DIFFERENCES:
        return TableError(f"table {table}: more than {MOST_DIFFERENCES:,} rows differ, too many to repair", resync)
    return None

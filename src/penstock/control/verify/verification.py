"""Compare source and lake at one position and, if asked to, repair the differing rows.

A snapshot of the source and a pin of each table at the snapshot's position (`pin_client`) make both sides the same
moment while everything continues. When a run is up it makes the pins; otherwise the pipeline is run here
for as long as it takes. Of several sources each is verified for itself, one after another: with its own snapshot, and
of tables that it shares with others only its own rows. docs/verify.md says why it is exact, and what it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.config.model import Pipeline
from penstock.control.query.spark_sql import reading_session
from penstock.control.tables.requests import followed, is_whole_source
from penstock.control.verify.compare import MOST_DIFFERENCES, Comparison, bucket_count, compare
from penstock.control.verify.pin_client import Asking, pin_tables
from penstock.control.verify.repair import net_effect
from penstock.control.verify.sides import lake_side, widened
from penstock.destinations.factory import make_readable
from penstock.errors import (
    EnvironmentMissing,
    NoAnswer,
    PenstockError,
    SchemaChanged,
    SourceError,
    SourceUnreachable,
    StateError,
    TableError,
    UsageError,
)
from penstock.java_error import java_has_ended, java_reason
from penstock.model.feed import Feed, Mode
from penstock.model.position import Position
from penstock.model.row_digest import Side
from penstock.model.scoped_name import ScopedName
from penstock.model.table import TableId, TableSchema
from penstock.runtime.copy.progress_view import ScopedProgressView
from penstock.runtime.pipeline import run
from penstock.runtime.repair_file import write_repair
from penstock.runtime.source_threads import COMPONENT
from penstock.source.factory import source_of
from penstock.source.snapshot_contract import ComparableTable, Snapshot, SnapshotSession
from penstock.state.lock import holder
from penstock.state.opening import find_store
from penstock.state.pin import Pin
from penstock.state.store import StateStore

SHOWN = 20  # rows of a table that an operator is shown


@dataclass(frozen=True)
class Verified:
    """What became of one table. `comparison` is None when it could not be compared: `error` says why.

    `before` is the comparison that led to a repair; `error` beside a comparison says why there was none.
    """

    table: ScopedName
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


def verify(pipeline: Pipeline, wish: Verifying, progress: ScopedProgressView) -> list[Verified]:
    """Each table in the order of their names."""
    store = find_store(pipeline.state_url)
    if store is None:
        raise UsageError(
            f"pipeline {pipeline.name} has not run yet, so there is nothing to compare",
            f"`penstock run {pipeline.file}` copies every table",
        )
    try:
        shares = shares_of(pipeline, store, wish)
        lock = pipeline.home / "lock"
        if holder(lock) is not None:
            with ExitStack() as cleanup:
                spark = None
                if make_readable(pipeline.lake).by_spark:
                    wish.tell("starting Spark beside the run")
                    spark = cleanup.enter_context(reading_session(pipeline))
                return verify_each(shares, wish, Beside(store, lambda: holder(lock) is not None), spark)
        found: list[Verified] = []
        here = Beside(store, lambda: True, since=datetime.now(UTC))

        def errand(spark: SparkSession) -> None:
            found.extend(verify_each(shares, wish, here, spark))

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


@dataclass(frozen=True)
class Beside:
    """The run that answers. What its state store says of sources counts from `since` on; None: all of it."""

    store: StateStore
    is_up: Callable[[], bool]
    since: datetime | None = None

    def of(self, source_view: Pipeline) -> StateStore:
        return self.store.of_source(source_view.scope)

    def failure(self, source_view: Pipeline) -> PenstockError | None:
        """Say why the run does nothing for one of several sources; None when it does."""
        health = self.of(source_view).health().get(COMPONENT) if source_view.is_scoped else None
        if health is None or health.state != "failed" or (self.since is not None and health.since < self.since):
            return None
        return NoAnswer(f"the run has given source {source_view.source.name} up: {health.message}", health.solution)


@dataclass(frozen=True)
class Share:
    """What is compared of one source; `source_view` is the pipeline as it sees it."""

    source_view: Pipeline
    feeds: list[Feed]

    def named(self, table: TableId) -> ScopedName:
        """Return the name as operators know it."""
        return ScopedName(self.source_view.scope, table)


def shares_of(pipeline: Pipeline, store: StateStore, wish: Verifying) -> list[Share]:
    """Return the feeds whose tables are to equal their source. One of another mode that is named is refused."""
    wanted = followed(pipeline, store, wish.names)
    shares = {source_view.scope: Share(source_view, []) for source_view in pipeline.source_views}
    named = {name for name in wish.names if not is_whole_source(pipeline, name)}
    for table, feed in wanted.items():
        if feed.mode is Mode.CLONE and not feed.projection and not feed.processors:
            shares[table.source].feeds.append(feed)
            continue
        how = f"in mode {feed.mode}" if feed.mode is not Mode.CLONE else "kept in part (where, columns or set)"
        if feed.processors and feed.mode is Mode.CLONE:
            how = "changed by processors"
        if str(table) in named:
            raise UsageError(
                f"table {table} is {how}, so it is not meant to equal its source", "Name tables in mode clone"
            )
        wish.tell(f"left out: {table}, which is {how} and not meant to equal its source")
    return [share for share in shares.values() if share.feeds]


def verify_each(shares: Sequence[Share], wish: Verifying, beside: Beside, spark: SparkSession | None) -> list[Verified]:
    """Each source for itself: of several, one that cannot be verified is reported, and the others are verified."""
    found: list[Verified] = []
    for share in shares:
        try:
            found += _Verification(share, wish, beside, spark).all()
        except (SourceError, NoAnswer) as error:
            if not share.source_view.is_scoped:
                raise
            wish.tell(f"source {share.source_view.source.name} is left: {error.what}")
            found += [Verified(share.named(feed.name), None, error=error) for feed in share.feeds]
    return sorted(found, key=lambda one: one.table)


class _Verification:
    """Of one source. Tables have the names that the source, its pins and its part of the state store know."""

    def __init__(self, share: Share, wish: Verifying, beside: Beside, spark: SparkSession | None) -> None:
        source_view = share.source_view
        self._share, self._wish, self._spark = share, wish, spark
        self._pipeline, self._destination = source_view, source_view.lake.name
        self._tables = make_readable(source_view.lake)
        self._source = source_of(source_view.source)
        self._feeds = {feed.name: feed for feed in share.feeds}
        self._asking = Asking(
            beside.of(source_view),
            self._destination,
            self._source,
            wish.timeout,
            source_view.copying.snapshot_timeout,
            self._tell,
            beside.is_up,
            lambda: beside.failure(source_view),
        )

    def all(self) -> list[Verified]:
        self._source.connect().close()  # a source that cannot be reached is not waited for
        tables = list(self._feeds)
        repairable: dict[TableId, _Repair] = {}
        with pin_tables(self._asking, tables) as (snapshot, pins):
            found = {table: self._compared(snapshot, pins[table], repairable) for table in tables}
        if repairable:
            found |= self._repaired(found, repairable)
        return list(found.values())

    def _compared(self, snapshot: Snapshot, pin: Pin, repairable: dict[TableId, _Repair] | None = None) -> Verified:
        """Compare one table; in `repairable` goes what its repair takes, if one is wanted and possible."""
        if pin.state == "failed":
            return Verified(self._share.named(pin.table), None, error=TableError(pin.reason, pin.solution))
        self._tell(f"comparing {pin.table}")
        try:
            with snapshot.session() as session:
                feed = self._feeds[pin.table]
                source = self._source_side(session, feed.table)
                rows = session.estimated_rows(source.schema)
                with self._sides(source, feed, pin) as (there, here):
                    comparison = compare(
                        there,
                        here,
                        buckets=bucket_count(rows),
                        keyed=bool(source.schema.key),
                        shown=self._wish.shown,
                    )
        except (SourceUnreachable, EnvironmentMissing, StateError):
            raise  # of all tables
        except (PenstockError, PySparkException, Py4JError) as error:
            return Verified(self._share.named(pin.table), snapshot.position, error=_not_compared(pin.table, error))
        result = Verified(self._share.named(pin.table), snapshot.position, comparison)
        if comparison.equal or repairable is None or not self._wish.repair:
            return result
        keeps = source.may_have_partitions and not self._pipeline.drops_partitions(source.schema.table)
        why_not = not_repairable(source.schema, comparison, self._share.named(pin.table), keeps_partitions=keeps)
        if why_not is not None:
            return replace(result, error=why_not)
        repairable[pin.table] = _Repair(comparison, source.schema)
        return result

    @contextmanager
    def _sides(self, source: ComparableTable, feed: Feed, pin: Pin) -> Iterator[tuple[ComparableTable, Side]]:
        """Both sides, each computing where it lies: the destination's by Spark, or by its own server."""
        schema, bookmark = source.schema, pin.snapshot or ""
        if self._spark is not None and self._tables.by_spark:
            lake = lake_side(
                self._spark,
                self._tables,
                feed.target,
                schema,
                bookmark=bookmark,
                called=pin.columns,
                sid=feed.sid,
            )
            yield widened(source, lake), lake
            return
        own = self._tables.own_side(feed.target, schema, bookmark=bookmark, called=pin.columns, sid=feed.sid)
        with own as here:
            left_out = [column.name for column in schema.columns if column.name not in here.types]
            if left_out:
                self._tell(f"{pin.table}: not compared, for the destination lacks it: {', '.join(left_out)}")
            yield source.as_read(here.types), here

    def _source_side(self, session: SnapshotSession, table: TableId) -> ComparableTable:
        """Return the source's side: from here on nobody rewrites the table, and if somebody has, it shows."""
        schema = session.describe(self._pipeline, table)
        if schema is None:
            raise TableError(f"table {table} is not at the source", "`penstock tables` shows what became of it")
        return session.comparable(self._pipeline.carried(schema))

    def _repaired(
        self, found: Mapping[TableId, Verified], repairs: Mapping[TableId, _Repair]
    ) -> dict[TableId, Verified]:
        """Return the repaired tables, compared again at the position of their repair."""
        self._tell(f"repairing {', '.join(map(str, sorted(repairs)))}")
        with ExitStack() as files:

            def rows(snapshot: Snapshot, table: TableId) -> str:
                path = self._rows(snapshot, table, repairs[table])
                files.callback(path.unlink, missing_ok=True)
                return str(path)

            with pin_tables(self._asking, sorted(repairs), rows) as (snapshot, pins):
                again = {table: self._compared(snapshot, pins[table]) for table in repairs}
        return {table: replace(one, before=found[table].comparison) for table, one in again.items()}

    def _rows(self, snapshot: Snapshot, table: TableId, repair: _Repair) -> Path:
        with snapshot.session() as session:
            side = self._source_side(session, self._feeds[table].table)
            if side.schema != repair.schema:
                raise SchemaChanged(f"table {table}: its structure has just changed", "Run it again")
            timeout, differences = self._pipeline.copying.statement_timeout, repair.comparison.differences
            net = net_effect(session.reader(side.schema), differences, statement_timeout=timeout)
        return write_repair(net, self._pipeline.home / "repairs")

    def _tell(self, what: str) -> None:
        self._wish.tell(f"{self._pipeline.source.name}: {what}" if self._pipeline.is_scoped else what)


def _not_compared(table: TableId, error: Exception) -> PenstockError:
    """Say why one table could not be read, at the source or in the lake; the others are compared all the same."""
    if isinstance(error, PenstockError):
        return error
    if java_has_ended(error):
        raise EnvironmentMissing("Spark's Java process has ended", "Run it again") from error
    reason = java_reason(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    return TableError(
        f"table {table} cannot be read in the lake: {' '.join(reason.split())[:300]}",
        f"See that its files are whole; penstock resync FILE {table} copies it again",
    )


def not_repairable(
    schema: TableSchema, comparison: Comparison, table: ScopedName, *, keeps_partitions: bool = False
) -> TableError | None:
    """Say why the differences must be left alone; None: they can be put right.

    `table`: as shown to users. `keeps_partitions`: rows that only the lake has may be meant to be there, for their
    partition was detached or dropped.
    """
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

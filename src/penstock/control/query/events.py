"""An events table as lines of JSON, in the order of the stream. The lines are made by `fold/event_json.py`.

Memory stays flat: Spark sorts on disk, in ranges of a limited size, and the lines of one range come at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from penstock.control.query.arrow_stream import arrow_batches
from penstock.control.verify.canonical import spark_literal
from penstock.destinations.reading import ReadableTables, TableSize, quoted
from penstock.errors import DestinationUnreachable, UsageError
from penstock.fold.event_json import event_lines
from penstock.java_error import java_reason
from penstock.model.feed import Feed
from penstock.model.position import parse_order

ROWS_AT_A_TIME, BYTES_AT_A_TIME = 20_000, 4 << 20  # of one range; bytes are those of Parquet
ROWS_IN_A_BATCH = 500
FEW = 10_000  # so many are chosen in one pass, without sorting all

Place = tuple[int, int]


def parse_place(text: str) -> Place:
    """Parse an event's `place`."""
    try:
        return parse_order(text)
    except ValueError as error:
        raise UsageError(
            f"--after {text} is not the place of an event",
            "Give the `lsn` of a line that `penstock events` has printed, such as 0/16B3740:2; or a position such as "
            "0/16B3740, for what follows the transaction committed there",
        ) from error


def lines(
    spark: SparkSession, tables: ReadableTables, feed: Feed, after: Place | None = None, limit: int | None = None
) -> Iterator[str]:
    """Return the events behind `after`, the first `limit` of them. `tables` are the destination's."""
    try:
        events = arrow_batches(_in_order(spark, tables, feed, after, limit), ROWS_IN_A_BATCH)
        sid = None if feed.sid is None else feed.sid.column
        yield from islice((line for batch in events for line in event_lines(batch, sid)), limit)
    except AnalysisException as error:
        raise UsageError(
            f"table {feed.target} is not at the destination yet", f"See `penstock tables` how far {feed.name} is"
        ) from error
    except Py4JJavaError as error:
        raise DestinationUnreachable(
            f"reading table {feed.target} failed: {java_reason(error.java_exception)}",
            "See that the destination's catalog and storage can be reached, and that its files are whole",
        ) from error


def _in_order(
    spark: SparkSession, tables: ReadableTables, feed: Feed, after: Place | None, limit: int | None
) -> DataFrame:
    place = ("commit_position", "ordinal")
    tables.register(spark, str(feed.target))
    events = spark.table(tables.name(feed.target))
    if feed.sid is not None:
        value = spark_literal(feed.sid.value) if isinstance(feed.sid.value, str) else str(feed.sid.value)
        events = events.where(f"{quoted(feed.sid.column)} = {value}")
    if after is not None:
        lsn, ordinal = after
        if feed.markers and not ordinal:  # a begin has the place of the first change
            ordinal = -1
        events = events.where(f"commit_position >= {lsn} AND (commit_position > {lsn} OR ordinal > {ordinal})")
    if limit is not None and limit <= FEW:
        return events.orderBy(*place).limit(limit)
    return events.repartitionByRange(_ranges(tables.size(spark, feed.target)), *place).sortWithinPartitions(*place)


def _ranges(size: TableSize) -> int:
    return 1 + max(size.rows // ROWS_AT_A_TIME, size.bytes // BYTES_AT_A_TIME)

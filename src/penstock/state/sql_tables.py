"""The tables of the SQL state store (`sql.py`), and how times and positions are kept in them.

Times are ISO text in UTC and positions fixed-width hexadecimal, so that SQLite and Postgres hold the same values and a
person can read them. A table that is added here is created in an existing store when it is next opened; a change to an
existing table needs a new FORMAT.

Every row says of which source it is: "" where the pipeline has one source only. `SqlPart` makes sure that a store reads
and writes the rows of its own source.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.types import TypeDecorator

from penstock.model.position import Position, parse_position, stored_text

FORMAT = 3


class Moment(TypeDecorator[datetime]):
    impl = String(40)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:
        return None if value is None else value.astimezone(UTC).isoformat(timespec="microseconds")

    def process_result_value(self, value: str | None, dialect: Dialect) -> datetime | None:
        return None if value is None else datetime.fromisoformat(value)


class PositionText(TypeDecorator[Position]):
    impl = String(16)
    cache_ok = True

    def process_bind_param(self, value: Position | None, dialect: Dialect) -> str | None:
        return None if value is None else stored_text(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Position | None:
        return None if value is None else parse_position(value)


METADATA = MetaData()

STORE_FORMAT = Table("penstock_format", METADATA, Column("version", Integer, primary_key=True))

TABLE_STATUS = Table(
    "penstock_table_status",
    METADATA,
    Column("source", Text, primary_key=True),
    Column("destination", Text, primary_key=True),
    Column("table_schema", Text, primary_key=True),
    Column("table_name", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("since", Moment, nullable=False),
    Column("reason", Text, nullable=False),
    Column("solution", Text, nullable=False),
    Column("retry", Text, nullable=False),
    Column("next_try", Text, nullable=False),
    Column("code", Text, nullable=False),
)

TABLE_PROGRESS = Table(
    "penstock_table_progress",
    METADATA,
    Column("source", Text, primary_key=True),
    Column("destination", Text, primary_key=True),
    Column("table_schema", Text, primary_key=True),
    Column("table_name", Text, primary_key=True),
    Column("position", PositionText, nullable=False),
    Column("changes", BigInteger, nullable=False),
    Column("rate", Float, nullable=False),
    Column("commit_time", Moment),
    Column("updated_at", Moment, nullable=False),
    Column("fetched", BigInteger, nullable=False),
)

PROCESSED = Table(
    "penstock_processed",
    METADATA,
    Column("source", Text, primary_key=True),
    Column("destination", Text, primary_key=True),
    Column("position", PositionText, nullable=False),
)

EVENTS = Table(
    "penstock_events",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("source", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("kind", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("destination", Text),  # null: the source as a whole
    Column("table_schema", Text),
    Column("table_name", Text),
)

HEALTH = Table(
    "penstock_health",
    METADATA,
    Column("source", Text, primary_key=True),
    Column("component", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("since", Moment, nullable=False),
    Column("message", Text, nullable=False),
    Column("solution", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("code", Text, nullable=False),
)

COPIES = Table(
    "penstock_copy",
    METADATA,
    Column("source", Text, primary_key=True),
    Column("destination", Text, primary_key=True),
    Column("table_schema", Text, primary_key=True),
    Column("table_name", Text, primary_key=True),
    Column("copy", Text, nullable=False),
    Column("started", Moment, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("ended", Moment),
    Column("ranges", Integer, nullable=False),
    Column("rows", BigInteger, nullable=False),  # set at the end, when the ranges go
    Column("bytes", BigInteger, nullable=False),
)

COPY_RANGES = Table(
    "penstock_copy_range",
    METADATA,
    Column("source", Text, primary_key=True),
    Column("destination", Text, primary_key=True),
    Column("table_schema", Text, primary_key=True),
    Column("table_name", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("copy", Text, nullable=False),
    Column("content", Text, nullable=False),  # a record of the source, as JSON
    Column("position", PositionText),
    Column("part", Text),  # a record of the destination, as JSON
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)

COPY_NOTES = Table(
    "penstock_copy_note",
    METADATA,
    Column("source", Text, primary_key=True),
    Column("destination", Text, primary_key=True),
    Column("table_schema", Text, primary_key=True),
    Column("table_name", Text, primary_key=True),
    Column("note", Text, nullable=False),
)

RESCUED = Table(
    "penstock_rescued",
    METADATA,
    Column("source", Text, primary_key=True),
    Column("destination", Text, primary_key=True),
    Column("table_schema", Text, primary_key=True),
    Column("table_name", Text, primary_key=True),
    Column("column_name", Text, primary_key=True),
    Column("cells", BigInteger, nullable=False),
    Column("sample", Text, nullable=False),
    Column("place", Text, nullable=False),
)

ANOMALIES = Table(
    "penstock_anomaly",
    METADATA,
    Column("source", Text, primary_key=True),
    Column("destination", Text, primary_key=True),
    Column("table_schema", Text, primary_key=True),
    Column("table_name", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("changes", BigInteger, nullable=False),
    Column("places", Text, nullable=False),  # the first few, a line each
)

UPKEEP = Table(
    "penstock_upkeep",
    METADATA,
    Column("source", Text, primary_key=True),
    Column("destination", Text, primary_key=True),
    Column("table_schema", Text, primary_key=True),
    Column("table_name", Text, primary_key=True),
    Column("at", Moment, nullable=False),
    Column("files", BigInteger, nullable=False),
    Column("delete_files", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("snapshots", BigInteger, nullable=False),
    Column("read_cost", Float, nullable=False),
    Column("doing", Text, nullable=False),
    Column("merged_files", BigInteger, nullable=False),
    Column("merged_deletes", BigInteger, nullable=False),
    Column("expired_snapshots", BigInteger, nullable=False),
    Column("swept_files", BigInteger, nullable=False),
)

REQUESTS = Table(
    "penstock_request",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("source", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("kind", Text, nullable=False),
    Column("destination", Text, nullable=False),
    Column("table_schema", Text, nullable=False),
    Column("table_name", Text, nullable=False),
    sqlite_autoincrement=True,  # an id is never used twice: to drop one request must not drop a later one
)

PAUSES = Table(
    "penstock_pause",
    METADATA,
    Column("source", Text, primary_key=True),
    Column("destination", Text, primary_key=True),  # "": all of them
    Column("table_schema", Text, primary_key=True),  # "": the destination as a whole
    Column("table_name", Text, primary_key=True),
    Column("at", Moment, nullable=False),
)

COPY_FACTS = Table(
    "penstock_copy_fact",
    METADATA,
    Column("source", Text, primary_key=True),
    Column("destination", Text, primary_key=True),
    Column("table_schema", Text, primary_key=True),
    Column("table_name", Text, primary_key=True),
    Column("kind", Text, primary_key=True),  # partitions, marks, write_counters or rule
    Column("content", Text, nullable=False),  # the value of model/ as JSON
)

SCHEMAS = Table(
    "penstock_schema",
    METADATA,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("source", Text, nullable=False),
    Column("table_schema", Text, nullable=False),
    Column("table_name", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("position", PositionText, nullable=False),
    Column("at", Moment, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("guessed", Integer, nullable=False),
    Column("definition", Text, nullable=False),  # as JSON
    UniqueConstraint("source", "table_schema", "table_name", "version"),
    sqlite_autoincrement=True,  # a sequence number is never used twice
)

SCHEMAS_SEEN = Table(
    "penstock_schema_seen",
    METADATA,
    Column("source", Text, primary_key=True),  # whose change log
    Column("position", PositionText, nullable=False),  # up to where it was looked at
)

QUARANTINE = Table(
    "penstock_quarantine",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("source", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("destination", Text, nullable=False),
    Column("table_schema", Text, nullable=False),
    Column("table_name", Text, nullable=False),
    Column("commit_position", PositionText, nullable=False),
    Column("ordinal", BigInteger, nullable=False),
    Column("change_position", PositionText, nullable=False),
    Column("transaction", PositionText, nullable=False),
    Column("commit_time", Moment, nullable=False),
    Column("op", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("definition", Text, nullable=False),  # of the table's schema version, as JSON
    Column("fingerprint", Text, nullable=False),
    Column("reason", Text, nullable=False),
    UniqueConstraint("source", "destination", "table_schema", "table_name", "commit_position", "ordinal"),
    sqlite_autoincrement=True,
)

LETTERS = Table(
    "penstock_dead_letter",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("source", Text, nullable=False),
    Column("destination", Text, nullable=False),
    Column("table_schema", Text, nullable=False),
    Column("table_name", Text, nullable=False),
    Column("place", Text, nullable=False),
    Column("shard", Integer, nullable=False),  # -1: not known which
    Column("at", Moment, nullable=False),
    Column("tried_at", Moment, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("op", Text, nullable=False),
    Column("key", LargeBinary),
    Column("topic", Text, nullable=False),
    Column("code", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("message", Text),  # a record of the change, as JSON; null: a row of the copy
    Column("value", LargeBinary),  # as rendered, where there is no message
    Column("headers", Text, nullable=False),  # JSON
    UniqueConstraint("source", "destination", "table_schema", "table_name", "place", "shard"),
    sqlite_autoincrement=True,
)

LETTER_REQUESTS = Table(
    "penstock_dead_letter_request",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("source", Text, nullable=False),
    Column("destination", Text, nullable=False),
    Column("table_schema", Text, nullable=False),
    Column("table_name", Text, nullable=False),
    Column("letter", Integer, nullable=False, unique=True),
    Column("at", Moment, nullable=False),
    sqlite_autoincrement=True,  # streams note up to which request they have sent: a number is never used twice
)

LETTERS_DROPPED = Table(
    "penstock_dead_letter_dropped",
    METADATA,
    Column("source", Text, primary_key=True),
    Column("destination", Text, primary_key=True),
    Column("table_schema", Text, primary_key=True),
    Column("table_name", Text, primary_key=True),
    Column("dropped", BigInteger, nullable=False),
)

PINS = Table(
    "penstock_pin",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("source", Text, nullable=False),
    Column("destination", Text, nullable=False),
    Column("table_schema", Text, nullable=False),
    Column("table_name", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("renewed", Moment, nullable=False),
    Column("position", PositionText),
    Column("repair", Text, nullable=False),
    Column("snapshot", Text, nullable=False),
    Column("columns", Text, nullable=False),  # JSON
    Column("reason", Text, nullable=False),
    Column("solution", Text, nullable=False),
    sqlite_autoincrement=True,
)

LEASE = Table(
    "penstock_lease",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),  # 1: there is one row
    Column("host", Text, nullable=False),
    Column("machine", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("beats", BigInteger, nullable=False),
    Column("released", Integer, nullable=False),
    Column("taken", Moment, nullable=False),
)

# What goes with a table that is no longer followed; the schema registry and the events stay
FORGOTTEN = tuple(
    table for table in METADATA.sorted_tables if "table_name" in table.c and table not in (EVENTS, SCHEMAS)
)

# What goes with a destination that is removed
OF_A_DESTINATION = tuple(table for table in METADATA.sorted_tables if "destination" in table.c)

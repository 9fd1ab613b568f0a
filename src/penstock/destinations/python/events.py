"""Events as a user's destination gets them: one class per operation, values of Python's own types.

They are made from penstock's native JSON (`render/envelopes.py`), which every event has anyway, and the structure that
the event is under. A value that its column's Python type cannot hold (`infinity`, a year BC) is given as its text.

| source's type                | in Python                                       |
|------------------------------|-------------------------------------------------|
| boolean, integers, floats    | bool, int, float                                |
| numeric                      | Decimal                                         |
| date, time, timestamp, -tz   | date, time, datetime (aware for timestamptz)    |
| bytea                        | bytes                                           |
| json, jsonb                  | what `json.loads` makes of it                   |
| arrays                       | list                                            |
| composites, hstore           | dict                                            |
| anything else                | its text                                        |
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import pyarrow as pa

from penstock.decode.schema import arrow_schema
from penstock.decode.verbatim import without_texts
from penstock.errors import ColumnNotCarried
from penstock.model.source_events import DDL, MESSAGES, RELATIONS, TRANSACTIONS
from penstock.model.table import ByFingerprint, TableId, TableSchema

Row = Mapping[str, Any]
Convert = Callable[[Any], Any]

_NUMERIC = 1700  # the number of Postgres' type, which Arrow may have as text


@dataclass(frozen=True)
class Column:
    """A column of a table, as its source has it. `type` is the source's name of its type."""

    name: str
    type: str
    arrow_type: pa.DataType
    nullable: bool = True


@dataclass(frozen=True)
class Table:
    """A table under one structure. `str()` gives `schema.table`; `version` names the structure.

    `described` is for penstock's own classes: all that the source says of the structure."""

    schema: str
    name: str
    key: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    version: str = ""
    described: TableSchema | None = field(default=None, repr=False, compare=False)

    @property
    def id(self) -> TableId:
        """Return the table's name, which stays the same when its structure changes."""
        return TableId(self.schema, self.name)

    @property
    def arrow_schema(self) -> pa.Schema:
        """Return the columns as Arrow has them."""
        return pa.schema([pa.field(one.name, one.arrow_type, nullable=one.nullable) for one in self.columns])

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, kw_only=True)
class Event:
    """What every event has.

    `id` is unique, and the same whenever the event is delivered. `place` is where it stands in the stream: text order
    is stream order. `json` is the event in penstock's native envelope, with every digit that the source wrote."""

    table: Table
    id: str
    place: str
    source: str = ""
    commit_time: datetime | None = None
    transaction: int | None = None
    key: Row | None = None
    json: str = field(default="", repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class Read(Event):
    """A row that was there before the first change: part of a copy."""

    row: Row


@dataclass(frozen=True, kw_only=True)
class Insert(Event):
    """A new row. `moved_from` is the key that it had, if an update has changed it (several shards only)."""

    row: Row
    moved_from: Row | None = None


@dataclass(frozen=True, kw_only=True)
class Update(Event):
    """A changed row.

    `row` lacks the columns in `unchanged`: the source did not send them. `old` has what the source sends of the row
    before: nothing, its key, or (`old_is_full`) all of it.
    """

    row: Row
    old: Row | None = None
    old_is_full: bool = False
    unchanged: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Delete(Event):
    """A removed row.

    `old` has its key or (`old_is_full`) all of it. `moved_to` is the key that the row has now, if an update has changed
    it (several shards only).
    """

    old: Row
    old_is_full: bool = False
    moved_to: Row | None = None


@dataclass(frozen=True, kw_only=True)
class Truncate(Event):
    """All rows removed at once. `options` may have `cascade` and `restart_identity`."""

    options: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Begin(Event):
    """The beginning of a transaction, on request (`transactions: true`). It has no table."""


@dataclass(frozen=True, kw_only=True)
class Commit(Event):
    """The end of a transaction, on request.

    `changes` counts the source's, also by table; `end` is where it ends in the source's log. It has no table.
    """

    changes: int = 0
    by_table: Mapping[TableId, int] = field(default_factory=dict)
    end: str = ""


@dataclass(frozen=True, kw_only=True)
class Relation(Event):
    """The structure of `table`, before its first row under it, on request (`schema_changes: true`)."""


@dataclass(frozen=True, kw_only=True)
class Ddl(Event):
    """How the structure of `table` has changed, in words, on request. `previous` names the structure before."""

    changes: tuple[str, ...] = ()
    previous: str = ""


@dataclass(frozen=True, kw_only=True)
class Message(Event):
    """A logical message that an application has written, on request (`messages`). It has no table."""

    prefix: str
    content: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class Unsupported(Event):
    """An event of a kind that this version has no class for; `op` is its kind, and `json` has the rest."""

    op: str


def parse_events(texts: Sequence[bytes], places: Sequence[str], schemas: Mapping[str, TableSchema]) -> list[Event]:
    """Return the events of native JSON texts. `schemas` are the structures that they are under, by fingerprint."""
    return [_event(text, place, schemas) for text, place in zip(texts, places, strict=True)]


def table_of(schema: TableSchema) -> Table:
    """Return a structure as users see it."""
    return _described(ByFingerprint(schema))[0]


def _event(text: bytes, place: str, schemas: Mapping[str, TableSchema]) -> Event:
    found = _members(text)
    if found is None:  # a processor has made something else of it
        return Unsupported(table=Table("", ""), id=place, place=place, op="", json=text.decode(errors="replace"))
    version = found.get("schema_version") or ""
    schema = schemas.get(version)
    table, converts = (
        (Table(found.get("schema") or "", found.get("table") or "", version=version), {})
        if schema is None
        else _described(ByFingerprint(schema))
    )
    moment = found.get("commit_time")
    shared: dict[str, Any] = {
        "table": table,
        "id": found.get("id") or "",
        "place": place,
        "source": found.get("source") or "",
        "commit_time": datetime.fromisoformat(moment) if isinstance(moment, str) else None,
        "transaction": found.get("transaction"),
        "key": _row(found.get("key"), converts),
        "json": text.decode(),
    }
    after, before = _row(found.get("after"), converts), _row(found.get("before"), converts)
    full = found.get("before_kind") == "full"
    match found.get("op"):
        case "insert":
            return Insert(**shared, row=after or {}, moved_from=_row(found.get("moved_from"), converts))
        case "update":
            unchanged = tuple(found.get("unchanged") or ())
            return Update(**shared, row=after or {}, old=before, old_is_full=full, unchanged=unchanged)
        case "delete":
            moved = _row(found.get("moved_to"), converts)
            return Delete(**shared, old=before or {}, old_is_full=full, moved_to=moved)
        case "read":
            return Read(**shared, row=after or {})
        case "truncate":
            return Truncate(**shared, options=tuple(found.get("truncate_options") or ()))
        case _:
            return _source_event(found, shared)


def _source_event(found: dict[str, Any], shared: dict[str, Any]) -> Event:
    """Return an event of the source itself."""
    match found.get("op"):
        case "begin":
            return Begin(**shared)
        case "commit":
            counts = {TableId(one["schema"], one["table"]): one["changes"] for one in found.get("tables") or ()}
            return Commit(
                **shared,
                changes=found.get("changes") or 0,
                by_table=counts,
                end=found.get("end_position") or "",
            )
        case "relation":
            given = found.get("columns") or ()
            columns = tuple(Column(one["name"], one["type"], pa.string(), one["nullable"]) for one in given)
            key = tuple(one["name"] for one in given if one["key"])
            table: Table = shared["table"]
            described = table if table.columns else replace(table, columns=columns, key=key)
            return Relation(**{**shared, "table": described})
        case "ddl":
            said = tuple(map(str, found.get("changes") or ()))
            return Ddl(**shared, changes=said, previous=found.get("previous_version") or "")
        case "message":
            message = found.get("message") or {}
            content = message.get("content")
            octets = b64decode(content) if isinstance(content, str) else None
            return Message(**shared, prefix=message.get("prefix") or "", content=octets)
        case op:
            return Unsupported(**shared, op=str(op))


def owner_of(event: Event) -> TableId:
    """Return the table whose state an event's delivery is: events of the source itself have one of their own."""
    match event:
        case Begin() | Commit():
            return TRANSACTIONS
        case Relation():
            return RELATIONS
        case Ddl():
            return DDL
        case Message():
            return MESSAGES
        case _:
            return event.table.id


def _members(text: bytes) -> dict[str, Any] | None:
    """Return the members of an event in the native envelope; None for anything else."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "op" in found and "place" in found else None


def _row(image: Any, converts: Mapping[str, Convert]) -> Row | None:
    if not isinstance(image, dict):
        return None
    return {name: _converted(converts.get(name), value) for name, value in image.items()}


def _converted(convert: Convert | None, value: Any) -> Any:
    if convert is None or value is None:
        return value
    try:
        return convert(value)
    except (ValueError, TypeError, AttributeError, OverflowError, InvalidOperation):
        return value  # the source's text, which no value of the type stands for


@lru_cache(maxsize=1024)
def _described(given: ByFingerprint) -> tuple[Table, dict[str, Convert]]:
    schema = without_texts(given.schema)
    try:
        types = {one.name: one.type for one in arrow_schema(schema)}
    except ColumnNotCarried:
        types = {}
    columns, converts = [], dict[str, Convert]()
    for column in schema.columns:
        arrow_type = types.get(column.name, pa.string())
        columns.append(Column(column.name, column.type.name, arrow_type, column.nullable))
        convert = Decimal if column.type.oid == _NUMERIC and schema.dialect == "postgres" else _convert(arrow_type)
        if column.type.carried_as != "text" and convert is not None:
            converts[column.name] = convert
    name = schema.table
    return Table(name.schema, name.name, schema.key, tuple(columns), schema.structure, schema), converts


def _convert(kind: pa.DataType) -> Convert | None:
    """Return what makes a value of JSON one of Python; None where it is one already."""
    if pa.types.is_decimal(kind):
        return Decimal
    if pa.types.is_floating(kind):
        return float
    if pa.types.is_timestamp(kind):
        return datetime.fromisoformat
    if pa.types.is_date(kind):
        return date.fromisoformat
    if pa.types.is_time(kind):
        return time.fromisoformat
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda value: b64decode(value, validate=True)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_convert(_convert(kind.value_type))
    if pa.types.is_struct(kind):
        inner = {one.name: convert for one in kind if (convert := _convert(one.type)) is not None}
        return (lambda value: _row(value, inner) if isinstance(value, dict) else value) if inner else None
    return None


def _list_convert(element: Convert | None) -> Convert | None:
    if element is None:
        return None

    def convert(value: Any) -> Any:
        if isinstance(value, list):
            return [convert(one) for one in value]
        return _converted(element, value)

    return convert

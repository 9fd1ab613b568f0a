"""Postgres' own events as rows of the change log: transactions, structures, logical messages (model/source_events.py).

They are written as pgoutput would send inserts into such tables, so whatever reads the log reads them too. Rows of
transactions and structures share the place of the change that they stand before; slices of them come first, and an
equal place is read in the order of slices. Pure: bytes in, batches out. Used by transaction_buffer.py.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.model.change import INSERT, RAW_SCHEMA
from penstock.model.position import LAST, Position, stored_text
from penstock.model.source_events import DDL, MESSAGES, RELATIONS, TRANSACTIONS, WantedEvents
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.source.postgres.ddl_trigger import PREFIX
from penstock.source.postgres.pgoutput import HEADER_BYTES, Begin, Bytes, read_any_message
from penstock.source.sink import CapturedSlice

MOST_MESSAGE_BYTES = 128 << 20  # the content of a larger message is left out
_TEXT, _BYTEA = ColumnType(25, "text"), ColumnType(17, "bytea")
Known = Callable[[int], TableSchema | None]


def _table(named: TableId, number: int, **columns: ColumnType) -> TableSchema:
    """Describe a table that no database has: tables of users have larger numbers."""
    made = tuple(Column(name, type, number=at) for at, (name, type) in enumerate(columns.items(), 1))
    return TableSchema(named, number, made, key=(made[0].name,), identity="nothing")


TRANSACTION = _table(TRANSACTIONS, 1, id=_TEXT, status=_TEXT, end_position=_TEXT, changes=_TEXT, tables=_TEXT)
CHANGED = _table(DDL, 2, table=_TEXT, before=_TEXT, after=_TEXT)
RELATION = _table(RELATIONS, 3, table=_TEXT, structure=_TEXT)
MESSAGE = _table(MESSAGES, 4, prefix=_TEXT, content=_BYTEA)
OWN_RELATIONS = frozenset(one.relation_id for one in (TRANSACTION, CHANGED, RELATION, MESSAGE))


@dataclass(frozen=True)
class Place:
    """What a row of the log says of where it stands."""

    commit: Position
    ordinal: int
    change: Position
    transaction: int
    time: int


@dataclass
class OpenCount:
    """Changes of one transaction by table, of which a part may have left already."""

    begin: Begin
    first: Position  # where its first change stands
    tables: dict[TableId, int] = field(default_factory=dict)


class SourceRows:
    """Rows of the wanted events. `known` gives the structure of a relation's last change in the log."""

    def __init__(self, wanted: WantedEvents, known: Known) -> None:
        self._wanted, self._known = wanted, known
        self._structures: dict[int, TableSchema | None] = {}
        self._rows: dict[TableId, list[tuple[Place, bytes]]] = {}

    def begins(self, count: OpenCount) -> None:
        """Note that the first changes of a transaction leave for the log."""
        begin = count.begin
        place = Place(begin.commit_lsn, 0, count.first, begin.xid, begin.commit_time)
        self._add(TRANSACTION, place, _identity(begin), "begin", None, None, None)

    def commits(self, count: OpenCount, end: Position) -> None:
        """Note that the last changes of a transaction leave for the log."""
        begin = count.begin
        place = Place(begin.commit_lsn, LAST, begin.commit_lsn, begin.xid, begin.commit_time)
        tables = [[one.schema, one.name, changes] for one, changes in sorted(count.tables.items())]
        changes = str(sum(count.tables.values()))
        self._add(TRANSACTION, place, _identity(begin), "commit", stored_text(end), changes, _json(tables))

    def structure(self, slice: CapturedSlice) -> None:
        """Note the structure of changes that leave for the log, and report it if the changes before had another."""
        schema = slice.schema
        relation = schema.relation_id
        if not self._wanted.schema_changes or relation in OWN_RELATIONS:
            return
        if relation not in self._structures:
            self._structures[relation] = self._known(relation)
        before, self._structures[relation] = self._structures[relation], schema
        if before is not None and before.structure == schema.structure:
            return
        commit, ordinal, change, transaction, time = (slice.batch.column(name)[0] for name in RAW_SCHEMA.names[:5])
        place = Place(commit.as_py(), ordinal.as_py(), change.as_py(), transaction.as_py(), time.value)
        if before is not None:
            self._add(CHANGED, place, str(schema.table), before.to_json(), schema.to_json())
        self._add(RELATION, place, str(schema.table), schema.to_json())

    def take(self) -> list[CapturedSlice]:
        """Return the rows since the last time as slices, those that stand before others first."""
        found, self._rows = self._rows, {}
        ordered = [schema for schema in (TRANSACTION, CHANGED, RELATION) if schema.table in found]
        return [_slice(schema, found[schema.table]) for schema in ordered]

    def _add(self, schema: TableSchema, place: Place, *cells: str | None) -> None:
        data = insert_of(schema, [None if cell is None else cell.encode() for cell in cells])
        self._rows.setdefault(schema.table, []).append((place, data))


def message_frame(frame: Bytes, wanted: WantedEvents) -> bytes | None:
    """Return a logical message as a frame of a row change; None for one that nobody asked for.

    Those of the DDL trigger are its own: nobody can ask for them.
    """
    found = read_any_message(frame[HEADER_BYTES:])
    if found is None:
        return None
    prefix, content = found
    if prefix == PREFIX.encode() or not wanted.has_message(prefix.decode(errors="replace")):
        return None
    shown = b"\\x" + bytes(content).hex().encode() if len(content) <= MOST_MESSAGE_BYTES else None
    return bytes(frame[:HEADER_BYTES]) + insert_of(MESSAGE, [prefix, shown])


def insert_of(schema: TableSchema, cells: Sequence[bytes | None]) -> bytes:
    """Return an Insert message of pgoutput, with these texts."""
    parts = [struct.pack(">cIcH", b"I", schema.relation_id, b"N", len(cells))]
    for cell in cells:
        parts.append(b"n" if cell is None else struct.pack(">cI", b"t", len(cell)) + cell)
    return b"".join(parts)


def _slice(schema: TableSchema, rows: list[tuple[Place, bytes]]) -> CapturedSlice:
    places = [place for place, _ in rows]
    arrays = [
        pa.array([one.commit for one in places], pa.uint64()),
        pa.array([one.ordinal for one in places], pa.uint64()),
        pa.array([one.change for one in places], pa.uint64()),
        pa.array([one.transaction for one in places], pa.uint64()),
        pa.array([one.time for one in places], pa.int64()).view(pa.timestamp("us", "UTC")),
        pa.array([INSERT] * len(rows), pa.uint8()),
        pa.array([data for _, data in rows], pa.binary()),
    ]
    return CapturedSlice(schema, pa.RecordBatch.from_arrays(arrays, schema=RAW_SCHEMA), 0)


def _identity(begin: Begin) -> str:
    return f"{begin.xid}:{begin.commit_lsn}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

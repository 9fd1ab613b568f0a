"""Put events of the binlog together to whole transactions, table by table. No socket: events in, slices out.

A transaction begins with its GTID event and ends with XID or COMMIT, or is one statement alone. What is closed may be
sealed; of an open one, parts may be taken when it is too large for memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np

from penstock.errors import SourceError, StreamOutOfStep
from penstock.model.change import DELETE, INSERT, TRUNCATE, UPDATE
from penstock.model.column_change import ColumnChange
from penstock.model.position import Position
from penstock.model.table import TableId, TableSchema
from penstock.source.mysql import events
from penstock.source.mysql.catalogue import schema_of
from penstock.source.mysql.declared import as_declared
from penstock.source.mysql.gtids import GtidSet, LastOfDomains
from penstock.source.mysql.payload import unpacked
from penstock.source.mysql.positions import FIRST_OFFSET, epoch_of, position_of
from penstock.source.mysql.row_pile import RowPile
from penstock.source.mysql.small_transactions import first_simple
from penstock.source.mysql.statements import Doing, Effect, effects
from penstock.source.mysql.table_map import Unreadable, read_schema, table_of
from penstock.source.sink import CapturedSlice

_OPS = {**dict.fromkeys(events.INSERTS, INSERT), **dict.fromkeys(events.UPDATES, UPDATE)}
_OPS |= dict.fromkeys(events.DELETES, DELETE)
_HAS_EXTRA = frozenset({30, 31, 32, 169, 170, 171})
_COMPRESSED = frozenset(range(166, 172))
_IGNORED = frozenset({events.STOP, events.ROWS_QUERY, 5, 13, 14, 28, 35, 36, 37, 160, 161, 163})
_IGNORABLE = 0x80

_NEVER = 1 << 64
_WORTH_A_LOOK = 100  # events

STATEMENT = (
    "rows were changed by a statement that the binlog has as text (binlog_format is not ROW, or LOAD or CALL under it):"
    " which rows cannot be known. Run `SET GLOBAL binlog_format = ROW`, reconnect the application, then `penstock"
    " resync`"
)
XA = (
    "it was changed in an XA transaction, which is not followed yet. Run `penstock resync` when no XA transaction is"
    " prepared (`XA RECOVER`)"
)
PARTIAL = (
    "the binlog has a row without all of its columns: binlog_row_image is not FULL. Run `SET GLOBAL binlog_row_image ="
    " FULL`, reconnect the application, then `penstock resync`"
)
ROLLED_BACK = "a transaction that changed it ended with ROLLBACK in the binlog; `penstock resync` copies it again"


class Tables(Protocol):
    """What capture asks the catalogue for, of tables that the binlog has not described yet."""

    def wants(self, table: TableId) -> bool: ...

    def described(self, table: TableId) -> TableSchema | None: ...

    def altered(self, table: TableId) -> TableSchema | None:
        """Return the table as it is after a statement that the binlog has by now."""

    def all_wanted(self) -> list[TableSchema]: ...


@dataclass
class _Open:
    begin: Position
    gtid: events.Gtid
    ordinal: int = 0
    fresh: bool = True  # only its GTID event has come
    tables: set[TableId] = field(default_factory=set)


@dataclass(frozen=True)
class _Mapped:
    """A table id of the binlog. `schema` is None when its rows are not wanted; `refused` says why they are not read."""

    body: bytes
    schema: TableSchema | None
    columns: int = 0
    refused: str = ""


class Transactions:
    """`end` is where the last closed transaction ends.

    `gtids` are of all that have ended; they may hold some that come before `settled`, and are exact from there on.
    """

    def __init__(
        self,
        tables: Tables,
        charsets: Mapping[int, str],
        *,
        mariadb: bool,
        file: str,
        end: Position,
        gtids: Mapping[str, str],
        settled: Position = 0,
        taking_over: bool = False,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._tables, self._charsets, self._mariadb, self._report = tables, charsets, mariadb, report
        self.file, self.end, self.epoch = file, end, epoch_of(end)
        self._gtids: LastOfDomains | GtidSet = LastOfDomains(gtids) if mariadb else GtidSet(gtids)
        self._settled = settled
        self._taking_over = taking_over  # until the first transaction that follows, no place is one to go on from
        self.created: int | None = None  # when the file that is read was made, as it says
        self.began_in: int | None = None  # the same of the file that the stream began in
        self._checksum = self._payload_end = 0
        self._maps: dict[int, _Mapped] = {}
        self._schemas: dict[TableId, TableSchema] = {}
        self._open: _Open | None = None
        self._piles: list[RowPile] = []
        self._pending: list[RowPile] = []
        self._last: dict[TableId, RowPile] = {}  # of those that are closed
        self._current: dict[TableId, RowPile] = {}  # of those of the open transaction
        self.bytes = self.pending_bytes = 0
        self._xa: dict[str, set[TableId]] = {}

    @property
    def gtids(self) -> dict[str, str]:
        """GTIDs of all transactions before `end`; none as long as they are not known for certain."""
        return self._gtids.state() if self.end >= self._settled else {}

    # -- what came together --------------------------------------------------------------------------------------------

    @property
    def open_position(self) -> Position | None:
        """Where the open transaction begins; None between two."""
        return None if self._open is None else self._open.begin

    def take_closed(self) -> list[CapturedSlice]:
        piles, self._piles, self._last, self.bytes = self._piles, [], {}, 0
        return [one for pile in piles if (one := pile.slice()) is not None]

    def take_open(self) -> list[CapturedSlice]:
        """Take what is there of the open transaction, when nothing closed is left."""
        piles, self._pending, self.pending_bytes, self._current = self._pending, [], 0, {}
        return [one for pile in piles if (one := pile.slice()) is not None]

    # -- events --------------------------------------------------------------------------------------------------------

    def take(self, event: bytes) -> None:
        """Take one event. StreamOutOfStep when it does not fit those before; SourceError for one that is unknown."""
        kind = event[4]
        if kind in _CONTROL:
            self._take_control(kind, event)
            return
        if self._payload_end:
            self._take_plain(kind, event)
            return
        if self._checksum:
            if not events.check_sum(event):
                raise self._broken()
            event = event[:-4]
        self._take_plain(kind, event)

    def take_simple(self, block: events.Block, begin: int) -> int:
        """Take the simple transactions at the beginning of what is left of a block; return how many events they are."""
        if self._open is not None or self._taking_over or len(block) - begin < _WORTH_A_LOOK:
            return 0
        found = first_simple(block, begin, self._maps, checksum=self._checksum, mariadb=self._mariadb)
        if found is None:
            return 0
        schemas = [self._maps[number].schema for number in found.rows]
        if len({schema.table for schema in schemas if schema is not None}) < len(schemas):
            return 0  # two ids of one table: their order matters
        base = self._place(0)
        for schema, rows in zip(schemas, found.rows.values(), strict=True):
            if schema is not None:
                begins, whose = found.begins[rows.transaction], rows.transaction
                marks = np.empty((len(whose), 6), np.uint64)
                marks[:, 0] = base + begins
                marks[:, 1] = rows.ordinal << 32
                marks[:, 2] = base + np.where(rows.ends == 0, begins, rows.ends)
                marks[:, 3], marks[:, 4], marks[:, 5] = found.numbers[whose], found.times[whose], rows.op
                pile = RowPile(schema)
                pile.add_many(rows.content, rows.lengths, marks)
                self._put(pile)
        self._gtids.add_runs(found.gtids)
        if not found.gtids:
            self._settled = _NEVER
        self._move(base + int(found.ends[-1]))
        return found.events

    def unpacked(self, event: bytes) -> Iterator[bytes]:
        """Yield what `take` is to be given of an event: of a compressed transaction, one by one what is in it."""
        if event[4] != events.PAYLOAD:
            yield event
            return
        opened = self._require_open("a compressed transaction comes")
        if self._checksum and not events.check_sum(event):
            raise self._broken()
        self._payload_end = int.from_bytes(event[13:17], "little")
        yield from unpacked(event[: -self._checksum or None])
        self._payload_end = 0
        if self._open is opened:
            raise StreamOutOfStep(f"a compressed transaction of {self.file} does not end", "It is read again")

    def _broken(self) -> StreamOutOfStep:
        return StreamOutOfStep(
            f"an event of the binlog at {self.file} fails its checksum", "It is read again; check the server's disk"
        )

    def _take_plain(self, kind: int, event: bytes) -> None:
        if kind in _OPS:
            self._take_rows(kind, event)
        elif kind == events.TABLE_MAP:
            self._take_map(event[events.HEADER :])
        elif kind in _BEGINS:
            self._take_gtid(kind, event)
        elif kind == events.XID:
            self._close(event)
        elif kind in (events.QUERY, events.QUERY_COMPRESSED):
            self._take_query(kind, event)
        elif kind == events.XA_PREPARE:
            self._take_prepared(event)
        elif kind == events.PARTIAL_UPDATE:
            self._refuse_row(
                event, "the binlog has a change of a part of a JSON value: set binlog_row_value_options = ''"
            )
        elif kind in _IGNORED or struct.unpack_from("<H", event, 17)[0] & _IGNORABLE:
            self._advance(event)
        else:
            raise SourceError(
                f"the binlog has an event of type {kind}, which is not known", "Report it, with the server's version"
            )

    def _take_control(self, kind: int, event: bytes) -> None:
        summed = events.check_sum(event)
        body = event[events.HEADER : -4 if summed else None]
        (log_position,) = struct.unpack_from("<I", event, 13)
        if kind == events.ROTATE:
            self._require_closed("a file of the binlog ends")
            (offset,) = struct.unpack_from("<Q", body)
            self.file, self.created = body[8:].decode(), None
            self._move(self._place(offset))
        elif kind == events.FORMAT:
            self._checksum = 4 if event[-5] == 1 else 0
            self.created = struct.unpack_from("<I", event)[0]
            self.began_in = self.created if self.began_in is None else self.began_in
            self._maps.clear()  # a server that starts again counts from the beginning
            if log_position and self._open is None:
                self._move(self._place(log_position))
        elif self._open is None and log_position:
            self._taking_over = False
            self._move(self._place(log_position))

    def _advance(self, event: bytes) -> None:
        (log_position,) = struct.unpack_from("<I", event, 13)
        if self._open is None and log_position:
            self._move(self._place(log_position))

    def _place(self, offset: int) -> Position:
        return position_of(self.file, offset, self.epoch)

    def _log_position(self, event: bytes) -> int:
        """Return where an event ends in its file; events of a compressed transaction end with that."""
        return self._payload_end or int.from_bytes(event[13:17], "little")

    def _move(self, position: Position) -> None:
        if self._taking_over:
            return
        self.end = max(self.end, position)

    def _take_gtid(self, kind: int, event: bytes) -> None:
        self._require_closed("another begins")
        (log_position,) = struct.unpack_from("<I", event, 13)
        size = len(event) + self._checksum
        if kind == events.GTID_TAGGED:
            raise SourceError("the binlog has tagged GTIDs, which are not read yet", "Do not set tags in gtid_next")
        if kind == events.ANONYMOUS_GTID:
            self._settled = _NEVER
        self._open = _Open(self._place(log_position - size), events.read_gtid(kind, event))
        self._taking_over = False
        self._move(self._open.begin)
        self._open.fresh = self._open.gtid.standalone is not False

    def _require_closed(self, what: str) -> None:
        if self._open is not None and not self._open.fresh:
            raise StreamOutOfStep(f"{what} within a transaction of the binlog ({self.file})", "It is read again")

    def _take_map(self, body: bytes) -> None:
        number = int.from_bytes(body[:6], "little")
        known = self._maps.get(number)
        if known is not None and known.body == body:
            return
        table = table_of(body)
        if not self._tables.wants(table):
            self._maps[number] = _Mapped(body, None)
            return
        try:
            _, columns, key = read_schema(body, self._charsets, mariadb=self._mariadb)
            schema = schema_of(table, as_declared(columns, partial(self._tables.described, table)), key)
            self._schemas[table] = schema
            self._maps[number] = _Mapped(body, schema, len(columns))
        except Unreadable as error:
            found = self._schemas.get(table) or self._tables.described(table)
            self._maps[number] = _Mapped(body, found, refused=str(error))

    def _take_rows(self, kind: int, event: bytes) -> None:
        body = memoryview(event)[events.HEADER :]
        number = int.from_bytes(body[:6], "little")
        mapped = self._maps.get(number)
        if mapped is None:
            raise StreamOutOfStep(f"rows of table {number} come before its description", "The binlog is read again")
        opened = self._require_open("rows come")
        opened.ordinal += 1
        if mapped.schema is None:
            return
        opened.tables.add(mapped.schema.table)
        mark = self._mark(opened, event)
        pile = self._pile(mapped.schema)
        op = _OPS[kind]
        if mapped.refused:
            pile.add_record(op, mark, mapped.refused)
        else:
            at = 8 + (struct.unpack_from("<H", body, 8)[0] if kind in _HAS_EXTRA else 0)
            count, at = (
                (body[at], at + 1) if body[at] < 251 else (int.from_bytes(body[at + 1 : at + 3], "little"), at + 3)
            )
            size = (count + 7) // 8 * (2 if op == UPDATE else 1)
            present = bytes(body[at : at + size])
            content = bytes(body[at + size :])
            if count != mapped.columns:
                pile.add_record(op, mark, "a row event has another number of columns than its table")
            elif not _is_whole(present, count, 2 if op == UPDATE else 1):
                pile.add_record(op, mark, PARTIAL)
            else:
                pile.add(op, events.inflated(content) if kind in _COMPRESSED else content, mark)
        self.pending_bytes += len(event) + 64

    def _take_query(self, kind: int, event: bytes) -> None:
        database, text = events.read_query(kind, event)
        word = text.strip().rstrip(";").upper()
        opened = self._require_open("a statement comes")
        if word in ("BEGIN", "START TRANSACTION") or word.startswith(("XA START", "XA BEGIN", "XA END")):
            opened.fresh = False
        elif word == "COMMIT":
            self._close(event)
        elif word == "ROLLBACK":
            for table in opened.tables:
                self._refuse(table, ROLLED_BACK, event)
            self._close(event)
        elif word.startswith(("SAVEPOINT", "ROLLBACK TO", "RELEASE SAVEPOINT")):
            opened.fresh = False
        else:
            for effect in effects(database, text):
                self._take_effect(effect, text, event)
            if opened.gtid.standalone is not False and opened.fresh:
                self._close(event)

    def _take_effect(self, effect: Effect, text: str, event: bytes) -> None:
        opened = self._require_open("a statement comes")
        if effect.doing is Doing.EMPTIED and effect.table is not None:
            if (schema := self._schema(effect.table)) is not None:
                opened.ordinal += 1
                self._pile(schema).add_record(TRUNCATE, self._mark(opened, event))
            return
        if effect.doing is Doing.ALTERED and effect.table is not None:
            self._alter(effect.table, effect.changes, event)
            return
        if effect.doing is Doing.REPLACED and effect.table is not None and effect.table.name != "*":
            self._replace(effect.table, event)
            return
        if effect.doing is Doing.XA_ENDED:
            for table in self._xa.pop(_xid(text), {one.table for one in self._tables.all_wanted()}):
                self._refuse(table, XA, event)
            return
        self._report(text)
        for schema in self._tables.all_wanted():
            if effect.doing is Doing.REPLACED:
                if effect.table is None or schema.table.schema == effect.table.schema:
                    self._replace(schema.table, event)
            elif _changes_rows(text):
                self._refuse(schema.table, STATEMENT, event)
            else:
                self._replace(schema.table, event)

    def _alter(self, table: TableId, changes: tuple[ColumnChange, ...], event: bytes) -> None:
        """Mark the place of the statement, with the structure that the table has after it.

        The catalogue may be of a later time: who follows compares it with what the statement makes of the structure
        before, and the next rows bring their own.
        """
        if not self._tables.wants(table):
            return
        schema = self._tables.altered(table)
        if schema is None or any(column.type.oid == 0 for column in schema.columns):
            self._replace(table, event)
            return
        self._forget(table)
        opened = self._require_open("a statement comes")
        opened.ordinal += 1
        self._pile(replace(schema, altered=changes)).add_record(INSERT, self._mark(opened, event))

    def _forget(self, table: TableId) -> None:
        """Forget how a table was described."""
        self._schemas.pop(table, None)
        self._maps = {
            number: one for number, one in self._maps.items() if one.schema is None or one.schema.table != table
        }

    def _replace(self, table: TableId, event: bytes) -> None:
        """Make the table another one from here on, which nobody has copied yet.

        That is a truncate under a schema of its own, which no copy ever has.
        """
        schema = self._schema(table)
        self._forget(table)
        if schema is None:
            return
        opened = self._require_open("a statement comes")
        opened.ordinal += 1
        replaced = TableSchema(
            schema.table,
            opened.begin,
            schema.columns,
            schema.key,
            schema.identity,
            numbered=schema.numbered,
            dialect=schema.dialect,
        )
        self._pile(replaced).add_record(TRUNCATE, self._mark(opened, event))

    def _refuse(self, table: TableId, why: str, event: bytes) -> None:
        schema = self._schema(table)
        if schema is not None:
            opened = self._require_open("a statement comes")
            opened.ordinal += 1
            self._pile(schema).add_record(INSERT, self._mark(opened, event), why)

    def _refuse_row(self, event: bytes, why: str) -> None:
        mapped = self._maps.get(int.from_bytes(event[events.HEADER : events.HEADER + 6], "little"))
        if mapped is not None and mapped.schema is not None:
            self._refuse(mapped.schema.table, why, event)

    def _take_prepared(self, event: bytes) -> None:
        opened = self._require_open("XA PREPARE comes")
        body = event[events.HEADER :]
        if body[0]:  # in one phase: committed here
            self._close(event)
            return
        format, global_size, branch_size = struct.unpack_from("<IiI", body, 1)
        xid = body[13 : 13 + global_size + branch_size]
        self._xa[f"{format}:{xid.hex()}"] = set(opened.tables)
        for table in opened.tables:
            self._refuse(table, XA, event)
        self._close(event)

    def _close(self, event: bytes) -> None:
        opened = self._require_open("a transaction ends")
        end = self._place(self._log_position(event))
        self._move(end if end > opened.begin else (opened.begin >> 32) + 1 << 32 | FIRST_OFFSET)
        if opened.gtid.text:
            self._gtids.add(opened.gtid.text)
        for pile in self._pending:
            self._put(pile)
        self._pending, self.pending_bytes, self._current, self._open = [], 0, {}, None

    def _put(self, pile: RowPile) -> None:
        """Add a pile to those of closed transactions."""
        last = self._last.get(pile.schema.table)
        if last is not None and last.schema.fingerprint == pile.schema.fingerprint:
            last.extend(pile)
        else:
            self._last[pile.schema.table] = pile
            self._piles.append(pile)
        self.bytes += pile.size

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _require_open(self, what: str) -> _Open:
        if self._open is None:
            raise StreamOutOfStep(f"{what} outside of any transaction of the binlog ({self.file})", "It is read again")
        return self._open

    def _schema(self, table: TableId) -> TableSchema | None:
        if not self._tables.wants(table):
            return None
        return self._schemas.get(table) or self._tables.described(table)

    def _mark(self, opened: _Open, event: bytes) -> tuple[int, int, int, int, int]:
        change = self._place(self._log_position(event) or opened.begin & 0xFFFFFFFF)
        return opened.begin, opened.ordinal << 32, change, opened.gtid.number, opened.gtid.time

    def _pile(self, schema: TableSchema) -> RowPile:
        """Return the pile of the open transaction for a table; another one from each change of its schema on."""
        pile = self._current.get(schema.table)
        if pile is None or pile.schema.fingerprint != schema.fingerprint:
            pile = self._current[schema.table] = RowPile(schema)
            self._pending.append(pile)
        return pile


_BEGINS = frozenset({events.GTID, events.ANONYMOUS_GTID, events.MARIA_GTID, events.GTID_TAGGED})
_CONTROL = frozenset({events.ROTATE, events.FORMAT, events.HEARTBEAT, events.HEARTBEAT_2})


def _is_whole(bitmaps: bytes, count: int, images: int) -> bool:
    whole = ((1 << count) - 1).to_bytes((count + 7) // 8, "little")
    size = len(whole)
    bits = int.from_bytes(whole, "little")
    return all(
        int.from_bytes(bitmaps[size * one : size * one + size], "little") & bits == bits for one in range(images)
    )


def _changes_rows(text: str) -> bool:
    return (
        text.lstrip()
        .upper()
        .startswith(("INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "CALL", "WITH", "DO", "SELECT"))
    )


def _xid(text: str) -> str:
    """Return the name of an XA transaction as `_take_prepared` keeps it: XA COMMIT X'6162',X'',1."""
    parts = [
        part.strip() for part in text.partition(" ")[2].strip().partition(" ")[2].replace("ONE PHASE", "").split(",")
    ]
    names = [part[2:-1].lower() if part.upper().startswith("X'") else "" for part in parts[:2]]
    return f"{parts[2] if len(parts) > 2 else 1}:{''.join(names)}"

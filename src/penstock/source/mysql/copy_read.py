"""Read one range of a table's copy over the text protocol, as typed Arrow batches. Runs in tasks; no Spark in it.

A range is read in a transaction of its own, WITH CONSISTENT SNAPSHOT. MariaDB says exactly where in the binlog it
stands; of MySQL only bounds are known (copy_places.py). Rows come as packets; cells are found with numpy, one column of
all rows at a time.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pymysql

from penstock.decode.mysql.dialect import quoted
from penstock.decode.mysql.rows import padded, view
from penstock.decode.mysql.values import from_texts, select_expression
from penstock.decode.rescue import RESCUED, RESCUED_TYPE, Rescued, shown
from penstock.decode.schema import arrow_schema
from penstock.errors import RangeVoid, SourceError, ValueDoesNotFit
from penstock.fold.keys import encode_keys
from penstock.model.position import Position
from penstock.model.record import UnreadableRecord, read_record, write_record
from penstock.model.rescue import RescueCount
from penstock.model.table import TableId, TableSchema
from penstock.source.mysql.catalogue import discover
from penstock.source.mysql.connect import Address, Connection, connect, is_mariadb, rows, source_errors
from penstock.source.mysql.copy_places import begin_exact, begin_snapshot
from penstock.source.mysql.key_conditions import is_literal, key_conditions
from penstock.source.mysql.positions import head, position_of
from penstock.source.snapshot_contract import Rescuing, Seeing

BATCH_BYTES = 8 << 20
_KIND, _VERSION = "range of keys", 1
_QUERY, _END, _ERROR, _NULL = 3, 0xFE, 0xFF, 0xFB
_LENGTH, _LARGE = struct.Struct("<I"), 0xFFFFFF


@dataclass(frozen=True)
class KeyRange:
    """Rows whose first key column is at least `low` and below `high`, which are SQL's literals; None: no such bound."""

    table: TableId
    number: int
    bytes: int
    low: str | None = None
    high: str | None = None

    def to_json(self) -> str:
        table = {"schema": self.table.schema, "name": self.table.name}
        bounds = "..".join(one or "" for one in (self.low, self.high))
        content = {"table": table, "number": self.number, "bytes": self.bytes, "bounds": bounds}
        return write_record(_KIND, _VERSION, content)

    @classmethod
    def from_json(cls, text: str) -> KeyRange:
        record = read_record(text, _KIND, _VERSION)
        low, _, high = record.text("bounds").partition("..")
        for bound in (low, high):
            if bound and not is_literal(bound):
                raise UnreadableRecord(f"{bound[:40]!r} is no bound of a range")
        return cls(record.table("table"), record.integer("number"), record.integer("bytes"), low or None, high or None)

    def condition(self, key: str) -> str:
        name = "`" + key.replace("`", "``") + "`"
        bounds = [f"{name} >= {self.low}"] if self.low is not None else []
        bounds += [f"{name} < {self.high}"] if self.high is not None else []
        return " AND ".join(bounds) or "TRUE"


def ignored(counts: tuple[RescueCount, ...]) -> None:
    """`rescuing` for those who do not count."""


def unasked(position: Position) -> None:
    """`seen` for those who do not ask."""


@dataclass(frozen=True)
class Own:
    """The connection that a snapshot lives in. It stays behind when a reader goes to another process."""

    connection: Connection | None = None

    def __reduce__(self) -> tuple[type[Own], tuple[()]]:
        return Own, ()


@dataclass(frozen=True)
class MysqlTableReader:
    """Picklable. Ranges have positions of their own, not below the snapshot's (`floor`)."""

    address: Address = field(repr=False)
    schema: TableSchema
    floor: Position
    own: Own = field(default_factory=Own, repr=False)

    def read(
        self,
        part: KeyRange,
        *,
        statement_timeout: float,
        max_rows_per_second: float | None = None,
        strict: bool = False,
        rescuing: Rescuing = ignored,
        seen: Seeing = unasked,
    ) -> Iterator[pa.RecordBatch]:
        condition = part.condition(self.schema.key[0]) if self.schema.key else "TRUE"
        connection = connect(self.address, purpose="penstock copy")
        try:
            limit = f"max_statement_time = {statement_timeout:g}"
            if not is_mariadb(connection):
                limit = f"max_execution_time = {int(statement_timeout * 1000)}"
            rows(connection, self.address, f"SET SESSION {limit}")
            if self.schema.key or is_mariadb(connection):
                position = begin_snapshot(connection, self.address)
            else:
                position = begin_exact(connection, self.address, part.table)
            reached = position_of(*head(connection, self.address), self.address.epoch) if position is None else position
            if reached < self.floor:
                raise RangeVoid(f"the server went back behind the snapshot of {part.table}", "Its copy starts again")
            self._require_unaltered(connection)
            if position is not None:
                seen(position)
            began, count = time.monotonic(), 0
            for batch in self._batches(connection, condition):
                count += batch.num_rows
                typed, counts = self._typed(batch, part, strict=strict)
                if counts:
                    rescuing(counts)
                yield typed
                if max_rows_per_second:
                    time.sleep(max(0.0, began + count / max_rows_per_second - time.monotonic()))
        finally:
            connection._force_close()

    def rows_by_key(
        self, keys: pa.Table, *, statement_timeout: float, strict: bool = False, rescuing: Rescuing = ignored
    ) -> Iterator[pa.RecordBatch]:
        """Read them in the snapshot's own transaction, which is this process' alone."""
        if self.own.connection is None:
            raise SourceError(f"rows of {self.schema.table} were asked for elsewhere", "Report it as a bug")
        names, counted = self.schema.key, KeyRange(self.schema.table, 0, 0)
        wanted = encode_keys([keys[name] for name in names])
        for condition in key_conditions(self.schema, keys):
            for batch in self._batches(self.own.connection, condition):
                typed, counts = self._typed(batch, counted, strict=strict)
                if counts:
                    rescuing(counts)
                yield typed.filter(pc.is_in(encode_keys([typed[name] for name in names]), wanted))

    def selected(self) -> Iterator[pa.RecordBatch]:
        """Return all rows of the snapshot as they come, a column of bytes for each of the schema's."""
        assert self.own.connection is not None
        return self._batches(self.own.connection, "TRUE")

    def first(self, connection: Connection, most: int) -> pa.Table:
        """Return a few rows as they are now."""
        found = [
            self._typed(batch, KeyRange(self.schema.table, 0, 0), strict=False)[0]
            for batch in self._batches(connection, f"TRUE LIMIT {most}")
        ]
        if not found:
            return arrow_schema(self.schema).empty_table()
        return pa.concat_tables([pa.Table.from_batches([one]) for one in found], promote_options="default")

    def protect(self) -> None:
        """Keep the table from being altered while the snapshot lasts. RangeVoid when it has been."""
        assert self.own.connection is not None
        self._require_unaltered(self.own.connection)

    def _require_unaltered(self, connection: Connection) -> None:
        """Hold the table's structure for the rest of the transaction, and compare it with what was planned."""
        rows(connection, self.address, f"SELECT 1 FROM {quoted(self.schema.table)} LIMIT 0")
        # Another connection looks: to this one, MySQL shows the catalogue as its transaction began.
        looking = connect(self.address, purpose="penstock copy")
        try:
            found = discover(looking, self.address, self.schema.table.__eq__)
        finally:
            looking._force_close()
        if not found or found[0].schema.relation_id != self.schema.relation_id:
            raise RangeVoid(
                f"table {self.schema.table} was altered while it was copied", "Its copy starts again by itself"
            )

    def _batches(self, connection: Connection, condition: str) -> Iterator[pa.RecordBatch]:
        names = ["`" + column.name.replace("`", "``") + "`" for column in self.schema.columns]
        wanted = ", ".join(
            select_expression(column.type, name) for column, name in zip(self.schema.columns, names, strict=True)
        )
        query = f"SELECT {wanted} FROM {quoted(self.schema.table)} WHERE {condition}"
        with source_errors(f"copying table {self.schema.table}", self.address):
            numbers = [str(number) for number in range(len(names))]
            for content, starts in _packets(connection, query.encode()):
                if starts:
                    yield pa.RecordBatch.from_arrays(_cells(content, starts, len(names)), names=numbers)

    def _typed(
        self, batch: pa.RecordBatch, part: KeyRange, *, strict: bool
    ) -> tuple[pa.RecordBatch, tuple[RescueCount, ...]]:
        rescued, columns, schema = Rescued(), [], arrow_schema(self.schema)
        for column, texts in zip(self.schema.columns, batch.columns, strict=True):
            found = from_texts(column.type, texts)
            if len(found.misfits):
                if strict or column.name in self.schema.key:
                    raise ValueDoesNotFit(
                        f'table {self.schema.table}, range {part.number} of its copy: column "{column.name}" '
                        f"({column.type.name}): {shown(found.texts[0])!r} does not fit {found.values.type}",
                        f"Give the row a value that fits, or carry the column as text (`types: {{{column.name}: "
                        "text}}` under its rule in `tables:`); then `penstock retry`",
                    )
                rescued.keep(column.name, found.misfits, found.texts, f"range {part.number} of its copy")
            columns.append(found.values)
        cells = rescued.cells(batch.num_rows)
        if cells is not None:
            columns.append(cells)
            schema = schema.append(pa.field(RESCUED, RESCUED_TYPE))
        return pa.RecordBatch.from_arrays(columns, schema=schema), rescued.counts


def _packets(connection: Connection, query: bytes) -> Iterator[tuple[bytes, list[int]]]:
    """Send a query; yield its rows, about BATCH_BYTES at a time: bytes, and where in them each row begins."""
    connection._execute_command(_QUERY, query)
    count = connection._read_packet().read_length_encoded_integer()
    for _ in range(count + 1):  # the columns, and the packet behind them
        connection._read_packet()
    buffer, length_at, at = bytearray(), _LENGTH.unpack_from, 0
    starts, parts = list[int](), list[bytes]()
    while True:
        piece = connection._rfile.read1(1 << 20)
        if not piece:
            raise pymysql.OperationalError(2013, "the server closed the connection")
        buffer += piece
        last, filled, add = len(buffer) - 4, len(buffer), starts.append
        while at < last:
            size = length_at(buffer, at)[0] & _LARGE
            following = at + 4 + size
            if following > filled:
                break
            if size == _LARGE or parts:  # a row of several packets
                parts.append(bytes(memoryview(buffer)[at + 4 : following]))
                if size < _LARGE:
                    yield bytes(memoryview(buffer)[:following]), starts
                    yield b"".join(parts), [0]
                    del buffer[:following]
                    starts, parts, following = [], [], 0
                    last, filled, add = len(buffer) - 4, len(buffer), starts.append
                at = following
                continue
            if buffer[at + 4] >= _END and (size < 9 or buffer[at + 4] == _ERROR):
                if buffer[at + 4] == _ERROR:
                    (code,) = struct.unpack_from("<H", buffer, at + 5)
                    raise pymysql.OperationalError(code, bytes(buffer[at + 13 : following]).decode(errors="replace"))
                yield bytes(memoryview(buffer)[:at]), starts
                return
            add(at + 4)
            at = following
        if at >= BATCH_BYTES and not parts:
            yield bytes(memoryview(buffer)[:at]), starts
            del buffer[:at]
            starts, at = [], 0


def _cells(content: bytes, starts: list[int], columns: int) -> list[pa.Array]:
    octets, at = padded(content), np.array(starts, np.int64)
    buffer, count = pa.py_buffer(octets), len(starts)
    even = np.arange(0, 2 * count, 2, dtype=np.int32)
    found: list[pa.Array] = []
    for _ in range(columns):
        first = octets[at].astype(np.int64)
        null = first == _NULL
        size, start = np.where(null, 0, first), at + 1
        for mark, width in ((0xFC, 2), (0xFD, 3), (0xFE, 8)):
            large = first == mark
            if large.any():
                number = view(octets, "<u8")[np.where(large, at + 1, 0)].astype(np.uint64)
                number &= np.uint64((1 << 8 * width) - 1)
                size = np.where(large, number.astype(np.int64), size)
                start = np.where(large, at + 1 + width, start)
        offsets = np.empty(2 * count + 1, np.int32)
        end = start + size
        offsets[0:-1:2], offsets[1::2], offsets[-1] = start, end, end[-1]
        both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), buffer])
        found.append(both.take(pa.array(even, mask=null if null.any() else None)))
        at = end
    return found

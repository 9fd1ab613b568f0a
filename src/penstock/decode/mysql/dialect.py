"""MySQL and MariaDB as a dialect: row images of the binlog, their types, and advice in their SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.decode.connect import ConnectColumn
from penstock.decode.dialect import Advice, Choices, Dialect, OwnType
from penstock.decode.mysql.connect_cells import connect_column
from penstock.decode.mysql.json_cells import json_texts
from penstock.decode.mysql.packed import UUID
from penstock.decode.mysql.reader import BinlogReader
from penstock.decode.mysql.types import (
    BLOB,
    BLOB_COMPRESSED,
    LONGLONG,
    NEWDECIMAL,
    STRING,
    TIMESTAMP2,
    TINY,
    VARCHAR,
    VARCHAR_COMPRESSED,
    arrow_type,
    column_type,
    keeps_values,
    type_text,
)
from penstock.decode.mysql.values import from_written
from penstock.decode.reader import Mask
from penstock.model.change import RawChanges
from penstock.model.quarantine import RawMessage
from penstock.model.table import ColumnType, TableId, TableSchema
from penstock.model.type_map import TypeMap

NAME = "mysql"
PREFIX = "mysql:"
_TEXTS = frozenset({VARCHAR, STRING, BLOB, VARCHAR_COMPRESSED, BLOB_COMPRESSED})
_TEXT = column_type(BLOB, 4, charset="utf8mb4")
_OWN_TYPES: dict[OwnType, ColumnType] = {
    "bool": ColumnType(TINY, "boolean"),
    "int64": column_type(LONGLONG, -1),
    "text": _TEXT,
    "timestamptz": column_type(TIMESTAMP2, 6),
    "text list": ColumnType(BLOB, "list", kind="array", element=_TEXT),
}


class MysqlDialect:
    type_prefix = PREFIX
    numbers_columns = False

    def keeps_values(self, old: ColumnType, new: ColumnType) -> bool:
        return keeps_values(old, new)

    def parse_type_key(self, key: str, choice: str) -> str:
        raise ValueError("names a type of MySQL; only single columns can be carried as text yet")

    def reader(self, changes: RawChanges) -> BinlogReader:
        return BinlogReader(changes)

    def without_marks(self, changes: RawChanges) -> RawChanges:
        """Leave out the marks of tables that a statement has made another one.

        Such a mark is a truncate under a schema of its own, which has the transaction's position as its number
        (source/mysql/transactions.py).
        """
        commit = np.asarray(changes.batch.column("commit_position"))
        marks = commit == np.uint64(changes.schema.relation_id)
        return RawChanges(changes.schema, changes.batch.filter(pa.array(~marks))) if marks.any() else changes

    def explain(self, message: RawMessage) -> list[str]:
        data = message.data
        if data[:1] == b"\xff":
            return [f"       0  refused: {data[1:].decode(errors='replace')}"]
        return [f"{at:8d}  {data[at : at + 16].hex(' ')}" for at in range(0, min(len(data), 1024), 16)]

    def arrow_type(self, type: ColumnType) -> pa.DataType:
        return arrow_type(type)

    def parsed(self, type: ColumnType, texts: pa.Array) -> pa.Array:
        found = from_written(type, texts.cast(pa.binary()))
        if len(found.misfits):
            raise ValueError(f"{found.texts[0]!r} does not fit {found.values.type}")
        return found.values

    @property
    def writes_texts(self) -> bool:
        return True

    def fitted(self, type: ColumnType, texts: pa.Array) -> tuple[pa.Array, Mask]:
        found = from_written(type, texts.cast(pa.binary()))
        misfits = np.zeros(len(texts), np.bool_)
        misfits[found.misfits] = True
        return found.values, misfits

    def json_texts(self, type: ColumnType, texts: pa.Array, *, raw: bool = False) -> pa.Array:
        return json_texts(type, texts, raw=raw)

    def connect_column(self, type: ColumnType, texts: pa.Array) -> ConnectColumn:
        return connect_column(type, texts)

    def own_type(self, type: OwnType) -> ColumnType:
        return _OWN_TYPES[type]

    def record_type(self, fields: Sequence[tuple[str, ColumnType]]) -> ColumnType:
        return ColumnType(0, "record", kind="composite", fields=tuple(fields))

    def type_text(self, type: ColumnType) -> str:
        return type_text(type)

    def compares_as_text(self, type: ColumnType) -> bool:
        return type.name == UUID or (type.oid in _TEXTS and type.charset != "binary")

    def chosen(self, schema: TableSchema, choices: Choices) -> TableSchema:
        wanted = dict(choices)
        columns = tuple(
            replace(column, type=replace(column.type, carried_as=wanted[column.name]))
            if wanted.get(column.name) == "text"
            else column
            for column in schema.columns
        )
        for column in schema.columns:
            if wanted.get(column.name, "text") != "text":
                raise ValueError(f"column {column.name} can be carried as text only")
        return replace(schema, columns=columns)

    def held_as(self, type: ColumnType, types: TypeMap) -> str:
        return "text" if type.oid == NEWDECIMAL and (type.modifier >> 8) > types.digits else ""

    def unidentified(self, schema: TableSchema) -> Advice:
        return Advice(
            "a table without a primary key",
            f"Run `ALTER TABLE {quoted(schema.table)} ADD PRIMARY KEY (…)` with the columns that identify a row",
        )

    def old_row_missing(self) -> Advice:
        return Advice("binlog_row_image is not FULL", "Run `SET GLOBAL binlog_row_image = FULL`")

    def unsent_value(self, table: TableId) -> Advice:
        return Advice("MySQL leaves out unless binlog_row_image is FULL", "Run `SET GLOBAL binlog_row_image = FULL`")

    def leave_out(self, table: TableId) -> str:
        return "leave it out under `columns` of the table's rule"

    def choice_help(self) -> str:
        return "Choose `text` for it, or nothing"


def quoted(table: TableId) -> str:
    """Write a table's name for SQL."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in (table.schema, table.name))


MYSQL: Dialect = MysqlDialect()

"""Postgres as a dialect: pgoutput messages, the types of its catalogue, and advice in its SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

import pyarrow as pa

from penstock.decode.connect import ConnectColumn
from penstock.decode.dialect import Advice, Choices, Dialect, OwnType
from penstock.decode.postgres.connect_cells import connect_column
from penstock.decode.postgres.explain import explain
from penstock.decode.postgres.fitting import fitted
from penstock.decode.postgres.json_cells import json_texts
from penstock.decode.postgres.reader import PgoutputReader
from penstock.decode.postgres.types import choices as type_choices
from penstock.decode.postgres.types.registry import codec
from penstock.decode.reader import Mask
from penstock.model.change import RawChanges
from penstock.model.quarantine import RawMessage
from penstock.model.table import ColumnType, TableId, TableSchema
from penstock.model.type_map import TypeMap

_TEXT = ColumnType(25, "text")
_OWN_TYPES: dict[OwnType, ColumnType] = {
    "bool": ColumnType(16, "bool"),
    "int64": ColumnType(20, "int8"),
    "text": _TEXT,
    "timestamptz": ColumnType(1184, "timestamptz"),
    "text list": ColumnType(1009, "_text", kind="array", element=_TEXT),
}
_TEXTS = frozenset({"text", "varchar", "bpchar", "name", "uuid", "citext"})


class PostgresDialect:
    type_prefix = type_choices.OF_TYPES
    numbers_columns = True

    def keeps_values(self, old: ColumnType, new: ColumnType) -> bool:
        return old == new

    def parse_type_key(self, key: str, choice: str) -> str:
        return type_choices.parse_type_key(key, choice)

    def reader(self, changes: RawChanges) -> PgoutputReader:
        return PgoutputReader(changes)

    def without_marks(self, changes: RawChanges) -> RawChanges:
        return changes

    def explain(self, message: RawMessage) -> list[str]:
        return explain(message)

    def arrow_type(self, type: ColumnType) -> pa.DataType:
        return codec(type).arrow_type

    def parsed(self, type: ColumnType, texts: pa.Array) -> pa.Array:
        return codec(type).parse(texts)

    @property
    def writes_texts(self) -> bool:
        return True

    def fitted(self, type: ColumnType, texts: pa.Array) -> tuple[pa.Array, Mask]:
        return fitted(codec(type), texts)

    def json_texts(self, type: ColumnType, texts: pa.Array, *, raw: bool = False) -> pa.Array:
        return json_texts(type, texts, raw=raw)

    def connect_column(self, type: ColumnType, texts: pa.Array) -> ConnectColumn:
        return connect_column(type, texts)

    def own_type(self, type: OwnType) -> ColumnType:
        return _OWN_TYPES[type]

    def record_type(self, fields: Sequence[tuple[str, ColumnType]]) -> ColumnType:
        return ColumnType(0, "record", kind="composite", fields=tuple(fields))

    def type_text(self, type: ColumnType) -> str:
        name, modifier = type.name if type.element is None else f"{type.element.name}[]", type.modifier
        if name == "numeric" and modifier >= 4:
            name = f"numeric({(modifier - 4) >> 16},{((modifier - 4) & 0x7FF ^ 0x400) - 0x400})"
        elif name in ("varchar", "bpchar") and modifier >= 4:
            name = f"{name}({modifier - 4})"
        return f"{name} carried as {type.carried_as}" if type.carried_as else name

    def compares_as_text(self, type: ColumnType) -> bool:
        return type.name in _TEXTS

    def chosen(self, schema: TableSchema, choices: Choices) -> TableSchema:
        return type_choices.chosen(schema, choices)

    def held_as(self, type: ColumnType, types: TypeMap) -> str:
        return type_choices.held_as(type, types)

    def unidentified(self, schema: TableSchema) -> Advice:
        name = quoted(schema.table)
        if schema.key:
            return Advice(
                "a table whose replica identity is NOTHING", f"Run `ALTER TABLE {name} REPLICA IDENTITY DEFAULT`"
            )
        by_row = "" if schema.by_row else f"; a clone can do with `ALTER TABLE {name} REPLICA IDENTITY FULL`"
        return Advice(
            "a table without a key",
            f"Run `ALTER TABLE {name} ADD PRIMARY KEY (…)` with the columns that identify a row, or, with a unique "
            f"index on NOT NULL columns, `ALTER TABLE {name} REPLICA IDENTITY USING INDEX …`{by_row}",
        )

    def old_row_missing(self) -> Advice:
        return Advice(
            "one of its partitions has another replica identity",
            "Run `ALTER TABLE … REPLICA IDENTITY FULL` for each partition (`penstock check` names them)",
        )

    def unsent_value(self, table: TableId) -> Advice:
        return Advice(
            "Postgres does not send when an UPDATE leaves a large one unchanged",
            f"Run `ALTER TABLE {quoted(table)} REPLICA IDENTITY FULL`, with which it does",
        )

    def leave_out(self, table: TableId) -> str:
        return f"ALTER PUBLICATION … SET TABLE {table} (its other columns)"

    def choice_help(self) -> str:
        return "Choose `text` for it, or nothing; decimal(p,s) is for numeric columns and arrays of numeric"


def quoted(table: TableId) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in astuple(table))


POSTGRES: Dialect = PostgresDialect()

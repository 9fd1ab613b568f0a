"""A second kind of source, for tests: each change is a JSON object with its images, and types are Arrow's own words.

    {"new": {"id": 1, "note": "a"}, "old": {"id": 1}, "whole": false}

A column that `new` lacks was not sent. `old` is whole if `whole` says so, and holds the key otherwise. Nothing of it is
Postgres': no relation, no OID, no pgoutput.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.decode.connect import ConnectColumn
from penstock.decode.dialect import Advice, Choices, Dialect, OwnType, register
from penstock.decode.reader import Mask, Places, RawRows
from penstock.decode.rescue import Into
from penstock.errors import RowIncomplete, ValueDoesNotFit
from penstock.model.change import DELETE, INSERT, RAW_SCHEMA, TRUNCATE, RawChanges
from penstock.model.quarantine import RawMessage
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.model.type_map import TypeMap

NAME = "tiny"
WHOLE, TEXT = ColumnType(0, "whole"), ColumnType(0, "text")
_ARROW = {"whole": pa.int64(), "text": pa.string(), "yes": pa.bool_(), "moment": pa.timestamp("us", "UTC")}
_OWN: dict[OwnType, ColumnType] = {
    "bool": ColumnType(0, "yes"),
    "int64": WHOLE,
    "text": TEXT,
    "timestamptz": ColumnType(0, "moment"),
    "text list": ColumnType(0, "texts", kind="array", element=TEXT),
}


def tiny_schema(columns: dict[str, ColumnType], key: Sequence[str] = ("id",), identity: str = "key") -> TableSchema:
    described = tuple(
        Column(name, type, name not in key, number) for number, (name, type) in enumerate(columns.items(), 1)
    )
    return TableSchema(TableId("tiny", "things"), 0, described, tuple(key), identity, dialect=NAME)


def tiny_changes(schema: TableSchema, changes: Sequence[tuple[int, dict[str, Any] | bytes]]) -> RawChanges:
    """Of operations and messages, each in a transaction of its own: the n-th, from 1, commits at n * 100."""
    rows = [
        {
            "commit_position": number * 100,
            "ordinal": 0,
            "change_position": number * 100,
            "transaction": number,
            "commit_time": number * 1_000_000,
            "op": op,
            "data": message if isinstance(message, bytes) else json.dumps(message).encode(),
        }
        for number, (op, message) in enumerate(changes, 1)
    ]
    return RawChanges(schema, pa.RecordBatch.from_pylist(rows, schema=RAW_SCHEMA))


class TinyImages:
    def __init__(self, reader: TinyReader, rows: Places, images: list[dict[str, Any]]) -> None:
        self._reader, self.rows, self._images = reader, rows, images

    def values(self, column: int, into: Into | None = None, at: Places | None = None) -> pa.Array:
        described = self._reader.schema.columns[column]
        type = _arrow_type(described.type)
        numbers = range(len(self._images)) if at is None else at.tolist()
        values = [self._images[number].get(described.name) for number in numbers]
        misfits = [place for place, value in enumerate(values) if pa.types.is_int64(type) and isinstance(value, str)]
        if misfits and (into is None or described.name in self._reader.schema.key):
            raise ValueDoesNotFit(f"{values[misfits[0]]!r} is not whole", "Give it another value")
        if misfits and into is not None:
            places = np.array(misfits) + into.rows if isinstance(into.rows, int) else into.rows[misfits]
            order = self._reader.order(int(self.rows[misfits[0]]))
            into.rescued.keep(into.column, places, [str(values[place]) for place in misfits], order)
        return pa.array([None if place in misfits else value for place, value in enumerate(values)], type)

    def unsent(self, column: int) -> Mask:
        name = self._reader.schema.columns[column].name
        return np.array([name not in image for image in self._images], np.bool_)

    def sizes(self, column: int, at: Places) -> Places:
        name = self._reader.schema.columns[column].name
        return np.array([len(str(self._images[number].get(name, "")).encode()) for number in at.tolist()], np.int64)


class TinyReader(RawRows):
    def __init__(self, changes: RawChanges) -> None:
        super().__init__(changes)
        self._messages = [self._message(row, data) for row, data in enumerate(changes.batch.column("data").to_pylist())]
        self.has_old: Mask = np.array(["old" in message for message in self._messages], np.bool_)
        self.old_is_full: Mask = np.array([message.get("whole", False) for message in self._messages], np.bool_)

    def keys(self, rows: Places) -> list[pa.Array]:
        sides = np.where(self.op[rows] == DELETE, "old", "new").tolist()
        return self._keys(rows, [self._messages[row][side] for row, side in zip(rows.tolist(), sides, strict=True)])

    def old_keys(self, rows: Places) -> list[pa.Array]:
        return self._keys(rows, [self._messages[row]["old"] for row in rows.tolist()])

    def images(self, rows: Places, *, whole_inserts: bool = True) -> TinyImages:
        images = [{**self._messages[row].get("old", {}), **self._messages[row]["new"]} for row in rows.tolist()]
        for row, image in zip(rows.tolist(), images, strict=True):
            if whole_inserts and self.op[row] == INSERT and len(image) < len(self.schema.columns):
                raise self.incomplete(row)
        return TinyImages(self, rows, images)

    def old_images(self, rows: Places) -> TinyImages:
        return TinyImages(self, rows, [self._messages[row]["old"] for row in rows.tolist()])

    def lacking(self, rows: Places) -> Mask:
        images = self.images(rows, whole_inserts=False)
        lacks = np.zeros(len(rows), np.bool_)
        for column in range(len(self.schema.columns)):
            lacks |= images.unsent(column)
        return lacks

    def truncate_options(self, rows: Places) -> list[list[str]]:
        return [[] for _ in rows]

    def check(self) -> None:
        self.keys(np.flatnonzero(self.op != TRUNCATE))

    def incomplete(self, row: int) -> RowIncomplete:
        return RowIncomplete(f"{self.place(row)}: it lacks a column", "Send it whole")

    def _keys(self, rows: Places, images: list[dict[str, Any]]) -> list[pa.Array]:
        found = TinyImages(self, rows, images)
        for name in self.schema.key:
            lacking = [row for row, image in zip(rows.tolist(), images, strict=True) if image.get(name) is None]
            if lacking:
                raise self.broken_all(lacking, f"its key column {name} has no value")
        return [found.values(self.schema.index(name)) for name in self.schema.key]

    def _message(self, row: int, data: bytes) -> dict[str, Any]:
        try:
            message = json.loads(data)
        except ValueError:
            raise self.broken(row, "it is no JSON") from None
        return dict(message)


class TinyDialect:
    type_prefix = "tiny:"

    numbers_columns = True

    def keeps_values(self, old: ColumnType, new: ColumnType) -> bool:
        return old == new

    def parse_type_key(self, key: str, choice: str) -> str:
        return key

    def reader(self, changes: RawChanges) -> TinyReader:
        return TinyReader(changes)

    def without_marks(self, changes: RawChanges) -> RawChanges:
        return changes

    def explain(self, message: RawMessage) -> list[str]:
        return [f"       0  {message.data!r}"]

    def arrow_type(self, type: ColumnType) -> pa.DataType:
        return _arrow_type(type)

    def parsed(self, type: ColumnType, texts: pa.Array) -> pa.Array:
        return texts.cast(pa.string()).cast(_arrow_type(type))

    @property
    def writes_texts(self) -> bool:
        return False

    def fitted(self, type: ColumnType, texts: pa.Array) -> tuple[pa.Array, Mask]:
        raise NotImplementedError("its values are JSON, not texts")

    def json_texts(self, type: ColumnType, texts: pa.Array, *, raw: bool = False) -> pa.Array:
        raise NotImplementedError("its values are JSON, not texts")

    def connect_column(self, type: ColumnType, texts: pa.Array) -> ConnectColumn:
        raise NotImplementedError("its values are JSON, not texts")

    def own_type(self, type: OwnType) -> ColumnType:
        return _OWN[type]

    def record_type(self, fields: Sequence[tuple[str, ColumnType]]) -> ColumnType:
        return ColumnType(0, "row", kind="composite", fields=tuple(fields))

    def type_text(self, type: ColumnType) -> str:
        return type.name

    def compares_as_text(self, type: ColumnType) -> bool:
        return type.name == "text"

    def chosen(self, schema: TableSchema, choices: Choices) -> TableSchema:
        columns = tuple(replace(one, type=TEXT) if (one.name, "text") in choices else one for one in schema.columns)
        return replace(schema, columns=columns)

    def held_as(self, type: ColumnType, types: TypeMap) -> str:
        return ""

    def unidentified(self, schema: TableSchema) -> Advice:
        return Advice("a table of which nobody knows the key", "Tell tiny its key")

    def old_row_missing(self) -> Advice:
        return Advice("tiny did not keep it", "Ask tiny for whole rows")

    def unsent_value(self, table: TableId) -> Advice:
        return Advice("tiny leaves out", "Ask tiny for whole rows")

    def leave_out(self, table: TableId) -> str:
        return "tell tiny"

    def choice_help(self) -> str:
        return "Choose `text`"


def _arrow_type(type: ColumnType) -> pa.DataType:
    if type.element is not None:
        return pa.list_(pa.field("element", _arrow_type(type.element)))
    if type.fields:
        return pa.struct([pa.field(name, _arrow_type(one)) for name, one in type.fields])
    return _ARROW[type.name]


TINY: Dialect = TinyDialect()
register(NAME, TINY)

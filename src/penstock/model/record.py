"""Records: what one run leaves for the next in a place that others may write to, such as the state store.

A record is a JSON object that names its kind and its version. Reading one checks every field that is asked for: a
record is data, never code, and one that this penstock does not understand is refused as a whole (UnreadableRecord).
Whoever reads it then does without what it held.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from penstock.model.table import TableId


class UnreadableRecord(ValueError):
    """A record of another kind or version, or one that is damaged."""


def write_record(kind: str, version: int, fields: Mapping[str, Any]) -> str:
    """Write a record; `fields` are JSON values."""
    return json.dumps({"record": kind, "version": version, **fields}, ensure_ascii=False)


def read_record(text: str, kind: str, version: int) -> Fields:
    """Read a record of this kind and version, or raise UnreadableRecord."""
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise UnreadableRecord(f"the record of a {kind} is no JSON") from error
    fields = Fields(kind, found)
    if fields.text("record") != kind or fields.integer("version") != version:
        raise UnreadableRecord(
            f"there is a record of a {fields.text('record')}, version {fields.integer('version')}; this penstock reads "
            f"version {version} of a {kind}"
        )
    return fields


class Fields:
    """The fields of a record, each checked when it is read."""

    def __init__(self, kind: str, found: object) -> None:
        self._kind = kind
        if not isinstance(found, dict):
            raise UnreadableRecord(f"the record of a {kind} is no object")
        self._found: dict[str, Any] = found

    def integer(self, name: str) -> int:
        value = self._found.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self._wrong(name, "a number from 0 up")
        return value

    def optional_integer(self, name: str) -> int | None:
        return None if self._value(name) is None else self.integer(name)

    def text(self, name: str) -> str:
        value = self._value(name)
        if not isinstance(value, str):
            raise self._wrong(name, "text")
        return value

    def flag(self, name: str) -> bool:
        value = self._value(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        value = self._value(name)
        if not isinstance(value, list) or not all(isinstance(one, int) and not isinstance(one, bool) for one in value):
            raise self._wrong(name, "a list of numbers")
        return tuple(value)

    def object(self, name: str) -> dict[str, Any]:
        value = self._value(name)
        if not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return value

    def fields(self, name: str) -> Fields:
        return Fields(self._kind, self.object(name))

    def optional_fields(self, name: str) -> Fields | None:
        return None if self._value(name) is None else self.fields(name)

    def table(self, name: str) -> TableId:
        raw = self.fields(name)
        return TableId(raw.text("schema"), raw.text("name"))

    def _value(self, name: str) -> Any:
        if name not in self._found:
            raise self._wrong(name, "there")
        return self._found[name]

    def _wrong(self, name: str, wanted: str) -> UnreadableRecord:
        return UnreadableRecord(f"the record of a {self._kind} is damaged: its `{name}` is not {wanted}")

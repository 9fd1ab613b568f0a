"""Tables as their source describes them. A schema is a value: equal structure, equal fingerprint."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True, order=True)
class TableId:
    """A table's name at its source. `str()` gives `schema.table`, for people."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class ColumnType:
    """A source's type, domains already resolved to their base, also inside. `modifier` is -1 where the type has none.

    `carried_as` is the user's choice for it: "" (as the table of types says), "text" or "decimal(p,s)".
    """

    oid: int
    name: str
    modifier: int = -1
    kind: str = "base"  # "base", "enum", "array", "composite", "range" or "multirange"
    element: ColumnType | None = None  # of an array
    delimiter: str = ","  # between an array's elements
    fields: tuple[tuple[str, ColumnType], ...] = ()  # of a composite
    carried_as: str = ""

    @classmethod
    def from_raw(cls, raw: dict[str, Any]) -> ColumnType:
        """Of what `dataclasses.asdict` made, perhaps by way of JSON."""
        element = raw.get("element")
        return cls(
            **{
                **raw,
                "element": None if element is None else cls.from_raw(element),
                "fields": tuple((name, cls.from_raw(type)) for name, type in raw.get("fields", ())),
            }
        )


@dataclass(frozen=True)
class Column:
    name: str
    type: ColumnType
    nullable: bool = True


@dataclass(frozen=True)
class TableSchema:
    """One version of a table's structure, as published.

    `key` names the columns that identify a row (empty: the table has no key). `identity` is what the source sends
    of a row's old image: "key" (the key columns, when they change), "full" (all columns) or "nothing".
    """

    table: TableId
    relation_id: int
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    identity: str = "key"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the structure, as hexadecimal."""
        return hashlib.sha256(self._canonical.encode()).hexdigest()

    @cached_property
    def _canonical(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    def to_json(self) -> str:
        return self._canonical

    @classmethod
    def from_json(cls, text: str) -> TableSchema:
        raw: dict[str, Any] = json.loads(text)
        return cls(
            table=TableId(**raw["table"]),
            relation_id=raw["relation_id"],
            columns=tuple(Column(c["name"], ColumnType.from_raw(c["type"]), c["nullable"]) for c in raw["columns"]),
            key=tuple(raw["key"]),
            identity=raw["identity"],
        )

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def index(self, name: str) -> int:
        return next(i for i, column in enumerate(self.columns) if column.name == name)

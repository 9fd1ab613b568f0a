"""Define tables as their source describes them. A schema is a value: equal structure, equal fingerprint."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from penstock.model.column_change import ColumnChange

VERBATIM = "verbatim"  # begins `ColumnType.carried_as` of a column that is carried as its source's text


@dataclass(frozen=True, order=True)
class TableId:
    """A table's name at its source. `str()` gives `schema.table`. An empty schema: `model/source_events.py`."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


@dataclass(frozen=True)
class ColumnType:
    """A source's type, domains already resolved to their base, also inside. `modifier` is -1 where the type has none.

    `carried_as` is the user's choice for it: "" (as the table of types says), "text" or "decimal(p,s)". While events
    are rendered it is VERBATIM and that choice: the value is the text that the source wrote.
    `held_as` is what the destination's type map makes of it: "" (as decoded), "text", "decimal(p,s)" or "int32".
    `charset` and `labels` are of sources whose changes hold texts in the column's character set, and numbers of labels.
    """

    oid: int
    name: str
    modifier: int = -1
    kind: str = "base"  # "base", "enum", "array", "composite", "range" or "multirange"
    element: ColumnType | None = None  # of an array
    delimiter: str = ","  # between an array's elements
    fields: tuple[tuple[str, ColumnType], ...] = ()  # of a composite
    carried_as: str = ""
    held_as: str = ""
    charset: str = ""
    labels: tuple[str, ...] = ()

    @classmethod
    def from_raw(cls, raw: dict[str, Any]) -> ColumnType:
        """Read what `dataclasses.asdict` made, perhaps after a turn through JSON."""
        element = raw.get("element")
        return cls(
            **{
                **raw,
                "element": None if element is None else cls.from_raw(element),
                "fields": tuple((name, cls.from_raw(type)) for name, type in raw.get("fields", ())),
                "labels": tuple(raw.get("labels", ())),
            }
        )


@dataclass(frozen=True)
class Column:
    """`number` is the column's own for life, whatever its name (0: not known).

    `filled` is the text that rows from before the column show in it; None: they show NULL, or it is not known.
    """

    name: str
    type: ColumnType
    nullable: bool = True
    number: int = 0
    filled: str | None = None
    generated: bool = False


@dataclass(frozen=True)
class TableSchema:
    """One version of a table's structure, as published.

    `key` names the columns that identify a row (empty: the table has no key). `identity` is what the source sends
    of a row's old image: "key" (the key columns, when they change), "full" (all columns) or "nothing". A table without
    a key whose old images are full is followed by its whole row (`by_row`).

    The rest is what the catalogue said when the version was recorded, which is at its place in the stream or later.
    `storage` names what holds the rows, and changes when they are written again; `stamp` changes whenever a column's
    definition does; `numbered` is how many column numbers were ever given, and `live` are the numbers of the columns
    that a publication without a column list sends (0 and (): not known). `guessed`: the catalogue had other columns by
    then, or could not be read. `exact`: the catalogue is proven to be of this very place.

    `dialect` is the type of its source: who reads its changes and knows its types (`decode/dialect.py`).

    `altered` marks the place of a statement in the stream: what it did to the columns of the version before. Slices of
    such a version have no changes (`changelog/log.py`).
    """

    table: TableId
    relation_id: int
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    identity: str = "key"
    storage: int = 0
    stamp: int = 0
    numbered: int = 0
    guessed: bool = False
    live: tuple[int, ...] = ()
    exact: bool = False
    dialect: str = "postgres"
    altered: tuple[ColumnChange, ...] = ()

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over everything that the version says, as hexadecimal."""
        return hashlib.sha256(self._canonical.encode()).hexdigest()

    @cached_property
    def structure(self) -> str:
        """SHA-256 over names, types, nullability, key and identity: the same for any table of the same structure."""
        columns = [
            {key: value for key, value in _raw(column).items() if key not in ("number", "filled")}
            for column in self.columns
        ]
        text = json.dumps(
            [str(self.table), [_without_oids(column) for column in columns], self.key, self.identity], sort_keys=True
        )
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def _canonical(self) -> str:
        return json.dumps(_raw(self), sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    def to_json(self) -> str:
        return self._canonical

    @classmethod
    def from_json(cls, text: str) -> TableSchema:
        raw: dict[str, Any] = json.loads(text)
        return cls(
            table=TableId(**raw["table"]),
            relation_id=raw["relation_id"],
            columns=tuple(
                Column(**{**column, "type": ColumnType.from_raw(column["type"])}) for column in raw["columns"]
            ),
            key=tuple(raw["key"]),
            live=tuple(raw.get("live", ())),
            exact=raw.get("exact", False),
            dialect=raw.get("dialect", "postgres"),
            altered=tuple(ColumnChange.from_raw(one) for one in raw.get("altered", ())),
            **{name: raw[name] for name in ("identity", "storage", "stamp", "numbered", "guessed")},
        )

    @property
    def by_row(self) -> bool:
        """Whether a change says which row it is of by the whole row, because there is no key."""
        return not self.key and self.identity == "full"

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def index(self, name: str) -> int:
        return next(i for i, column in enumerate(self.columns) if column.name == name)


_ONLY_IF_SET = frozenset({"held_as", "charset", "labels", "altered"})


def _raw(value: Any) -> dict[str, Any]:
    """As JSON has it. What few types have is there only where they have it: `held_as` where a destination narrows."""
    return asdict(value, dict_factory=lambda items: {key: one for key, one in items if key not in _ONLY_IF_SET or one})


def _without_oids(value: Any) -> Any:
    """Numbers that differ from one database to the next say nothing of the structure."""
    if isinstance(value, dict):
        return {key: _without_oids(item) for key, item in value.items() if key != "oid"}
    return [_without_oids(item) for item in value] if isinstance(value, list | tuple) else value


class ByFingerprint:
    """A schema as a key of a cache: its fingerprint is over everything that it says, and made once."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema

    def __hash__(self) -> int:
        return hash(self.schema.fingerprint)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByFingerprint) and other.schema.fingerprint == self.schema.fingerprint

"""What a kind of source gives to the rest of penstock: how its changes are read, what its types are, what to advise.

A schema says which one it is of (`TableSchema.dialect`), so that whoever has a schema, or raw changes with theirs, can
ask; a task on an executor finds it by that name too. Those that penstock brings along are imported when they are first
needed. A further source calls `register` before anything of it is read, in every process that reads it.

To add a source: implement `Dialect` and `RowReader` in a folder beside `postgres/`, name it in `_OWN` and its prefix in
`_PREFIXES`, and have the source give the name to the schemas that it describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Literal, NamedTuple, Protocol

import pyarrow as pa

from penstock.decode.connect import ConnectColumn
from penstock.decode.reader import Mask, RowReader
from penstock.model.change import RawChanges
from penstock.model.quarantine import RawMessage
from penstock.model.table import ColumnType, TableId, TableSchema
from penstock.model.type_map import TypeMap

OwnType = Literal["bool", "int64", "text", "timestamptz", "text list"]
Choices = tuple[tuple[str, str], ...]  # what `types:` says: a column or a type, then `text` or `decimal(p,s)`


class Advice(NamedTuple):
    """Half an error: what is the matter, and what to do about it."""

    what: str
    solution: str


class Dialect(Protocol):
    """One kind of source. Without state: everything it is asked is answered from what it is given."""

    @property
    def type_prefix(self) -> str:
        """What begins a key of `types:` that names one of its types and not a column, such as `pg:`."""

    @property
    def numbers_columns(self) -> bool:
        """Whether its source gives each column a number for life, which renames do not change.

        Without one, columns are known by name, a schema's `relation_id` is of its structure, and statements in the
        stream say how one becomes another (fold/named_columns.py).
        """

    def keeps_values(self, old: ColumnType, new: ColumnType) -> bool:
        """Return whether a statement that gives a column the new type leaves every value as it was."""

    def parse_type_key(self, key: str, choice: str) -> str:
        """Return a key with that prefix in its plain form.

        ValueError for a type that does not exist or allow the choice.
        """

    def reader(self, changes: RawChanges) -> RowReader:
        """Undecodable when the changes cannot be told apart."""

    def without_marks(self, changes: RawChanges) -> RawChanges:
        """Return the changes that are events, without those that a source puts into the log for tables alone.

        Such a change is the mark that a table is another one from here on.
        """

    def explain(self, message: RawMessage) -> list[str]:
        """Read one message for an operator, as far as it can be read: lines, each with the place of its first byte."""

    def arrow_type(self, type: ColumnType) -> pa.DataType:
        """Return the widest type that holds the values. ValueError for a choice that the type does not allow."""

    def parsed(self, type: ColumnType, texts: pa.Array) -> pa.Array:
        """Return values of the texts (binary, null for NULL) that the source writes for them.

        ValueError for one that does not fit the type's column.
        """

    @property
    def writes_texts(self) -> bool:
        """Whether the source writes its values as texts, so that `verbatim.py` can carry them as they are."""

    def fitted(self, type: ColumnType, texts: pa.Array) -> tuple[pa.Array, Mask]:
        """Return the values of those texts (binary) that fit, null for the others, and which those others are."""

    def json_texts(self, type: ColumnType, texts: pa.Array, *, raw: bool = False) -> pa.Array:
        """Return the JSON of each text that the source wrote for a value of the type; null where it is null."""

    def connect_column(self, type: ColumnType, texts: pa.Array) -> ConnectColumn:
        """Return a column as Kafka Connect's converters for this source have it: Debezium's values and schema."""

    def own_type(self, type: OwnType) -> ColumnType:
        """Return the source's type for a column that penstock adds."""

    def record_type(self, fields: Sequence[tuple[str, ColumnType]]) -> ColumnType:
        """Return the source's type for a row of these fields."""

    def type_text(self, type: ColumnType) -> str:
        """Return the type as its users write it, with the choice that was made for it."""

    def compares_as_text(self, type: ColumnType) -> bool:
        """Whether values that are carried as text are equal, and in order, as their texts are."""

    def chosen(self, schema: TableSchema, choices: Choices) -> TableSchema:
        """Return the schema with what users chose for its columns and types."""

    def held_as(self, type: ColumnType, types: TypeMap) -> str:
        """Return what becomes of values of a plain type at a destination with these types.

        "" where it has the type that `arrow_type` gives, else "text" or another type's name that `arrow_type` knows.
        """

    def unidentified(self, schema: TableSchema) -> Advice:
        """Say, for a change in a table whose rows cannot be told apart, why not, and how they can be."""

    def old_row_missing(self) -> Advice:
        """Say it for a change without its whole old row, of a table that is followed by whole rows."""

    def unsent_value(self, table: TableId) -> Advice:
        """Say why an update may lack a value that it left unchanged, and how to have all values sent.

        The reason is a clause that begins with the source.
        """

    def leave_out(self, table: TableId) -> str:
        """Return how to leave a column out at the source."""

    def choice_help(self) -> str:
        """Say what may be chosen under `types:`."""


_OWN = {
    "postgres": "penstock.decode.postgres.dialect:POSTGRES",
    "mysql": "penstock.decode.mysql.dialect:MYSQL",
}
_PREFIXES = {"pg:": "postgres", "mysql:": "mysql"}  # of keys under `types:`
_KNOWN: dict[str, Dialect] = {}


def register(name: str, dialect: Dialect) -> None:
    """Make a dialect known in this process."""
    _KNOWN[name] = dialect
    _PREFIXES[dialect.type_prefix] = name


def dialect_of(schema: TableSchema) -> Dialect:
    """Return the dialect of a table's source. ValueError when nobody has registered it."""
    return dialect_named(schema.dialect)


def dialect_named(source_type: str) -> Dialect:
    """Return the dialect of sources of a type. ValueError when nobody has registered it."""
    known = _KNOWN.get(source_type)
    if known is None:
        where = _OWN.get(source_type)
        if where is None:
            raise ValueError(f"no source of type {source_type} is registered")
        module, _, name = where.partition(":")
        known = _KNOWN[source_type] = getattr(import_module(module), name)
    return known


def dialect_of_key(key: str) -> Dialect | None:
    """Return the dialect whose type a key of `types:` names; None when it names a column."""
    name = next((name for prefix, name in _PREFIXES.items() if key.startswith(prefix)), None)
    return None if name is None else dialect_named(name)


def read(changes: RawChanges) -> RowReader:
    """Return a reader of raw changes."""
    return dialect_of(changes.schema).reader(changes)

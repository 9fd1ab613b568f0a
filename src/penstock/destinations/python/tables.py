"""`penstock.TableDestination`: for those who want rows by their key, not events. Net effects, and all in a transaction.

It stands on `Destination`: a batch of events is folded to what it makes of each key, and applied in one transaction
with the stream's position, for all tables of the batch. Readers see none of it or all of it, and each batch once.

A table is made under one structure. When the source's becomes another, events do not say what became of the rows that
are there: CopyNeeded, and the table is copied again by itself. Columns are told apart by their numbers, so one that was
dropped and added again under its old name is another.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.destinations.python.batch import Events, fitted_row
from penstock.destinations.python.destination import Destination
from penstock.destinations.python.events import Delete, Event, Insert, Read, Row, Table, Truncate, Update
from penstock.errors import CopyNeeded, KeyRequired, Overtaken, TableError, ValueDoesNotFit
from penstock.fold.column_identity import resolve
from penstock.fold.evolution import follow
from penstock.model.table import TableId, TableSchema
from penstock.model.type_map import AS_WRITTEN

RESCUED = "_rescued"
Key = tuple[Hashable, ...]


class TableDestination(Destination):
    """Where tables go. Extend it and write the eight methods that raise NotImplementedError here.

    `rows` have the table's columns (`row_schema`) and `_rescued`: JSON of the texts of values that their column's type
    cannot hold, or null. `keys` have the columns of the table's key."""

    def transaction(self) -> AbstractContextManager[object]:
        """Return a block whose changes take place together, or not at all when it raises."""
        raise NotImplementedError

    def load(self, name: str) -> str | None:
        """Return what was last saved under the name."""
        raise NotImplementedError

    def save(self, name: str, text: str) -> None:
        """Save a text under a name, in the transaction."""
        raise NotImplementedError

    def create(self, table: Table) -> None:
        """Make the table with these columns, empty; replace the one that is there."""
        raise NotImplementedError

    def clear(self, table: Table) -> None:
        """Remove all rows."""
        raise NotImplementedError

    def insert(self, table: Table, rows: pa.Table) -> None:
        """Add rows. None of them has a key that is there."""
        raise NotImplementedError

    def delete(self, table: Table, keys: pa.Table) -> None:
        """Remove the rows that have these keys. Some may not be there."""
        raise NotImplementedError

    def read(self, table: Table, keys: pa.Table) -> pa.Table:
        """Return the rows that have these keys."""
        raise NotImplementedError

    def position(self, stream: str) -> str | None:
        return self.load(f"position of {stream}")

    def begin_copy(self, table: TableId) -> None:
        """Have the table made again with the first rows of the copy."""
        with self.transaction():
            self.save(_structure_name(table), "")

    def write_events(self, events: Events) -> None:
        with self.transaction():
            if self.position(events.stream) != events.previous:
                raise Overtaken(f"{events.stream} was moved on by another writer", "Nothing: it goes on from there")
            for change in _folded(events):
                self._apply(change)
            self.save(f"position of {events.stream}", events.position)

    def _apply(self, change: TableChange) -> None:
        table = change.table
        self._require_structure(table)
        if change.emptied:
            self.clear(table)
        rows = [_completed(row, self._found(change)) for row in change.rows()]
        if not change.emptied and change.net:
            self.delete(table, _keys(table, list(change.net)))
        if rows or change.added:
            self.insert(table, _rows(table, [*change.added, *rows]))

    def _require_structure(self, table: Table) -> None:
        name, wanted = _structure_name(table.id), _described(table)
        there = self.load(name)
        if not there:
            self.create(table)
        elif there == wanted.to_json():
            return
        elif why := _moved(TableSchema.from_json(there), wanted):
            raise CopyNeeded(
                f"table {table}: its structure at the source is another than the one that its rows here were copied "
                f"under: {why}",
                f"Nothing: it is copied again by itself. With `start: log` or `now`: penstock resync FILE {table}",
            )
        self.save(name, wanted.to_json())

    def _found(self, change: TableChange) -> Mapping[Key, Row]:
        """Return rows that are there, for values that the source has not sent."""
        wanted = change.needed()
        if not wanted:
            return {}
        found = self.read(change.table, _keys(change.table, wanted)).to_pylist()
        return {tuple(row[name] for name in change.table.key): row for row in found}


@dataclass
class _NetRow:
    """What a batch makes of a key: values, and the key of a row that is there and has those in `missing`."""

    values: dict[str, Any]
    missing: tuple[str, ...] = ()
    base: Key = ()


@dataclass
class TableChange:
    """What a batch makes of a table under one structure. `added` are rows of a table without a key."""

    table: Table
    emptied: bool = False
    net: dict[Key, _NetRow | None] = field(default_factory=dict)  # None: the key has no row
    added: list[_NetRow] = field(default_factory=list)

    def rows(self) -> list[_NetRow]:
        return [row for row in self.net.values() if row is not None]

    def needed(self) -> list[Key]:
        return [row.base for row in self.rows() if row.missing]

    def take(self, event: Event) -> None:
        """Add what an event does."""
        match event:
            case Truncate():
                self.emptied = True
                self.net.clear()
                self.added.clear()
            case Insert() | Read():
                self._put(_NetRow(dict(event.row)))
            case Update():
                self._update(event)
            case Delete():
                self.net[self._key(event.old)] = None

    def _put(self, row: _NetRow) -> None:
        if self.table.key:
            self.net[self._key(row.values)] = row
        else:
            self.added.append(row)

    def _update(self, event: Update) -> None:
        key = self._key(event.row)
        old = key if event.old is None else self._key(event.old)
        before = self.net.get(old)
        values = {**({} if before is None else before.values), **event.row}
        missing = [name for name in event.unchanged if name not in values]
        base = old if before is None or not before.missing else before.base
        if before is not None:
            missing += [name for name in before.missing if name not in values and name not in missing]
        if old != key:
            self.net[old] = None
        self.net[key] = _NetRow(values, tuple(missing), base)

    def _key(self, row: Row) -> Key:
        if not self.table.key:
            raise KeyRequired(
                f"table {self.table}: it has no key, and a row was changed",
                "Give it a primary key or a replica identity, then copy it again: penstock resync FILE TABLE",
            )
        return tuple(row[name] for name in self.table.key)


def row_schema(table: Table) -> pa.Schema:
    """Return the columns of a table's rows: its own, and `_rescued`."""
    return pa.schema([*table.arrow_schema, pa.field(RESCUED, pa.string())])


def _described(table: Table) -> TableSchema:
    if table.described is None:
        raise TableError(
            f"table {table}: the event does not say which structure it is under",
            "Copy the table again: penstock resync FILE TABLE",
        )
    return table.described


def _moved(before: TableSchema, after: TableSchema) -> str:
    """Say why rows that were copied under one structure may be wrong under another; "" when they are right."""
    known = before if all(column.number for column in before.columns) else resolve(after, before)
    followed = follow(known, [after], AS_WRITTEN)
    if followed.resync or _columns(known) != _columns(followed.schema) or known.key != after.key:
        return followed.resync or "; ".join(followed.changes) or "its columns have another order"
    return ""


def _columns(schema: TableSchema) -> list[object]:
    return [(column.number, column.name, column.type) for column in schema.columns]


def _structure_name(table: TableId) -> str:
    return f"structure of {table}"


def _folded(events: Events) -> list[TableChange]:
    """Return what the events make of each table; of one whose structure changes among them, one after the other."""
    changes: list[TableChange] = []
    newest: dict[TableId, TableChange] = {}
    for event in events:
        if not isinstance(event, Read | Insert | Update | Delete | Truncate):
            continue
        change = newest.get(event.table.id)
        if change is None or change.table != event.table:
            change = newest[event.table.id] = TableChange(event.table)
            changes.append(change)
        change.take(event)
    return changes


def _completed(row: _NetRow, found: Mapping[Key, Row]) -> _NetRow:
    """Return the row with the values that only the destination has."""
    if not row.missing:
        return row
    there = found.get(row.base)
    if there is None:
        raise TableError(
            f"the row with the key {row.base} is not there, and the source has not sent all of it",
            "Copy the table again: penstock resync FILE TABLE",
        )
    kept = {name: there[name] for name in row.missing}
    rescued = {name: text for name, text in json.loads(there[RESCUED] or "{}").items() if name in kept}
    return _NetRow({**row.values, **kept, **rescued})


def _keys(table: Table, keys: list[Key]) -> pa.Table:
    columns = {one.name: one.arrow_type for one in table.columns}
    return pa.table(
        {name: pa.array([key[at] for key in keys], columns[name]) for at, name in enumerate(table.key)},
    )


def _rows(table: Table, rows: list[_NetRow]) -> pa.Table:
    made, fields = [], list(table.arrow_schema)
    for row in rows:
        rescued: dict[str, str] = {}
        fitted = fitted_row(row.values, fields, rescued) or {}
        unfit = next((name for name in table.key if name in rescued), None)
        if unfit is not None:
            raise ValueDoesNotFit(
                f"table {table}: {rescued[unfit]!r} does not fit column {unfit}, which is part of the key",
                "Correct the value at the source, then copy the table again: penstock resync FILE TABLE",
            )
        made.append({**fitted, RESCUED: json.dumps(rescued, ensure_ascii=False) if rescued else None})
    return pa.Table.from_pylist(made, row_schema(table))

"""Some events of a stream, in order, as a user's destination gets them: as objects, as JSON or as Arrow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

import pyarrow as pa

from penstock.destinations.python.events import Delete, Event, Read, Row, Table, Unsupported, parse_events
from penstock.destinations.python.events import Insert as InsertEvent
from penstock.destinations.python.events import Update as UpdateEvent
from penstock.model.table import TableSchema

RESCUED_TYPE = pa.map_(pa.string(), pa.string())


class Events(Sequence[Event]):
    """Events in stream order.

    `stream` names the sequence that they belong to (there are several with several sources or shards). For a
    destination that keeps its own position, `position` is to be stored with the events, in one step, and `previous` is
    the one that must be there before; both are text that says nothing to others."""

    def __init__(
        self,
        texts: Sequence[bytes],
        places: Sequence[str],
        schemas: Mapping[str, TableSchema],
        *,
        stream: str = "",
        position: str = "",
        previous: str | None = None,
    ) -> None:
        self._texts, self._places, self._schemas = texts, places, schemas
        self.stream, self.position, self.previous = stream, position, previous

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, index: int) -> Event: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...

    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        return self._parsed[index]

    def __iter__(self) -> Iterator[Event]:
        return iter(self._parsed)

    @property
    def json(self) -> list[str]:
        """Return each event in penstock's native envelope."""
        return [text.decode() for text in self._texts]

    @property
    def tables(self) -> list[Table]:
        """Return the tables that have events here, each under the structure of its events, in order of appearance."""
        return list(dict.fromkeys(event.table for event in self))

    def of(self, table: Table) -> Events:
        """Return the events of one table under one structure. They have no position of their own."""
        own = [row for row, event in enumerate(self) if event.table == table]
        texts, places = [self._texts[row] for row in own], [self._places[row] for row in own]
        return Events(texts, places, self._schemas, stream=self.stream)

    def arrow(self) -> pa.Table:
        """Return the events of one table under one structure by columns. ValueError when there are several.

        Columns are `op`, `id`, `place`, `commit_time`, `transaction`, `before` and `after` (structs of the table's
        columns), `unchanged`, and `rescued`: the text of values that their column's type cannot hold."""
        tables = self.tables
        if len(tables) > 1:
            raise ValueError("these events are of several tables or structures: take `events.of(table)` for each")
        fields = list(tables[0].arrow_schema) if tables else []
        image = pa.struct([field.with_nullable(True) for field in fields])
        rescued: list[dict[str, str]] = [{} for _ in self]
        sides = [
            [fitted_row(row, fields, kept) for row, kept in zip(rows, rescued, strict=True)]
            for rows in zip(*(_images(event) for event in self), strict=True)
        ] or [[], []]
        return pa.table(
            {
                "op": pa.array([_op(event) for event in self], pa.string()),
                "id": pa.array([event.id for event in self], pa.string()),
                "place": pa.array([event.place for event in self], pa.string()),
                "commit_time": pa.array([event.commit_time for event in self], pa.timestamp("us", tz="UTC")),
                "transaction": pa.array([event.transaction for event in self], pa.int64()),
                "before": pa.array(sides[0], image),
                "after": pa.array(sides[1], image),
                "unchanged": pa.array(
                    [list(event.unchanged) if isinstance(event, UpdateEvent) else [] for event in self],
                    pa.list_(pa.string()),
                ),
                "rescued": pa.array([list(kept.items()) or None for kept in rescued], RESCUED_TYPE),
            }
        )

    @cached_property
    def _parsed(self) -> list[Event]:
        return parse_events(self._texts, self._places, self._schemas)


def _op(event: Event) -> str:
    return event.op if isinstance(event, Unsupported) else type(event).__name__.lower()


def _images(event: Event) -> tuple[Row | None, Row | None]:
    """Return the row before and after."""
    if isinstance(event, InsertEvent | Read):
        return None, event.row
    if isinstance(event, UpdateEvent):
        return event.old, event.row
    return (event.old, None) if isinstance(event, Delete) else (None, None)


def fitted_row(row: Row | None, fields: Sequence[pa.Field], rescued: dict[str, str]) -> dict[str, Any] | None:
    """Return the row with values that fit their columns' types; the texts of others are put into `rescued`."""
    if row is None:
        return None
    made = {}
    for field in fields:
        value = row.get(field.name)
        if pa.types.is_string(field.type) and value is not None and not isinstance(value, str):
            value = str(value) if not isinstance(value, dict | list | bool) else json.dumps(value, ensure_ascii=False)
        try:
            made[field.name] = None if value is None else pa.scalar(value, field.type).as_py()
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            made[field.name], rescued[field.name] = None, str(value)
    return made

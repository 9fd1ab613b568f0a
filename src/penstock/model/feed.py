"""Define feeds: one source table into one destination table, in one mode. A source table may have several.

The mode says what becomes of changes: `clone` equals the source; `append` is clone without DELETE and TRUNCATE;
`history` keeps every version of a row, with its period; `events` makes every change a row. docs/modes.md says more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from penstock.model.processor import ProcessorSpec
from penstock.model.table import TableId
from penstock.model.type_map import WIDEST, TypeMap


class Mode(StrEnum):
    CLONE = "clone"
    APPEND = "append"
    HISTORY = "history"
    EVENTS = "events"


@dataclass(frozen=True)
class Period:
    """The columns that say when a version of a row was the valid one, and whether it ended with the row's deletion.

    `first` says from when on the first version of a row is valid that was inserted while the table was followed."""

    valid_from: str = "valid_from"
    valid_to: str = "valid_to"
    deleted: str = "deleted"
    first: Literal["always", "commit"] = "always"

    @property
    def names(self) -> dict[str, str]:
        return {"valid_from": self.valid_from, "valid_to": self.valid_to, "deleted": self.deleted}


@dataclass(frozen=True)
class ColumnChoice:
    """What becomes of a source's column: kept (under another name), masked, or dropped."""

    column: str
    dropped: bool = False
    masked: bool = False
    name: str = ""  # at the destination; "": as at the source


@dataclass(frozen=True)
class Projection:
    """What of a table's rows is kept: those for which `where` holds, columns as chosen, and constants beside them."""

    where: str = ""
    columns: tuple[ColumnChoice, ...] = ()
    constants: tuple[tuple[str, str | int | bool], ...] = ()
    salt: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return bool(self.where or self.columns or self.constants)


EVERYTHING = Projection()


@dataclass(frozen=True)
class Sid:
    """Identify one source's rows in a shared table: a column, and this source's value in it.

    All sources of one `family` (a pipeline) may share tables, each with a value of its own.
    """

    column: str
    value: str | int
    family: str


@dataclass(frozen=True)
class Feed:
    """Describe one feed.

    `name` is used in commands, requests and the state store: the source table's name, and for its second and later
    modes `{table}__{mode}`. `sid` is set when other sources may feed the same target. `on_column_drop` says what
    becomes of a column that goes at the source, `on_type_change` what is done about a type that no longer fits."""

    name: TableId
    table: TableId
    target: TableId
    mode: Mode = Mode.CLONE
    sid: Sid | None = None
    on_column_drop: Literal["keep", "drop", "rename"] = "keep"
    on_type_change: Literal["resync", "error"] = "resync"
    period: Period = Period()  # in mode history
    types: tuple[tuple[str, str], ...] = ()  # choices of the user: column or `pg:type`, then what to carry it as
    type_map: TypeMap = WIDEST  # of its destination
    strict: bool = False  # a value that fits no column makes it Errored
    projection: Projection = EVERYTHING
    markers: bool = False  # in mode events: begin and commit are events too
    anomalies: bool = False  # changes that do not suit what is there are counted
    logs_anomalies: bool = False  # and the first of each batch are logged, with their keys
    processors: tuple[ProcessorSpec, ...] = ()  # of events on their way into a stream, of rows and events of a table
    messages: tuple[str, ...] = ()  # of logical messages: their prefixes (model/source_events.py)

    @classmethod
    def clone(cls, table: TableId, target: TableId | None = None) -> Feed:
        return cls(table, table, target or table)


def feed_name(table: TableId, mode: Mode, *, first: bool) -> TableId:
    return table if first else TableId(table.schema, f"{table.name}__{mode}")

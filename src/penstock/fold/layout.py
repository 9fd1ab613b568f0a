"""Define what a destination's table consists of, by mode.

The columns that a feed keeps of its source table are there as they are, or with others around them. Shared by fold,
which makes the rows, and the destinations, which make the tables.

| layout   | columns                                          | rows are told apart by     |
|----------|--------------------------------------------------|----------------------------|
| ROWS     | those of the source                              | the key                    |
| versions | those of the source, and the three of the period | the key and when it begins |
| events   | those of `envelope.py`, the source's inside       | their place in the stream  |

The others are nullable, whatever they hold, so that a table's structure can move on around them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import pyarrow as pa

from penstock.decode.rescue import RESCUED
from penstock.errors import ColumnNotCarried, ColumnsRequired, SchemaChanged
from penstock.fold.envelope import event_schema
from penstock.fold.projection import kept_schema
from penstock.fold.rule import rule_text
from penstock.model.feed import EVERYTHING, Feed, Mode, Period, Projection
from penstock.model.table import TableSchema

RESERVED = frozenset(
    ["_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"]
)
RENAME = (
    "Rename it in the lake (`columns: {name: {rename: other}}` under the table's rule) or at the source, and "
    "`penstock retry`"
)
MOMENT = pa.timestamp("us", "UTC")


def _microseconds(at: datetime) -> int:
    return int(at.timestamp()) * 1_000_000


BEGINNING = _microseconds(datetime(1900, 1, 1, tzinfo=UTC))  # where a key's first version opens
OPEN = _microseconds(datetime(9999, 1, 1, tzinfo=UTC))  # where a version ends that has not ended


@dataclass(frozen=True)
class Layout:
    """`period`: for a table of versions (history), the names of its three columns.

    `projection`: what of the source's table is kept. `rule`: what its rows are made under, as text (`rule.py`); ""
    where nobody says.
    """

    period: Period | None = None
    projection: Projection = EVERYTHING
    events: bool = False
    rule: str = ""

    def kept(self, schema: TableSchema) -> TableSchema:
        """Return the table that is made of the source's.

        SchemaChanged when the rule does not suit it, ColumnsRequired when no column is left.
        """
        kept = kept_schema(self.projection, schema)
        if not kept.columns:
            raise ColumnsRequired(
                f"table {schema.table}: it has no columns{' left' if schema.columns else ''}, and no table can be made "
                "of none",
                "Exclude it in the pipeline file; or give it a column, and it is copied by itself",
            )
        return event_schema(kept) if self.events else kept

    @property
    def keeps_past(self) -> bool:
        """Whether rows stay that the source no longer has, so that columns must stay as well."""
        return self.events or self.period is not None

    @property
    def holds_rows(self) -> bool:
        """Whether the table holds the source's rows as they are now, and nothing else."""
        return not self.keeps_past

    @property
    def around(self) -> pa.Schema:
        """The columns that are not the source's."""
        if self.period is None:
            return pa.schema([])
        return pa.schema(
            [
                pa.field(self.period.valid_from, MOMENT),
                pa.field(self.period.valid_to, MOMENT),
                pa.field(self.period.deleted, pa.bool_()),
            ]
        )

    def columns(self, kept: pa.Schema) -> pa.Schema:
        """Return all columns of the table, from those that the feed keeps."""
        return pa.schema([*kept, *self.around])

    def to_json(self) -> str:
        """Return what must not change as long as the table is there, whichever sources feed it."""
        return json.dumps(
            {"events": self.events, "period": None if self.period is None else self.period.names}, sort_keys=True
        )

    def made(self, text: str) -> bool:
        """Whether a table with this text of `to_json` is of this layout.

        Tables of earlier versions of penstock have the projection in it, and no rule.
        """
        told = json.loads(text)
        earlier = told.pop("projection", None)
        return bool(told == json.loads(self.to_json()) and earlier in (None, json.loads(self._projection_json())))

    def _projection_json(self) -> str:
        told = asdict(self.projection)
        del told["salt"]
        return json.dumps({**told, "constants": [name for name, _ in self.projection.constants]})

    @property
    def has_identifiers(self) -> bool:
        """Whether the key tells the table's rows apart."""
        return self.period is None

    def require_room(self, kept: TableSchema) -> None:
        """Raise SchemaChanged when a column that is kept has the name of one around them.

        ColumnNotCarried when readers could not tell it from another. Case does not count: Spark ignores it.
        """
        around = {name.lower() for name in self.around.names}
        taken = sorted(column.name for column in kept.columns if column.name.lower() in around)
        if taken:
            raise SchemaChanged(
                f"table {kept.table}: it has a column {taken[0]}, as its history has",
                "Give the history's columns other names: `history:` under the table's rule",
            )
        problem = next(name_problems(kept), None)
        if problem is not None:
            raise ColumnNotCarried(f"table {kept.table}: {problem}", RENAME)


def name_problems(kept: TableSchema) -> Iterator[str]:
    """Say why readers could not tell columns of the table apart, one reason after the other."""
    seen: dict[str, str] = {}
    for column in kept.columns:
        name = column.name.lower()
        if name in RESERVED or name == RESCUED:
            yield f'its column "{column.name}" has a name that Iceberg or penstock keeps for its own columns'
        if name in seen:
            yield f'its columns "{seen[name]}" and "{column.name}" differ only in case, which Spark ignores'
        seen.setdefault(name, column.name)


ROWS = Layout()


def layout_of(feed: Feed) -> Layout:
    period = feed.period if feed.mode is Mode.HISTORY else None
    return Layout(period, feed.projection, events=feed.mode is Mode.EVENTS, rule=rule_text(feed))

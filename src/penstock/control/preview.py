"""Show what a rule would make of a table: its first rows as the destination would have them.

Used by the page's map editor before a rule is saved. Nothing is changed anywhere, and a column that the rule masks or
drops is never shown as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from penstock.config.model import Pipeline
from penstock.config.rules import TableRule
from penstock.decode.choices import chosen
from penstock.decode.json_values import json_values
from penstock.decode.rescue import RESCUED
from penstock.errors import UsageError
from penstock.fold.projection import check_projection, project_rows
from penstock.model.scoped_name import ScopedName
from penstock.model.table import TableId
from penstock.source.factory import source_of

SHOWN = ("where", "columns", "set", "types")  # what a rule says of rows; the rest is about tables
MOST_ROWS = 5
MOST_TEXT = 200  # characters of a cell


@dataclass(frozen=True)
class Preview:
    """`left_out` is how many of the rows that were read `where` does not keep."""

    columns: tuple[str, ...]
    rows: list[list[Any]]
    left_out: int

    def as_json(self) -> dict[str, Any]:
        return {"columns": list(self.columns), "rows": self.rows, "left_out": self.left_out}


@dataclass(frozen=True)
class _One:
    """The one table is wanted."""

    view: Pipeline
    table: TableId

    @property
    def name(self) -> str:
        return self.view.name

    def wants(self, table: TableId) -> bool:
        return table == self.table

    def by_publication(self, table: TableId) -> bool:
        return False

    def each_partition(self, table: TableId) -> bool:
        return self.view.each_partition(table)

    def modes(self, table: TableId) -> Collection[str]:
        return ()


def preview(pipeline: Pipeline, table: str, rule: Mapping[str, Any]) -> Preview:
    """Return a few rows of a source's table, named as `penstock tables` names it, under a rule that is not saved.

    Values are as the first destination holds them.

    UsageError when the rule is none or does not suit the table; SourceUnreachable when the source does not answer.
    """
    view, name = _found(pipeline, table)
    try:
        checked = TableRule.model_validate({"match": "*.*", **{key: rule[key] for key in SHOWN if key in rule}})
    except ValidationError as invalid:
        first = invalid.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the rule"
        raise UsageError(f"{where}: {first['msg']}", "Correct it in the map") from None
    if checked.masks and pipeline.mask_salt is None:
        raise UsageError(
            "a column is masked, and the file has no mask_salt", "Add `mask_salt: ${MASK_SALT}` to the pipeline file"
        )
    salt = "" if pipeline.mask_salt is None else pipeline.mask_salt.get_secret_value()
    feed = checked.feeds(name, view.source.name, None, salt, type_map=view.destination_views[0].type_map)[0]
    with source_of(view.source).connect() as session:
        schemas = session.discover(_One(view, name))
        if not schemas:
            raise UsageError(f"the source has no table {table}", "It was dropped or renamed; open the map again")
        schema = chosen(schemas[0], feed.types, feed.type_map)
        problems = check_projection(feed.projection, schema)
        if problems:
            raise UsageError(problems[0], "Correct it in the map")
        rows = session.first_rows(schema, MOST_ROWS)
    kept = project_rows(feed.projection, schema, rows)
    columns = [one for one in kept.column_names if one != RESCUED]
    cells = [[_shown(value) for value in json_values(_whole(kept[column]))] for column in columns]
    return Preview(tuple(columns), [list(row) for row in zip(*cells, strict=True)], rows.num_rows - kept.num_rows)


def _found(pipeline: Pipeline, table: str) -> tuple[Pipeline, TableId]:
    scope, colon, bare = table.partition(":")
    for view in pipeline.source_views:
        text = table if not pipeline.is_scoped else bare if colon and scope == view.source.name else ""
        schema, dot, name = text.partition(".")
        if dot:
            return view, TableId(schema, name)
    shown = ScopedName(pipeline.source_views[0].scope, TableId("schema", "table"))
    raise UsageError(f"{table} is no name of a table", f"Give it as {shown}")


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _shown(value: Any) -> Any:
    return f"{value[:MOST_TEXT]}…" if isinstance(value, str) and len(value) > MOST_TEXT else value

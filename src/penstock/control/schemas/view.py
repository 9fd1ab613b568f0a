"""Render versions of structures as text and as JSON."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from penstock.control.schemas.versions import Schemas, ShownVersion
from penstock.control.text.figures import moment_text
from penstock.fold.evolution import type_text
from penstock.model.position import position_text

FINGERPRINT_SHOWN = 12


def as_text(found: Schemas, *, with_columns: bool) -> RenderableType:
    """Readable without colours too. With columns: the last version shown in full."""
    if not found.versions:
        said = "no structure is known there" if found.at is not None else "no structure is known yet"
        return Text(f"{said}; `penstock run {found.file}` records them as they come", style="dim")
    parts: list[RenderableType] = [_table(found)]
    if with_columns:
        parts += [Text(), _columns(found.versions[-1])]
    return Group(*parts)


def as_json(found: Schemas) -> dict[str, Any]:
    """JSON values only. Times are ISO 8601 in UTC; positions as Postgres writes them."""
    return {
        "pipeline": found.pipeline,
        "file": found.file,
        "at": None if found.at is None else position_text(found.at),
        "versions": [version_json(one) for one in found.versions],
    }


def version_json(one: ShownVersion) -> dict[str, Any]:
    """Return one version as JSON values."""
    return {
        "table": str(one.table),
        "version": one.version.version,
        "sequence": one.version.sequence,
        "position": position_text(one.version.position),
        "recorded": one.version.at.isoformat(),
        "fingerprint": one.version.fingerprint,
        "guessed": one.version.schema.guessed,
        "changes": one.changes,
        "definition": json.loads(one.version.schema.to_json()),
    }


def _table(found: Schemas) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("table", overflow="fold")
    table.add_column("version", justify="right")
    table.add_column("sequence", justify="right")
    table.add_column("from", no_wrap=True)
    table.add_column("recorded", no_wrap=True)
    table.add_column("fingerprint", no_wrap=True)
    table.add_column("what changed", overflow="fold")
    for one in found.versions:
        version = one.version
        table.add_row(
            Text(str(one.table)),
            str(version.version),
            str(version.sequence),
            position_text(version.position),
            moment_text(version.at),
            version.fingerprint[:FINGERPRINT_SHOWN],
            _what(one),
        )
    return table


def _what(one: ShownVersion) -> Text:
    schema = one.version.schema
    if one.changes is None:
        said = Text(f"{len(schema.columns)} columns, key ({', '.join(schema.key)})", style="dim")
    else:
        said = Text("; ".join(one.changes) or "the columns are other ones of the same names")
    return said.append(" (guessed)", "yellow") if schema.guessed else said


def _columns(one: ShownVersion) -> RenderableType:
    version = one.version
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for heading in ("number", "column", "type", ""):
        table.add_column(heading, overflow="fold")
    for column in version.schema.columns:
        remarks = [
            "key" if column.name in version.schema.key else "",
            "" if column.nullable else "not null",
            "generated" if column.generated else "",
            "" if column.filled is None else f"older rows show {column.filled!r}",
        ]
        number = str(column.number) if column.number > 0 else "?"
        table.add_row(
            number, Text(column.name), Text(type_text(version.schema, column)), ", ".join(filter(None, remarks))
        )
    title = Text(f"{one.table} version {version.version}, replica identity {version.schema.identity}", "bold")
    return Group(title, Padding(table, (0, 0, 0, 2), expand=False))

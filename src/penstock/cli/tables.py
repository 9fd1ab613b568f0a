"""`penstock tables`, `penstock resync` and `penstock retry`: where tables stand, and what to do with them.

They speak to the pipeline through its state store, so they work while `penstock run` is up and while it is not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.arguments import PipelineFile
from penstock.cli.terminal import stdout
from penstock.config.load import load
from penstock.control.tables import Asked, ask, look
from penstock.control.tables_view import as_json, as_text
from penstock.model.table import TableId

TableNames = Annotated[
    list[str], typer.Argument(metavar="TABLE…", help="As at the source: schema.table.", show_default=False)
]


def tables(
    file: PipelineFile,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Show each table's state, how far its copy is, since when, and its error with the way out."""
    found = look(load(file))
    if json_output:
        typer.echo(json.dumps(as_json(found), indent=2, ensure_ascii=False))
    else:
        stdout().print(as_text(found))


def resync(file: PipelineFile, names: TableNames) -> None:
    """Copy tables anew. Readers see the present table until the new one is whole; other tables are not held up."""
    asked = ask(load(file), "resync", names)
    _say(asked.new, "will be copied anew")
    _say(asked.before, "is to be copied anew already")
    _say_when(file, asked)


def retry(file: PipelineFile, names: TableNames) -> None:
    """Try Errored tables again now, once their cause is gone. They go on where they stopped."""
    asked = ask(load(file), "retry", names)
    _say(asked.new, "will be tried again")
    _say(asked.before, "is to be tried again already")
    _say(asked.in_order, "is not Errored: there is nothing to retry")
    _say_when(file, asked)


def _say(named: Sequence[TableId], what: str) -> None:
    for table in named:
        stdout().print(f"{table} {what}", markup=False)


def _say_when(file: Path, asked: Asked) -> None:
    if not (asked.new or asked.before):
        return
    if asked.pid is not None:
        when = f"the run under way (process {asked.pid}) takes it up; see `penstock tables {file}`"
    else:
        when = f"no run is under way: it takes effect at the next `penstock run {file}`"
    stdout().print(when, markup=False)

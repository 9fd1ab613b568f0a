"""`penstock tables`, `resync`, `retry`, `drop` and `forget`: show tables, and request changes to them.

They speak to the pipeline through its state store, so they work while `penstock run` is up and while it is not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.arguments import Destination, PipelineFile
from penstock.cli.terminal import say_when, stdout
from penstock.config.load import load
from penstock.control.tables.requests import Asked, ask, feed_named, filtered, look
from penstock.control.tables.requests import forget as forget_table
from penstock.control.tables.view import as_json, as_text
from penstock.errors import UsageError
from penstock.model.scoped_name import ScopedName

TableNames = Annotated[
    list[str], typer.Argument(metavar="TABLE…", help="As at the source: schema.table.", show_default=False)
]
Patterns = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TABLE…]", help="schema.table, or a pattern: 'schema.*'.", show_default=False),
]
TableName = Annotated[str, typer.Argument(metavar="TABLE", help="As `penstock tables` shows it.", show_default=False)]


def tables(
    file: PipelineFile,
    names: Patterns = None,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only those in this state, such as Errored; may be repeated."),
    ] = None,
    destination: Destination = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Show each table's state, the progress of its copy, and its error with the way out."""
    found = filtered(look(load(file).only(destination)), names or [], state or [])
    if json_output:
        typer.echo(json.dumps(as_json(found), indent=2, ensure_ascii=False))
    else:
        stdout().print(as_text(found))


def resync(
    file: PipelineFile,
    names: Patterns = None,
    everything: Annotated[bool, typer.Option("--all", help="Every table that is followed.")] = False,
    destination: Destination = None,
) -> None:
    """Copy tables again. Readers see the present table until the new one is complete; other tables continue."""
    asked = ask(load(file).only(destination), "resync", names or [], everything=everything)
    _say(asked.new, "will be copied again")
    _say(asked.before, "is already queued for a resync")
    _say_when(file, asked)


def drop(
    file: PipelineFile,
    name: TableName,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, drop it, with all that it holds.")] = False,
    destination: Destination = None,
) -> None:
    """Drop a table at the destination, with its files, so that it is created again and copied.

    For a table whose mode or rule was changed in the file. What only the destination has is lost: rows deleted at the
    source in mode append, versions in mode history, events.
    """
    pipeline = load(file).destination_view(destination)
    feed = feed_named(pipeline, name, "drop")
    if not yes:
        raise UsageError(
            f"dropping {feed.target} at the destination cannot be undone: what only it has of {name} is lost",
            f"If that is meant: penstock drop {file} {name} --yes",
        )
    asked = ask(pipeline, "drop", [name])
    _say(asked.new, f"({feed.target} at the destination) will be dropped, made again and copied")
    _say(asked.before, "is already queued to be dropped")
    _say_when(file, asked)


def forget(file: PipelineFile, name: TableName, destination: Destination = None) -> None:
    """Remove the records of a table that is no longer followed. The destination's table stays as it is."""
    table = forget_table(load(file).destination_view(destination), name)
    stdout().print(f"{table} is forgotten; its table at the destination stays as it is", markup=False)


def retry(file: PipelineFile, names: TableNames, destination: Destination = None) -> None:
    """Try Errored tables again now, once their cause is gone. They continue where they stopped."""
    asked = ask(load(file).only(destination), "retry", names)
    _say(asked.new, "will be tried again")
    _say(asked.before, "is already queued for a retry")
    _say(asked.in_order, "is not Errored: there is nothing to retry")
    _say_when(file, asked)


def _say(named: Sequence[ScopedName], what: str) -> None:
    for table in named:
        stdout().print(f"{table} {what}", markup=False)


def _say_when(file: Path, asked: Asked) -> None:
    if asked.new or asked.before:
        say_when(file, asked.pid)

"""`penstock schemas FILE [TABLE] [--at LSN]`: list the versions of tables' structures."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from penstock.cli.arguments import PipelineFile
from penstock.cli.terminal import stdout
from penstock.config.load import load
from penstock.control.schemas.versions import look
from penstock.control.schemas.view import as_json, as_text


def schemas(
    file: PipelineFile,
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="As at the source: schema.table.")] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="LSN", help="Only what held at that position.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """List the versions of tables' structures: from which position on, what changed, and whether it was guessed."""
    found = look(load(file), table, at)
    if json_output:
        typer.echo(json.dumps(as_json(found), indent=2, ensure_ascii=False))
    else:
        stdout().print(as_text(found, with_columns=table is not None))

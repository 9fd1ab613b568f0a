"""`penstock status FILE`: show the pipeline as it is, whether or not it runs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from penstock.cli.arguments import PipelineFile
from penstock.cli.terminal import stdout
from penstock.config.load import load
from penstock.control.status.gather import gather
from penstock.control.status.view import as_json, as_text


def status(
    file: PipelineFile,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Show tables, lag, slot, log, and errors with the way out.

    Exit 0 as long as it could look, even while source or pipeline are down: what is unknown is shown as such.
    """
    found = gather(load(file))
    if json_output:
        typer.echo(json.dumps(as_json(found), indent=2, ensure_ascii=False))
    else:
        stdout().print(as_text(found))

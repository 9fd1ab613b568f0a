"""`penstock destinations drop FILE NAME`: the end of what is kept of a destination."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.arguments import PipelineFile
from penstock.cli.terminal import stdout
from penstock.config.load import load
from penstock.control.destinations import drop_destination
from penstock.errors import UsageError


def destinations_drop(
    file: PipelineFile,
    name: Annotated[str, typer.Argument(metavar="NAME", help="As it was in the file.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", help="Yes, forget it; if it comes back, it is copied again.")] = False,
) -> None:
    """Remove what is kept of a destination that is no longer in the file: table states, events, key index.

    The destination's own tables stay as they are. The change log has let go of it since it left the file.
    """
    pipeline = load(file)
    if not yes:
        raise UsageError(
            f"what is kept of destination {name} cannot be brought back: a destination of that name starts with copies",
            f"If that is meant: penstock destinations drop {file} {name} --yes",
        )
    tables = drop_destination(pipeline, name)
    stdout().print(f"destination {name} is forgotten, with {tables} tables; what it holds stays", markup=False)

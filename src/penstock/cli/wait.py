"""`penstock wait FILE`: until what the source has written is delivered."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.arguments import PipelineFile
from penstock.cli.terminal import stdout
from penstock.config.load import load
from penstock.control.wait import await_delivery, positions_now
from penstock.errors import UsageError
from penstock.model.position import parse_position, position_text


def wait(
    file: PipelineFile,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="LSN", help="Everything before this position; without: all there is now."),
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long, at most.")] = 300.0,
) -> None:
    """Wait until everything before a position of the source is delivered, as the file's `commit_policy` says it.

    Exit 0 when it is, 1 when it is not in time or tables are Errored, 3 when the source cannot be reached or a
    destination that it needs is unavailable: at once when that failed for good, else at the timeout.
    """
    pipeline = load(file)
    if until is None:
        positions = positions_now(pipeline)
    else:
        try:
            positions = dict.fromkeys((source.name for source in pipeline.sources), parse_position(until))
        except ValueError as error:
            raise UsageError(str(error), "Give it as the source shows it: 0/16B3748") from error
    await_delivery(pipeline, positions, timeout)
    for name, position in positions.items():
        source = f"source {name}: " if pipeline.is_scoped else ""
        stdout().print(f"{source}everything before {position_text(position)} is delivered", markup=False)

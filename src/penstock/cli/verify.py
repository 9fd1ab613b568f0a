"""`penstock verify FILE [TABLE…]`: compare lake and source at one position, and name the rows that differ."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import structlog
import typer
from rich.console import Console

from penstock.cli.arguments import Destination, PipelineFile
from penstock.cli.run import LogLevel, log_to_stderr
from penstock.cli.terminal import stdout
from penstock.config.load import load
from penstock.control.status.copy_progress import CopyView
from penstock.control.text.commands import with_file
from penstock.control.verify.verification import SHOWN, Verifying
from penstock.control.verify.verification import verify as verify_tables
from penstock.control.verify.view import as_json, as_text

COPY = structlog.get_logger("copy")
SHOWN_AS_JSON = 1000


def verify(
    file: PipelineFile,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE]…",
            help="As at the source: schema.table; of several sources source:schema.table, or source: for all of one. "
            "All when none is named.",
        ),
    ] = None,
    destination: Destination = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Apply the differing rows again, and compare once more.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for the run to bring the tables to the position.", min=1)
    ] = 300.0,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Compare source and lake at one position, whether or not the pipeline runs.

    Exit 1 if something differs or could not be compared."""
    log_to_stderr(LogLevel.WARNING)
    shown = SHOWN_AS_JSON if json_output else SHOWN
    wish = Verifying(tuple(names or ()), repair, timeout, shown, _tell)
    whole = load(file)
    pipeline = whole.destination_view(destination)
    with CopyView(Console(stderr=True), say=COPY.info, names_destinations=len(whole.destinations) > 1) as view:
        found = verify_tables(pipeline, wish, view)
    for error in [one.error for one in found if one.error is not None]:
        error.solution = with_file(error.solution, str(file))
    if json_output:
        typer.echo(json.dumps(as_json(found, shown), indent=2, ensure_ascii=False))
    else:
        stdout().print(as_text(found, shown))
    if not all(one.equal for one in found):
        raise typer.Exit(1)


def _tell(what: str) -> None:
    sys.stderr.write(f"{what}\n")

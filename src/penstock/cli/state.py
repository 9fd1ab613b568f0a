"""`penstock state export|import|reset`: take a pipeline's state to another store, or start it from nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.arguments import PipelineFile
from penstock.cli.terminal import stdout
from penstock.config.load import load
from penstock.control import state_transfer
from penstock.errors import UsageError


def state_export(
    file: PipelineFile,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="PATH", help="Write it there, for nobody else to read.")
    ] = None,
) -> None:
    """Print the pipeline's state as one JSON object, to be imported into another store. No run may be up.

    It has table states, requests, pauses, schema versions, dead letters and quarantined messages: rows of your tables
    may be among them. A copy under way is left out and begins again.
    """
    text = json.dumps(state_transfer.export(load(file)), ensure_ascii=False) + "\n"
    if output is None:
        typer.echo(text, nl=False)
    else:
        state_transfer.write_private(output, text)
        stdout().print(f"exported the state to {output}", markup=False)


def state_import(
    file: PipelineFile,
    exported: Annotated[Path, typer.Argument(metavar="EXPORT", help="What `state export` wrote; - is standard input.")],
    yes: Annotated[bool, typer.Option("--yes", help="Yes, replace the state that is there.")] = False,
) -> None:
    """Make an exported state the pipeline's own, in the store that `state:` names now. No run may be up."""
    try:
        text = sys.stdin.read() if str(exported) == "-" else exported.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{exported} cannot be read: {error}", "Give what `penstock state export` wrote") from error
    rows = state_transfer.import_(load(file), text, replace=yes)
    stdout().print(f"imported {rows:,} records; the next run goes on with them", markup=False)


def state_reset(
    file: PipelineFile,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, forget it all.")] = False,
) -> None:
    """Forget everything that the state store holds. The next run copies every table again; slot and change log stay.

    Nothing is applied twice: positions are in the destinations. Dead letters and quarantined messages are lost.
    """
    pipeline = load(file)
    if not yes:
        raise UsageError(
            f"a reset of the state cannot be undone: {_tables(state_transfer.tables_of(pipeline))} copied again, and "
            "dead letters, quarantined messages and pauses are forgotten",
            f"If that is meant: penstock state reset {file} --yes",
        )
    done = state_transfer.reset(pipeline)
    stdout().print(f"the state is empty; the next run {_copies(done)}", markup=False)


def _tables(number: int) -> str:
    return "1 table is" if number == 1 else f"{number:,} tables are"


def _copies(number: int) -> str:
    return "copies 1 table again" if number == 1 else f"copies {number:,} tables again"

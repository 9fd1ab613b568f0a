"""`penstock slots drop FILE`: remove a pipeline's replication slot, after a plain warning."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.arguments import PipelineFile, Source
from penstock.cli.terminal import stdout
from penstock.config.load import load
from penstock.errors import SlotBusy, UsageError
from penstock.source.factory import source_of


def slots_drop(
    file: PipelineFile,
    source: Source = None,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, drop it; the change log then ends in a gap.")] = False,
) -> None:
    """Remove the pipeline's replication slot, so that the server keeps no WAL for it.

    What happens at the source from then on is not captured: the change log then ends in a gap, which nothing can close.
    To follow the tables again they must be copied again (`penstock resync`).
    """
    pipeline = load(file).source_view(source)
    console = stdout()
    of = source_of(pipeline.source)
    with of.connect() as session:
        kept = session.retention()
        if kept is None:
            console.print(f"there is no slot at {of.endpoint} for this pipeline: nothing to drop", markup=False)
            return
        if kept.reader is not None:
            raise SlotBusy(
                f"{kept.name} is being read by {kept.reader}", "Stop the pipeline that reads it, then drop it"
            )
        if not yes:
            raise UsageError(
                f"dropping {kept.name} at {of.endpoint} cannot be undone: what changes from then on is not captured, "
                f"the change log's end becomes a gap, and the tables must be copied again",
                f"If that is meant: penstock slots drop {file} --yes",
            )
        session.release()
    end = of.position_text(kept.confirmed) if kept.confirmed is not None else "unknown"
    console.print(f"dropped {kept.name} at {of.endpoint}; the server let go of {kept.kept}", markup=False)
    console.print(f"changes after {end} are not captured: what follows the log's end is a gap", markup=False)

"""`penstock slots drop FILE`: remove a pipeline's replication slot, after a plain warning."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.arguments import PipelineFile, Source
from penstock.cli.terminal import stdout
from penstock.config.load import load
from penstock.errors import SlotBusy, UsageError
from penstock.source.postgres.connect import connect, endpoint
from penstock.source.postgres.slot import drop_slot, lsn_text, slot_state


def slots_drop(
    file: PipelineFile,
    source: Source = None,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, drop it; the change log then ends in a gap.")] = False,
) -> None:
    """Remove the pipeline's replication slot, so that the server keeps no WAL for it.

    What happens at the source from then on is not captured: the change log then ends in a gap, which nothing can close.
    To follow the tables again they must be copied again (`penstock resync`).
    """
    pipeline = load(file).lane(source)
    console = stdout()
    url, name = pipeline.source.url.get_secret_value(), pipeline.source.slot
    with connect(url) as connection:
        slot = slot_state(connection, name)
        if slot is None:
            console.print(f"there is no slot {name} at {endpoint(url)}: nothing to drop", markup=False)
            return
        if slot.active_pid is not None:
            raise SlotBusy(
                f"slot {name} is being read by process {slot.active_pid}",
                "Stop the pipeline that reads it, then drop it",
            )
        if not yes:
            raise UsageError(
                f"dropping slot {name} at {endpoint(url)} cannot be undone: what changes from then on is not captured, "
                f"the change log's end becomes a gap, and the tables must be copied again",
                f"If that is meant: penstock slots drop {file} --yes",
            )
        drop_slot(connection, name)
    end = lsn_text(slot.confirmed_flush_lsn) if slot.confirmed_flush_lsn is not None else "unknown"
    console.print(
        f"dropped slot {name} at {endpoint(url)}; the server let go of {slot.retained_bytes:,} bytes of WAL",
        markup=False,
    )
    console.print(f"changes after {end} are not captured: what follows the log's end is a gap", markup=False)

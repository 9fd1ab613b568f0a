"""`penstock reset FILE`: start over after a gap, after a plain warning."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.arguments import PipelineFile, Source
from penstock.cli.terminal import stdout
from penstock.config.load import load
from penstock.control.reset import Standing, look
from penstock.control.reset import reset as start_over
from penstock.errors import UsageError


def reset(
    file: PipelineFile,
    source: Source = None,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, remove slot and log, and copy all tables again.")] = False,
) -> None:
    """Start over after a gap: drop the slot, remove the change log, and have every table copied again.

    Readers see each table as it is until its copy replaces it. Tables that keep their past (history, append, events)
    keep it; what a table of these holds from a history that the server no longer has stays there.
    """
    pipeline = load(file)
    source_views = pipeline.source_views if source is None else [pipeline.source_view(source)]
    if not yes:
        what = "; ".join(_would(look(view)) for view in source_views)
        raise UsageError(
            f"a reset cannot be undone: {what}",
            f"If that is meant: penstock reset {file}{f' --source {source}' if source else ''} --yes",
        )
    for found in start_over(pipeline, source_views):
        stdout().print(_done(found), markup=False)
    stdout().print(f"run it: penstock run {file}", markup=False)


def _would(found: Standing) -> str:
    kept = found.retention
    slot = f"drops {kept.name} at {found.endpoint}" if kept else f"finds no slot at {found.endpoint}"
    return f"it {slot}, removes {found.log_bytes:,} bytes of {found.view.log_uri} and copies {_all(found)} again"


def _done(found: Standing) -> str:
    kept = found.retention
    slot = f"dropped {kept.name} at {found.endpoint}" if kept else f"no slot at {found.endpoint}"
    return f"{slot}; removed {found.log_bytes:,} bytes of {found.view.log_uri}; the next run copies {_all(found)} again"


def _all(found: Standing) -> str:
    return f"all {found.tables} tables" if found.tables != 1 else "its table"

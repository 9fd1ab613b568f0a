"""`penstock status FILE`: show the pipeline as it is, whether or not it runs."""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from typing import Annotated

import typer
from rich.live import Live

from penstock.cli.arguments import PipelineFile
from penstock.cli.terminal import stdout
from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.control.readiness import troubles
from penstock.control.status.gather import Observer, gather, together
from penstock.control.status.view import as_json, as_text
from penstock.errors import UsageError

WATCH_EVERY = 2.0


def status(
    file: PipelineFile,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds, until Ctrl-C.")] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit 1 unless the pipeline runs, no table is Errored and all arrive.")
    ] = False,
) -> None:
    """Show tables, lag, slot, log, and errors with the way out.

    Exit 0 as long as it could look, even while source or pipeline are down: what is unknown is shown as such. With
    --exit-code that is for scripts to know: 1 when an operator should look, for the reasons on standard error.
    """
    pipeline = load(file)
    if watch:
        if json_output or exit_code:
            raise UsageError("--watch is for people", "Leave --json and --exit-code out")
        _watch(pipeline)
        return
    found = gather(pipeline)
    if json_output:
        typer.echo(json.dumps(as_json(found), indent=2, ensure_ascii=False))
    else:
        stdout().print(as_text(found))
    wrong = troubles(pipeline, found) if exit_code else []
    for what in wrong:
        sys.stderr.write(f"{what}\n")
    if wrong:
        raise typer.Exit(1)


def _watch(pipeline: Pipeline) -> None:
    with ExitStack() as opened:
        observers = [opened.enter_context(Observer(view)) for view in pipeline.source_views]
        live = opened.enter_context(Live(console=stdout(), auto_refresh=False, screen=sys.stdout.isatty()))
        try:
            while True:
                seen = [observer.look() for observer in observers]
                live.update(as_text(together(pipeline, seen) if pipeline.is_scoped else seen[0]), refresh=True)
                time.sleep(WATCH_EVERY)
        except KeyboardInterrupt:
            return

"""`penstock pause` and `penstock resume`: have a pipeline, a destination or tables stand still, and go on."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.arguments import Destination, PipelineFile
from penstock.cli.terminal import say_when, stdout
from penstock.config.load import load
from penstock.control import pauses

Tables = Annotated[
    list[str] | None,
    typer.Option("--table", metavar="TABLE", help="Only this table, or those of a pattern; may be given again."),
]


def pause(file: PipelineFile, destination: Destination = None, table: Tables = None) -> None:
    """Let the pipeline, a destination or tables stand still until `penstock resume`, also across restarts.

    Capture goes on: the change log keeps what is to be applied later, and no WAL piles up at the source.
    """
    done = pauses.pause(load(file), destination, table or [])
    _say(done.changed, "is paused")
    _say(done.before, "was paused already")
    say_when(file, done.pid)


def resume(file: PipelineFile, destination: Destination = None, table: Tables = None) -> None:
    """Let what was paused go on, from where it stopped. Name it as it was named to `penstock pause`."""
    pipeline = load(file)
    done = pauses.resume(pipeline, destination, table or [])
    _say(done.changed, "goes on")
    _say(done.before, "was not paused")
    _say([one.what for one in pauses.pauses_of(pipeline)], "is still paused")
    if done.changed:
        say_when(file, done.pid)


def _say(named: list[str] | tuple[str, ...], what: str) -> None:
    for one in named:
        stdout().print(f"{one} {what}", markup=False)

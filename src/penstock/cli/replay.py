"""`penstock replay FILE --destination D --from LSN|TIME`: publish what the change log keeps to a stream once more."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from penstock.cli.arguments import PipelineFile, Source
from penstock.cli.run import LogLevel, log_to_stderr
from penstock.config.load import load
from penstock.control.replay import replay as replay_log
from penstock.control.text.positions import parse_position_or_time
from penstock.model.position import position_text


def replay(
    file: PipelineFile,
    destination: Annotated[
        str, typer.Option("--destination", metavar="NAME", help="Where to publish to.", show_default=False)
    ],
    since: Annotated[
        str, typer.Option("--from", metavar="LSN|TIME", help="From this position or moment on.", show_default=False)
    ],
    until: Annotated[
        str | None, typer.Option("--to", metavar="LSN|TIME", help="Up to there; to the log's end now without.")
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", metavar="TABLE", help="Only this one; may be given several times.")
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(
            "--into", metavar="PATTERN", help="In a destination of tables: new tables for the events, 'audit.{table}'."
        ),
    ] = None,
    source: Source = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Publish changes that the change log still has to a stream again, with the ids that they had.

    The run may be up: the events come behind what it has published by then, and its own place is not touched. A replay
    that was killed goes on where it stopped when the same command is given again. `log.replay` in the file says how
    much the log keeps. Tables that are followed are never made older: in a destination of tables, --into names
    new ones, which get the events.
    """
    log_to_stderr(LogLevel.WARNING, file=str(file))
    done = replay_log(
        load(file),
        source=source,
        destination=destination,
        tables=table or [],
        since=parse_position_or_time("--from", since),
        until=None if until is None else parse_position_or_time("--to", until),
        into=into,
        say=lambda text: typer.echo(text, err=True),
    )
    if json_output:
        shown = {"events": done.events, "from": position_text(done.first), "to": position_text(done.last)}
        typer.echo(json.dumps({**shown, "left_out": list(done.left_out)}, ensure_ascii=False))
        return
    place = f"{position_text(done.first)} to {position_text(done.last)}"
    where = destination if into is None else f"{into} of {destination}"
    typer.echo(f"published {done.events:,} events to {where} again, from {place}")
    for text in done.left_out:
        typer.echo(f"left out: {text}")

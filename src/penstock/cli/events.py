"""`penstock events FILE TABLE`: print an events table as JSON lines, from a position on."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock.cli.arguments import Destination, PipelineFile
from penstock.config.load import load
from penstock.control.query.events import events_feed, lines, parse_place
from penstock.control.query.spark_sql import reading_session


def events(
    file: PipelineFile,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="As `penstock tables` shows it.")],
    after: Annotated[
        str | None, typer.Option(metavar="LSN", help="Go on behind the line with this `lsn`; from the start without.")
    ] = None,
    destination: Destination = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most so many; all without.")] = None,
) -> None:
    """Print a table's events as lines of JSON, in the order in which they happened."""
    pipeline = load(file).destination_view(destination)
    place = None if after is None else parse_place(after)
    feed = events_feed(pipeline, table)
    with reading_session(pipeline) as spark:
        for line in lines(spark, pipeline.lake.name, feed, place, limit):
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

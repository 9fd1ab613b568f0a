"""`penstock events FILE [TABLE…]`: print events as lines of JSON, from the change log or from an events table."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import islice
from typing import Annotated

import typer

from penstock.cli.arguments import Destination, PipelineFile
from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.control.query.log_events import EVERYTHING, LogEvents, asked, events_table, parse_after
from penstock.errors import UsageError
from penstock.model.feed import Feed
from penstock.render.format import ENVELOPES, Envelope, EventFormat


def events(
    file: PipelineFile,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE]…", help="As `penstock tables` shows them; all without.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(metavar="|".join(ENVELOPES), help="How events are written; native without."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until interrupted.")] = False,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE|LSN|TIME", help="Go on behind this event, transaction or time; from the start without."
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Also begin, commit, ddl, relation and message, as far as a stream of the file asks for them."
        ),
    ] = False,
    destination: Destination = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most so many; all without.")] = None,
) -> None:
    """Print events as lines of JSON, in the order in which they happened."""
    if format is not None and format not in ENVELOPES:
        raise UsageError(f"--format {format} is unknown", f"It may be {', '.join(ENVELOPES)}")
    pipeline = load(file).only(destination)
    behind = EVERYTHING if after is None else parse_after(after)
    source, feeds = asked(pipeline, tables or [])
    kept = events_table(source, feeds)
    if kept is not None and format is None and not follow and not everything and behind.moment is None:
        _print_table(next(one for one in source.destination_views if kept in one.feeds(kept.table)), kept, after, limit)
        return
    made = next((one for one in ENVELOPES if one == format), ENVELOPES[0])
    log = LogEvents(
        source, feeds, EventFormat(Envelope(made), split_moves=made != "faucet"), _warn, everything=everything
    )
    if log.reaches(behind) or after is None:
        _print(log.lines(behind, follow=follow), limit)
    elif behind.moment is not None:
        _warn(f"the change log begins at {log.start_text}, later than {after}: it does not have what was before")
        _print(log.lines(EVERYTHING, follow=follow), limit)
    else:
        older = "" if kept is None else f"; without --format, `penstock events` reads the events table {kept.target}"
        raise UsageError(
            f"the change log begins at {log.start_text}: it no longer has what follows {after}",
            f"Leave --after out, for what the log still has{older}",
        )


def _warn(said: str) -> None:
    sys.stderr.write(f"penstock: {said}\n")


def _print_table(pipeline: Pipeline, feed: Feed, after: str | None, limit: int | None) -> None:
    # Spark takes a second to import: only those who need it wait.
    from penstock.control.query.events import lines, parse_place  # noqa: PLC0415
    from penstock.control.query.spark_sql import reading_session  # noqa: PLC0415
    from penstock.destinations.factory import make_readable  # noqa: PLC0415

    place = None if after is None else parse_place(after)
    with reading_session(pipeline) as spark:
        _print(lines(spark, make_readable(pipeline.lake), feed, place, limit), limit)


def _print(lines: Iterable[str], limit: int | None) -> None:
    try:
        for line in islice(lines, limit):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    except KeyboardInterrupt:
        return

"""Whether a destination that is a server answers, and lets us do what a run needs: for `penstock check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.config.destinations import TableSection
from penstock.config.model import Pipeline
from penstock.destinations.factory import make_readable
from penstock.errors import PenstockError
from penstock.model.table import TableId
from penstock.source.finding import Finding


def check_postgres(destination: TableSection) -> Iterator[Finding]:
    """Connect to a Postgres destination, and look at its rights and whether it takes writes."""
    try:
        problems = make_readable(destination).problems()
    except PenstockError as error:
        yield Finding("error", error.what, error.solution)
        return
    for what, solution in problems:
        yield Finding("error", f"destination {destination.name}: {what}", solution)


def check_tables_there(view: Pipeline, tables: Iterable[TableId]) -> Iterator[Finding]:
    """Report what the first run would do with tables that a destination has, or lacks.

    `view` is the pipeline as one source and one destination see it; its tables at the source are `tables`.
    """
    destination = view.destination
    if not isinstance(destination, TableSection):
        return
    feeds = [feed for table in tables for feed in view.feeds(table)]
    try:
        found = make_readable(destination).foreseen(feeds)
    except PenstockError:
        return  # `check_postgres` says what is wrong
    for one in found:
        what = f"destination {destination.name}: {one.what}"
        yield Finding("error" if one.fatal else "warning", what, one.solution, one.target)

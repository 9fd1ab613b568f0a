"""Whether a destination that is a server answers, and lets us do what a run needs: for `penstock check`."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.config.destinations import TableSection
from penstock.destinations.factory import make_readable
from penstock.errors import PenstockError
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

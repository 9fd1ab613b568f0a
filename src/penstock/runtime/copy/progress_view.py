"""Show how copies fare: what the copier reports, and who looks at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from penstock.model.scoped_name import ScopedName
from penstock.model.table import TableId

Named = TypeVar("Named", contravariant=True)  # how a table is named: within a source, or among all


@dataclass(frozen=True)
class CopyFigures:
    """What is copied by now, of about how much. An estimate that is not known is None; a size, 0."""

    rows: int
    rows_estimate: int | None
    bytes_done: int
    bytes_total: int


class View(Protocol[Named]):
    """Show operators how copies fare. May be called from any thread."""

    def update(self, destination: str, table: Named, figures: CopyFigures) -> None: ...

    def finish(self, destination: str, table: Named) -> None: ...

    def drop(self, destination: str, table: Named) -> None: ...


ProgressView = View[TableId]
ScopedProgressView = View[ScopedName]


class ScopedProgress:
    """Report the copies of one source to a view of all sources."""

    def __init__(self, view: ScopedProgressView, source: str | None) -> None:
        self._view, self._source = view, source

    def update(self, destination: str, table: TableId, figures: CopyFigures) -> None:
        self._view.update(destination, ScopedName(self._source, table), figures)

    def finish(self, destination: str, table: TableId) -> None:
        self._view.finish(destination, ScopedName(self._source, table))

    def drop(self, destination: str, table: TableId) -> None:
        self._view.drop(destination, ScopedName(self._source, table))


class Unseen:
    """Progress that nobody looks at."""

    def update(self, destination: str, table: object, figures: CopyFigures) -> None: ...

    def finish(self, destination: str, table: object) -> None: ...

    def drop(self, destination: str, table: object) -> None: ...

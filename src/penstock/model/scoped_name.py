"""The name of a feed among all sources of a pipeline, as operators read and write it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.table import TableId


@dataclass(frozen=True, order=True)
class ScopedName:
    """A feed's name and the source that it is of; None when the pipeline has one source only.

    `str()` gives `eu:public.orders`, or `public.orders` when there is one source.
    """

    source: str | None
    name: TableId

    def __str__(self) -> str:
        return str(self.name) if self.source is None else f"{self.source}:{self.name}"

"""The files that a table consists of at one moment: plain values, without Java, so that executors may have them too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Bounds:
    """Between which values a column of a file is, both included, as its writer says."""

    column: int
    low: int | bytes
    high: int | bytes


@dataclass(frozen=True)
class LiveFile:
    """A file of the current snapshot.

    `hits` counts a delete file's entries by data file; None until somebody counted. `bounds` are those of the column
    that came first in the table's key when the file was read or written.
    """

    path: str
    records: int
    size: int
    sequence: int
    content: str  # data, position-deletes, or what is not ours: equality-deletes, deletion vectors
    spec: int
    hits: Mapping[str, int] | None = None
    bounds: Bounds | None = None


@dataclass(frozen=True)
class TableState:
    metadata: str  # location of the metadata file
    snapshot: int | None
    sequence: int
    snapshots: int  # how many the table still has
    data: tuple[LiveFile, ...]
    deletes: tuple[LiveFile, ...]

    def after(
        self,
        metadata: str,
        snapshot: int | None,
        sequence: int,
        added: Sequence[LiveFile],
        removed: frozenset[str] | None = frozenset(),
    ) -> TableState:
        """Return the state that our own commit made. `removed` None: all that was there."""

        def carried(files: tuple[LiveFile, ...], *, are_data: bool) -> tuple[LiveFile, ...]:
            kept = () if removed is None else tuple(file for file in files if file.path not in removed)
            return kept + tuple(file for file in added if (file.content == "data") == are_data)

        return TableState(
            metadata,
            snapshot,
            sequence,
            self.snapshots + (snapshot != self.snapshot),
            carried(self.data, are_data=True),
            carried(self.deletes, are_data=False),
        )

    def counted(self, hits: Mapping[str, Mapping[str, int]]) -> TableState:
        """With what the entries of delete files point to."""
        return replace(
            self,
            deletes=tuple(replace(file, hits=hits[file.path]) if file.path in hits else file for file in self.deletes),
        )

    @property
    def only_positional(self) -> bool:
        """Whether every delete is one that we understand: somebody else may have written others."""
        return all(file.content == "position-deletes" and file.path.endswith(".parquet") for file in self.deletes)

"""The tables that a lake destination has opened, and where what this machine keeps of them lies.

Each format's `tables` builds on it: that finds tables, makes them, and reads their state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Generic, TypeVar

from penstock.destinations.lake.deferred_deletes import DeferredDeletes
from penstock.destinations.lake.file_list import TableState
from penstock.destinations.lake.index_room import IndexRoom
from penstock.destinations.lake.key_index import KeyIndex
from penstock.destinations.lake.known_table import KnownTable
from penstock.destinations.lake.recorded_structure import Move
from penstock.destinations.lake.settings import LakeSettings
from penstock.destinations.lake.storage import reaching, safe_name
from penstock.destinations.lake.warehouse import require_warehouse
from penstock.errors import TableDropped
from penstock.model.table import TableId

Settings = TypeVar("Settings", bound=LakeSettings)
Opened = TypeVar("Opened", bound=KnownTable)


class KnownTables(ABC, Generic[Settings, Opened]):
    """`index` is the folder of the destination's key indexes."""

    def __init__(self, settings: Settings, index: Path) -> None:
        self._settings, self._index = settings, index
        self._tables: dict[tuple[TableId, str], Opened] = {}

    @abstractmethod
    def current(self, target: TableId, source: str) -> tuple[Opened, TableState]:
        """Return the table and its state as it is now."""

    def known(self, target: TableId, source: str) -> Opened:
        """Return a table that `ensure` has opened, as it was when somebody last looked.

        TableDropped if it never has.
        """
        opened = self._tables.get((target, source))
        if opened is None:
            raise TableDropped(
                f"table {target} has not been made at the destination", "Nothing: it is copied again by itself"
            )
        return opened

    def presumed(self, target: TableId, source: str) -> tuple[Opened, TableState]:
        """Return the table as our own last commit left it, without looking, if nobody else is known to write to it.

        A commit on a base that has changed meanwhile is refused, and then the table is looked at.
        """
        opened = self.known(target, source)
        if opened.state is None or opened.slice is not None or opened.look_again or opened.has_others:
            return self.current(target, source)
        require_warehouse(self._settings)
        return opened, opened.state

    def forget(self) -> None:
        """Forget all tables and remove merged files that were not committed, once nothing runs beside batches."""
        for opened in self._tables.values():
            if opened.upkeep.merging is not None:
                with reaching(f"table {opened.target}: merged files cannot be removed"):
                    opened.upkeep.merging.discard()
        self._tables.clear()

    def index_of(self, opened: Opened, move: Move | None = None) -> KeyIndex:
        """Return the table's key index, as it is after a move of its structure."""
        folder = self._folder(opened.target)
        folder = folder if opened.slice is None else folder / opened.slice.folder
        kept = move.kept if move else opened.following.kept
        whole = opened.layout.holds_rows and kept.by_row
        columns = move.columns if move else opened.columns
        room = IndexRoom(self._index, self._settings.maintenance.key_index)
        return KeyIndex(folder, kept.key, row=columns if whole else (), room=room)

    def swept_marker(self, opened: Opened) -> Path:
        """Return the file whose time says when the table's folder was last swept."""
        folder = self.index_of(opened).folder
        return folder.with_name(f"{folder.name}.swept")

    def _deferred_deletes(self, target: TableId) -> DeferredDeletes:
        """Of the whole table, whichever source's upkeep let the files go."""
        folder = self._folder(target)
        return DeferredDeletes(folder.with_name(f"{folder.name}.leaving"))

    def _folder(self, target: TableId) -> Path:
        return self._index / safe_name(target.schema) / safe_name(target.name)

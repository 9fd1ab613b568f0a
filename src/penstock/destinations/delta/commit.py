"""Strict commits: an entry of the log that is made only if nothing has changed since its base was read.

What an entry consists of is put together here: structure, files that come and go, dead rows, position. A data file has
one deletion vector, so rows that die are joined with those that are dead already, and a file whose rows are all dead
just goes. The vectors' file is written before the entry; one whose entry was refused is removed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyroaring import BitMap

from penstock.destinations.delta.actions import Action, AddedFile, add_file, transaction
from penstock.destinations.delta.data_files import named_rows
from penstock.destinations.delta.evolution import structure_after
from penstock.destinations.delta.open_table import OpenTable, entry_app, moment_app, position_app, stored_position
from penstock.destinations.delta.structure import Structure
from penstock.destinations.delta.vectors import Vector, dead_rows, write_vectors
from penstock.destinations.lake.data_files import WrittenFile
from penstock.destinations.lake.properties import structure_property
from penstock.destinations.lake.recorded_structure import Move
from penstock.destinations.lake.source_partition import Turn
from penstock.destinations.lake.storage import reaching, remove
from penstock.destinations.lake.upsert_plan import LakePart
from penstock.errors import CommitUnknown, PenstockError, StaleBase, TableDropped
from penstock.model.position import Position


class Entry:
    """The entry that follows a base, while it is put together; `put` makes it. Its caller holds the table's turn."""

    def __init__(self, opened: OpenTable) -> None:
        self._opened, self._log = opened, opened.log
        self._structure = opened.structure
        self._properties: dict[str, str] = {}
        self._files: list[Action] = []
        self._transactions: dict[str, int] = {}
        self._written: list[str] = []  # files of vectors
        self.columns_changed = False

    def evolve(self, move: Move) -> None:
        """Move the table's structure on. Rows that are added in the same entry are of the new one."""
        self._structure = structure_after(self._opened, move)
        self.columns_changed = bool(move.steps)
        self._properties[structure_property(self._opened.source)] = move.recorded.to_json()

    def become(self, structure: Structure) -> None:
        self._structure, self.columns_changed = structure, True

    def rescue(self, parts: Sequence[LakePart], refused: type[PenstockError] = StaleBase) -> None:
        """Add the column RESCUED to the table, if it has none and a part brings it.

        It must have the number under which the part's file was written: `refused` if it does not.
        """
        needed = {part.rescued_as.numbers for part in parts if part.rescued_as is not None}
        if not needed:
            return
        with_rescued = self._structure.with_rescued()
        self.columns_changed |= with_rescued is not self._structure
        self._structure = with_rescued
        if needed != {self._structure.rescued().numbers}:
            raise refused(
                f"table {self._opened.target}: its columns have changed since rows were written for it",
                "What was written is void, and written again",
            )

    def set_properties(self, properties: Mapping[str, str]) -> None:
        self._properties |= properties

    def stand(self, position: Position | None = None, moment: int | None = None) -> None:
        """Set the source's position, if it moves, and note that it stands on this entry."""
        source = self._opened.source
        self._transactions[entry_app(source)] = self._log.version + 1
        if position is not None:
            self._transactions[position_app(source)] = stored_position(position)
        if moment is not None:
            self._transactions[moment_app(source)] = moment

    def note(self, app: str, number: int) -> None:
        self._transactions[app] = number

    def change(self, parts: Sequence[LakePart]) -> None:
        """Rows come, and rows of files that are there die."""
        dead = named_rows(self._opened.root, [part.delete.path for part in parts if part.delete is not None])
        if dead:
            self._end(dead)
        self._add([file for part in parts for file in part.added])

    def replace(self, parts: Sequence[LakePart]) -> None:
        """All files of the source go. Rows come, of which some may be dead already."""
        self._files += [file.remove() for file in self._opened.files()]
        added = [file for part in parts for file in part.added]
        dead = named_rows(self._opened.root, [part.delete.path for part in parts if part.delete is not None])
        self._add(added, dead)

    def rewrite(self, removed: Iterable[AddedFile], added: Sequence[WrittenFile], dead: Mapping[str, BitMap]) -> None:
        """Put the same rows into other files: readers of changes may pass over it."""
        self._files += [file.remove(changes=False) for file in removed]
        self._add(added, dead, changes=False)

    def _end(self, dead: Mapping[str, BitMap]) -> None:
        """Rows of files that the table has die."""
        root, there = self._opened.root, {file.location: file for file in self._opened.files()}
        changed: dict[str, BitMap] = {}
        for location, rows in dead.items():
            file = there.get(location)
            if file is None:
                raise StaleBase(f"table {self._opened.target}: {location} is gone", "It is read again")
            before = BitMap() if file.vector is None else dead_rows(root, file.vector)
            after = before | rows
            if len(after) == len(before):
                continue
            self._files.append(file.remove())
            if len(after) < file.records:
                changed[location] = after
        vectors = self._vectors(changed)
        self._files += [there[location].with_vector(vector) for location, vector in vectors.items()]

    def _add(
        self, files: Sequence[WrittenFile], dead: Mapping[str, BitMap] | None = None, *, changes: bool = True
    ) -> None:
        """Files of ours come; one whose rows are all dead does not."""
        ended = dead or {}
        alive = [file for file in files if len(ended.get(file.path, ())) < file.records]
        vectors = self._vectors({file.path: ended[file.path] for file in alive if file.path in ended})
        root, own = self._opened.root, self._opened.partition
        for file in alive:
            vector = vectors.get(file.path)
            self._files.append(add_file(file, root, partition=own, vector=vector, changes=changes))

    def _vectors(self, dead: Mapping[str, BitMap]) -> Mapping[str, Vector]:
        vectors, file = write_vectors(self._opened.root, dead)
        self._written += [] if file is None else [file]
        return vectors

    def put(self, operation: str, what: str) -> None:
        """Make the entry. StaleBase if somebody was quicker, CommitUnknown if nobody can say."""
        opened, log = self._opened, self._log
        start = log.name
        structure = self._structure.actions(log.state, self._properties) if self._changes_structure else []
        moved = [transaction(app, number) for app, number in self._transactions.items()]
        try:
            log.put([*structure, *self._files, *moved], operation)
        except (StaleBase, TableDropped) as error:
            self.discard()
            opened.has_others, opened.look_again = True, True
            raise StaleBase(f"{what}: {error.what}", "It is read again, and the work redone") from error
        except CommitUnknown:
            opened.state = None
            raise
        except BaseException:
            self.discard()
            raise
        opened.turns.note(log.name, Turn(start, opened.source, self.columns_changed))
        opened.structure = Structure.of(log.state) if structure else opened.structure

    @property
    def _changes_structure(self) -> bool:
        return bool(self._properties) or self.columns_changed

    def discard(self) -> None:
        """Remove what was written for an entry that was not made."""
        with reaching(f"table {self._opened.target}: a file of deletion vectors cannot be removed"):
            for file in self._written:
                remove(file)


def require_base(opened: OpenTable, base: str, what: str, *, same_columns: bool = False) -> None:
    """Raise StaleBase unless the log, as this process knows it, is at `base`.

    It may also differ from it by what this process has committed for other sources (`same_columns`: without a change of
    columns).
    """
    if not opened.turns.spans(base, opened.log.name, opened.source, same_columns=same_columns):
        opened.has_others = True
        raise StaleBase(
            f"{what}: the table has changed since its state was read", "It is read again, and the work redone"
        )

"""Strict commits: a change of a table that succeeds only if nothing has changed since its base was read.

Iceberg retries: a transaction that lost a race is applied again on the new state, without asking whether it still
makes sense there. So every transaction of ours begins with an empty schema update. Its base is fixed when it is made;
applied again on any other state it fails, and with it the transaction: a compare-and-set on the whole table. The
transaction's own base is compared with the plan's before anything is written. RowDelta's validations are asked for as
well: they hold even where a catalog compares less. Rows, deletes and position are one transaction, hence one step for
readers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.decode.rescue import RESCUED
from penstock.decode.schema import arrow_schema
from penstock.destinations.iceberg.columns import rescued_column, rescued_schema
from penstock.destinations.iceberg.evolution import evolve, identifiers_after, united_columns
from penstock.destinations.iceberg.java import Java, JavaObject, present, translated
from penstock.destinations.iceberg.lineage import lineage_property, lineage_text
from penstock.destinations.iceberg.open_table import OpenTable, held_files, live
from penstock.destinations.iceberg.source_partition import partition_json
from penstock.destinations.lake.data_files import WrittenFile
from penstock.destinations.lake.file_list import LiveFile, TableState
from penstock.destinations.lake.properties import structure_property
from penstock.destinations.lake.recorded_structure import Move, Recorded
from penstock.destinations.lake.source_partition import Turn
from penstock.destinations.lake.upsert_plan import LakePart
from penstock.destinations.structure import Steps
from penstock.errors import DestinationError, PenstockError, StaleBase, TableDropped, TableError
from penstock.model.feed import Sid
from penstock.model.table import TableSchema


class StrictTransaction:
    """One transaction on a table whose base is the given metadata file. Made by `strict`."""

    def __init__(self, java: Java, opened: OpenTable, transaction: JavaObject, start: JavaObject) -> None:
        self._java, self._opened, self._transaction, self._start = java, opened, transaction, start
        snapshot = start.currentSnapshot()
        self._snapshot: int | None = None if snapshot is None else snapshot.snapshotId()
        self.base: str = start.metadataFileLocation()
        self.columns_changed = False

    def set_properties(self, properties: Mapping[str, str]) -> None:
        update = self._transaction.updateProperties()
        for key, value in properties.items():
            update.set(key, value)
        update.commit()

    def stand(self, properties: Mapping[str, str]) -> None:
        """Set the source's position, with the snapshot that holds it.

        Comes last: it must be the snapshot that the transaction makes.
        """
        snapshot = self._transaction.table().currentSnapshot()
        self.set_properties({**properties, lineage_property(self._opened.source): lineage_text(snapshot)})

    def evolve(self, move: Move, source: str) -> None:
        """Move the table's structure on. Rows that are added in the same transaction are of the new one."""
        if move.steps or set(self._transaction.table().schema().identifierFieldNames()) != identifiers_after(move):
            evolve(self._java, self._transaction, move.steps, identifiers_after(move))
            self.columns_changed = True
        self.set_properties({structure_property(source): move.recorded.to_json()})

    def take_in(self, schema: TableSchema, steps: Steps, sid: Sid) -> None:
        """Add a source to those that feed the table: its columns are there, and it follows them."""
        if steps:
            marked = set(self._transaction.table().schema().identifierFieldNames())
            evolve(self._java, self._transaction, steps, marked)
            self.columns_changed = True
        found = self._java.schemas.toJson(self._transaction.table().schema())
        kept = self._opened.layout.kept(schema)
        columns, _ = united_columns(found, arrow_schema(kept), sid)
        fields = {one.number: column.id for one, column in zip(kept.columns, columns, strict=True)}
        self.set_properties({structure_property(self._opened.source): Recorded(schema, kept, fields).to_json()})

    def rescue(self, parts: Sequence[LakePart], refused: type[PenstockError] = StaleBase) -> None:
        """Add the column RESCUED to the table, if it has none and a part brings it.

        It must get the number under which the part's file has it: `refused` if it does not.
        """
        needed = {part.rescued_as.numbers for part in parts if part.rescued_as is not None}
        if not needed:
            return
        there = self._transaction.table().schema()
        if there.findField(RESCUED) is None:
            update = self._transaction.updateSchema()
            update.addColumn(RESCUED, self._java.schemas.fromJson(rescued_schema()).findType(RESCUED))
            there = update.apply()
            update.commit()
            self.columns_changed = True
        made = rescued_column(self._java.schemas.toJson(there))
        if made is None or needed != {made.numbers}:
            raise refused(
                f"table {self._opened.target}: its columns have changed since rows were written for it",
                "What was written is void, and written again",
            )

    def mark(self) -> None:
        """Add an empty snapshot, which makes the change strict where a catalog compares snapshots and nothing else."""
        self._scanning(self._transaction.newAppend()).commit()

    def row_delta(self, parts: Sequence[LakePart]) -> None:
        """Rows and positional deletes."""
        delta = self._scanning(self._transaction.newRowDelta())
        referenced: set[str] = set()
        for part in parts:
            for file in part.added:
                delta.addRows(self._added(file))
            if part.delete is not None:
                delta.addDeletes(self._added(part.delete))
                referenced.update(part.delete.hits)
        if self._snapshot is not None:
            delta.validateFromSnapshot(self._snapshot)
        delta.validateNoConflictingDataFiles()
        delta.validateNoConflictingDeleteFiles()
        if referenced:
            delta.validateDataFilesExist(self._java.strings(referenced))
        delta.commit()

    def replace_all(self, parts: Sequence[LakePart]) -> None:
        """Remove everything of the source and add rows: a truncated table."""
        overwrite = self._scanning(self._transaction.newOverwrite())
        overwrite.overwriteByRowFilter(self._of_this_source)
        for part in parts:
            for file in part.added:
                overwrite.addFile(self._added(file))
        if self._snapshot is not None:
            overwrite.validateFromSnapshot(self._snapshot)
        overwrite.conflictDetectionFilter(self._java.always_true)
        overwrite.validateNoConflictingData()
        overwrite.validateNoConflictingDeletes()
        overwrite.commit()

    def replace_by_copy(self, parts: Sequence[LakePart]) -> None:
        """Remove everything of the source; add rows, and positional deletes into files of the same commit."""
        delta = self._scanning(self._transaction.newRowDelta())
        for part in parts:
            for file in part.added:
                delta.addRows(self._added(file))
            if part.delete is not None:
                delta.addDeletes(self._added(part.delete))
        snapshot = self._start.currentSnapshot()
        if snapshot is not None:
            data, deletes = held_files(self._java, self._opened.table, snapshot, self._opened.slice)
            for file in data:
                delta.removeRows(file)
            for file in deletes:
                delta.removeDeletes(file)
            delta.validateFromSnapshot(snapshot.snapshotId())
        delta.validateDeletedFiles()
        delta.validateNoConflictingDataFiles()
        delta.validateNoConflictingDeleteFiles()
        delta.commit()

    def rewrite(
        self, removed: Sequence[LiveFile], added: Sequence[WrittenFile], sequence: int, late: Sequence[WrittenFile] = ()
    ) -> None:
        """Replace files by others with the same rows, which count as old as `sequence`.

        `late` are delete files that count as old as the base snapshot.
        """
        rewrite = self._scanning(self._transaction.newRewrite())
        rewrite.validateFromSnapshot(self._snapshot).dataSequenceNumber(sequence)
        for file in removed:
            rewrite.deleteFile(self._java.content_file({**_description(file), **self._partition}, self._opened.specs))
        for written in added:
            if written.description["content"] == "data":
                rewrite.addFile(self._added(written))
            else:
                rewrite.addFile(self._added(written), sequence)
        newest = self._start.lastSequenceNumber()
        for written in late:
            rewrite.addFile(self._added(written), newest)
        rewrite.commit()

    def base_property(self, name: str) -> str | None:
        """Return it as it was in the base."""
        found: str | None = self._start.properties().get(name)
        return found

    def _scanning(self, update: JavaObject) -> JavaObject:
        """Manifests of a local table are read and written here and now; those of a remote one by Iceberg's threads."""
        if not self._opened.is_local:
            return update
        return update.scanManifestsWith(self._java.at_once).writeManifestsWith(self._java.at_once, 1)

    def _added(self, file: WrittenFile) -> JavaObject:
        return self._java.content_file({**placed(file, self._opened), **self._partition}, self._opened.specs)

    @property
    def _partition(self) -> Mapping[str, Any]:
        return {} if self._opened.slice is None else partition_json(self._opened.slice)

    @property
    def _of_this_source(self) -> JavaObject:
        own = self._opened.slice
        return self._java.always_true if own is None else self._java.expressions.equal(own.column.name, own.value)


def placed(file: WrittenFile, opened: OpenTable) -> dict[str, Any]:
    """Return the description of a file of ours, under the table's partition spec."""
    return {**file.description, "spec-id": opened.spec}


@contextmanager
def strict(
    java: Java, opened: OpenTable, base: str, what: str, *, same_columns: bool = False, staged: JavaObject | None = None
) -> Iterator[StrictTransaction]:
    """Open a transaction on exactly the metadata file `base`, and commit it at the end of the block.

    The metadata may also differ from `base` by what this process has committed for other sources (`same_columns`:
    without a change of columns). Commits of one table take turns. With `staged` operations the transaction is only made
    ready: nobody sees it yet, and whoever makes it visible holds the table's turn until then, and notes it.

    StaleBase: refused, nothing changed. CommitUnknown: nobody can say. `carried_on` gives the state afterwards.
    """
    try:
        with opened.turns.lock:
            with translated(what):
                # Either reads the table's current state
                transaction = (
                    opened.table.newTransaction()
                    if staged is None
                    else java.transactions.newTransaction(str(opened.target), staged)
                )
                begun = present(transaction.startMetadata(), opened.target)
                start = begun.metadataFileLocation()
                if not opened.turns.spans(base, start, opened.source, same_columns=same_columns):
                    raise refused_base(opened, what)
                transaction.updateSchema().commit()
                ours = StrictTransaction(java, opened, transaction, begun)
                yield ours
            with translated(what, deciding=staged is None):
                transaction.commitTransaction()
            if staged is None:
                note_turn(opened, start, columns=ours.columns_changed)
    except TableDropped as error:
        raise StaleBase(f"{what}: the table is gone: {error}", "It is looked for again") from error


def refused_base(opened: OpenTable, what: str) -> StaleBase:
    """Note that somebody else has written to the table, and return the error that refuses our change."""
    opened.has_others = True
    return StaleBase(f"{what}: the table has changed since its state was read", "It is read again, and the work redone")


def note_turn(opened: OpenTable, start: str, *, columns: bool) -> None:
    """Remember that what follows the metadata file `start` was made for this source.

    Not to know costs others a redo.
    """
    if opened.slice is None:
        return
    try:
        with translated(f"table {opened.target}: its new state cannot be read"):
            metadata = present(opened.operations.current(), opened.target)
            history = metadata.previousFiles()
            if history.size() and history.get(history.size() - 1).file() == start:
                opened.turns.note(metadata.metadataFileLocation(), Turn(start, opened.source, columns))
    except (DestinationError, TableError):
        return


@dataclass(frozen=True)
class Found:
    """What a table's current metadata file says of the commit that made it; of no snapshot, if there is none."""

    metadata: str
    previous: str  # the metadata file before it
    snapshot: int | None = None
    sequence: int = 0
    data: int = 0
    deletes: int = 0


def carried_on(
    java: Java,
    opened: OpenTable,
    before: TableState,
    added: Sequence[WrittenFile] = (),
    removed: frozenset[str] | None = frozenset(),
    *,
    aged: int | None = None,
) -> TableState | None:
    """Return the state that our own commit made of `before`.

    None if the table is not what we think: then it must be read again. `removed` None: all files that were there.
    `aged`: the sequence number that the added files have; None: a new one.
    """
    try:
        with translated(f"table {opened.target}: its new state cannot be read"):
            metadata = present(opened.operations.current(), opened.target)
            previous = java.last(metadata.previousFiles()).file()
            snapshot = metadata.currentSnapshot()
            if snapshot is None:
                found = Found(metadata.metadataFileLocation(), previous)
            else:
                said = json.loads(java.snapshot_json(snapshot))
                totals = said["summary"]
                counts = (int(totals["total-data-files"]), int(totals["total-delete-files"]))
                if opened.slice is not None:
                    counts = _of_slice(counts, metadata, snapshot, before)
                found = Found(
                    metadata.metadataFileLocation(), previous, said["snapshot-id"], said["sequence-number"], *counts
                )
    except (DestinationError, TableError):
        return None  # the commit stands; only its outcome is not in sight
    return state_after(opened, before, found, added, removed, aged=aged)


def state_after(
    opened: OpenTable,
    before: TableState,
    found: Found,
    added: Sequence[WrittenFile] = (),
    removed: frozenset[str] | None = frozenset(),
    *,
    aged: int | None = None,
) -> TableState | None:
    """Return the state that a commit of ours made of `before`, as `carried_on` does, from what was found of it."""
    if not opened.turns.spans(before.metadata, found.previous, opened.source):
        return None  # somebody else has committed since
    if found.snapshot is None:
        return before.after(found.metadata, None, before.sequence, ())
    files = [live(file, found.sequence if aged is None else aged, opened) for file in added]
    state = before.after(found.metadata, found.snapshot, found.sequence, files, removed)
    return state if (found.data, found.deletes) == (len(state.data), len(state.deletes)) else None


def _of_slice(
    counts: tuple[int, int], metadata: JavaObject, snapshot: JavaObject, before: TableState
) -> tuple[int, int]:
    """Return how many files the slice has now, if others' stayed as many as they were."""
    if snapshot.snapshotId() == before.snapshot:
        return len(before.data), len(before.deletes)
    parent = snapshot.parentId()
    earlier = None if parent is None else metadata.snapshot(parent)
    totals = {} if earlier is None else earlier.summary()
    data, deletes = (int(totals.get(f"total-{kind}-files") or 0) for kind in ("data", "delete"))
    return counts[0] - data + len(before.data), counts[1] - deletes + len(before.deletes)


def _description(file: LiveFile) -> dict[str, object]:
    """Enough for Iceberg to know which file is meant."""
    return {
        "spec-id": file.spec,
        "content": file.content,
        "file-path": file.path,
        "file-format": "parquet",
        "file-size-in-bytes": file.size,
        "record-count": file.records,
    }

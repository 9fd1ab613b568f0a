"""Strict commits: a change of a table that succeeds only if nothing has changed since its base was read.

Iceberg retries: a transaction that lost a race is applied again on the new state, without asking whether it still
makes sense there. So every transaction of ours begins with an empty schema update. Its base is fixed when it is made;
applied again on any other state it fails, and with it the transaction: a compare-and-set on the whole table. The
transaction's own base is compared with the plan's before anything is written. RowDelta's validations are asked for as
well: they hold even where a catalog compares less. Rows, deletes and position are one transaction, hence one step for
readers.

Neighbours: `destination` calls it for batches and positions, `compaction` and `expiry` for theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from penstock.destinations.iceberg.data_files import WrittenFile
from penstock.destinations.iceberg.evolution import Move, evolve, structure_property
from penstock.destinations.iceberg.java import Java, JavaObject, TableMissing, translated
from penstock.destinations.iceberg.live_files import LiveFile, TableState, live
from penstock.destinations.iceberg.plan import IcebergPart
from penstock.destinations.iceberg.table_state import OpenTable, held_files
from penstock.errors import DestinationError, StaleBase


class StrictTransaction:
    """One transaction on a table whose base is the given metadata file. Made by `strict`."""

    def __init__(self, java: Java, opened: OpenTable, transaction: JavaObject) -> None:
        self._java, self._opened, self._transaction = java, opened, transaction

    def set_properties(self, properties: Mapping[str, str]) -> None:
        update = self._transaction.updateProperties()
        for key, value in properties.items():
            update.set(key, value)
        update.commit()

    def evolve(self, move: Move, source: str) -> None:
        """The table's structure moves on. Rows that are added in the same transaction are of the new one."""
        if move.steps or set(self._transaction.table().schema().identifierFieldNames()) != move.identifiers:
            evolve(self._java, self._transaction, move.steps, move.identifiers)
        self.set_properties({structure_property(source): move.recorded.to_json()})

    def mark(self) -> None:
        """An empty snapshot: makes the change strict where a catalog compares snapshots and nothing else."""
        self._scanning(self._transaction.newAppend()).commit()

    def row_delta(self, parts: Sequence[IcebergPart], snapshot: int | None) -> None:
        """Rows and positional deletes."""
        delta = self._scanning(self._transaction.newRowDelta())
        referenced: set[str] = set()
        for part in parts:
            for file in part.added:
                delta.addRows(self._added(file))
            if part.delete is not None:
                delta.addDeletes(self._added(part.delete))
                referenced.update(part.delete.hits)
        if snapshot is not None:
            delta.validateFromSnapshot(snapshot)
        delta.conflictDetectionFilter(self._java.always_true)
        delta.validateNoConflictingDataFiles()
        delta.validateNoConflictingDeleteFiles()
        if referenced:
            delta.validateDataFilesExist(list(referenced))
        delta.commit()

    def replace_all(self, parts: Sequence[IcebergPart], snapshot: int | None) -> None:
        """Everything goes, rows come: a truncated table."""
        overwrite = self._scanning(self._transaction.newOverwrite())
        overwrite.overwriteByRowFilter(self._java.always_true)
        for part in parts:
            if part.data is not None:
                overwrite.addFile(self._added(part.data))
        if snapshot is not None:
            overwrite.validateFromSnapshot(snapshot)
        overwrite.conflictDetectionFilter(self._java.always_true)
        overwrite.validateNoConflictingData()
        overwrite.validateNoConflictingDeletes()
        overwrite.commit()

    def replace_by_copy(self, parts: Sequence[IcebergPart]) -> None:
        """Everything goes, rows come, and with them positional deletes that point into files of the same commit."""
        delta = self._scanning(self._transaction.newRowDelta())
        for part in parts:
            if part.data is not None:
                delta.addRows(self._added(part.data))
            if part.delete is not None:
                delta.addDeletes(self._added(part.delete))
        snapshot = self._transaction.startMetadata().currentSnapshot()
        if snapshot is not None:
            data, deletes = held_files(self._java, self._opened.table, snapshot)
            for file in data:
                delta.removeRows(file)
            for file in deletes:
                delta.removeDeletes(file)
            delta.validateFromSnapshot(snapshot.snapshotId())
        delta.conflictDetectionFilter(self._java.always_true)
        delta.validateDeletedFiles()
        delta.validateNoConflictingDataFiles()
        delta.validateNoConflictingDeleteFiles()
        delta.commit()

    def rewrite(self, removed: Sequence[LiveFile], added: Sequence[WrittenFile], state: TableState) -> None:
        """Files replaced by others with the same rows, which count as old as the base snapshot."""
        rewrite = self._scanning(self._transaction.newRewrite())
        rewrite.validateFromSnapshot(state.snapshot).dataSequenceNumber(state.sequence)
        for file in removed:
            rewrite.deleteFile(self._java.content_file(file.description(), self._opened.specs))
        for written in added:
            if written.description["content"] == "data":
                rewrite.addFile(self._added(written))
            else:
                rewrite.addFile(self._added(written), state.sequence)
        rewrite.commit()

    def _scanning(self, update: JavaObject) -> JavaObject:
        """Manifests of a local table are read here and now; those of a remote one by Iceberg's threads."""
        return update.scanManifestsWith(self._java.at_once) if self._opened.is_local else update

    def _added(self, file: WrittenFile) -> JavaObject:
        return self._java.content_file({**file.description, "spec-id": self._opened.spec}, self._opened.specs)


@contextmanager
def strict(java: Java, opened: OpenTable, base: str, what: str) -> Iterator[StrictTransaction]:
    """A transaction on exactly the metadata file `base`, committed at the end of the block.

    StaleBase: refused, nothing changed. CommitUnknown: nobody can say. `carried_on` gives the state afterwards.
    """
    try:
        with translated(what):
            transaction = opened.table.newTransaction()  # reads the table's current state
            if transaction.startMetadata().metadataFileLocation() != base:
                raise StaleBase(
                    f"{what}: the table has changed since its state was read", "It is read again, and the work redone"
                )
            transaction.updateSchema().commit()
            yield StrictTransaction(java, opened, transaction)
        with translated(what, deciding=True):
            transaction.commitTransaction()
    except TableMissing as error:
        raise StaleBase(f"{what}: the table is gone: {error}", "It is looked for again") from error


def carried_on(
    opened: OpenTable,
    before: TableState,
    added: Sequence[WrittenFile] = (),
    removed: frozenset[str] | None = frozenset(),
    *,
    old: bool = False,
) -> TableState | None:
    """The state that our own commit made of `before`; None if the table is not what we think: then it must be read
    anew.

    `removed` None: all files that were there. `old`: the added files count as old as the snapshot before.
    """
    try:
        with translated(f"table {opened.target}: its new state cannot be read"):
            metadata = opened.table.operations().current()
            history = metadata.previousFiles()
            if history.get(history.size() - 1).file() != before.metadata:
                return None  # somebody else has committed since
            snapshot = metadata.currentSnapshot()
            if snapshot is None:
                return before.after(metadata.metadataFileLocation(), None, before.sequence, ())
            sequence, totals = snapshot.sequenceNumber(), snapshot.summary()
            files = [live(file, before.sequence if old else sequence, opened.spec) for file in added]
            state = before.after(metadata.metadataFileLocation(), snapshot.snapshotId(), sequence, files, removed)
            counts = (totals.get("total-data-files"), totals.get("total-delete-files"))
    except (DestinationError, TableMissing):
        return None  # the commit stands; only its outcome is not in sight
    return state if counts == (str(len(state.data)), str(len(state.deletes))) else None

"""Write one batch of one table on an executor: look keys up, fetch cells, write files.

A touched key costs a positional delete for its row in the newest file that has the key; in a table that was copied it
may have rows in several files of the same age, and each is deleted. A thorough plan deletes it wherever it is: somebody
else may have written a key that was there. If a row is dead already, deleting it again changes nothing. Rows of deletes
and cells come by position, through the key index; no table is scanned. A copy that is not committed yet is written over
in the same way: all its files are of one age.
"""

from __future__ import annotations

import uuid
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.destinations.lake.columns import FIELD_ID, LakeColumn
from penstock.destinations.lake.data_files import COPY_PREFIX, PREFIX, DataFile, WrittenFile, in_groups
from penstock.destinations.lake.fetching import PIECE_BYTES, BaseCells, Filled, Located, filled_pieces
from penstock.destinations.lake.history_files import KeyReader
from penstock.destinations.lake.key_index import IndexedFile, KeyIndex, Places
from penstock.destinations.lake.recorded_structure import Move
from penstock.destinations.lake.row_instances import removed_rows
from penstock.destinations.lake.source_partition import SourceSlice, stored
from penstock.destinations.lake.storage import reaching
from penstock.destinations.lake.table_format import TableFormat
from penstock.fold.layout import ROWS, Layout
from penstock.fold.net_effect import NetEffect
from penstock.fold.versions import with_rescued
from penstock.model.position import Position
from penstock.model.record import Fields, UnreadableRecord, read_record, write_record
from penstock.model.table import TableId

Rows = npt.NDArray[np.int64]
NO_ROWS: Rows = np.empty(0, np.int64)
_KIND, _VERSION = "part of a copy in a lake", 1


@dataclass(frozen=True)
class LakePart:
    """`rescued` is a data file too, one that has the column RESCUED, which is `rescued_as` at the table."""

    data: WrittenFile | None = None
    delete: WrittenFile | None = None
    fetched: int = 0
    unresolved: int = 0
    unresolved_rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()  # the numbers of those that the data file was written with
    past: tuple[WrittenFile, ...] = ()  # of a table of versions: all others, mostly with versions that have ended
    rescued: WrittenFile | None = None
    rescued_as: LakeColumn | None = None

    def to_json(self) -> str:
        """Write a part of a copy: its files, of which there are at most two."""
        if self.delete is not None or self.past:
            raise ValueError("only a part of a copy is recorded")
        column = self.rescued_as
        return write_record(
            _KIND,
            _VERSION,
            {
                "data": None if self.data is None else _described(self.data),
                "columns": list(self.columns),
                "rescued": None if self.rescued is None else _described(self.rescued),
                "rescued_as": None if column is None else b64encode(pa.schema([column.field()]).serialize()).decode(),
            },
        )

    @classmethod
    def from_json(cls, text: str) -> LakePart:
        """Read what `to_json` wrote, or raise UnreadableRecord."""
        record = read_record(text, _KIND, _VERSION)
        data, rescued = (_file(record.optional_fields(name)) for name in ("data", "rescued"))
        if rescued is None:
            return cls(data, columns=record.integers("columns"))
        column = _column(record.text("rescued_as"))
        return cls(data, columns=record.integers("columns"), rescued=rescued, rescued_as=column)

    @property
    def rows(self) -> int:
        return sum(file.records for file in self.added)

    @property
    def deletes(self) -> int:
        return self.delete.records if self.delete else 0

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def empty(self) -> bool:
        return not self.files

    @property
    def added(self) -> list[WrittenFile]:
        """Data files."""
        return [file for file in (self.data, self.rescued, *self.past) if file is not None]

    @property
    def files(self) -> list[WrittenFile]:
        return [*self.added, *([] if self.delete is None else [self.delete])]


@dataclass(frozen=True, kw_only=True)
class UpsertPlan:
    """A plan of a table that holds rows; see the contract's `WritePlan`."""

    table_format: TableFormat
    target: TableId
    source: str
    position: Position
    metadata: str  # the metadata file that is the base: whatever changes the table replaces it; "" over a copy
    folder: str  # where files go
    columns: tuple[LakeColumn, ...]
    rescued: LakeColumn  # as it is, or will be when it is first needed
    index: KeyIndex
    files: tuple[IndexedFile, ...]
    delete_files: tuple[str, ...]
    prefix: str = PREFIX  # of the names of its files
    slice: SourceSlice | None = None  # of a table that several sources feed: what of it is this source's
    move: Move | None = None  # what the commit makes of the table's structure; None: it stays
    layout: Layout = ROWS
    around: tuple[LakeColumn, ...] = ()  # the layout's columns
    beside: tuple[LakeColumn, ...] = ()  # of a table of versions: those that follow no column of the source any more
    moment: int = 0
    ended_files: tuple[IndexedFile, ...] = ()  # of a table of versions: those that hold deleted ones
    sequence: int = 0  # of the base
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    follows: str | None = None  # the plan whose commit, still to be made, makes the base: then `metadata` is ""
    piece_bytes: int = PIECE_BYTES  # of cells that are read from the base at once
    thorough: bool = False  # a touched key's rows are ended in every file, however often it is there

    def write(self, net: NetEffect) -> LakePart:
        with reaching(f"table {self.target}: its files cannot be written"):
            deletes = self._ended(net)
            cells = self._cells(net)
            data, rescues = self._write(net, cells) if net.upserts.num_rows else (None, False)
            delete = self.table_format.write_deletes(self.folder, deletes, self.prefix) if deletes else None
        missing = cells.missing
        fetched = len(cells.rows) - len(missing)
        rows_in_doubt = tuple(np.unique(missing).tolist())
        columns = tuple(column.id for column in self.columns)
        part = LakePart(data, delete, fetched, len(missing), rows_in_doubt, columns)
        return replace(part, data=None, rescued=data, rescued_as=self.rescued) if rescues else part

    def _write(self, net: NetEffect, cells: BaseCells) -> tuple[WrittenFile, bool]:
        """Return one file of the upserts, filled, with its sidecar; and whether it has the column RESCUED."""
        pieces = self.pieces(net, cells)
        first = next(pieces)
        several = len(first.rows) < net.upserts.num_rows
        rescues = first.rescued is not None or (several and (net.rescued is not None or cells.may_bring_rescued))
        columns = (*self.columns, self.rescued) if rescues else self.columns
        written, _ = stored(self.slice, columns, _rescuing(net.upserts.slice(0, 0), None, rescues=rescues))
        order: list[Rows] = []

        def groups() -> Iterator[pa.Table]:
            for piece in chain([first], pieces):
                order.append(piece.rows)
                yield stored(self.slice, columns, _rescuing(piece.upserts, piece.rescued, rescues=rescues))[1]

        data = self.table_format.write_rows(self.folder, written, in_groups(groups()), self.prefix)
        if net.upsert_keys is not None:
            keys = net.upsert_keys
            self.index.write(data.path, keys.take(pa.array(np.concatenate(order))) if net.fetches else keys)
        return data, rescues

    def pieces(self, net: NetEffect, cells: BaseCells | None = None) -> Iterator[Filled]:
        """Yield the upserts, filled; there is at least one piece."""
        if net.fetches:
            return filled_pieces(net, cells or self._cells(net), self.piece_bytes)
        return iter([Filled(np.arange(net.upserts.num_rows), net.upserts, net.rescued)])

    @property
    def groups(self) -> int:
        return len(self.files)

    def held(self, group: int, columns: Sequence[str]) -> pa.Table:
        path = self.files[group].path
        by_name = {column.name: column for column in (*self.columns, self.rescued)}
        with reaching(f"table {self.target}: its files cannot be read"):
            file = self.table_format.open_file(path, self.columns)
            rows = pa.table({name: file.column(by_name[name]) for name in columns})
            alive = np.ones(rows.num_rows, bool)
            alive[self.table_format.deleted_rows(self.delete_files, [path]).get(path, NO_ROWS)] = False
            alive &= np.asarray(self._counts(file))
        return rows.filter(pa.array(alive))

    def _counts(self, file: DataFile) -> npt.NDArray[np.bool_] | bool:
        """Return which rows of a file may be alive at all."""
        return True

    def has(self, keys: pa.Array) -> npt.NDArray[np.bool_]:
        with reaching(f"table {self.target}: its index cannot be read"):
            places = self._locate(keys)
            paths = [self.files[number].path for number in np.unique(places.files)]
            return self._live(places, self.table_format.deleted_rows(self.delete_files, paths), len(keys)) >= 0

    def _ended(self, net: NetEffect) -> Mapping[str, Rows]:
        """Return the rows that the net effect ends, by data file."""
        if net.truncated:
            return {}
        if net.removals is not None:
            return removed_rows(
                self.target,
                table_format=self.table_format,
                index=self.index,
                removals=net.removals,
                files=self.files,
                delete_files=self.delete_files,
                read_keys=self._read_rows,
            )
        return {} if net.touched_keys is None else self._rows_of(net.touched_keys)

    def _read_rows(self, file: IndexedFile) -> pa.Array:
        """Return the keys of whole rows, for an index that has lost them, or whose columns were others."""
        data_file = self.table_format.open_file(file.path, self.columns)
        columns = (*self.columns, self.rescued) if data_file.has(self.rescued) else self.columns
        return pa.concat_arrays([self.index.encoded(rows) for _, rows in data_file.batches(columns)])

    def _rows_of(self, keys: pa.Array) -> Mapping[str, Rows]:
        """Return the rows of keys that have some, by data file."""
        places = self.index.locate_all(keys, self.files, self._read_keys) if self.thorough else self._locate(keys)
        return {self.files[number].path: places.rows[places.files == number] for number in np.unique(places.files)}

    def _locate(self, keys: pa.Array) -> Places:
        alive = self.table_format.liveness(self.delete_files)
        return self.index.locate(keys, self.files, self._read_keys, alive)

    def _read_keys(self, file: IndexedFile) -> pa.Array:
        columns = (*self.columns, *self.around)
        return KeyReader(self.table_format, columns, self.index.key, self.layout, ended=False)(file)

    def _cells(self, net: NetEffect) -> BaseCells:
        """Return where the base has the cells that the source did not send."""
        fetches = () if net.truncated else net.fetches
        places = [self._locate(fetch.keys) for fetch in fetches]
        numbers = np.unique(np.concatenate([NO_ROWS, *(one.files for one in places)]))
        dead = self.table_format.deleted_rows(self.delete_files, [self.files[number].path for number in numbers])
        located = []
        for fetch, one in zip(fetches, places, strict=True):
            found = self._live(one, dead, len(fetch.keys))
            there = found >= 0
            files, rows = np.full(len(found), -1), np.full(len(found), -1)
            files[there], rows[there] = one.files[found[there]], one.rows[found[there]]
            located.append(Located(fetch, files, rows))
        by_name = {column.name: column for column in self.columns}
        return BaseCells(
            located, open_file=self._open_file, columns=by_name, rescued=self.rescued, upserts=net.upserts.num_rows
        )

    def _open_file(self, number: int) -> DataFile:
        return self.table_format.open_file(self.files[number].path, self.columns)

    def _live(self, places: Places, dead: Mapping[str, Rows], keys: int) -> Rows:
        """Return for each key the newest of its places that is alive; -1 where none is."""
        alive = np.ones(len(places.rows), bool)
        for number in np.unique(places.files):
            here = np.flatnonzero(places.files == number)
            alive[here] = ~np.isin(places.rows[here], dead.get(self.files[number].path, NO_ROWS))
        found = np.full(keys, -1)
        found[places.keys[alive]] = np.flatnonzero(alive)  # of several for one key, the last stays
        return found


def as_one_age(parts: Sequence[LakePart]) -> tuple[tuple[IndexedFile, ...], tuple[str, ...]]:
    """Return data files and delete files of a copy's parts as a plan takes them: a key may be in any of them."""
    data = tuple(IndexedFile(file.path, file.records, 0) for part in parts for file in part.added)
    return data, tuple(part.delete.path for part in parts if part.delete is not None)


def _rescuing(rows: pa.Table, rescued: pa.Array | None, *, rescues: bool) -> pa.Table:
    return with_rescued(rows, rescued) if rescues else rows


def _described(file: WrittenFile) -> dict[str, object]:
    return {"path": file.path, "size": file.size, "records": file.records, "description": dict(file.description)}


def _file(record: Fields | None) -> WrittenFile | None:
    """Return a file that a copy wrote. A record that names another is refused: files of a void copy are removed."""
    if record is None:
        return None
    path = record.text("path")
    name = path.rpartition("/")[2]
    if not name.startswith(COPY_PREFIX) or not name.endswith(".parquet"):
        raise UnreadableRecord(f"the record of a {_KIND} names {path}, which no copy has written")
    return WrittenFile(path, record.integer("size"), record.integer("records"), record.object("description"))


def _column(text: str) -> LakeColumn:
    try:
        (field,) = pa.ipc.read_schema(pa.py_buffer(b64decode(text, validate=True)))
        return LakeColumn(int(field.metadata[FIELD_ID]), field.name, field.type, not field.nullable)
    except (ValueError, KeyError, TypeError, pa.ArrowException, OSError) as error:
        raise UnreadableRecord(f"the record of a {_KIND} is damaged: its `rescued_as` is no column") from error

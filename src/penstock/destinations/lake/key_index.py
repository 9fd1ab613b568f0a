"""The key index: for each data file a sidecar with its sorted keys and their row numbers.

A sidecar is a pure function of an immutable data file, and only a cache: missing, truncated, damaged or made for
another file or key, it is made again from the file's key columns, and nothing but time is lost. It is written by the
task that writes the file; lookups map it into memory. A checksum is verified once a process and file.

`locate` finds where keys are. Live rows follow from the order of files: a key's live row, if it has one, is in the
newest files (by data sequence number) that have the key, for whoever wrote the key there, or rewrote that file, ended
every older row. Files of one number are mostly of one batch and have no key in common; but those of one copy may, with
one live row at most when the copy is committed. So all rows of the newest number that has the key are given.

A table without a key that is followed by its whole row has the keys of `encode_rows` here, any number of rows for each:
which of them are alive the delete files say (`instances`)."""

from __future__ import annotations

import json
import os
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.rescue import RESCUED
from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.index_room import IndexRoom, note_use
from penstock.fold.keys import encode_keys
from penstock.fold.row_keys import DIGEST, encode_rows

FEW = 64
ARROW_MAGIC = 8  # bytes, with their padding
LEAD = 8  # octets of a number that begins a key of several columns
SIGN = np.uint64(1 << 63)
MOST_OPEN = 4096  # sidecars that a process has mapped; the files are closed

Rows = npt.NDArray[np.int64]
Identity = tuple[str, int, int, int, str, str]
Alive = Callable[[str, Rows], npt.NDArray[np.bool_]]  # which of some rows of a data file


@dataclass(frozen=True)
class IndexedFile:
    """A data file as the index knows it. `sequence` is its data sequence number.

    `bounds` are those of its keys, or of their first column where it is a number; None where nobody says.
    """

    path: str
    records: int
    sequence: int
    bounds: tuple[int, int] | tuple[bytes, bytes] | None = None


@dataclass(frozen=True)
class Sidecar:
    keys: pa.Array  # sorted
    rows: npt.NDArray[np.int32]

    def find(self, wanted: pa.Array) -> tuple[Rows, Rows]:
        """Return which of the wanted keys, that are sorted, the file has: their numbers, and their rows in the file."""
        if len(self.keys) == 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        if pa.types.is_integer(self.keys.type):
            keys, needles = self.keys.to_numpy(), wanted.to_numpy()
            first, end = np.searchsorted(needles, keys[0]), np.searchsorted(needles, keys[-1], "right")
            at = np.searchsorted(keys, needles[first:end])
            hit = np.flatnonzero(keys[at] == needles[first:end])
        else:
            first = pc.search_sorted(wanted, self.keys[0]).as_py()
            end = pc.search_sorted(wanted, self.keys[-1], side="right").as_py()
            needles = wanted.slice(first, end - first)
            at = pc.search_sorted(self.keys, needles).to_numpy().astype(np.int64)
            hit = np.flatnonzero(np.asarray(pc.equal(self.keys.take(pa.array(at)), needles)))
        return first + hit, self.rows[at[hit]].astype(np.int64)

    def find_all(self, wanted: pa.Array) -> tuple[Rows, Rows]:
        """Find as `find` does, but with every row of a key that the file has more than once."""
        if pa.types.is_integer(self.keys.type):
            keys, needles = self.keys.to_numpy(), wanted.to_numpy()
            first, end = np.searchsorted(keys, needles), np.searchsorted(keys, needles, "right")
        else:
            first = pc.search_sorted(self.keys, wanted).to_numpy().astype(np.int64)
            end = pc.search_sorted(self.keys, wanted, side="right").to_numpy().astype(np.int64)
        times = end - first
        numbers = np.repeat(np.arange(len(wanted)), times)
        within = np.arange(len(numbers)) - np.repeat(np.cumsum(times) - times, times)
        return numbers, self.rows[np.repeat(first, times) + within].astype(np.int64)


@dataclass(frozen=True)
class Places:
    """Where keys are: the number of the key, of the file, and the row, of each place; of one key the newest is last."""

    keys: Rows
    files: Rows
    rows: Rows


@dataclass(frozen=True)
class KeyIndex:
    """The sidecars of one table. `key` names its key columns, in order. Picklable.

    `row`: of a table that is followed by its whole row, all columns that follow the source."""

    folder: Path
    key: tuple[str, ...]
    suffix: str = "keys"  # of its sidecars' names: a table may have two indexes
    row: tuple[LakeColumn, ...] = ()
    room: IndexRoom | None = None  # how much disk all sidecars of the destination may take; None: no matter how much

    def __bool__(self) -> bool:
        """Return whether the table has keys to be indexed."""
        return bool(self.key or self.row)

    def encoded(self, rows: pa.Table) -> pa.Array:
        """Return the keys of some rows of the table, which may have columns more."""
        if self.key:
            return encode_keys([rows[name] for name in self.key])
        rescued = rows[RESCUED].combine_chunks() if RESCUED in rows.column_names else None
        if isinstance(rescued, pa.ChunkedArray):
            rescued = pa.concat_arrays(rescued.chunks)
        return encode_rows(rows.select([column.name for column in self.row]), rescued)

    @property
    def told(self) -> str:
        """What a sidecar's keys are made of. Names of columns do not matter for whole rows, their order does."""
        return json.dumps([[column.id, str(column.type)] for column in self.row] if self.row else self.key)

    def write(self, data_file: str, keys: pa.Array) -> Sidecar:
        """Make the sidecar of a data file from its encoded keys, in row order. Rows whose key is null are left out."""
        there = np.flatnonzero(np.asarray(keys.is_valid()))
        rows = there[sorted_order(keys.drop_null())].astype(np.int32)
        sidecar = Sidecar(keys.take(pa.array(rows)), rows)
        batch = pa.record_batch({"key": sidecar.keys, "row": pa.array(rows)})
        told = {"data_file": data_file, "key": self.told, "crc": str(_checksum(batch))}
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(data_file)
        unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
        with (
            pa.OSFile(str(unfinished), "wb") as sink,
            pa.ipc.new_file(sink, batch.schema.with_metadata(told)) as writer,
        ):
            writer.write_batch(batch)
        unfinished.replace(path)
        if self.room is not None:
            self.room.note(path.stat().st_size)
        return sidecar

    def sidecar(self, file: IndexedFile, read_keys: Callable[[], pa.Array]) -> Sidecar:
        """Return the file's sidecar; made again with `read_keys` when it is not there or not sound."""
        found = self._verified(file)
        return found if found is not None else self.write(file.path, read_keys())

    def locate(
        self,
        keys: pa.Array,
        files: Sequence[IndexedFile],
        read_keys: Callable[[IndexedFile], pa.Array],
        alive: Alive | None = None,
    ) -> Places:
        """Return all places of each key in the files of the newest sequence number that have it.

        With `alive`, a row that it calls dead does not count, and the order of files is only the order to look in.
        """
        missing = order = sorted_order(keys)
        sought = keys.take(pa.array(order))
        found: list[tuple[Rows, Rows, Rows]] = [(np.empty(0, np.int64),) * 3]
        newest_first = sorted(range(len(files)), key=lambda number: (-files[number].sequence, number))
        for _, numbers in groupby(newest_first, key=lambda number: files[number].sequence):
            if len(missing) == 0:
                break
            still = np.ones(len(missing), bool)
            leads = _leads(sought)
            for number in numbers:
                if not _may_have(files[number], sought, leads):
                    continue
                sidecar = self.sidecar(files[number], partial(read_keys, files[number]))
                at, rows = sidecar.find(sought)
                if alive is not None and len(at):
                    at, rows = _living(sidecar, sought, at, rows, partial(alive, files[number].path))
                still[at] = False
                found.append((missing[at], np.full(len(at), number), rows))
            if not still.all():
                missing, sought = missing[still], sought.filter(pa.array(still))
        return Places(*(np.concatenate(column) for column in zip(*found, strict=True)))

    def locate_all(
        self, keys: pa.Array, files: Sequence[IndexedFile], read_keys: Callable[[IndexedFile], pa.Array]
    ) -> Places:
        """Return all places of each key in all files, dead or alive, whoever wrote them."""
        order = sorted_order(keys)
        sought = keys.take(pa.array(order))
        leads = _leads(sought)
        found: list[tuple[Rows, Rows, Rows]] = [(np.empty(0, np.int64),) * 3]
        for number, file in enumerate(files):
            if not _may_have(file, sought, leads):
                continue
            at, rows = self.sidecar(file, partial(read_keys, file)).find_all(sought)
            found.append((order[at], np.full(len(at), number), rows))
        return Places(*(np.concatenate(column) for column in zip(*found, strict=True)))

    def remove(self, data_files: Sequence[str]) -> None:
        """Drop the sidecars of files that are no longer in the table."""
        for data_file in data_files:
            for path in (self._path(data_file), self._path(data_file).with_suffix(".gone")):
                path.unlink(missing_ok=True)

    def remove_all_but(self, data_files: Sequence[str]) -> None:
        """Drop sidecars of files that are no longer in the table, and leftovers of killed writers."""
        kept = {data_file.rpartition("/")[2] for data_file in data_files}
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if path.name.rpartition(".")[0] not in kept:
                path.unlink(missing_ok=True)

    def _path(self, data_file: str) -> Path:
        return self.folder / f"{data_file.rpartition('/')[2]}.{self.suffix}"

    def _verified(self, file: IndexedFile) -> Sidecar | None:
        path = self._path(file.path)
        try:
            stat = path.stat()
            identity = (str(path), stat.st_mtime_ns, stat.st_size, stat.st_ino, file.path, self.told)
            known = _open.get(identity)
            if known is None:
                known = self._read(path, file)
                note_use(path, stat)
        except (OSError, pa.ArrowException, KeyError, ValueError, StopIteration):
            return None  # a cache: whatever is wrong with it, it is made again
        if known is not None:
            _open.keep(identity, known)
        return known

    def _read(self, path: Path, file: IndexedFile) -> Sidecar | None:
        # Behind its magic bytes an Arrow file is a stream. That is read by this thread; a file's footer by another one
        reader = pa.ipc.open_stream(pa.memory_map(str(path)).read_buffer().slice(ARROW_MAGIC))
        told = reader.schema.metadata or {}
        if told[b"data_file"] != file.path.encode() or told[b"key"] != self.told.encode():
            return None
        batch = reader.read_next_batch()
        if batch.num_rows > file.records or int(told[b"crc"]) != _checksum(batch):
            return None
        return Sidecar(batch.column("key"), batch.column("row").to_numpy())


def _leads(keys: pa.Array) -> Rows | None:
    """Return the number that each sorted key begins with; None if some are too short to have one."""
    if pa.types.is_integer(keys.type):
        plain: Rows = keys.to_numpy()
        return plain
    octets = pc.binary_slice(keys.cast(pa.binary()), 0, LEAD)
    if len(octets) == 0 or pc.min(pc.binary_length(octets)).as_py() < LEAD:
        return None
    words = np.frombuffer(b"".join(octets.to_pylist()), ">u8").astype(np.uint64)
    numbers: Rows = (words ^ SIGN).view(np.int64)
    return numbers


def _may_have(file: IndexedFile, keys: pa.Array, leads: Rows | None) -> bool:
    """Return whether one of the sorted keys may be in a file, as far as its bounds tell."""
    if file.bounds is None:
        return True
    low, high = file.bounds
    if isinstance(low, int):
        return leads is None or bool(np.searchsorted(leads, low) < np.searchsorted(leads, high, "right"))
    if not pa.types.is_binary(keys.type):
        return True
    first = pc.search_sorted(keys, pa.scalar(low, keys.type)).as_py()
    return bool(first < pc.search_sorted(keys, pa.scalar(high, keys.type), side="right").as_py())


def _living(
    sidecar: Sidecar, sought: pa.Array, at: Rows, rows: Rows, alive: Callable[[Rows], npt.NDArray[np.bool_]]
) -> tuple[Rows, Rows]:
    """Return, of keys that a file has, their numbers and live rows. One whose first row is dead may have another."""
    lives = alive(rows)
    if lives.all():
        return at, rows
    numbers, others = sidecar.find_all(sought.take(pa.array(at[~lives])))
    again = alive(others)
    return np.concatenate([at[lives], at[~lives][numbers[again]]]), np.concatenate([rows[lives], others[again]])


def sorted_order(keys: pa.Array) -> Rows:
    """Return the numbers of the keys in the order that sidecars have: sorted, equal ones as they came.

    Sorting without regard to that is three times as quick, and mostly no key is there twice.
    """
    if pa.types.is_integer(keys.type):
        numbers = keys.to_numpy()
        quick = np.argsort(numbers)
        ordered = numbers[quick]
        return np.argsort(numbers, kind="stable") if (ordered[1:] == ordered[:-1]).any() else quick
    digests = _order_of_digests(keys)
    order: Rows = pc.sort_indices(keys).to_numpy().astype(np.int64) if digests is None else digests
    return order


def _order_of_digests(keys: pa.Array) -> Rows | None:
    """Return the order of keys of whole rows by their first eight bytes, twelve times as fast, if that is enough.

    None when these are other keys, or when two digests begin alike.
    """
    if len(keys) == 0 or keys.null_count:
        return None
    _, offsets, octets = keys.buffers()
    ends = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    if (np.diff(ends) != DIGEST).any():
        return None
    words = np.frombuffer(octets, ">u8", len(keys) * DIGEST // 8, int(ends[0])).reshape(len(keys), -1)
    order = np.argsort(words[:, 0].astype(np.uint64), kind="stable")
    alike = np.flatnonzero(words[order[1:], 0] == words[order[:-1], 0])
    return order if (words[order[alike + 1]] == words[order[alike]]).all() else None


class Mapped:
    """Verified sidecars of this process, by what identifies the file on disk; its path comes first.

    Those longest unused go when there are too many. Those whose file is gone, since its table was merged, are looked
    for whenever their folder has got twice as many as were left the last time: their pages and disk space go too."""

    def __init__(self) -> None:
        self._sidecars: OrderedDict[Identity, Sidecar] = OrderedDict()
        self._folders: dict[str, set[Identity]] = {}
        self._look_at: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._sidecars)

    def get(self, identity: Identity) -> Sidecar | None:
        return self._sidecars.get(identity)

    def keep(self, identity: Identity, sidecar: Sidecar) -> None:
        is_new = identity not in self._sidecars
        self._sidecars[identity] = sidecar
        self._sidecars.move_to_end(identity)
        if not is_new:
            return
        folder = os.path.dirname(identity[0])  # noqa: PTH120 - it is a text, and there are many
        here = self._folders.setdefault(folder, set())
        here.add(identity)
        if len(here) >= self._look_at.get(folder, FEW):
            for gone in [one for one in here if not os.path.exists(one[0])]:  # noqa: PTH110
                self._drop(gone)
            self._look_at[folder] = max(FEW, 2 * len(here))
        if len(self._sidecars) > MOST_OPEN:
            self._drop(next(iter(self._sidecars)))

    def clear(self) -> None:
        self._sidecars.clear()
        self._folders.clear()
        self._look_at.clear()

    def _drop(self, identity: Identity) -> None:
        del self._sidecars[identity]
        self._folders[os.path.dirname(identity[0])].discard(identity)  # noqa: PTH120


_open = Mapped()


def _checksum(batch: pa.RecordBatch) -> int:
    """Of the values alone: what lies around them in memory differs before they are written and after."""
    crc = 0
    for column in batch.columns:
        for part in _contents(column):
            crc = zlib.crc32(part.data, crc)
    return crc


def _contents(column: pa.Array) -> list[npt.NDArray[Any]]:
    """Return the memory of an array that begins at its first value and has no nulls."""
    if pa.types.is_primitive(column.type):
        return [column.to_numpy(zero_copy_only=True)]
    _, offsets, octets = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1) if len(column) else np.zeros(1, np.int32)
    return [ends, np.frombuffer(octets, np.uint8, int(ends[-1])) if ends[-1] else np.empty(0, np.uint8)]

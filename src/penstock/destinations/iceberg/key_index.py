"""The key index: for each data file a sidecar with its sorted keys and their row numbers.

A sidecar is a pure function of an immutable data file, and only a cache: missing, truncated, damaged or made for
another file or key, it is made again from the file's key columns, and nothing but time is lost. It is written by the
task that writes the file; lookups map it into memory. A checksum is verified once a process and file.

`locate` finds where keys are. Live rows follow from the order of files: a key's live row, if it has one, is in the
newest file (by data sequence number) that has the key, for whoever wrote the key there, or rewrote that file, ended
every older row.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

MOST_OPEN = 256

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class IndexedFile:
    """A data file as the index knows it. `sequence` is its data sequence number."""

    path: str
    records: int
    sequence: int


@dataclass(frozen=True)
class Sidecar:
    keys: pa.Array  # sorted
    rows: npt.NDArray[np.int32]

    def find(self, wanted: pa.Array) -> Rows:
        """The row of each wanted key in the file; -1 where it has none."""
        if len(self.keys) == 0:
            return np.full(len(wanted), -1)
        if pa.types.is_integer(self.keys.type):
            keys, needles = self.keys.to_numpy(), wanted.to_numpy()
            at = np.minimum(np.searchsorted(keys, needles), len(keys) - 1)
            hit = keys[at] == needles
        else:
            at = np.minimum(pc.search_sorted(self.keys, wanted).to_numpy().astype(np.int64), len(self.keys) - 1)
            hit = np.asarray(pc.equal(self.keys.take(pa.array(at)), wanted))
        return np.where(hit, self.rows[at], -1).astype(np.int64)


@dataclass(frozen=True)
class KeyIndex:
    """The sidecars of one table. `key` names its key columns, in order. Picklable."""

    folder: Path
    key: tuple[str, ...]

    def write(self, data_file: str, keys: pa.Array) -> Sidecar:
        """Makes the sidecar of a data file from its encoded keys, in row order."""
        if pa.types.is_integer(keys.type):
            order = np.argsort(keys.to_numpy(), kind="stable")
        else:
            order = pc.sort_indices(keys).to_numpy()
        rows = order.astype(np.int32)
        sidecar = Sidecar(keys.take(pa.array(rows)), rows)
        batch = pa.record_batch({"key": sidecar.keys, "row": pa.array(rows)})
        told = {"data_file": data_file, "key": json.dumps(self.key), "crc": str(_checksum(batch))}
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(data_file)
        partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
        with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, batch.schema.with_metadata(told)) as writer:
            writer.write_batch(batch)
        partial.replace(path)
        return sidecar

    def sidecar(self, file: IndexedFile, read_keys: Callable[[], pa.Array]) -> Sidecar:
        """The file's sidecar; made again with `read_keys` when it is not there or not sound."""
        found = self._verified(file)
        return found if found is not None else self.write(file.path, read_keys())

    def locate(
        self, keys: pa.Array, files: Sequence[IndexedFile], read_keys: Callable[[IndexedFile], pa.Array]
    ) -> tuple[Rows, Rows]:
        """For each key the number (in `files`) of the newest file that has it, and its row there; -1 where none has."""
        file_numbers, rows = np.full(len(keys), -1), np.full(len(keys), -1)
        missing = np.arange(len(keys))
        for number in sorted(range(len(files)), key=lambda number: -files[number].sequence):
            if len(missing) == 0:
                break
            file = files[number]
            found = self.sidecar(file, lambda file=file: read_keys(file)).find(  # type: ignore[misc]
                keys if len(missing) == len(keys) else keys.take(pa.array(missing))
            )
            hit = found >= 0
            file_numbers[missing[hit]], rows[missing[hit]] = number, found[hit]
            missing = missing[~hit]
        return file_numbers, rows

    def remove_all_but(self, data_files: Sequence[str]) -> None:
        """Drops sidecars of files that are no longer in the table, and leftovers of killed writers."""
        kept = {self._path(data_file).name for data_file in data_files}
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def _path(self, data_file: str) -> Path:
        return self.folder / f"{data_file.rpartition('/')[2]}.keys"

    def _verified(self, file: IndexedFile) -> Sidecar | None:
        path = self._path(file.path)
        try:
            stat = path.stat()
            identity = (str(path), stat.st_mtime_ns, stat.st_size, stat.st_ino, file.path, self.key)
            known = _open.get(identity)
            if known is None:
                known = self._read(path, file)
        except (OSError, pa.ArrowException, KeyError, ValueError):
            return None  # a cache: whatever is wrong with it, it is made again
        if known is not None:
            _open[identity] = known
            _open.move_to_end(identity)
            if len(_open) > MOST_OPEN:
                _open.popitem(last=False)
        return known

    def _read(self, path: Path, file: IndexedFile) -> Sidecar | None:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        told = reader.schema.metadata or {}
        if told[b"data_file"] != file.path.encode() or tuple(json.loads(told[b"key"])) != self.key:
            return None
        batch = reader.get_batch(0)
        if reader.num_record_batches != 1 or batch.num_rows != file.records or int(told[b"crc"]) != _checksum(batch):
            return None
        return Sidecar(batch.column("key"), batch.column("row").to_numpy())


_open: OrderedDict[tuple[object, ...], Sidecar] = OrderedDict()  # verified ones, by what identifies the file on disk


def _checksum(batch: pa.RecordBatch) -> int:
    crc = 0
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None:
                crc = zlib.crc32(buffer, crc)
    return crc

"""Deletion vectors: which rows of a data file are dead, as Delta stores them. No Java, no Spark.

A vector is a roaring bitmap, in a file of the table (`u`) or in the log entry itself (`i`). It never changes under its
name, so what a process has read of it, it keeps. A file has one vector at a time: `data_files` names rows that die in
lines of text, and `commit` joins these with the vector that the file has.
"""

from __future__ import annotations

import struct
import threading
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from penstock.destinations.lake.storage import read_part, unreadable, write_file

FOLDER = "penstock"  # of our vectors, below the table: by this leftovers are known for ours
MAGIC = 1681511377
VERSION = b"\x01"  # of a file of vectors
KEPT = 4096  # vectors that a process remembers
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGITS = {character: number for number, character in enumerate(Z85)}

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Vector:
    """A deletion vector as the log names it."""

    storage: str  # "u": a file below the table, "i": in the log, "p": a file by its whole path
    place: str
    size: int
    cardinality: int
    offset: int | None = None

    def to_action(self) -> dict[str, Any]:
        told = {"storageType": self.storage, "pathOrInlineDv": self.place, "sizeInBytes": self.size}
        return {
            **told,
            **({} if self.offset is None else {"offset": self.offset}),
            "cardinality": self.cardinality,
        }

    @classmethod
    def from_action(cls, raw: Mapping[str, Any] | None) -> Vector | None:
        if not raw:
            return None
        return cls(raw["storageType"], raw["pathOrInlineDv"], raw["sizeInBytes"], raw["cardinality"], raw.get("offset"))

    def file(self, root: str) -> str | None:
        """Return the path of the file that has it; None when it is in the log."""
        if self.storage == "p":
            return self.place.removeprefix("file://")
        if self.storage != "u":
            return None
        folder, name = self.place[:-20], uuid.UUID(bytes=z85_decode(self.place[-20:], 16))
        return "/".join(filter(None, (root, folder, f"deletion_vector_{name}.bin")))


_known: OrderedDict[tuple[str, Vector], BitMap] = OrderedDict()
_lock = threading.Lock()


def z85_encode(octets: bytes) -> str:
    """Encode octets, padded to a multiple of four with zeros as Delta does."""
    text: list[str] = []
    for (word,) in struct.iter_unpack(">I", octets + bytes(-len(octets) % 4)):
        digits = []
        for _ in range(5):
            word, digit = divmod(word, 85)
            digits.append(Z85[digit])
        text += reversed(digits)
    return "".join(text)


def z85_decode(text: str, size: int) -> bytes:
    words = []
    for start in range(0, len(text), 5):
        word = 0
        for character in text[start : start + 5]:
            word = word * 85 + _DIGITS[character]
        words.append(word)
    return struct.pack(f">{len(words)}I", *words)[:size]


def bitmap_octets(rows: BitMap) -> bytes:
    """Serialise rows as Delta's RoaringBitmapArray in its portable form; a file has fewer than 2^32 rows."""
    return struct.pack("<IQI", MAGIC, 1, 0) + rows.serialize()


def read_bitmap(octets: bytes) -> BitMap:
    """Read a bitmap array. ValueError if it is none, or has rows beyond 2^32."""
    magic, buckets = struct.unpack_from("<IQ", octets)
    if magic != MAGIC or buckets > 1:
        raise ValueError(f"not a bitmap of one bucket: magic {magic}, {buckets} buckets")
    return BitMap.deserialize(octets[16:]) if buckets else BitMap()


def write_vectors(root: str, dead: Mapping[str, BitMap]) -> tuple[dict[str, Vector], str | None]:
    """Store a vector for each data file, all in one new file, whose path is returned too.

    None goes into the log entry itself, however small it is: a VACUUM by Delta in Spark fails over a table that has one
    of those.
    """
    vectors: dict[str, Vector] = {}
    body, name = bytearray(VERSION), uuid.uuid4()
    place = FOLDER + z85_encode(name.bytes)
    for path, rows in dead.items():
        rows.run_optimize()
        octets = bitmap_octets(rows)
        vectors[path] = Vector("u", place, len(octets), len(rows), len(body))
        body += struct.pack(">I", len(octets)) + octets + struct.pack(">I", zlib.crc32(octets))
    for path, vector in vectors.items():
        _keep(root, vector, dead[path])
    if len(body) == len(VERSION):
        return vectors, None
    file = f"{root}/{FOLDER}/deletion_vector_{name}.bin"
    write_file(file, bytes(body))  # and its folder: an empty one may be gone by somebody's VACUUM
    return vectors, file


def dead_rows(root: str, vector: Vector) -> BitMap:
    """Return the dead rows. FileUnreadable if the vector's file cannot be read, or is damaged. Not to be changed."""
    known = _known.get((root, vector))
    if known is None:
        known = _read(root, vector)
        _keep(root, vector, known)
    return known


def _keep(root: str, vector: Vector, rows: BitMap) -> None:
    with _lock:
        _known[root, vector] = rows
        if len(_known) > KEPT:
            _known.popitem(last=False)


def _read(root: str, vector: Vector) -> BitMap:
    file = vector.file(root)
    location = file or f"{root}/_delta_log"
    try:
        if file is None:
            return read_bitmap(z85_decode(vector.place, vector.size))
        stored = read_part(file, vector.offset or 0, vector.size + 8)
        (size,), octets = struct.unpack(">I", stored[:4]), stored[4:-4]
        (checksum,) = struct.unpack(">I", stored[-4:])
        if size != vector.size or zlib.crc32(octets) != checksum:
            raise ValueError("its checksum is wrong")
        return read_bitmap(octets)
    except (OSError, ValueError, KeyError, struct.error) as error:
        missing = isinstance(error, FileNotFoundError)
        raise unreadable(location, f"a deletion vector: {error}", missing=missing) from error


def rows_of(bitmap: BitMap) -> Rows:
    """Return the rows of a bitmap, ascending."""
    return np.asarray(bitmap.to_array()).astype(np.int64)


def bitmap_of(rows: Iterable[int] | Rows) -> BitMap:
    return BitMap(np.asarray(rows, np.uint32))

"""Choose partitions as Kafka's Java producers do: murmur2 of the key, without its sign, modulo the partitions.

So a topic of ours co-partitions with topics that others write. Columnar: all keys are hashed a word at a time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_M = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)
_POSITIVE = np.uint32(0x7FFFFFFF)

Hashes = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]


def positive_hashes(keys: pa.Array) -> Hashes:
    """Return the hash of each key, without its sign. Of a null, that of an empty key."""
    return murmur2(keys) & _POSITIVE


def murmur2(keys: pa.Array) -> Hashes:
    """Return murmur2 of each key, as `org.apache.kafka.common.utils.Utils.murmur2` has it."""
    octets, offsets = _octets(keys)
    starts, lengths = offsets[:-1], np.diff(offsets).astype(np.uint32)
    hashed: Hashes = _SEED ^ lengths
    words = _words(octets)
    if not len(hashed):
        return hashed
    with np.errstate(over="ignore"):
        shortest = int(lengths.min()) // 4
        for word in range(int(lengths.max()) // 4):
            if word < shortest:  # all keys have it
                hashed = (hashed * _M) ^ _mixed(words[starts + 4 * word])
            else:
                rows = np.flatnonzero(lengths >= 4 * (word + 1))
                hashed[rows] = (hashed[rows] * _M) ^ _mixed(words[starts[rows] + 4 * word])
        rest = lengths & np.uint32(3)
        rows = np.flatnonzero(rest)
        if len(rows):
            at = starts[rows] + (lengths[rows] & ~np.uint32(3)).astype(np.int64)
            wanted = (np.uint32(1) << (rest[rows] * np.uint32(8))) - np.uint32(1)
            hashed[rows] = (hashed[rows] ^ (words[at] & wanted)) * _M
        hashed = (hashed ^ (hashed >> np.uint32(13))) * _M
        return hashed ^ (hashed >> np.uint32(15))


def _mixed(words: Hashes) -> Hashes:
    words = words * _M
    mixed: Hashes = (words ^ (words >> np.uint32(24))) * _M
    return mixed


def _words(octets: Octets) -> Hashes:
    """Return a view of every 4 bytes, whatever their alignment: fancy indexing gathers words from it without a copy."""
    words: Hashes = np.ndarray((len(octets) - 3,), "<u4", octets.data, 0, (1,))
    return words


def _octets(keys: pa.Array) -> tuple[Octets, Offsets]:
    """Return the bytes of all keys, with a word of zeros behind them, and where each begins and ends."""
    if keys.null_count:
        keys = keys.fill_null(b"")
    _, ends, data = keys.buffers()
    offsets = np.frombuffer(ends, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    if not len(keys) or data is None:
        return np.zeros(4, np.uint8), np.zeros(len(keys) + 1, np.int64)
    octets = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    return np.concatenate([octets, np.zeros(4, np.uint8)]), offsets - offsets[0]

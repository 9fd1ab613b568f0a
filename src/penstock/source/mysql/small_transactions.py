"""Small transactions by the thousand, without a loop over their events: the part of a block that needs no thought.

Such a transaction is GTID, BEGIN (MySQL's), descriptions of tables that are known byte for byte, whole rows, and XID.
`first_simple` says how many of a block's transactions are like that and what their rows are; everything else, from the
first other event on, is for `Transactions.take`, which gives the same records. Checksums are verified of rows and of
GTIDs; the other events are compared with what they have to be.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.decode.mysql.rows import padded, view
from penstock.decode.reader import Mask, Octets, Places
from penstock.model.change import DELETE, INSERT, UPDATE
from penstock.source.mysql.events import ANONYMOUS_GTID, GTID, HEADER, MARIA_GTID, PACKET, QUERY, TABLE_MAP, XID, Block

Numbers = npt.NDArray[np.uint64]
_OPS = np.zeros(256, np.uint8)
_OPS[[23, 30]], _OPS[[24, 31]], _OPS[[25, 32]] = INSERT, UPDATE, DELETE
_SECOND_VERSION = 30  # from which on rows have a length of extra data
_TABLE_ID = (1 << 48) - 1
_STANDALONE_OR_PREPARED = 1 | 64


class Mapped(Protocol):
    """A table id of the binlog, as `Transactions` keeps it."""

    @property
    def body(self) -> bytes: ...
    @property
    def schema(self) -> object | None: ...
    @property
    def columns(self) -> int: ...
    @property
    def refused(self) -> str: ...


@dataclass(frozen=True)
class Rows:
    """Row events of one table id: their images behind one another, the bytes of each, and where each belongs.

    Of each there is its transaction's number, its ordinal in that, its operation, and the offset in the file where it
    ends (0: unknown).
    """

    content: bytes
    lengths: Places
    transaction: Places
    ordinal: Places
    op: npt.NDArray[np.uint8]
    ends: Places


@dataclass(frozen=True)
class Simple:
    """`events` are how many of the block. For each transaction: where it begins and ends, its number, time and GTID."""

    events: int
    begins: Places
    ends: Places
    numbers: Numbers
    times: Places
    gtids: list[str] = field(repr=False)  # runs of MySQL's (`uuid:4-9`), or MariaDB's last ones; none: it has none
    rows: dict[int, Rows]


def first_simple(
    block: Block, begin: int, maps: Mapping[int, Mapped], *, checksum: int, mariadb: bool
) -> Simple | None:
    """Return the transactions at the beginning of what is left of a block, if any of them are simple."""
    look = _Look(block, begin, checksum, mariadb)
    if look.kind[0] not in (MARIA_GTID, GTID, ANONYMOUS_GTID):
        return None
    count = look.simple(maps)
    return look.taken(count, maps) if count else None


class _Look:
    def __init__(self, block: Block, begin: int, checksum: int, mariadb: bool) -> None:
        self._octets: Octets = padded(block.content)
        self._content, self._checksum, self._mariadb = memoryview(block.content), checksum, mariadb
        self._starts = np.array(block.starts[begin:], np.int64)
        self._ends = np.append(self._starts[1:] - PACKET, len(block.content))
        self._fours, self._eights = view(self._octets, "<u4"), view(self._octets, "<u8")
        self.kind = self._octets[self._starts + 4]
        self._log_position = self._fours[self._starts + 13].astype(np.int64)
        is_gtid = np.isin(self.kind, (MARIA_GTID, GTID, ANONYMOUS_GTID))
        self._whose = np.cumsum(is_gtid) - 1
        self._gtids = np.flatnonzero(is_gtid)
        self._lasts = np.append(self._gtids[1:], len(self.kind)) - 1
        self._table = (self._eights[self._starts + HEADER] & np.uint64(_TABLE_ID)).astype(np.int64)
        self._op = _OPS[self.kind]

    def simple(self, maps: Mapping[int, Mapped]) -> int:
        """Return how many transactions, from the first on, are simple."""
        good = self._is_gtid_good() | self._is_begin() | (self.kind == XID)
        good |= self._is_known_map(maps) | self._is_whole_row(maps)
        wrong = np.bincount(self._whose, ~good, minlength=len(self._gtids)) > 0
        last, first = self._lasts, self._gtids
        counted = np.bincount(self._whose, self.kind == XID, minlength=len(first))
        wrong |= (counted != 1) | (self.kind[last] != XID) | (self._log_position[last] <= self._log_position[first])
        begins = np.bincount(self._whose, self.kind == QUERY, minlength=len(first))
        if self._mariadb:
            wrong |= begins != 0
        else:
            wrong |= (begins != 1) | (self.kind[np.minimum(first + 1, len(self.kind) - 1)] != QUERY)
        return int(np.argmax(wrong)) if wrong.any() else len(wrong)

    def _is_gtid_good(self) -> Mask:
        good = np.isin(self.kind, (MARIA_GTID,) if self._mariadb else (GTID, ANONYMOUS_GTID))
        if self._mariadb:
            good &= self._octets[self._starts + HEADER + 12] & _STANDALONE_OR_PREPARED == 0
        else:
            good &= self._ends - self._starts >= HEADER + 49 + self._checksum
        good &= self._log_position > self._ends - self._starts
        self._verify(good)
        return good

    def _verify(self, good: Mask) -> None:
        """Take out of `good` events whose checksum is wrong."""
        if self._checksum:
            content, crc32 = self._content, zlib.crc32
            places = np.flatnonzero(good)
            ends = self._ends[places] - 4
            starts, stops = self._starts[places].tolist(), ends.tolist()
            sums = np.fromiter(
                (crc32(content[start:stop]) for start, stop in zip(starts, stops, strict=True)), np.uint32, len(places)
            )
            good[places] = sums == self._fours[ends]

    def _is_begin(self) -> Mask:
        body, ends = self._starts + HEADER, self._ends - self._checksum
        names = self._octets[body + 8].astype(np.int64)
        variables = self._octets[body + 11].astype(np.int64) + (self._octets[body + 12].astype(np.int64) << 8)
        good: Mask = (self.kind == QUERY) & (body + 13 + variables + names + 1 + 5 == ends)
        tail = np.maximum(ends - 5, 0)
        good &= (self._octets[tail] == ord("B")) & (self._fours[tail + 1] == int.from_bytes(b"EGIN", "little"))
        return good

    def _is_known_map(self, maps: Mapping[int, Mapped]) -> Mask:
        good = np.zeros(len(self.kind), np.bool_)
        is_map = self.kind == TABLE_MAP
        for number in np.unique(self._table[is_map]).tolist():
            known = maps.get(number)
            if known is not None and not known.refused:
                size = len(known.body)
                places = np.flatnonzero(is_map & (self._table == number))
                places = places[self._ends[places] - self._starts[places] == size + HEADER + self._checksum]
                good[places] = self._has(self._starts[places] + HEADER, known.body)
        return good

    def _has(self, at: Places, expected: bytes) -> Mask:
        """Return at which of the places these bytes stand."""
        if not expected:
            return np.ones(len(at), np.bool_)
        windows = np.lib.stride_tricks.sliding_window_view(self._octets, len(expected))
        same: Mask = (windows[at] == np.frombuffer(expected, np.uint8)).all(axis=1)
        return same

    def _is_whole_row(self, maps: Mapping[int, Mapped]) -> Mask:
        good = np.zeros(len(self.kind), np.bool_)
        self._contents = np.zeros(len(self.kind), np.int64)
        is_row = self._op > 0
        second = self.kind >= _SECOND_VERSION
        for number in np.unique(self._table[is_row]).tolist():
            known = maps.get(number)
            if known is None or known.refused or not known.columns < 251:
                continue
            places = np.flatnonzero(is_row & (self._table == number))
            if known.schema is None:
                good[places] = True
                continue
            body = self._starts[places] + HEADER + 8
            plain = self._octets[body].astype(np.int64) + (self._octets[body + 1].astype(np.int64) << 8) == 2
            body += 2 * second[places]
            same = (plain | ~second[places]) & (self._octets[body] == known.columns)
            size = (known.columns + 7) // 8
            whole = ((1 << known.columns) - 1).to_bytes(size, "little")
            body += 1
            same &= self._is_all_ones(body, whole)
            update = self._op[places] == UPDATE
            same &= ~update | self._is_all_ones(body + size, whole)
            self._contents[places] = body + size * np.where(update, 2, 1)
            same &= self._contents[places] <= self._ends[places] - self._checksum
            good[places] = same
        wanted: Mask = good & (self._contents > 0)
        self._verify(wanted)
        wanted |= good & (self._contents == 0)
        return wanted

    def _is_all_ones(self, at: Places, whole: bytes) -> Mask:
        """Bits behind the last column mean nothing."""
        windows = np.lib.stride_tricks.sliding_window_view(self._octets, len(whole))
        bits = np.frombuffer(whole, np.uint8)
        at = np.minimum(at, len(windows) - 1)
        same: Mask = (windows[at] & bits == bits).all(axis=1)
        return same

    def taken(self, count: int, maps: Mapping[int, Mapped]) -> Simple:
        last, first = self._lasts[:count], self._gtids[:count]
        events = int(last[-1]) + 1
        body = self._starts[first] + HEADER
        if self._mariadb:
            numbers = self._eights[body]
            times = self._fours[self._starts[first]].astype(np.int64) * 1_000_000
        else:
            numbers = np.maximum(self._eights[body + 17].astype(np.int64), 0).astype(np.uint64)
            times = (self._eights[body + 42] & np.uint64((1 << 55) - 1)).astype(np.int64)
        is_row = self._op[:events] > 0
        before = np.cumsum(is_row)
        ordinal = before - before[first][self._whose[:events]]  # of rows in their transaction, from 1 on
        rows: dict[int, Rows] = {}
        wanted = is_row & (self._contents[:events] > 0)
        for number in np.unique(self._table[:events][wanted]).tolist():
            if maps[number].schema is not None:
                places = np.flatnonzero(wanted & (self._table[:events] == number))
                rows[number] = self._rows(places, ordinal[places])
        size = self._ends[first] - self._starts[first]
        return Simple(
            events,
            self._log_position[first] - size,
            self._log_position[last],
            numbers,
            times,
            self._texts(first, numbers),
            rows,
        )

    def _rows(self, places: Places, ordinal: Places) -> Rows:
        start, end = self._contents[places], self._ends[places] - self._checksum
        offsets = np.empty(2 * len(start) + 1, np.int32)
        offsets[0:-1:2], offsets[1::2], offsets[-1] = start, end, end[-1]
        both = pa.Array.from_buffers(
            pa.binary(), 2 * len(start), [None, pa.py_buffer(offsets), pa.py_buffer(self._octets)]
        )
        chosen: Any = both.take(pa.array(np.arange(0, 2 * len(start), 2, dtype=np.int32)))
        content = bytes(chosen.buffers()[2] or b"")[: int((end - start).sum())]
        return Rows(content, end - start, self._whose[places], ordinal, self._op[places], self._log_position[places])

    def _texts(self, first: Places, numbers: Numbers) -> list[str]:
        if self._mariadb:
            domains = self._fours[self._starts[first] + HEADER + 8]
            servers = self._fours[self._starts[first] + 5]
            found = []
            for domain in np.unique(domains).tolist():
                place = int(np.flatnonzero(domains == domain)[-1])
                found.append(f"{domain}-{servers[place]}-{numbers[place]}")
            return found
        if (self.kind[first] == ANONYMOUS_GTID).any():
            return []
        at = self._starts[first] + HEADER + 1
        high, low = self._eights[at], self._eights[at + 8]
        breaks = (np.diff(high) != 0) | (np.diff(low) != 0) | (np.diff(numbers.astype(np.int64)) != 1)
        runs = np.concatenate([[0], np.flatnonzero(breaks) + 1, [len(first)]]).tolist()
        found = []
        for begin, end in pairwise(runs):
            server = uuid.UUID(bytes=self._octets[at[begin] : at[begin] + 16].tobytes())
            found.append(f"{server}:{numbers[begin]}-{numbers[end - 1]}")
        return found

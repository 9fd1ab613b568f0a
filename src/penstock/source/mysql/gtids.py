"""GTIDs of transactions that have ended, as the log's state keeps them: a text for each domain or server.

MariaDB has one sequence in each domain, of which the last one counts (`{"0": "0-1-42"}`). MySQL has a set of numbers
for each server (`{"5ab5…": "1-41:44-50"}`), which may have holes. A GTID counts once its transaction has ended.
"""

from __future__ import annotations

import re
import struct
import uuid
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from types import MappingProxyType

_OWNED = re.compile(r"([0-9a-fA-F-]{36})((?::[a-zA-Z_][a-zA-Z0-9_]*)?)((?::[0-9]+(?:#[0-9]+)+)+)")


class LastOfDomains:
    """MariaDB's."""

    def __init__(self, state: Mapping[str, str]) -> None:
        self._last = dict(state)

    def add(self, text: str) -> None:
        self._last[text.partition("-")[0]] = text

    def add_runs(self, texts: Iterable[str]) -> None:
        """Add the last one of each of some domains."""
        for text in texts:
            self.add(text)

    def state(self) -> dict[str, str]:
        return dict(self._last)


class LastOfSources:
    """What a MariaDB server has written: `@@GLOBAL.gtid_binlog_state`, the last one of each domain and server."""

    def __init__(self, text: str) -> None:
        parts = [one.strip().split("-") for one in text.split(",") if one.strip()]
        self._last = {(domain, server): int(number) for domain, server, number in parts}

    def __contains__(self, gtid: str) -> bool:
        domain, server, number = gtid.split("-")
        return self._last.get((domain, server), 0) >= int(number)


class GtidSet:
    """MySQL's. Numbers are kept as intervals that neither meet nor overlap."""

    def __init__(self, state: Mapping[str, str] = MappingProxyType({})) -> None:
        self._of: dict[str, list[list[int]]] = {}
        for name, text in state.items():
            self._of[name] = sorted(_interval(one) for one in text.split(":"))

    @classmethod
    def from_text(cls, text: str) -> GtidSet:
        """Read what the server writes: `uuid:1-5:7,uuid:tag:1`."""
        found = cls()
        for item in filter(None, (one.strip() for one in text.split(","))):
            server, *parts = item.split(":")
            name = server.lower()
            for part in parts:
                if part[:1].isdigit():
                    found._insert(name, *_interval(part))
                else:
                    name = f"{server.lower()}:{part}"
        return found

    def add(self, text: str) -> None:
        """Add one transaction: `uuid:7` or `uuid:tag:7`."""
        name, _, number = text.rpartition(":")
        value, intervals = int(number), self._of.get(name)
        if intervals and intervals[-1][1] == value - 1:
            intervals[-1][1] = value
        else:
            self._insert(name, value, value)

    def add_runs(self, texts: Iterable[str]) -> None:
        """Add runs of transactions: `uuid:7-12`."""
        for text in texts:
            name, _, numbers = text.rpartition(":")
            self._insert(name, *_interval(numbers))

    def __contains__(self, text: str) -> bool:
        name, _, number = text.rpartition(":")
        return any(low <= int(number) <= high for low, high in self._of.get(name, ()))

    def meets(self, other: GtidSet) -> bool:
        """Return whether a transaction is in both."""
        return any(
            low <= there[1] and there[0] <= high
            for name, intervals in self._of.items()
            for low, high in intervals
            for there in other._of.get(name, ())
        )

    def __bool__(self) -> bool:
        return bool(self._of)

    def state(self) -> dict[str, str]:
        return {name: ":".join(_shown(*one) for one in intervals) for name, intervals in sorted(self._of.items())}

    def text(self) -> str:
        return ",".join(f"{name}:{intervals}" for name, intervals in self.state().items())

    def encoded(self) -> bytes:
        """Write it as a request for the binlog has it. ValueError for tags, which that form has no place for."""
        parts = [struct.pack("<Q", len(self._of))]
        for name, intervals in sorted(self._of.items()):
            parts += [uuid.UUID(name).bytes, struct.pack("<Q", len(intervals))]
            parts += [struct.pack("<QQ", low, high + 1) for low, high in intervals]
        return b"".join(parts)

    def _insert(self, name: str, low: int, high: int) -> None:
        intervals = self._of.setdefault(name, [])
        at = bisect_left(intervals, [low])
        while at < len(intervals) and intervals[at][0] <= high + 1:
            high = max(high, intervals.pop(at)[1])
        if at and intervals[at - 1][1] >= low - 1:
            intervals[at - 1][1] = max(intervals[at - 1][1], high)
        else:
            intervals.insert(at, [low, high])


def owned(text: str) -> GtidSet:
    """Read `@@GLOBAL.gtid_owned`: GTIDs of transactions that have not ended, each with the threads that own it."""
    found = GtidSet()
    for server, tag, parts in _OWNED.findall(text):
        for part in parts.split(":")[1:]:
            found.add(f"{server.lower()}{tag}:{part.partition('#')[0]}")
    return found


def _interval(text: str) -> list[int]:
    low, _, high = text.partition("-")
    return [int(low), int(high or low)]


def _shown(low: int, high: int) -> str:
    return f"{low}-{high}" if high > low else f"{low}"

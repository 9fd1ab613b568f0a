"""A shard's records of how far it is: each follows the one before it, and of two writers only one adds the next.

**With hard links** (`LinkedChain`): a record is created under the next number, which fails if somebody else has created
it. A writer that slept while older records were removed may find its number free again; it looks for a higher one
afterwards, finds it (the newest is never removed), and withdraws.

**Without** (`ListedChain`), in an object store that cannot create a file only if it is absent: a writer that opens the
chain first claims an epoch higher than all others, then looks for the newest record. It writes records under its epoch,
and looks for a higher one behind each. Listings show what was written before them, so if it finds none, whoever claims
one later finds the record. If it does, nobody can say who was first: CommitUnknown, and the next `open` decides. So
the writer who opened last goes on, and those before it are fenced off, as Kafka does it.
"""

from __future__ import annotations

import json
import random
import re
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.destinations.places.folder import Folder
from penstock.errors import CommitUnknown, DestinationUnreachable, Overtaken

Record = dict[str, Any]
_NUMBERED = re.compile(r"([0-9]{16})\.json")
_RECORD = re.compile(r"([0-9]{12})-([0-9]{12})\.json")
_CLAIM = re.compile(r"([0-9]{12})-([0-9a-f]{32})\.claim")
_NOTHING_LOST = "Nothing: what is not published yet is published from where the other writer ended"
CLAIMS = 12  # tries to be alone


class Chain(Protocol):
    """Picklable until it is opened; for one thread."""

    def open(self) -> Record | None:
        """Return the newest record, or None if there is none, and be the writer from here on."""

    def newest(self) -> Record | None:
        """Return the newest record without touching anything."""

    def append(self, record: Record) -> None:
        """Add the next record, durably. Overtaken if another writer was here since `open`: nothing was added."""


def chain_in(folder: Folder) -> Chain:
    return LinkedChain(folder) if folder.has_links else ListedChain(folder)


@dataclass
class LinkedChain:
    folder: Folder
    _number: int = -1

    def open(self) -> Record | None:
        self.folder.make()
        self._number, record = self._found()
        return record

    def newest(self) -> Record | None:
        return self._found()[1]

    def append(self, record: Record) -> None:
        if self._number < 0:
            raise ValueError("the chain is not open")
        number = self._number + 1
        if not self.folder.create(_numbered(number), _encoded(record)):
            raise _overtaken(self.folder)
        numbers = self._numbers()
        if max(numbers) > number:
            self.folder.delete(_numbered(number))
            raise _overtaken(self.folder)
        self._number = number
        for older in numbers:
            if older < number:
                self.folder.delete(_numbered(older))

    def _found(self) -> tuple[int, Record | None]:
        while True:
            number = max(self._numbers(), default=0)
            if number == 0:
                return 0, None
            content = self.folder.read(_numbered(number))
            if content is not None:  # else a newer one has taken its place
                return number, json.loads(content)

    def _numbers(self) -> list[int]:
        return [int(found[1]) for name in self.folder.names() if (found := _NUMBERED.fullmatch(name))]


@dataclass
class ListedChain:
    folder: Folder
    _epoch: int = 0
    _count: int = 0

    def open(self) -> Record | None:
        self.folder.make()
        for attempt in range(CLAIMS):
            epoch, own = 1 + _highest(self.folder.names()), uuid.uuid4().hex
            claim = f"{epoch:012d}-{own}.claim"
            self.folder.write(claim, b"")
            names = self.folder.names()
            if _highest(name for name in names if name != claim) < epoch:
                self._epoch, self._count = epoch, 0
                name, record = self._newest(names)
                self._forget(names, name)
                return record
            self.folder.delete(claim)
            time.sleep(random.uniform(0, 0.02 * 2**attempt))  # another writer claimed the same epoch: both withdraw
        raise DestinationUnreachable(f"{self.folder} is being opened by other writers", "It is tried again")

    def newest(self) -> Record | None:
        return self._newest(self.folder.names())[1]

    def append(self, record: Record) -> None:
        if not self._epoch:
            raise ValueError("the chain is not open")
        if _highest(self.folder.names()) > self._epoch:
            raise _overtaken(self.folder)
        name = f"{self._epoch:012d}-{self._count + 1:012d}.json"
        self.folder.write(name, _encoded(record))
        names = self.folder.names()
        if _highest(names) > self._epoch:
            raise CommitUnknown(
                f"{self.folder}: another writer came while a place was written", "Nothing: the shard is opened again"
            )
        self._count += 1
        self._forget(names, name)

    def _newest(self, names: list[str]) -> tuple[str, Record | None]:
        """Return the newest record and its name.

        One that cannot be read was being written when its writer died: it does not count.
        """
        for name in sorted(filter(_RECORD.fullmatch, names), reverse=True):
            content = self.folder.read(name)
            if content is None:
                return self._newest(self.folder.names())  # a newer one has taken its place
            try:
                return name, dict(json.loads(content))
            except ValueError:
                continue
        return "", None

    def _forget(self, names: list[str], newest: str) -> None:
        """Remove claims below the own one, and records before the newest."""
        own = f"{self._epoch:012d}"
        claims = [name for name in names if _CLAIM.fullmatch(name) and name[: len(own)] < own]
        for name in [*claims, *(name for name in names if _RECORD.fullmatch(name) and name < newest)]:
            self.folder.delete(name)


def _highest(names: Iterable[str]) -> int:
    """Return the highest epoch that any name has; 0 without one."""
    found = (_CLAIM.fullmatch(name) or _RECORD.fullmatch(name) for name in names)
    return max((int(one[1]) for one in found if one), default=0)


def _numbered(number: int) -> str:
    return f"{number:016d}.json"


def _encoded(record: Record) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode()


def _overtaken(folder: Folder) -> Overtaken:
    return Overtaken(f"{folder} was moved on by another writer", _NOTHING_LOST)

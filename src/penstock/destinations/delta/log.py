"""The log of a Delta table on a local disk: read, followed, and written by put-if-absent. No Spark, no Java.

Version N+1 is written by whoever has read version N, and only if nobody else has: a complete file gets its name by a
hard link, which fails if the name is taken. That is a compare-and-set on the whole table. What the log says is carried
on in memory, and only entries that somebody else made are read. Delta's own writer on a local disk looks whether an
entry is there and then renames over it, so it can replace ours in a race: the file of the last entry that we know is
looked at each time, and if it is another one, the log is read again from its beginning.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from penstock.destinations.delta.actions import Action, LogState, Operation
from penstock.destinations.delta.checkpoint import checkpoints_in, read_checkpoint
from penstock.destinations.lake.storage import reaching, reading, unreadable
from penstock.errors import CommitUnknown, StaleBase, TableDropped

COPIED_AGAIN = "Nothing: the table is made and copied again by itself"
ENTRY = re.compile(r"(\d{20})\.json")
FOLDER = "_delta_log"

Mark = tuple[int, int, int]  # what tells a file from another of the same name


class TableLog:
    """One table's log, as this process last read it."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.state = LogState(root, _count)
        self.operations: dict[int, Operation] = {}  # by version, as far as they were read
        self._folder = Path(root) / FOLDER
        self._mark: Mark | None = None

    @property
    def version(self) -> int:
        return self.state.version

    @property
    def name(self) -> str:
        """What tells this version from every other, of this table or of one that took its place."""
        return "" if self._mark is None else f"{self.version}-{self._mark[0]}-{self._mark[1]}"

    @property
    def committed_at(self) -> float:
        """When the last entry was made, in seconds since 1970."""
        return 0.0 if self._mark is None else self._mark[1] / 1e9

    @property
    def exists(self) -> bool:
        """Whether there is a table, now."""
        with reaching(f"{self._folder} cannot be listed"):
            return self._folder.is_dir() and any(ENTRY.fullmatch(path.name) for path in self._folder.iterdir())

    def entry(self, version: int) -> Path:
        return self._folder / f"{version:020d}.json"

    def refresh(self) -> bool:
        """Read what has come since the last time; return whether there was anything. TableDropped when the table is
        gone, FileUnreadable when its log cannot be read."""
        if self.version < 0 or not self.is_ours:
            self._load()
            return True
        before = self.version
        while self.entry(self.version + 1).exists():
            self._follow(self.version + 1)
        return self.version != before

    @property
    def is_ours(self) -> bool:
        """Whether the last entry that we know is still the file that we knew."""
        return self._mark is not None and _mark(self.entry(self.version)) == self._mark

    def put(self, actions: Sequence[Action], operation: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Make the next version of these actions. StaleBase if somebody else has made it, or has replaced the one
        before: nothing has changed then."""
        version, name = self.version + 1, uuid.uuid4().hex
        info = _commit_info(version, operation, parameters or {}, name)
        place, unfinished = self.entry(version), self._folder / f".{name}.tmp"
        if version and not self.is_ours:
            raise StaleBase(f"version {self.version} of {self.root} was replaced", "It is read again")
        with reaching(f"the log {self._folder} cannot be written"):
            try:
                mark = _written(unfinished, [info, *actions])
                os.link(unfinished, place)
            except FileExistsError as error:
                raise StaleBase(f"version {version} of {self.root} is there already", "It is read again") from error
            except FileNotFoundError as error:
                raise TableDropped(f"{self._folder} is gone", COPIED_AGAIN) from error
            except OSError:
                if not self._has_come(place, name):
                    raise
            finally:
                unfinished.unlink(missing_ok=True)
        self._mark = mark
        self.state.enter(version, actions)
        self.operations[version] = Operation(operation, None)

    def _has_come(self, place: Path, name: str) -> bool:
        """Return whether an entry that could not be linked, it seems, has been made by us. CommitUnknown if that cannot
        be found out."""
        try:
            return any((action.get("commitInfo") or {}).get("txnId") == name for action in _read(place))
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            raise CommitUnknown(f"{place}: it is not known whether it was made: {error}", "It is read again") from error

    def operation(self, version: int) -> Operation | None:
        """Return what an entry says of itself; None when nobody can tell any more."""
        if version not in self.operations:
            try:
                self.operations[version] = Operation.of(_read(self.entry(version)))
            except (OSError, ValueError):
                return None
        return self.operations[version]

    def _load(self) -> None:
        """From the newest checkpoint on, or from the first entry."""
        with reaching(f"{self._folder} cannot be listed"):
            try:
                names = [path.name for path in self._folder.iterdir()]
            except FileNotFoundError:
                names = []
        entries = sorted(int(found[1]) for name in names if (found := ENTRY.fullmatch(name)))
        if not entries:
            raise TableDropped(f"{self.root} holds no Delta table any more", COPIED_AGAIN)
        state = LogState(self.root, _count)
        checkpoints = checkpoints_in(names)
        if checkpoints:
            newest = max(checkpoints)
            for name in checkpoints[newest]:
                read_checkpoint(str(self._folder / name), state)
            state.version = newest
        self.state, self.operations = state, {}
        for version in [version for version in entries if version > state.version] or entries[-1:]:
            self._follow(version)

    def _follow(self, version: int) -> None:
        """Take in one entry; of the version that a checkpoint stands for, only which file it is."""
        place = self.entry(version)
        if version > self.version + 1:
            raise unreadable(str(self.entry(self.version + 1)), "the log does not have it", missing=True)
        mark = _mark(place)
        if version == self.version + 1:
            with reading(str(place)):
                try:
                    actions = _read(place)
                except ValueError as error:
                    raise unreadable(str(place), f"not an entry of a log: {error}", missing=False) from error
            self._mark = None  # an entry that is taken in by half is read again, with all others
            self.state.enter(version, actions)
            self.operations[version] = Operation.of(actions)
        self._mark = mark


def _read(place: Path) -> list[Action]:
    actions = [json.loads(line) for line in place.read_text().split("\n") if line.strip()]
    if not all(isinstance(action, dict) for action in actions):
        raise ValueError("a line of it is no object")
    return actions


def _written(place: Path, actions: Sequence[Action]) -> Mark | None:
    """Write a file of actions, to the disk."""
    text = "\n".join(json.dumps(action, ensure_ascii=False, separators=(",", ":")) for action in actions)
    with place.open("w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    return _mark(place)


def _mark(place: Path) -> Mark | None:
    try:
        stat = place.stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _commit_info(version: int, operation: str, parameters: Mapping[str, Any], name: str) -> Action:
    """Return the first line of an entry: for people (`DESCRIBE HISTORY`), and for the conflict checks of others."""
    told = {
        "timestamp": int(time.time() * 1000),
        "operation": operation,
        "operationParameters": {key: str(value) for key, value in parameters.items()},
        "isolationLevel": "Serializable",
        "isBlindAppend": False,
        "engineInfo": "penstock",
        "txnId": name,
    }
    return {"commitInfo": told | ({"readVersion": version - 1} if version else {})}


def _count(location: str) -> int:
    """Return the number of rows that a data file says it has."""
    with reading(location):
        return int(pq.read_metadata(location).num_rows)

"""The log of a Delta table: read, followed, and written by put-if-absent. No Spark, no Java.

Version N+1 is written by whoever has read version N, and only if nobody else has (`log_files.create`). That is a
compare-and-set on the whole table. What the log says is carried on in memory, and only entries that somebody else made
are read. Delta's own writer on a local disk, and in S3 without a lock table, looks whether an entry is there and then
writes over it, so it can replace ours in a race: the file of the last entry that we know is looked at each time, and if
it is another one, the log is read again from its beginning.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.parquet as pq

from penstock.destinations.delta.actions import Action, LogState, Operation
from penstock.destinations.delta.checkpoint import checkpoints_in, read_checkpoint
from penstock.destinations.delta.log_files import FOLDER, log_files
from penstock.destinations.lake.storage import opened, reaching, reading, unreadable
from penstock.errors import CommitUnknown, StaleBase, TableDropped
from penstock.s3_folder import Mark

COPIED_AGAIN = "Nothing: the table is made and copied again by itself"
ENTRY = re.compile(r"(\d{20})\.json")


class TableLog:
    """One table's log, as this process last read it."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.state = LogState(root, _count)
        self.operations: dict[int, Operation] = {}  # by version, as far as they were read
        self.folder = f"{root}/{FOLDER}"
        self._files = log_files(root)
        self._mark: Mark | None = None

    @property
    def version(self) -> int:
        return self.state.version

    @property
    def name(self) -> str:
        """What distinguishes this version from every other, of this table or of one that took its place."""
        return "" if self._mark is None else f"{self.version}-{self._mark.identity}"

    @property
    def committed_at(self) -> float:
        """When the last entry was made, in seconds since 1970."""
        return 0.0 if self._mark is None else self._mark.at

    @property
    def exists(self) -> bool:
        """Whether there is a table, now."""
        with reaching(f"{self.folder} cannot be listed"):
            return any(map(ENTRY.fullmatch, self._files.names()))

    def refresh(self) -> bool:
        """Read what has come since the last time; return whether there was anything.

        TableDropped when the table is gone, FileUnreadable when its log cannot be read.
        """
        if self.version < 0 or not self.is_ours:
            self._load()
            return True
        before = self.version
        while self._follow(self.version + 1):
            pass
        return self.version != before

    @property
    def is_ours(self) -> bool:
        """Whether the last entry that we know is still the file that we knew."""
        with reaching(f"{self.folder} cannot be read"):
            return self._mark is not None and self._files.mark(entry_name(self.version)) == self._mark

    def put(self, actions: Sequence[Action], operation: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Make the next version of these actions.

        StaleBase if somebody else has made it, or has replaced the one before: nothing has changed then.
        """
        version, name = self.version + 1, uuid.uuid4().hex
        content = _written([_commit_info(version, operation, parameters or {}, name), *actions])
        if version and not self.is_ours:
            raise StaleBase(f"version {self.version} of {self.root} was replaced", "It is read again")
        with reaching(f"the log {self.folder} cannot be written"):
            try:
                mark = self._files.create(entry_name(version), content)
            except FileNotFoundError as error:
                raise TableDropped(f"{self.folder} is gone", COPIED_AGAIN) from error
            except OSError as error:  # a store may have made it all the same, and a request sent again finds its own
                if not self._has_come(version, name):
                    if isinstance(error, FileExistsError):
                        raise StaleBase(
                            f"version {version} of {self.root} is there already", "It is read again"
                        ) from error
                    raise
                mark = self._files.mark(entry_name(version))
        self._mark = mark
        self.state.enter(version, actions)
        self.operations[version] = Operation(operation, None)

    def _has_come(self, version: int, name: str) -> bool:
        """Return whether an entry that could not be made, it seems, has been made by us.

        CommitUnknown if that cannot be found out.
        """
        try:
            return any((action.get("commitInfo") or {}).get("txnId") == name for action in self.read(version))
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            place = f"{self.folder}/{entry_name(version)}"
            raise CommitUnknown(f"{place}: it is not known whether it was made: {error}", "It is read again") from error

    def read(self, version: int) -> list[Action]:
        """Read an entry. FileNotFoundError if there is none, ValueError if it is none of a log."""
        lines = self._files.read(entry_name(version)).decode().split("\n")
        actions = [json.loads(line) for line in lines if line.strip()]
        if not all(isinstance(action, dict) for action in actions):
            raise ValueError("a line of it is no object")
        return actions

    def operation(self, version: int) -> Operation | None:
        """Return what an entry says of itself; None when nobody can tell any more."""
        if version not in self.operations:
            try:
                self.operations[version] = Operation.of(self.read(version))
            except (OSError, ValueError):
                return None
        return self.operations[version]

    def _load(self) -> None:
        """Read from the newest checkpoint on, or from the first entry."""
        with reaching(f"{self.folder} cannot be listed"):
            names = list(self._files.names())
        entries = sorted(int(found[1]) for name in names if (found := ENTRY.fullmatch(name)))
        if not entries:
            raise TableDropped(f"{self.root} holds no Delta table any more", COPIED_AGAIN)
        state = LogState(self.root, _count)
        checkpoints = checkpoints_in(names)
        if checkpoints:
            newest = max(checkpoints)
            for name in checkpoints[newest]:
                read_checkpoint(f"{self.folder}/{name}", state)
            state.version = newest
        self.state, self.operations = state, {}
        for version in [version for version in entries if version > state.version] or entries[-1:]:
            if version > self.version + 1 or not self._follow(version):
                missing = f"{self.folder}/{entry_name(self.version + 1)}"
                raise unreadable(missing, "the log does not have it", missing=True)

    def _follow(self, version: int) -> bool:
        """Take in one entry; of the version that a checkpoint stands for, only which file it is.

        False if there is none.
        """
        place = f"{self.folder}/{entry_name(version)}"
        with reading(place):
            mark = self._files.mark(entry_name(version))
            if mark is None:
                return False
            if version == self.version + 1:
                try:
                    actions = self.read(version)
                except ValueError as error:
                    raise unreadable(place, f"not an entry of a log: {error}", missing=False) from error
                self._mark = None  # an entry that is taken in by half is read again, with all others
                self.state.enter(version, actions)
                self.operations[version] = Operation.of(actions)
        self._mark = mark
        return True


def entry_name(version: int) -> str:
    """Name the file of an entry."""
    return f"{version:020d}.json"


def _written(actions: Sequence[Action]) -> bytes:
    lines = [json.dumps(action, ensure_ascii=False, separators=(",", ":")) for action in actions]
    return ("\n".join(lines) + "\n").encode()


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
        system, path = opened(location)
        return int(pq.read_metadata(path, filesystem=system).num_rows)

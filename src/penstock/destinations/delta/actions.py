"""The actions of a Delta log and what they add up to: plain values, without I/O. `log` reads and writes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from penstock.destinations.delta.statistics import records_in, with_dead_rows
from penstock.destinations.delta.vectors import Vector
from penstock.destinations.lake.data_files import WrittenFile
from penstock.destinations.lake.file_list import LiveFile

Action = dict[str, Any]
Identity = tuple[str, str]
RESTORE = "RESTORE"


@dataclass(frozen=True, eq=False)
class AddedFile:
    """A data file of the table, as an `add` action names it. `records` is the number of its rows, dead ones too."""

    raw: Mapping[str, Any]
    root: str
    records: int

    @classmethod
    def of(cls, raw: Mapping[str, Any], root: str, count: Callable[[str], int]) -> AddedFile:
        """`count` reads the number of rows from the file itself, for an action that does not say it."""
        stats = raw.get("stats")
        try:
            return cls(raw, root, records_in(stats) if stats else count(_location(root, raw["path"])))
        except (KeyError, ValueError):
            return cls(raw, root, count(_location(root, raw["path"])))

    @cached_property
    def location(self) -> str:
        return _location(self.root, self.raw["path"])

    @cached_property
    def vector(self) -> Vector | None:
        return Vector.from_action(self.raw.get("deletionVector"))

    @property
    def partition(self) -> Mapping[str, str | None]:
        return self.raw.get("partitionValues") or {}

    @cached_property
    def live(self) -> LiveFile:
        """The file as the algorithms of `lake` know it; its age is a hint where to look first, and no more."""
        return LiveFile(self.location, self.records, self.raw["size"], self.raw["modificationTime"], "data", 0)

    @cached_property
    def deletes(self) -> LiveFile | None:
        """Its dead rows, as if they were a delete file."""
        if self.vector is None:
            return None
        dead = self.vector.cardinality
        text = delete_line(self.location, self.vector)
        age = self.raw["modificationTime"]
        return LiveFile(text, dead, self.vector.size, age, "position-deletes", 0, {self.location: dead})

    def with_vector(self, vector: Vector, *, changes: bool = True) -> Action:
        """Return the action that adds the file again with other dead rows."""
        raw = {key: value for key, value in self.raw.items() if key != "deletionVector"}
        stats = with_dead_rows(raw.get("stats") or "", self.records)
        return {"add": {**raw, "dataChange": changes, "stats": stats, "deletionVector": vector.to_action()}}

    def remove(self, *, changes: bool = True) -> Action:
        """Return the action that takes the file, with the dead rows that it has now, out of the table."""
        told = {
            "path": self.raw["path"],
            "deletionTimestamp": int(time.time() * 1000),
            "dataChange": changes,
            "extendedFileMetadata": True,
            "partitionValues": dict(self.partition),
            "size": self.raw["size"],
        }
        return {"remove": told | ({} if self.vector is None else {"deletionVector": self.vector.to_action()})}


def add_file(
    file: WrittenFile,
    root: str,
    *,
    partition: Mapping[str, str] | None = None,
    vector: Vector | None = None,
    changes: bool = True,
) -> Action:
    """Return the action that adds a file of ours."""
    stats = str(file.description["stats"])
    told = {
        "path": file.path.removeprefix(f"{root}/"),
        "partitionValues": dict(partition or {}),
        "size": file.size,
        "modificationTime": int(time.time() * 1000),
        "dataChange": changes,
        "stats": stats if vector is None else with_dead_rows(stats, file.records),
    }
    return {"add": told | ({} if vector is None else {"deletionVector": vector.to_action()})}


def transaction(app: str, version: int) -> Action:
    return {"txn": {"appId": app, "version": version, "lastUpdated": int(time.time() * 1000)}}


def delete_line(location: str, vector: Vector) -> str:
    """Name the dead rows of a file in a text, by which plans carry them to executors: `data_files` reads it."""
    offset = "" if vector.offset is None else str(vector.offset)
    return "\x1f".join((location, vector.storage, vector.place, offset, str(vector.size), str(vector.cardinality)))


@dataclass(frozen=True)
class Removed:
    """A file, with the dead rows that it had, that a version of the table no longer has."""

    raw: Mapping[str, Any]
    version: int  # that removed it, or a later one

    @property
    def at(self) -> float:
        """When, in seconds since 1970."""
        return float(self.raw.get("deletionTimestamp") or 0) / 1000


@dataclass
class LogState:
    """All that a log says at one version. Removed files are kept until nobody can need them."""

    root: str
    count: Callable[[str], int]
    version: int = -1
    protocol: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    transactions: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    domains: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    files: dict[str, AddedFile] = field(default_factory=dict)  # by path: a version has a path once
    removed: dict[Identity, Removed] = field(default_factory=dict)

    def enter(self, version: int, actions: Iterable[Action]) -> None:
        """Take in one entry. A file may be removed and added in one, in any order: what is added is there."""
        self.version = version
        for action in sorted(actions, key=lambda one: "add" in one):
            self.apply(action)

    def apply(self, action: Action) -> None:
        for kind, told in action.items():
            if kind == "add":
                self.files[told["path"]] = AddedFile.of(told, self.root, self.count)
                self.removed.pop(_identity(told), None)
            elif kind == "remove":
                there = self.files.get(told["path"])
                if there is not None and _identity(there.raw) == _identity(told):
                    del self.files[told["path"]]
                self.removed[_identity(told)] = Removed(told, self.version)
            elif kind == "txn":
                self.transactions[told["appId"]] = told
            elif kind == "metaData":
                self.metadata = told
            elif kind == "protocol":
                self.protocol = told
            elif kind == "domainMetadata":
                self.domains[told["domain"]] = told

    @property
    def configuration(self) -> Mapping[str, str]:
        return self.metadata.get("configuration") or {}

    def transaction(self, app: str) -> int | None:
        told = self.transactions.get(app)
        return None if told is None else int(told["version"])

    def locations(self) -> set[str]:
        """Return every file that the table consists of: data files and files of vectors."""
        found = {file.location for file in self.files.values()}
        vectors = (file.vector.file(self.root) for file in self.files.values() if file.vector is not None)
        return found | {path for path in vectors if path is not None}

    def removed_locations(self, removed: Iterable[Removed]) -> set[str]:
        """Return the files of some removed entries that the table does not consist of any more."""
        found: set[str] = set()
        for one in removed:
            found.add(_location(self.root, one.raw["path"]))
            vector = Vector.from_action(one.raw.get("deletionVector"))
            path = None if vector is None else vector.file(self.root)
            found |= set() if path is None else {path}
        return found - self.locations()


@dataclass(frozen=True)
class Operation:
    """What an entry of the log says of itself.

    `restored`: the version that it went back to; None when it did not, -1 when it does not say which.
    """

    name: str
    restored: int | None

    @classmethod
    def of(cls, actions: Sequence[Action]) -> Operation:
        told: Mapping[str, Any] = next((one["commitInfo"] for one in actions if "commitInfo" in one), {})
        name = str(told.get("operation") or "")
        if name.upper() != RESTORE:
            return cls(name, None)
        version = (told.get("operationParameters") or {}).get("version")
        try:
            return cls(name, int(str(version)))
        except ValueError:
            return cls(name, -1)


def _identity(action: Mapping[str, Any]) -> Identity:
    vector = Vector.from_action(action.get("deletionVector"))
    return action["path"], "" if vector is None else f"{vector.storage}{vector.place}@{vector.offset}"


def _location(root: str, path: str) -> str:
    """Return the path of a file. The log has it as a URI, mostly below the table's folder."""
    plain = unquote(path.removeprefix("file://"))
    return plain if plain.startswith("/") or "://" in plain else f"{root}/{plain}"

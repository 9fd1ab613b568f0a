"""Checkpoints: a log's state in one Parquet file, so that readers need not read the entries before it.

And the cutting of entries that nobody needs.

Classic checkpoints are written. Those and the ones in several parts are read; a table with `v2Checkpoint` is not ours
to write to (`open_table`).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.destinations.delta.actions import Action, LogState
from penstock.destinations.delta.log_files import log_files
from penstock.destinations.lake.storage import opened, reading

CLASSIC = re.compile(r"(\d{20})\.checkpoint\.parquet")
IN_PARTS = re.compile(r"(\d{20})\.checkpoint\.(\d{10})\.(\d{10})\.parquet")
VERSIONED = re.compile(r"(\d{20})\.(?:json|crc|checkpoint\..*)")
MAPS = ("partitionValues", "tags", "configuration")

_texts = pa.map_(pa.string(), pa.string())
_vector = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_add = pa.struct(
    [
        ("path", pa.string()),
        ("partitionValues", _texts),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("tags", _texts),
        ("deletionVector", _vector),
        ("stats", pa.string()),
    ]
)
_remove = pa.struct(
    [
        ("path", pa.string()),
        ("deletionTimestamp", pa.int64()),
        ("dataChange", pa.bool_()),
        ("extendedFileMetadata", pa.bool_()),
        ("partitionValues", _texts),
        ("size", pa.int64()),
        ("deletionVector", _vector),
    ]
)
_metadata = pa.struct(
    [
        ("id", pa.string()),
        ("name", pa.string()),
        ("description", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", _texts)])),
        ("schemaString", pa.string()),
        ("partitionColumns", pa.list_(pa.string())),
        ("configuration", _texts),
        ("createdTime", pa.int64()),
    ]
)
_protocol = pa.struct(
    [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", pa.list_(pa.string())),
        ("writerFeatures", pa.list_(pa.string())),
    ]
)
SCHEMA = pa.schema(
    [
        ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])),
        ("add", _add),
        ("remove", _remove),
        ("metaData", _metadata),
        ("protocol", _protocol),
    ]
)


def checkpoints_in(names: Collection[str]) -> dict[int, list[str]]:
    """Return the complete checkpoints among the names of a log's files: by version the files that make one up."""
    found = {int(match[1]): [name] for name in names if (match := CLASSIC.fullmatch(name))}
    parts: dict[tuple[int, int], list[str]] = {}
    for name in names:
        if match := IN_PARTS.fullmatch(name):
            parts.setdefault((int(match[1]), int(match[3])), []).append(name)
    for (version, count), files in parts.items():
        if len(files) == count:
            found.setdefault(version, sorted(files))
    return found


def read_checkpoint(location: str, state: LogState) -> None:
    """Take in what a checkpoint, or a part of one, says. FileUnreadable when it cannot be read."""
    state.version = int(location.rpartition("/")[2][:20])
    with reading(location):
        system, path = opened(location)
        for row in pq.read_table(path, filesystem=system, partitioning=None).to_pylist():
            for kind, told in row.items():
                if told is not None and kind in SCHEMA.names:
                    state.apply({kind: _plain(told)})


def write_checkpoint(root: str, state: LogState) -> int:
    """Write a checkpoint of the state, and return the number of its actions."""
    rows: list[Action] = [{"protocol": state.protocol}, {"metaData": state.metadata}]
    rows += [{"txn": told} for told in state.transactions.values()]
    rows += [{"add": {**file.raw, "dataChange": False}} for file in state.files.values()]
    rows += [{"remove": {**one.raw, "dataChange": False}} for one in state.removed.values()]
    files, content = log_files(root), pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([_maps(row) for row in rows], SCHEMA), content, compression="snappy")
    files.write(f"{state.version:020d}.checkpoint.parquet", content.getvalue().to_pybytes())
    last = {"version": state.version, "size": len(rows), "numOfAddFiles": len(state.files)}
    files.write("_last_checkpoint", json.dumps(last).encode())
    return len(rows)


def cut(root: str, oldest: int, age: float) -> int:
    """Remove what no reader of version `oldest` or a later one needs, if it is so many seconds old.

    That is entries and checkpoints below the newest checkpoint that is no newer than that version. Return how many
    entries were removed.
    """
    files = log_files(root)
    written = files.names()
    usable = [version for version in checkpoints_in(written) if version <= oldest]
    if not usable:
        return 0
    entries, before = 0, time.time() - age
    for name, at in sorted(written.items()):
        match = VERSIONED.fullmatch(name)
        if match and int(match[1]) < max(usable) and at <= before:
            files.remove(name)
            entries += name.endswith(".json")
    return entries


def _plain(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return an action as the JSON of the log has it: maps as dictionaries, and nothing that is null."""
    plain: dict[str, Any] = {}
    for name, value in told.items():
        if value is None or name.endswith("_parsed"):
            continue
        if name in MAPS:
            plain[name] = dict(value)
        elif name == "format":
            plain[name] = {"provider": value["provider"], "options": dict(value["options"] or [])}
        elif name == "deletionVector":
            plain[name] = {key: one for key, one in value.items() if one is not None and key != "maxRowIndex"}
        else:
            plain[name] = value
    return plain


def _maps(row: Action) -> Action:
    """Return an action as the checkpoint's schema has it: maps as pairs, and only what it knows."""
    ((kind, told),) = row.items()
    known = {field.name for field in SCHEMA.field(kind).type}
    out = {name: value for name, value in told.items() if name in known}
    for name in MAPS:
        if isinstance(out.get(name), Mapping):
            out[name] = list(out[name].items())
    if "format" in out:
        out["format"] = {**out["format"], "options": list((out["format"].get("options") or {}).items())}
    return {kind: out}

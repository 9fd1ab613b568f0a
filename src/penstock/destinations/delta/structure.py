"""A table's structure in Delta: columns, features and settings, and how they move on. Pure: actions in, actions out.

Features come when they are first needed, for each of them shuts some readers out: column mapping with the first rename
or drop, or a name that Delta does not take otherwise; type widening with the first column that is widened. A table
never loses one. In a table without mapping nothing is said of it in its columns: some readers would refuse it.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pyarrow as pa

from penstock.decode.rescue import RESCUED, RESCUED_TYPE
from penstock.destinations.delta.actions import Action, LogState
from penstock.destinations.delta.columns import (
    MAPPED_ID,
    PHYSICAL,
    DeltaField,
    delta_type,
    has_local_moments,
    raw_field,
    rescued_column,
)
from penstock.destinations.delta.data_files import DeltaFormat
from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.structure import Steps
from penstock.errors import SchemaChanged
from penstock.model.table import TableId

COLUMNS = "penstock.columns"  # our number of each physical name that was ever used
MODE, LAST_ID, WIDENING = "delta.columnMapping.mode", "delta.columnMapping.maxColumnId", "delta.enableTypeWidening"
CHANGES = "delta.typeChanges"
SETTINGS = {
    "delta.enableDeletionVectors": "true",
    "delta.deletedFileRetentionDuration": "interval 1 hour",  # each vector that is replaced leaves a tombstone
    "delta.logRetentionDuration": "interval 1 day",
    "delta.checkpointInterval": "100",  # of others who commit; ours are made between batches
}
WRITING = ("appendOnly", "invariants")  # writer features that a table has without asking
KNOWN = frozenset(  # features that ask nothing of an entry beyond what is written here
    (*WRITING, "deletionVectors", "timestampNtz", "columnMapping", "typeWidening", "vacuumProtocolCheck")
)
_REFUSED = re.compile(r"[ ,;{}()\n\t=]")  # in names of columns, without mapping


@dataclass(frozen=True)
class Structure:
    """What `protocol` and `metaData` say of a table."""

    fields: tuple[DeltaField, ...]
    numbers: Mapping[str, int]
    mapped: bool
    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]

    @classmethod
    def of(cls, state: LogState) -> Structure:
        """Give columns that somebody else added the next numbers, in their order."""
        raw = json.loads(state.metadata["schemaString"])["fields"]
        mapped = state.configuration.get(MODE, "none") == "name"
        numbers: dict[str, int] = dict(json.loads(state.configuration.get(COLUMNS) or "{}"))
        fields = []
        for one in raw:
            physical = DeltaField(0, one).physical
            if physical not in numbers:
                numbers[physical] = max(numbers.values(), default=0) + 1
            fields.append(DeltaField(numbers[physical], one))
        return cls(tuple(fields), numbers, mapped, state.protocol, state.metadata)

    @classmethod
    def new(cls, columns: pa.Schema, partition: Sequence[str] = ()) -> Structure:
        """Return the structure of a table that is to be made."""
        metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": "",
            "partitionColumns": list(partition),
            "configuration": dict(SETTINGS),
            "createdTime": int(time.time() * 1000),
        }
        return cls((), {}, False, {}, metadata).evolved(Steps(added=tuple(columns)))

    @property
    def configuration(self) -> Mapping[str, str]:
        return self.metadata.get("configuration") or {}

    def rescued(self) -> LakeColumn:
        """Return the column RESCUED, or what it will be when it comes."""
        return rescued_column(self.fields) or self.with_rescued().rescued()

    def with_rescued(self) -> Structure:
        if rescued_column(self.fields) is not None:
            return self
        return self.evolved(Steps(added=(pa.field(RESCUED, RESCUED_TYPE),)))

    def table_format(self, root: str) -> DeltaFormat:
        """Return how files of the table are written and read, RESCUED among their columns."""
        fields = self.with_rescued().fields
        names = [(field.number, field.physical, field.mapped_id or field.number) for field in fields]
        there = {field.physical for field in fields}
        gone = [(number, physical, number) for physical, number in self.numbers.items() if physical not in there]
        partition = next((field.number for field in fields if field.name in self.metadata["partitionColumns"]), None)
        return DeltaFormat(root, (*names, *gone), partition, self.mapped)

    def evolved(self, steps: Steps) -> Structure:
        """Return the structure after these steps."""
        names = [*(field.name for field in steps.added), *(after for _, after in steps.renamed)]
        wants_mapping = bool(steps.deleted or steps.renamed) or any(map(_REFUSED.search, names))
        made = self._mapped() if wants_mapping and not self.mapped else self
        renamed = dict(steps.renamed)
        fields = [
            field if field.name not in renamed else replace(field, raw={**field.raw, "name": renamed[field.name]})
            for field in made.fields
            if field.name not in steps.deleted
        ]
        configuration, numbers = dict(made.configuration), dict(made.numbers)
        last = int(configuration.get(LAST_ID, 0))
        for added in steps.added:
            number = max(numbers.values(), default=0) + 1
            raw = raw_field(added)
            if made.mapped:
                physical = _free(added.name, number, numbers)
                ids = count(last + 1)
                raw = _with_mapping(raw, ids, physical)
                last = next(ids) - 1
            else:
                physical = added.name
            numbers[physical] = number
            fields.append(DeltaField(number, raw))
        for outer, inner in steps.grown:
            ids = count(last + 1)
            fields = [
                _changed(field, outer, lambda raw, inner=inner, ids=ids: _grown(raw, inner, ids, made.mapped))
                for field in fields
            ]
            last = next(ids) - 1
        for wide in steps.widened:
            fields = [_changed(field, wide.name, lambda raw, wide=wide: _widened(raw, wide.type)) for field in fields]
            configuration[WIDENING] = "true"
        nullable = {**dict.fromkeys(steps.loosened, True), **dict.fromkeys(steps.required, False)}
        fields = [
            field if field.name not in nullable else replace(field, raw={**field.raw, "nullable": nullable[field.name]})
            for field in fields
        ]
        if made.mapped:
            configuration[LAST_ID] = str(last)
        return replace(
            made, fields=tuple(fields), numbers=numbers, metadata={**made.metadata, "configuration": configuration}
        )

    def _mapped(self) -> Structure:
        """Return the same with column mapping: physical names are those that the columns have now."""
        ids = count(1)
        fields = tuple(replace(one, raw=_with_mapping(one.raw, ids, one.physical)) for one in self.fields)
        configuration = {**self.configuration, MODE: "name", LAST_ID: str(next(ids) - 1)}
        return replace(self, fields=fields, mapped=True, metadata={**self.metadata, "configuration": configuration})

    def actions(self, before: LogState | None, properties: Mapping[str, str]) -> list[Action]:
        """Return the actions that make a table's structure and properties these; none when they are so already."""
        known = json.dumps(self.numbers, ensure_ascii=False)
        configuration = {**self.configuration, **properties, COLUMNS: known}
        schema = {"type": "struct", "fields": [field.raw for field in self.fields]}
        text = json.dumps(schema, ensure_ascii=False)
        metadata = {**self.metadata, "schemaString": text, "configuration": configuration}
        protocol = self._protocol(configuration)
        actions: list[Action] = [] if before is not None and before.protocol == protocol else [{"protocol": protocol}]
        if before is not None and before.configuration == configuration and _same(before.metadata, text):
            return actions
        return [*actions, {"metaData": metadata}]

    def _protocol(self, configuration: Mapping[str, str]) -> Mapping[str, Any]:
        needed = {
            "deletionVectors": True,
            "timestampNtz": any(has_local_moments(field.type) for field in self.fields),
            "columnMapping": self.mapped,
            "typeWidening": configuration.get(WIDENING) == "true",
        }
        reading, writing = (list(self.protocol.get(kind) or ()) for kind in ("readerFeatures", "writerFeatures"))
        wanted = [feature for feature, is_needed in needed.items() if is_needed]
        if self.protocol and set(wanted) <= set(reading):
            return self.protocol
        reading += [feature for feature in wanted if feature not in reading]
        writing += [feature for feature in (*WRITING, *reading) if feature not in writing]
        return {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": reading, "writerFeatures": writing}


def require_known_features(target: TableId, state: LogState) -> None:
    """SchemaChanged if the table asks of its writers what we do not do."""
    listed = {*(state.protocol.get("readerFeatures") or ()), *(state.protocol.get("writerFeatures") or ())}
    unknown = sorted(listed - KNOWN)
    if state.configuration.get(MODE, "none") not in ("none", "name"):
        unknown.append(f"columnMapping by {state.configuration[MODE]}")
    if unknown:
        raise SchemaChanged(
            f"table {target}: somebody turned on what penstock cannot write: {', '.join(unknown)}",
            f"Turn it off (`ALTER TABLE … DROP FEATURE {unknown[0]}`) and `penstock retry`; or drop the table there, "
            "and it is copied again",
        )


def _same(metadata: Mapping[str, Any], text: str) -> bool:
    return bool(json.loads(metadata["schemaString"]) == json.loads(text))


def _free(name: str, number: int, taken: Mapping[str, int]) -> str:
    """Return a physical name that no column ever had."""
    candidates = (name, *(f"col-{number}{'-' * more}" for more in range(len(taken) + 1)))
    return next(one for one in candidates if one not in taken and not _REFUSED.search(one))


def _with_mapping(raw: Mapping[str, Any], ids: Iterator[int], physical: str) -> dict[str, Any]:
    """Return a column, or a field of a struct, with its id and physical name, and so what is inside it."""
    told = {**(raw.get("metadata") or {}), MAPPED_ID: next(ids), PHYSICAL: physical}
    return {**raw, "type": _type_with_mapping(raw["type"], ids), "metadata": told}


def _type_with_mapping(raw: Any, ids: Iterator[int]) -> Any:
    if not isinstance(raw, Mapping):
        return raw
    if raw["type"] == "struct":
        return {**raw, "fields": [_with_mapping(one, ids, one["name"]) for one in raw["fields"]]}
    parts = ("elementType",) if raw["type"] == "array" else ("keyType", "valueType")
    return {**raw, **{part: _type_with_mapping(raw[part], ids) for part in parts}}


def _changed(field: DeltaField, name: str, change: Any) -> DeltaField:
    """Return the field with a change of the column of that name, or of the one inside it whose path that is."""
    raw = _changed_raw(field.raw, name, change)
    return field if raw is None else replace(field, raw=raw)


def _changed_raw(raw: Mapping[str, Any], name: str, change: Any) -> Mapping[str, Any] | None:
    if raw["name"] == name:
        changed: Mapping[str, Any] = change(raw)
        return changed
    if (
        not name.startswith(f"{raw['name']}.")
        or not isinstance(raw["type"], Mapping)
        or raw["type"]["type"] != "struct"
    ):
        return None
    rest = name.removeprefix(f"{raw['name']}.")
    inside = [_changed_raw(one, rest, change) or one for one in raw["type"]["fields"]]
    return {**raw, "type": {**raw["type"], "fields": inside}}


def _grown(raw: Mapping[str, Any], inner: Sequence[pa.Field], ids: Iterator[int], mapped: bool) -> dict[str, Any]:
    coming = [raw_field(one.with_nullable(True)) for one in inner]
    if mapped:
        coming = [_with_mapping(one, ids, one["name"]) for one in coming]
    return {**raw, "type": {**raw["type"], "fields": [*raw["type"]["fields"], *coming]}}


def _widened(raw: Mapping[str, Any], type: pa.DataType) -> dict[str, Any]:
    """Return a column of a wider type, which says what it was before."""
    told = dict(raw.get("metadata") or {})
    change = {"fromType": raw["type"], "toType": delta_type(type)}
    return {**raw, "type": delta_type(type), "metadata": {**told, CHANGES: [*told.get(CHANGES, ()), change]}}

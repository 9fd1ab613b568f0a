"""Which records an event becomes, under which topic and key. Used by `events.py`.

| event                  | records                                                                                  |
|------------------------|------------------------------------------------------------------------------------------|
| insert, update, read   | one                                                                                      |
| update of the key      | as a delete under the old key, then an insert under the new one                          |
| delete                 | one, a tombstone, or both, as `deletes` says; in a table without a key always one        |
| truncate               | one, or none with `truncates: skip`                                                      |

An event's records are numbered from 0, and all but the first have their number behind their place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.source_events import TRANSACTIONS, is_source_event
from penstock.model.table import TableSchema
from penstock.render.envelopes import member
from penstock.render.event import Mask, Origin
from penstock.render.format import EventFormat
from penstock.render.images import ImageWriter
from penstock.render.source_events import topic_word
from penstock.render.template import SOURCE_NAMES, Template

Roles = npt.NDArray[np.int8]
WHOLE, LEAVES, TOMBSTONE, ARRIVES = range(4)  # what a record is of its event
_DELETES = {"event": (WHOLE,), "tombstone": (TOMBSTONE,), "both": (WHOLE, TOMBSTONE)}
_MOVES = {"event": (LEAVES, ARRIVES), "tombstone": (TOMBSTONE, ARRIVES), "both": (LEAVES, TOMBSTONE, ARRIVES)}


@dataclass(frozen=True)
class Divided:
    """Records of events, in order: the event of each, its number among that event's records, and its role."""

    index: npt.NDArray[np.int64]
    part: npt.NDArray[np.int8]
    role: Roles
    from_old: Mask  # the record is under the old key of its row


def divided(op: pa.Array, now: pa.Array, old: pa.Array, format: EventFormat) -> Divided:
    """Divide events into records. `now` and `old` are the keys of the rows' images."""
    rows = len(op)
    is_update = pc.equal(op, "update")
    moved = np.zeros(rows, np.bool_)
    if format.split_moves and old.null_count < rows:
        moved = np.asarray(pc.fill_null(pc.and_(is_update, pc.not_equal(now, old)), False))
    deleted = np.zeros(rows, np.bool_)
    if format.deletes != "event":
        deleted = np.asarray(pc.and_(pc.equal(op, "delete"), now.is_valid()))
    skipped = np.zeros(rows, np.bool_)
    if format.truncates == "skip":
        skipped = np.asarray(pc.equal(op, "truncate"))
    of_move, of_delete = _MOVES[format.deletes], _DELETES[format.deletes]
    counts = np.ones(rows, np.int64)
    counts[moved], counts[deleted], counts[skipped] = len(of_move), len(of_delete), 0
    index = np.repeat(np.arange(rows), counts)
    part = (np.arange(len(index)) - (np.cumsum(counts) - counts)[index]).astype(np.int8)
    role = np.full(len(index), WHOLE, np.int8)
    role = np.where(moved[index], np.array(of_move, np.int8)[np.minimum(part, len(of_move) - 1)], role)
    role = np.where(deleted[index], np.array(of_delete, np.int8)[np.minimum(part, len(of_delete) - 1)], role)
    return Divided(index, part, role, moved[index] & (role != ARRIVES))


def image_of(first: pa.StructArray, second: pa.StructArray) -> pa.StructArray:
    """Return the one image, or the other where that is null."""
    if not first.null_count:
        return first
    rows = np.arange(len(first))
    taken = np.where(np.asarray(first.is_valid()), rows, len(first) + rows)
    return pa.concat_arrays([first, second]).take(pa.array(taken))


def key_texts(images: pa.StructArray, key: Sequence[str], writer: ImageWriter) -> pa.Array:
    """Return the key of each image as JSON; null where there is no image, or no key."""
    return writer.objects(images, key) if key and len(images) else pa.nulls(len(images), pa.string())


def parted(columns: Mapping[str, pa.Array], role: Roles) -> dict[str, pa.Array]:
    """Return operation and images of records: a change of a key is a delete and an insert."""
    found = {name: columns[name] for name in ("op", "before", "after", "unchanged")}
    leaves, arrives = role == LEAVES, role == ARRIVES
    if not leaves.any() and not arrives.any():
        return found
    going, coming = pa.array(leaves), pa.array(arrives)
    before, after, unchanged = found["before"], found["after"], found["unchanged"]
    return {
        "op": pc.if_else(going, "delete", pc.if_else(coming, "insert", found["op"])),
        "before": pc.if_else(coming, pa.scalar(None, before.type), before),
        "after": pc.if_else(going, pa.scalar(None, after.type), after),
        "unchanged": pc.if_else(going, pa.scalar(None, unchanged.type), unchanged),
    }


def moves(role: Roles, now: pa.Array, old: pa.Array) -> pa.Array | None:
    """Return the member that names the other key of a row whose key changes; None where no record has one."""
    leaves, arrives = role == LEAVES, role == ARRIVES
    if not leaves.any() and not arrives.any():
        return None
    to, of = member("moved_to", now), member("moved_from", old)
    return pc.if_else(pa.array(leaves), to, pc.if_else(pa.array(arrives), of, pa.scalar(None, pa.string())))


def source_names(origin: Origin, schema: TableSchema) -> dict[str, str]:
    """Return what templates may name that is the same for all events of a table."""
    return {
        "source.name": origin.source,
        "source.db": origin.database_of(schema.table),
        "source.schema": schema.table.schema or origin.source,
        "source.table": schema.table.name if schema.table.schema else topic_word(schema.table),
        "tenant": origin.tenant,
    }


def has_one_topic(format: EventFormat) -> bool:
    """Return whether all records of a table have the same topic."""
    return format.topic is None or set(format.topic.names) <= set(SOURCE_NAMES)


def constant_topic(format: EventFormat, schema: TableSchema, origin: Origin) -> str:
    """Return the topic of all records of a table, of a format that has one for them."""
    if format.topic is None:
        return str(schema.table)
    return str(format.topic.filled(source_names(origin, schema), 1)[0])


class NamedValues:
    """What templates may name, for the records of some events."""

    def __init__(
        self,
        columns: Mapping[str, pa.Array],
        records: Divided,
        keys: pa.Array,
        origin: Origin,
        schema: TableSchema,
        writer: ImageWriter,
    ) -> None:
        self._columns, self._records, self._keys, self._writer = columns, records, keys, writer
        self.source, self._table = origin.source, schema.table
        self._constant = source_names(origin, schema)

    def filled(self, template: Template) -> pa.Array:
        """Return the template's text for each record, null where one of its names is null."""
        return template.filled({name: self._value(name) for name in template.names}, len(self._records.index))

    def _value(self, name: str) -> pa.Array | str:
        if name in self._constant:
            return self._constant[name]
        if name == "key":
            return self._keys
        taken = pa.array(self._records.index)
        if name == "op" and is_source_event(self._table):
            if self._table == TRANSACTIONS:
                return pc.struct_field(self._columns["after"], "status").take(taken)
            return self._table.name
        if name == "op":
            return parted({key: one.take(taken) for key, one in self._columns.items()}, self._records.role)["op"]
        side, _, column = name.partition(".")
        before, after = self._columns["before"], self._columns["after"]
        if column not in {field.name for field in after.type}:
            return pa.nulls(len(taken), pa.string())
        old, new = image_of(before, after), image_of(after, before)
        of_old = pa.array(self._records.from_old)  # such a record is a delete: it has the old row alone
        first, second = (old, new) if side == "before" else (new, old)
        found, other = (self._writer.texts(column, pc.struct_field(one, column)).take(taken) for one in (first, second))
        if side == "before":
            return found
        return pc.if_else(of_old, other, found)

"""One event model for streams and `penstock events`, by columns: events of one table under one structure.

| fact                         | here                                                                               |
|------------------------------|------------------------------------------------------------------------------------|
| operation                    | `op`: insert, update, delete, truncate, read; `truncate_options`                   |
| where from                   | `origin` (source, database, sid), `table`: schema, name, id                        |
| where in the stream          | `commit`, `ordinal`, `change_position`; `places` puts commit and ordinal together  |
| transaction                  | `transaction`, `commit_time`                                                       |
| structure                    | `fingerprint`; `Origin.versions` has the registry's version and sequence of it     |
| row                          | `before` (whole, or its key: `before_is_full`), `after`, `unchanged`, `keys`       |
| identity                     | `ids`: `{source}/{table id}/{place}`, the same whenever the event is made          |

Events of the source itself (`model/source_events.py`) have their facts in `after`; `render/source_events.py` writes
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.table import ColumnType, TableId

Numbers = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
PARTS = pa.array(["", *(f".{number}" for number in range(1, 128))])  # behind the place of an event's further records
_HEXADECIMAL = np.frombuffer(b"0123456789abcdef", np.uint8)


class NamedSource(Protocol):
    """A source as the pipeline file describes it."""

    @property
    def name(self) -> str: ...

    @property
    def events_database(self) -> str: ...

    @property
    def connector(self) -> str: ...


@dataclass(frozen=True)
class Origin:
    """Where events come from, and whose pipeline made them.

    `versions` has, by fingerprint, the version and sequence that the schema registry has.

    `database` is "" where a table's schema is its database. `connector` is Debezium's word for the kind of source, and
    `log_state` what the change log holds for the source itself (`source/sink.py`), as far as it is known.
    """

    source: str
    database: str = ""
    sid: str | int | None = None
    versions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    tenant: str = ""
    connector: str = "postgresql"
    log_state: str = ""

    @classmethod
    def of(
        cls,
        source: NamedSource,
        sid: str | int | None,
        versions: Mapping[str, tuple[int, int]] | None = None,
        tenant: str | None = None,
    ) -> Origin:
        return cls(source.name, source.events_database, sid, versions or {}, tenant or "", source.connector)

    def database_of(self, table: TableId) -> str:
        return self.database or table.schema


@dataclass(frozen=True)
class Events:
    """Events in parallel, in stream order. Images are structs; `types` has the source's type of each of their fields.

    `keys` are JSON objects of the key columns. `moves` and `rescued` are None where no event has any."""

    origin: Origin
    table: TableId
    table_id: int
    dialect: str
    fingerprint: str
    key: tuple[str, ...]
    types: Mapping[str, ColumnType]
    op: pa.Array
    before: pa.StructArray
    after: pa.StructArray
    before_is_full: Mask
    unchanged: pa.Array  # lists of column names
    truncate_options: pa.Array  # lists of words
    commit: Numbers
    ordinal: Numbers
    part: npt.NDArray[np.int8]
    change_position: pa.Array  # null where it is not known
    transaction: pa.Array
    commit_time: pa.Array
    keys: pa.Array
    moves: pa.Array | None = None  # a JSON member: `,"moved_to":{…}`
    rescued: pa.Array | None = None
    table_order: Numbers | None = None  # among the changes of the table in its transaction, from 1; None: not asked for

    def __len__(self) -> int:
        return len(self.op)

    @cached_property
    def places(self) -> pa.Array:
        return place_texts(self.commit, self.ordinal, self.part)

    @cached_property
    def ids(self) -> pa.Array:
        """Return a text per event that no other event has, and that a second rendering gives again."""
        return pc.binary_join_element_wise(f"{self.origin.source}/{self.table_id}/", self.places, "")

    @cached_property
    def microseconds(self) -> pa.Array:
        return self.commit_time.cast(pa.int64())

    @cached_property
    def milliseconds(self) -> pa.Array:
        return pa.array(np.asarray(self.microseconds) // 1000)

    @property
    def version(self) -> tuple[int, int] | None:
        """Return version and sequence of the structure in the schema registry, if that has it already."""
        return self.origin.versions.get(self.fingerprint)

    def take(self, rows: npt.NDArray[np.int64]) -> Events:
        """Return the events at these places."""
        index = pa.array(rows)
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name, value in values.items():
            if isinstance(value, pa.Array):
                values[name] = value.take(index)
            elif isinstance(value, np.ndarray):
                values[name] = value[rows]
        return Events(**values)


@dataclass(frozen=True)
class TableOrders:
    """The order of changes among those of their table in their transaction, from 1, by their places."""

    places: npt.NDArray[np.bytes_]
    orders: Numbers

    @classmethod
    def of(cls, batch: pa.RecordBatch, before: int) -> TableOrders:
        """Give the changes of a table their numbers; `before` come before the first one in its transaction."""
        commit, ordinal = (np.asarray(batch.column(name)) for name in ("commit_position", "ordinal"))
        rows = np.arange(len(commit))
        begins = np.ones(len(commit), np.bool_)
        begins[1:] = commit[1:] != commit[:-1]
        first = np.maximum.accumulate(np.where(begins, rows, 0)) if len(commit) else rows
        orders = rows - first + 1 + np.where(first == 0, before, 0)
        return cls(_place_keys(commit, ordinal), orders.astype(np.uint64))

    def at(self, commit: Numbers, ordinal: Numbers) -> Numbers:
        """Return the order of the changes at these places."""
        return self.orders[np.searchsorted(self.places, _place_keys(commit, ordinal))]


def _place_keys(commit: Numbers, ordinal: Numbers) -> npt.NDArray[np.bytes_]:
    """Return places as bytes that sort as places do."""
    return np.ascontiguousarray(np.stack([commit, ordinal], axis=1).astype(">u8")).view("S16").ravel()


def place_texts(commit: Numbers, ordinal: Numbers, part: npt.NDArray[np.int8]) -> pa.Array:
    """Return `{commit}/{ordinal}` in 16 hexadecimal digits each, and `.1` or `.2` behind it for further records."""
    digits = np.empty((len(commit), 33), np.uint8)
    digits[:, :16], digits[:, 16], digits[:, 17:] = _hexadecimal(commit), ord("/"), _hexadecimal(ordinal)
    offsets = 33 * np.arange(len(commit) + 1, dtype=np.int32)
    places = pa.Array.from_buffers(pa.string(), len(commit), [None, pa.py_buffer(offsets), pa.py_buffer(digits)])
    if not part.any():
        return places
    return pc.binary_join_element_wise(places, PARTS.take(pa.array(part)), "")


def hexadecimal_texts(numbers: pa.Array) -> pa.Array:
    """Return 16 hexadecimal digits per number, null where it is null."""
    digits = _hexadecimal(np.asarray(pc.fill_null(numbers, 0)).astype(np.uint64))
    offsets = 16 * np.arange(len(numbers) + 1, dtype=np.int32)
    texts = pa.Array.from_buffers(pa.string(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(digits)])
    return texts if not numbers.null_count else pc.if_else(numbers.is_valid(), texts, pa.scalar(None, pa.string()))


def position_texts(numbers: Numbers) -> pa.Array:
    """Return positions as Postgres writes them: `0/16B3748`."""
    texts = [f"{one >> 32:X}/{one & 0xFFFFFFFF:X}" for one in np.unique(numbers).tolist()]
    return pa.array(texts, pa.string()).take(pa.array(np.unique(numbers, return_inverse=True)[1]))


def _hexadecimal(numbers: Numbers) -> npt.NDArray[np.uint8]:
    octets = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    digits = np.empty((len(octets), 16), np.uint8)
    digits[:, 0::2], digits[:, 1::2] = _HEXADECIMAL[octets >> 4], _HEXADECIMAL[octets & 15]
    return digits

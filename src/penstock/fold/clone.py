"""Clone mode: the net effect that makes the destination's table equal to the source's.

Raw changes in, NetEffect out. Append mode is the same without DELETE and TRUNCATE.

The last image of a key wins; a changed key is a delete of the old and an upsert of the new; a truncate clears what came
before it; cells that were not sent come from earlier images, else from the destination. Called by the runtime's tasks,
for one table and one bucket of its keys.

Only what the result needs is decoded: the keys of all rows, then the other columns of the last images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.dialect import dialect_of
from penstock.decode.reader import Places, RowReader
from penstock.decode.rescue import Into, Rescued
from penstock.decode.schema import arrow_schema
from penstock.errors import KeyRequired, SchemaChanged
from penstock.fold.batch import Batch, aligned, share_rows
from penstock.fold.events import Events, events_of
from penstock.fold.evolution import arrow_type, key_numbers, places
from penstock.fold.net_effect import Fetch, NetEffect
from penstock.fold.patch import fill
from penstock.fold.unsent import UnsentCells, resolve
from penstock.model.change import DELETE, INSERT, UPDATE, RawChanges
from penstock.model.position import Position
from penstock.model.rescue import RescueCount
from penstock.model.table import TableSchema

_AND_THEN = "a clone is then copied again by itself; in other modes drop it at the destination and `penstock retry`"


def fold_clone(
    changes: Iterable[RawChanges],
    *,
    position: Position,
    until: Position | None = None,
    bucket: int = 0,
    buckets: int = 1,
    schema: TableSchema | None = None,
    strict: bool = False,
) -> NetEffect:
    """Folds the changes of one table with position <= commit_position < until.

    They may be under several versions of the table's structure: each is decoded under its own, and the result is under
    `schema`, the newest (None: that of the last change). Columns are the same ones if their numbers are. Values that do
    not fit their column are rescued; with `strict` they are ValueDoesNotFit.

    All buckets must be given the same changes, or each its share (`sharing.py`). More than one bucket may be asked for
    only while rows whose key changes bring a complete image along, as they always do where old images are whole.
    """
    batch = Batch.of(changes, position=position, until=until, schema=schema)
    schema = batch.schema
    require_one_key(schema, batch.changes)
    sources, ranks, cleared = batch.readers, batch.ranks, batch.cleared
    check_key(sources)
    rows = [np.flatnonzero(rank > cleared) for rank in ranks]
    before = int(cleared + 1) if bucket == 0 else 0
    truncated = cleared >= 0
    newest = batch.last_commit_time

    if not schema.key:
        rows = share_rows(rows, bucket, buckets)
        upserts = Upserts(schema, sources, rows, None if strict else Rescued())
        own = sum(len(chosen) for chosen in rows)
        rescued, rescues = upserts.rescued_cells()
        return NetEffect(
            truncated, upserts.table(), None, None, (), before + own, newest, rescued=rescued, rescues=rescues
        )

    after = [rank[chosen] for rank, chosen in zip(ranks, rows, strict=True)]
    events = events_of(sources, rows, after, bucket, buckets)
    made_by = _last_images(events)
    ends = np.searchsorted(events.source[made_by], np.arange(1, len(sources)))
    upserts = Upserts(schema, sources, np.split(events.row[made_by], ends), None if strict else Rescued())
    fetches = complete(upserts, events, made_by, sources, truncated)
    rescued, rescues = upserts.rescued_cells()
    return NetEffect(
        truncated=truncated,
        upserts=upserts.table(),
        upsert_keys=events.keys.take(pa.array(events.key[made_by])),
        touched_keys=events.keys,
        fetches=fetches,
        changes=before + events.changes,
        last_commit_time=newest,
        rescued=rescued,
        rescues=rescues,
    )


def fold_append(
    changes: Iterable[RawChanges],
    *,
    position: Position,
    until: Position | None = None,
    bucket: int = 0,
    buckets: int = 1,
    schema: TableSchema | None = None,
    strict: bool = False,
) -> NetEffect:
    """Fold as if nobody had deleted or truncated anything. A row whose key changes takes its new key."""
    kept = (RawChanges(one.schema, _without_removals(one.batch)) for one in changes)
    return fold_clone(
        kept, position=position, until=until, bucket=bucket, buckets=buckets, schema=schema, strict=strict
    )


def _without_removals(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.is_in(batch.column("op"), value_set=pa.array([INSERT, UPDATE], pa.uint8())))


def require_one_key(schema: TableSchema, changes: Sequence[RawChanges]) -> None:
    """Rows are compared by key across versions: it must be the same columns, of the same types."""
    for other in {one.schema.fingerprint: one.schema for one in changes}.values():
        if key_numbers(other) != key_numbers(schema) or _key_types(other) != _key_types(schema):
            raise SchemaChanged(
                f"table {schema.table}: its key changed from {_outline(other)} to {_outline(schema)}",
                "Copy it again: `penstock resync`",
            )


def _key_types(schema: TableSchema) -> list[pa.DataType]:
    return [arrow_type(schema, schema.column(name)) for name in schema.key]


def _outline(schema: TableSchema) -> str:
    columns = ", ".join(f"{one.name} {one.type.name}" for one in schema.columns)
    return f"({columns}; key: {', '.join(schema.key) or 'none'})"


def check_key(sources: Sequence[RowReader]) -> None:
    for reader in sources:
        schema = reader.schema
        if schema.key and schema.identity != "nothing":
            continue
        needs_key = (reader.op == UPDATE) | (reader.op == DELETE)
        if not needs_key.any():
            continue
        row = int(np.argmax(needs_key))
        operation = "UPDATE" if reader.op[row] == UPDATE else "DELETE"
        advice = dialect_of(schema).unidentified(schema)
        raise KeyRequired(f"{reader.place(row)}: {operation} of {advice.what}", f"{advice.solution}; {_AND_THEN}")


def _last_images(events: Events) -> Places:
    """Return the events that make the upserts: source by source, in the order of their rows there."""
    last = np.empty(len(events.keys), np.int64)
    last[events.key] = np.arange(len(events.key))  # of equal keys the last one stays
    images = np.sort(last[events.is_image[last]])
    source, row = events.source[images], events.row[images]
    if np.all((source[1:] > source[:-1]) | ((source[1:] == source[:-1]) & (row[1:] > row[:-1]))):
        return images
    by_row: Places = images[np.lexsort((row, source))]
    return by_row


@dataclass
class Upserts:
    """The rows of the result, decoded source by source; `unsent` maps a column to its rows without a value.

    `old`: the images before the changes, not those after them.
    """

    schema: TableSchema
    sources: Sequence[RowReader]
    rows: Sequence[Places]
    rescued: Rescued | None = None
    old: bool = False
    chunks: list[list[pa.Array]] = field(init=False)
    unsent: dict[int, Places] = field(init=False)

    def __post_init__(self) -> None:
        width = len(self.schema.columns)
        self.chunks = [[] for _ in range(width)]
        unsent: list[list[Places]] = [[] for _ in range(width)]
        begin = 0
        for reader, chosen in zip(self.sources, self.rows, strict=True):
            if len(chosen) == 0:
                continue
            images = reader.old_images(chosen) if self.old else reader.images(chosen)
            into = partial(self._into, begin)
            for index, (decoded, is_unsent) in enumerate(aligned(reader, images, self.schema, into)):
                self.chunks[index].append(decoded)
                if is_unsent is not None:
                    unsent[index].append(begin + np.flatnonzero(is_unsent))
            begin += len(chosen)
        self.unsent = {index: np.concatenate(rows) for index, rows in enumerate(unsent) if rows}

    def _into(self, begin: int, column: str) -> Into | None:
        return None if self.rescued is None else Into(self.rescued, column, begin)

    def table(self) -> pa.Table:
        fields = arrow_schema(self.schema)
        columns = [pa.chunked_array(chunks, one.type) for chunks, one in zip(self.chunks, fields, strict=True)]
        return pa.Table.from_arrays(columns, schema=fields)

    def rescued_cells(self) -> tuple[pa.Array | None, tuple[RescueCount, ...]]:
        if self.rescued is None:
            return None, ()
        return self.rescued.cells(sum(map(len, self.rows))), self.rescued.counts


def complete(
    upserts: Upserts, events: Events, made_by: Places, sources: Sequence[RowReader], truncated: bool
) -> tuple[Fetch, ...]:
    """Fill what the batch itself knows into the upserts, and return what is left for the destination to fetch."""
    if not upserts.unsent:
        return ()
    unsent = {index: UnsentCells(rows, made_by[rows]) for index, rows in upserts.unsent.items()}
    fetches = []
    where = [places(reader.schema, upserts.schema) for reader in sources]
    for index, (found, missing) in resolve(events, sources, unsent, where).items():
        name = upserts.schema.columns[index].name
        into = None if upserts.rescued is None else Into(upserts.rescued, name)
        upserts.chunks[index] = fill(upserts.chunks[index], found, into)
        if len(missing.rows) == 0:
            continue
        if truncated:
            event = made_by[missing.rows[0]]
            raise sources[events.source[event]].broken(
                int(events.row[event]), "it updates a row that was truncated before it"
            )
        name = upserts.schema.columns[index].name
        fetches.append(Fetch(name, missing.rows, events.keys.take(pa.array(missing.keys))))
    return tuple(fetches)

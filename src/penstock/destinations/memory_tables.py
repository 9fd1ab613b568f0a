"""Tables of the in-memory twin: what its storage holds, and what plans and parts of a write are. Driven by `memory`."""

from __future__ import annotations

import uuid
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.rescue import RESCUED, RESCUED_TYPE, followed, rescued_of, with_cells
from penstock.decode.schema import arrow_schema
from penstock.destinations.contract import WrittenPart
from penstock.destinations.structure import Held as HeldColumn
from penstock.destinations.structure import OnDrop, steps, unkept
from penstock.destinations.union import union_type, united
from penstock.errors import LineageLost, TableError
from penstock.fold.keys import bucket_of, encode_keys
from penstock.fold.layout import OPEN, ROWS, Layout
from penstock.fold.net_effect import NO_ROW, Fetch, NetEffect
from penstock.fold.row_keys import encode_rows
from penstock.fold.versions import Held, closed_versions, versions, with_rescued
from penstock.fold.whole_rows import rows_missing
from penstock.model.feed import Sid
from penstock.model.position import Position
from penstock.model.record import UnreadableRecord, read_record, write_record
from penstock.model.table import TableId, TableSchema
from penstock.model.type_map import TypeMap

Rows = npt.NDArray[np.int64]

_KIND, _VERSION = "part of a copy in memory", 1


@dataclass(frozen=True)
class StoredTable:
    """A table's state: a value. Every commit puts a new one in its place.

    `structure` is the source's that it follows; its rows may have columns more: `numbers` tells which are which.
    """

    structure: TableSchema
    numbers: Mapping[str, int]
    rows: pa.Table
    positions: Mapping[str, Position]
    copying: frozenset[str] = frozenset()  # sources from which it was made to be copied
    version: int = 0  # one more after everything that is done to it
    layout: Layout = ROWS
    moments: Mapping[str, int] = field(default_factory=dict)
    histories: Mapping[str, str] = field(default_factory=dict)
    strayed: bool = False  # somebody took rows back, and its positions say more than is there

    def is_open(self) -> npt.NDArray[np.bool_]:
        """Return which rows a write may end: all of them, or the versions that are open."""
        period = self.layout.period
        if period is None:
            return np.ones(self.rows.num_rows, bool)
        return np.asarray(pc.equal(self.rows[period.valid_to].cast(pa.int64()), OPEN), bool)

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema

    def keys(self) -> pa.Array | None:
        return keys_of(self.rows, self.layout.kept(self.structure).key)

    def evolved(
        self, structure: TableSchema | None, on_drop: OnDrop, types: TypeMap, copied: Layout | None = None
    ) -> StoredTable:
        """Return the same rows under another structure; None: as they are.

        `copied`: the layout of the rows that replace all of them.
        """
        layout = copied or self.layout
        same = structure is not None and structure.fingerprint == self.structure.fingerprint
        if structure is None or (same and layout == self.layout):
            return self
        kept = layout.kept(structure)
        layout.require_room(kept)
        held = [HeldColumn(one.name, one.type, not one.nullable, self.numbers.get(one.name)) for one in self.schema]
        left = unkept(self.numbers.values(), structure, kept)
        taken = steps(held, kept, on_drop, types=types, past=layout.keeps_past, unkept=left)
        grown = {name for name, _ in taken.grown}
        names, widened = dict(taken.renamed), {one.name: one for one in (*taken.widened, *arrow_schema(kept))}
        widened = {name: one for name, one in widened.items() if one in taken.widened or name in grown}
        columns: dict[pa.Field, pa.ChunkedArray] = {}
        for one in self.schema:
            if one.name in taken.deleted:
                continue
            name = names.get(one.name, one.name)
            nullable = name not in taken.required and (one.nullable or name in taken.loosened)
            field = widened.get(name, pa.field(name, one.type)).with_nullable(nullable)
            columns[field] = self.rows[one.name].cast(field.type)
            if one.name == RESCUED:
                now = {**dict.fromkeys(taken.deleted), **names}
                columns[field] = pa.chunked_array([followed(self.rows[RESCUED].combine_chunks(), now)])
        for field in taken.added:
            columns[field] = pa.chunked_array([pa.nulls(self.rows.num_rows, field.type)])
        rows = pa.Table.from_arrays(list(columns.values()), schema=pa.schema(list(columns)))
        numbers = {column.name: column.number for column in kept.columns}
        return replace(self, structure=structure, numbers=numbers, rows=rows, layout=layout)

    def copied(self, source: str, history: str) -> StoredTable:
        """Return the same once it has been copied from the source, under that history."""
        return replace(self, copying=self.copying - {source}, histories={**self.histories, source: history})

    def after(self, rows: pa.Table, source: str, position: Position, parts: Sequence[MemoryPart]) -> StoredTable:
        """Return it with the rows that the parts made of it, and the source's position."""
        version = hash((self.version, source, position, tuple(part.name for part in parts)))
        return replace(self, rows=rows, positions={**self.positions, source: position}, version=version)

    def with_rows(self, *added: pa.Table) -> pa.Table:
        """Its rows and these, whose columns are those that follow the source, perhaps with RESCUED."""
        schema = self.schema
        if RESCUED not in schema.names and any(RESCUED in rows.column_names for rows in added):
            schema = schema.append(pa.field(RESCUED, RESCUED_TYPE))
        return pa.concat_tables([conformed(rows, schema) for rows in (self.rows, *added)])


@dataclass
class SharedTable:
    """A table that several sources feed: what each of them has is a table of its own in the store (`share`)."""

    columns: pa.Schema  # the union of theirs, the sid's first
    marked: frozenset[str]  # the key's columns, the sid's among them
    layout: Layout
    sids: dict[str, Sid] = field(default_factory=dict)  # by source
    turns: list[tuple[int, str]] = field(default_factory=list)  # every commit: by which driver, for which source

    def unite(self, target: TableId, schema: TableSchema, sid: Sid, types: TypeMap) -> pa.Schema:
        """Return the columns with those that the source needs. SchemaChanged when they cannot be united."""
        held = [HeldColumn(one.name, one.type, not one.nullable, None) for one in self.columns]
        key = schema.key if self.layout.has_identifiers else ()
        taken = united(target, held, self.marked, arrow_schema(schema), key, sid=sid, types=types)
        own = {one.name: one.type for one in arrow_schema(schema)}
        kept = [one.with_type(union_type(one.type, own.get(one.name, one.type), types)) for one in self.columns]
        return pa.schema([*kept, *taken.added])


@dataclass
class MemoryStore:
    tables: dict[TableId, StoredTable] = field(default_factory=dict)
    shared: dict[TableId, SharedTable] = field(default_factory=dict)
    discarded: set[str] = field(default_factory=set)  # names of parts
    bookmarks: dict[tuple[TableId, str], pa.Table] = field(default_factory=dict)
    refusals: dict[TableId, TableError] = field(default_factory=dict)  # tables that take nothing of a whole batch

    def roll_back(self, target: TableId, rows: pa.Table) -> None:
        """Do what somebody else may do: the rows are earlier ones again, and the position stays."""
        table = self.tables[target]
        self.tables[target] = replace(table, rows=rows, version=hash((table.version, "rolled back")), strayed=True)


def require_lineage(target: TableId, table: StoredTable) -> None:
    if table.strayed:
        raise LineageLost(f"table {target}: it was rolled back", "`penstock resync` copies it as it is now")


@dataclass(frozen=True)
class MemoryPart:
    upserts: pa.Table
    touched_keys: pa.Array | None = None
    deletes: int = 0
    fetched: int = 0
    unresolved_rows: tuple[int, ...] = ()
    unresolved: int = 0
    ended: Mapping[str, Rows] = field(default_factory=dict)  # over a copy: rows by the name of the part that has them
    removed: Rows | None = None  # of a table that is followed by its whole row: rows of the base
    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    def to_json(self) -> str:
        """Write a part of a copy, with its rows: there are no files."""
        if self.touched_keys is not None or self.ended or self.removed is not None:
            raise ValueError("only a part of a copy is recorded")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.upserts.schema) as stream:
            stream.write_table(self.upserts)
        return write_record(_KIND, _VERSION, {"name": self.name, "rows": b64encode(sink.getvalue()).decode()})

    @classmethod
    def from_json(cls, text: str) -> MemoryPart:
        """Read what `to_json` wrote, or raise UnreadableRecord."""
        record = read_record(text, _KIND, _VERSION)
        try:
            rows = pa.ipc.open_stream(b64decode(record.text("rows"), validate=True)).read_all()
        except (ValueError, pa.ArrowException, OSError) as error:
            raise UnreadableRecord(f"the record of a {_KIND} is damaged: its `rows` cannot be read") from error
        return cls(rows, name=record.text("name"))

    @property
    def rows(self) -> int:
        return int(self.upserts.num_rows)

    @property
    def bytes(self) -> int:
        return int(self.upserts.nbytes)

    @property
    def empty(self) -> bool:
        return self.rows == 0 and self.deletes == 0


@dataclass(frozen=True)
class MemoryPlan:
    target: TableId
    source: str
    position: Position
    base: StoredTable
    turns: int = 0  # of a table of several sources, when this was planned

    @property
    def layout(self) -> Layout:
        return self.base.layout

    @property
    def moment(self) -> int:
        return self.base.moments.get(self.source, 0)

    @property
    def groups(self) -> int:
        return 1

    def held(self, group: int, columns: Sequence[str]) -> pa.Table:
        return chosen(self.base.rows.filter(pa.array(self.base.is_open())), columns)

    def has(self, keys: pa.Array) -> npt.NDArray[np.bool_]:
        key = self.base.structure.key
        return np.asarray(pc.is_in(keys, value_set=keys_of(self.held(0, key), key)), bool)

    def write(self, net: NetEffect) -> MemoryPart:
        if net.steps is not None:
            return self._write_versions(net)
        if net.removals is not None:
            columns = arrow_schema(self.layout.kept(self.base.structure)).names
            dying = removed(self.target, net, self.base.rows, columns)
            return MemoryPart(filled(net, self.base.rows, None)[0], deletes=len(dying), removed=dying)
        keys = None if net.truncated else self.base.keys()
        upserts, fetched, missing = filled(net, self.base.rows, keys)
        unresolved = tuple(np.unique(missing).tolist())
        return MemoryPart(upserts, net.touched_keys, int(touched(net, keys).sum()), fetched, unresolved, len(missing))

    def _write_versions(self, net: NetEffect) -> MemoryPart:
        steps, base, period, key = net.steps, self.base, self.base.layout.period, self.base.structure.key
        assert steps is not None
        assert period is not None
        assert net.touched_keys is not None
        names = [column.name for column in base.layout.kept(base.structure).columns]
        known = {*names, *base.layout.around.names, RESCUED}
        names += [name for name in base.rows.column_names if name not in known]
        if RESCUED in base.rows.column_names:
            names.append(RESCUED)
        rows = base.rows.filter(pa.array(base.is_open())).select([*names, *base.layout.around.names])
        keys = keys_of(rows, key)
        gone = keys_of(base.rows.filter(base.rows[period.deleted]), key)
        upserts, fetched, missing = filled(net, rows, keys)
        held = Held(
            rows.select(names),
            np.asarray(rows[period.valid_from].cast(pa.int64())),
            np.asarray(pc.fill_null(pc.index_in(net.touched_keys, value_set=keys), NO_ROW)).astype(np.int64),
            np.asarray(pc.is_in(net.touched_keys, value_set=gone)),
        )
        made = versions(steps, upserts, held, base.layout)
        written = [made.replaced, made.ended, made.opened]
        ended = net.touched_keys.filter(pa.array(made.closed))
        if steps.truncated_at is not None and keys is not None:
            left = ~np.asarray(pc.is_in(keys, value_set=net.touched_keys))
            left &= bucket_of(keys, steps.buckets) == steps.bucket
            written.append(closed_versions(rows.filter(pa.array(left)), steps.truncated_at, base.layout))
            ended = pa.concat_arrays([ended, keys.filter(pa.array(left))])
        unresolved = tuple(np.unique(missing).tolist())
        return MemoryPart(
            pa.concat_tables(written, promote_options="default"), ended, len(ended), fetched, unresolved, len(missing)
        )


@dataclass(frozen=True)
class MemoryCatchup:
    """A plan over the parts of a copy: in it a key may have several rows."""

    target: TableId
    source: str
    position: Position
    schema: pa.Schema
    key: tuple[str, ...]
    base: tuple[MemoryPart, ...]
    layout: Layout = ROWS
    moment: int = 0

    @property
    def groups(self) -> int:
        return len(self.base)

    def held(self, group: int, columns: Sequence[str]) -> pa.Table:
        part = self.base[group]
        return chosen(part.upserts.take(pa.array(living_rows(part, self.base))), columns)

    def has(self, keys: pa.Array) -> npt.NDArray[np.bool_]:
        rows = [self.held(group, self.key) for group in range(self.groups)]
        living = pa.concat_tables([self.schema.empty_table().select(list(self.key)), *rows])
        return np.asarray(pc.is_in(keys, value_set=keys_of(living, self.key)), bool)

    def write(self, net: NetEffect) -> MemoryPart:
        alive = {part.name: living_rows(part, self.base) for part in self.base}
        living = [part.upserts.take(pa.array(alive[part.name])) for part in self.base]
        rows = together(self.schema, living)
        keys = None if net.truncated else keys_of(rows, self.key)
        upserts, fetched, missing = filled(net, rows, keys)
        unresolved = tuple(np.unique(missing).tolist())
        dying, ended, start = touched(net, keys), dict[str, Rows](), 0
        if net.removals is not None:
            dying = np.zeros(rows.num_rows, bool)
            dying[removed(self.target, net, rows, self.schema.names)] = True
        for name, numbers in alive.items():
            ended[name] = numbers[dying[start : start + len(numbers)]]
            start += len(numbers)
        return MemoryPart(upserts, net.touched_keys, int(dying.sum()), fetched, unresolved, len(missing), ended)


@dataclass(frozen=True)
class MemoryCopy:
    target: TableId
    schema: pa.Schema

    def write_rows(self, batches: Iterable[pa.RecordBatch | pa.Table]) -> MemoryPart:
        return MemoryPart(together(self.schema, [typed(self.schema, batch) for batch in batches]))


def ours(parts: Sequence[WrittenPart]) -> list[MemoryPart]:
    for part in parts:
        if not isinstance(part, MemoryPart):
            raise TypeError(f"{type(part).__name__} is not a part of a table in memory")
    return [part for part in parts if isinstance(part, MemoryPart)]


def share(target: TableId, source: str) -> TableId:
    """Return the name of what one of several sources has of a table."""
    return TableId(target.schema, f"{target.name} of {source}")


def structure_of(part: MemoryPart) -> pa.Schema:
    """Return the columns of its rows that follow the source."""
    place = part.upserts.schema.get_field_index(RESCUED)
    return part.upserts.schema if place < 0 else part.upserts.schema.remove(place)


def conformed(rows: pa.Table, schema: pa.Schema, constants: Mapping[str, str | int] | None = None) -> pa.Table:
    """Return rows with the columns of `schema`: where the rows have none, a constant or null."""
    columns = [
        rows[field.name].cast(field.type)
        if field.name in rows.column_names
        else pa.repeat(pa.scalar((constants or {}).get(field.name), field.type), rows.num_rows)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def chosen(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return some columns; RESCUED is null where the rows have none."""
    return (with_rescued(rows) if RESCUED in columns else rows).select(list(columns))


def typed(schema: pa.Schema, batch: pa.RecordBatch | pa.Table) -> pa.Table:
    """Return the batch in the table's own types; with what was rescued, if it has that."""
    has_rescued = len(batch.columns) > len(schema)
    return pa.table(batch.columns, schema=schema.append(pa.field(RESCUED, RESCUED_TYPE)) if has_rescued else schema)


def together(schema: pa.Schema, tables: Sequence[pa.Table]) -> pa.Table:
    """Return all rows; with a column RESCUED if one of the tables has it."""
    return pa.concat_tables([schema.empty_table(), *tables], promote_options="default")


def keys_of(rows: pa.Table, key: tuple[str, ...]) -> pa.Array | None:
    return encode_keys([rows[name].combine_chunks() for name in key]) if key else None


def living_rows(part: MemoryPart, parts: Iterable[MemoryPart]) -> Rows:
    """Return the rows of a copy's part that no part of the copy has ended."""
    alive = np.ones(part.rows, bool)
    for other in parts:
        alive[other.ended.get(part.name, np.empty(0, np.int64))] = False
    return np.flatnonzero(alive)


def touched(net: NetEffect, keys: pa.Array | None) -> npt.NDArray[np.bool_]:
    """Return which of the base's rows end."""
    if keys is None or net.touched_keys is None:
        return np.zeros(0 if keys is None else len(keys), bool)
    return np.asarray(pc.is_in(keys, value_set=net.touched_keys))


def removed(target: TableId, net: NetEffect, rows: pa.Table, columns: Sequence[str]) -> Rows:
    """Return which of the base's rows end, by their numbers, in a table that is followed by its whole row."""
    removals = net.removals
    assert removals is not None
    rescued = rows[RESCUED].combine_chunks() if RESCUED in rows.column_names else None
    keys = encode_rows(rows.select(columns), rescued)
    number = np.asarray(pc.fill_null(pc.index_in(keys, value_set=removals.keys), NO_ROW)).astype(np.int64)
    by_key = np.argsort(number, kind="stable")
    by_key = by_key[number[by_key] != NO_ROW]
    counts = np.bincount(number[by_key], minlength=len(removals.keys))
    missing = int(np.maximum(0, removals.needed - counts).sum())
    if missing:
        raise rows_missing(target, missing)
    place = np.arange(len(by_key)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(by_key[place < removals.times[number[by_key]]])


def filled(net: NetEffect, rows: pa.Table, keys: pa.Array | None) -> tuple[pa.Table, int, Rows]:
    """Return the upserts with what was rescued and with cells fetched from the base.

    Also how many cells were found, and the row of each that was not.
    """
    upserts, rescued, fetched, missing = net.upserts, net.rescued, 0, [np.empty(0, np.int64)]
    for fetch in net.fetches:
        found = last_of(fetch, keys)
        number = upserts.schema.get_field_index(fetch.column)
        values = pa.concat_arrays(
            [upserts.column(number).combine_chunks(), rows[fetch.column].combine_chunks().take(found)]
        )
        order = np.arange(upserts.num_rows)
        order[fetch.rows] = upserts.num_rows + np.arange(len(fetch.rows))
        upserts = upserts.set_column(number, upserts.schema.field(number), values.take(pa.array(order)))
        if RESCUED in rows.column_names:
            texts = rescued_of(rows[RESCUED].combine_chunks().take(found), fetch.column)
            of = fetch.rows[np.asarray(texts.is_valid())]
            rescued = with_cells(rescued, upserts.num_rows, of, [fetch.column] * len(of), texts.drop_null().to_pylist())
        fetched += len(found) - found.null_count
        missing.append(fetch.rows[np.asarray(found.is_null())])
    if rescued is not None:
        upserts = upserts.append_column(pa.field(RESCUED, RESCUED_TYPE), rescued)
    return upserts, fetched, np.concatenate(missing)


def last_of(fetch: Fetch, keys: pa.Array | None) -> pa.Array:
    """Return the last row of the base that has the key; null where none has."""
    if keys is None:
        return pa.nulls(len(fetch.keys), pa.int64())
    backwards = keys.take(pa.array(np.arange(len(keys))[::-1]))
    return pc.subtract(pa.scalar(len(keys) - 1), pc.index_in(fetch.keys, value_set=backwards).cast(pa.int64()))

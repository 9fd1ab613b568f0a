"""Property: a destination that applies the net effects of a stream, window by window, equals the source's own rows.

The source is a dictionary that is changed row by row and says what Postgres would send. It knows nothing of the fold.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import TableError
from penstock.fold.clone import fold_clone
from penstock.fold.keys import encode_keys
from penstock.fold.net_effect import NetEffect
from penstock.fold.sharing import Entangled, joined, shares
from penstock.model.change import RawChanges
from penstock.model.table import TableSchema
from pgoutput_messages import (
    INT4,
    INT8,
    RELATION,
    TEXT,
    UNSENT,
    Cell,
    Change,
    delete,
    insert,
    numeric,
    raw_changes,
    table_schema,
    truncate,
    update,
)

COLUMNS = {"note": TEXT, "a": INT8, "body": TEXT, "b": TEXT, "price": numeric(8, 2), "big": TEXT}
KEYS = {"int": ("a",), "text": ("b",), "composite": ("b", "a")}
Row = tuple[Cell, ...]


@dataclass
class Source:
    """Rows by key. Every change is also a message; `version` says under which of two schemas it was sent."""

    schema: TableSchema
    rows: dict[tuple[Cell, ...], Row] = field(default_factory=dict)
    changes: list[tuple[Change, int]] = field(default_factory=list)
    transaction: int = 1
    ordinal: int = 0
    version: int = 0

    def key_of(self, row: Row) -> tuple[Cell, ...]:
        return tuple(row[self.schema.index(name)] for name in self.schema.key)

    def put(self, row: Row, unsent: Sequence[bool]) -> None:
        """Inserts the row, or updates the one with its key."""
        key = self.key_of(row)
        if key in self.rows:
            self.replace(key, row, unsent)
        else:
            self.rows[key] = row
            self._send(insert(*row, relation=RELATION + self.version))

    def replace(self, key: tuple[Cell, ...], row: Row, unsent: Sequence[bool]) -> None:
        """Updates, its key too if it is free."""
        before = self.rows[key]
        if self.key_of(row) != key and self.key_of(row) in self.rows:
            row = tuple(
                old if column.name in self.schema.key else new
                for old, new, column in zip(before, row, self.schema.columns, strict=True)
            )
        del self.rows[key]
        self.rows[self.key_of(row)] = row
        is_key = [column.name in self.schema.key for column in self.schema.columns]
        sends_old_key = self.key_of(row) != key or unsent[-1]
        keep_back = zip(before, row, unsent, is_key, strict=True)
        sent = [
            UNSENT if old == new and skip and (not key_part or sends_old_key) else new
            for old, new, skip, key_part in keep_back
        ]
        relation = RELATION + self.version
        if self.schema.identity == "full":
            self._send(update(*sent, row=before, relation=relation))
        elif sends_old_key:
            self._send(update(*sent, key=self._key_image(before), relation=relation))
        else:
            self._send(update(*sent, relation=relation))

    def delete(self, key: tuple[Cell, ...]) -> None:
        before = self.rows.pop(key)
        full = self.schema.identity == "full"
        old = before if full else self._key_image(before)
        self._send(delete(*old, full=full, relation=RELATION + self.version))

    def truncate(self) -> None:
        self.rows.clear()
        self._send(truncate(1, RELATION + self.version))

    def commit(self) -> None:
        self.transaction, self.ordinal = self.transaction + 1, 0

    def _key_image(self, row: Row) -> Row:
        pairs = zip(row, self.schema.columns, strict=True)
        return tuple(value if column.name in self.schema.key else None for value, column in pairs)

    def _send(self, message: bytes) -> None:
        self.changes.append((Change(self.transaction * 10, self.ordinal, message), self.version))
        self.ordinal += 1


class Destination:
    """Rows by encoded key, changed by net effects alone."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.rows: dict[Any, dict[str, Any]] = {}

    def apply(self, nets: Sequence[NetEffect]) -> None:
        before = dict(self.rows)
        if nets[0].truncated:
            self.rows.clear()
        upserts: dict[Any, dict[str, Any]] = {}
        for net in nets:
            net.upserts.validate(full=True)
            assert net.upsert_keys is not None
            assert net.touched_keys is not None
            key_columns = [net.upserts.column(name) for name in self.schema.key]
            assert encode_keys(key_columns).equals(net.upsert_keys)
            touched, keys = net.touched_keys.to_pylist(), net.upsert_keys.to_pylist()
            assert len(set(touched)) == len(touched)
            assert set(keys) <= set(touched)
            rows = net.upserts.to_pylist()
            for fetch in net.fetches:
                for row, key in zip(fetch.rows.tolist(), fetch.keys.to_pylist(), strict=True):
                    assert rows[row][fetch.column] is None
                    rows[row][fetch.column] = before[key][fetch.column]
            for key in touched:
                self.rows.pop(key, None)
            assert not upserts.keys() & set(keys)
            upserts.update(zip(keys, rows, strict=True))
        self.rows.update(upserts)


def typed(source: Source) -> list[tuple[Any, ...]]:
    parsers = {INT8.oid: int, INT4.oid: int, TEXT.oid: str, 1700: Decimal}
    columns = source.schema.columns
    return [
        tuple(None if cell is None else parsers[c.type.oid](str(cell)) for cell, c in zip(row, columns, strict=True))
        for row in source.rows.values()
    ]


def slices(source: Source, versions: Sequence[TableSchema], cuts: Sequence[int], offset: int) -> list[RawChanges]:
    """The log: segments of whole transactions, in each of them one slice a version, some with rows of others around."""
    result = []
    bounds = [0, *sorted(set(cuts)), source.transaction + 1]
    for low, high in pairwise(bounds):
        for number, schema in enumerate(versions):
            inside = [c for c, v in source.changes if v == number and low * 10 <= c.commit_position < high * 10]
            batch = raw_changes(schema, [Change(0, 0, b"I????junk")] * offset + inside).batch
            result.append(RawChanges(schema, batch.slice(offset)))
    return result


cells = st.tuples(
    st.sampled_from(["", "n", None]),
    st.integers(-2, 3).map(str),
    st.sampled_from(["", "body", "x" * 50, None]),
    st.sampled_from(["", "k", "kk", "é"]),
    st.sampled_from(["0.00", "-1.50", None]),
    st.sampled_from(["big", None]),
)
step = st.tuples(
    st.sampled_from(["truncate", "commit", "version", "delete", "replace", *["put", "move", "touch"] * 2]),
    st.integers(0, 20),
    cells,
    st.lists(st.booleans(), min_size=6, max_size=6),
)


def play(source: Source, steps: Sequence[Any]) -> None:
    for kind, choice, row, unsent in steps:
        keys = sorted(source.rows)
        if kind == "put":
            source.put(row, unsent)
        elif kind == "commit":
            source.commit()
        elif kind == "version":
            source.version = 1 - source.version
        elif kind == "truncate" and choice < 5:
            source.truncate()
        elif keys and kind == "replace":
            source.replace(keys[choice % len(keys)], row, unsent)
        elif keys and kind == "touch":
            before = source.rows[keys[choice % len(keys)]]
            source.replace(keys[choice % len(keys)], (row[0], *before[1:]), unsent)
        elif keys and kind == "move":
            before = source.rows[keys[choice % len(keys)]]
            source.replace(keys[choice % len(keys)], (before[0], row[1], before[2], row[3], *before[4:]), unsent)
        elif keys and kind == "delete":
            source.delete(keys[choice % len(keys)])


def share_of(
    log: Sequence[RawChanges], at_once: int, position: int, until: int | None, bucket: int, buckets: int
) -> list[RawChanges]:
    """A bucket's share, as the runtime gives it to the fold."""
    cut = (
        RawChanges(one.schema, list(shares(one, position=position, until=until, buckets=buckets))[bucket])
        for one in joined(log, at_once)
    )
    return list(joined(cut, at_once))


def in_buckets(
    log: Sequence[RawChanges], shared: int, position: int, until: int | None, buckets: int
) -> list[NetEffect]:
    nets = []
    for bucket in range(buckets):
        of_bucket: dict[str, Any] = {"position": position, "until": until, "bucket": bucket, "buckets": buckets}
        nets.append(fold_clone(share_of(log, shared, **of_bucket) if shared else log, **of_bucket))
    return nets


@settings(max_examples=200, deadline=None)
@given(
    key=st.sampled_from(sorted(KEYS)),
    identity=st.sampled_from(["key", "key", "full"]),
    before=st.lists(step, max_size=10),
    steps=st.lists(step, max_size=50),
    windows=st.lists(st.integers(1, 30), max_size=3),
    cuts=st.lists(st.integers(1, 30), max_size=4),
    offset=st.integers(0, 2),
    buckets=st.integers(1, 3),
    shared=st.sampled_from([0, 1, 300, 1 << 20]),
)
def test_windows_of_a_stream_make_the_destination_equal(
    key: str,
    identity: str,
    before: list[Any],
    steps: list[Any],
    windows: list[int],
    cuts: list[int],
    offset: int,
    buckets: int,
    shared: int,
) -> None:
    """`shared`: each bucket is given its share of the changes, cut out of so many bytes at a time, not all of them."""
    schema = table_schema(COLUMNS, KEYS[key], identity)
    versions = [schema, table_schema(COLUMNS, KEYS[key], identity, relation=RELATION + 1)]
    source = Source(schema)
    play(source, before)
    source.commit()
    start = source.transaction * 10
    play(source, steps)
    log = slices(source, versions, cuts, offset)
    destination = Destination(schema)
    bounds = sorted({0, start, *(start + 10 * window for window in windows)})
    for position, until in zip(bounds, [*bounds[1:], None], strict=True):
        net = fold_clone(log, position=position, until=until)
        nets = [net]
        if buckets > 1 and (identity == "full" or shared):
            with suppress(Entangled):
                nets = in_buckets(log, shared, position, until, buckets)
            assert sum(one.changes for one in nets) == net.changes or (shared and net.truncated)
        destination.apply(nets)
    held = [tuple(row.values()) for row in destination.rows.values()]
    assert sorted(held, key=repr) == sorted(typed(source), key=repr)


@settings(max_examples=200, deadline=None)
@given(
    identity=st.sampled_from(["key", "full"]),
    steps=st.lists(step, min_size=1, max_size=20),
    seed=st.integers(0, 2**32),
    damage=st.sampled_from(["flip", "cut", "grow", "swap"]),
)
def test_damaged_messages_make_a_table_error_or_decode(identity: str, steps: list[Any], seed: int, damage: str) -> None:
    schema = table_schema(COLUMNS, ("a", "b"), identity)
    source = Source(schema)
    play(source, [("put", 0, ("n", "1", "b", "k", None, "big"), [False] * 6), *steps])
    changes = [change for change, version in source.changes if version == 0]
    chance = random.Random(seed)
    victim = chance.choice(changes)
    message = bytearray(victim.message)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(1, len(message)) if len(message) > 1 else 0
        if damage == "flip":
            message[at] = chance.choice([message[at] ^ (1 << chance.randrange(8)), *b"\x00\x7f\xff", *b"tunKNO"])
        elif damage == "cut":
            del message[at:]
        elif damage == "grow":
            message[at:at] = chance.randbytes(chance.randint(1, 9))
        else:
            message[at:] = chance.choice(changes).message[at:]
        if not message:
            break
    victim.message = bytes(message)
    with suppress(TableError):
        net = fold_clone([raw_changes(schema, changes)], position=0)
        net.upserts.validate(full=True)
        assert net.touched_keys is not None
        assert net.touched_keys.null_count == 0

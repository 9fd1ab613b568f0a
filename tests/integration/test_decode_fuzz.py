"""Mutated messages of a real server: each is either refused, cleanly, or decodes to exactly the bytes it carries.

The judge is `judged`, a reading of pgoutput's grammar byte by byte, in plain Python, that shares nothing with the
decoder. Messages are mutated and sifted many at a time, so that a million of them take minutes.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from capturing import CaptureBench, changes
from databases import Database
from penstock.changelog.log import ChangeLog
from penstock.decode.postgres.columns import column
from penstock.decode.postgres.messages import Messages
from penstock.decode.sift import sift
from penstock.errors import TableError
from penstock.fold.clone import fold_clone
from penstock.model.change import RAW_SCHEMA, RawChanges
from penstock.model.table import TableSchema

AT_ONCE = 2_500
Image = list[bytes | None]  # of each column its bytes; None: NULL or not sent

TABLES = (
    "create table plain (id bigint primary key, n int, t text, at timestamptz, price numeric(10, 2), ok bool)",
    "create table wide (id uuid primary key, "
    + ", ".join(f"c{i} {('int', 'text', 'jsonb', 'bytea', 'date')[i % 5]}" for i in range(40))
    + ")",
    "create table composite (b text, a int, note text, big text, primary key (a, b))",
    "alter table composite alter big set storage external",
    "create table whole (id int primary key, note text, big text); alter table whole replica identity full",
    "alter table whole alter big set storage external",
    "create table by_index (x int not null unique, y text)",
    "alter table by_index replica identity using index by_index_x_key",
    "create table unkeyed (a int, b text)",
    "create table one (id int primary key)",
)
TRAFFIC = (
    "insert into plain select g, g % 7, repeat('t', g % 50), now(), g * 1.5, g % 2 = 0 from generate_series(1, 60) g",
    "update plain set n = null, t = '' where id % 3 = 0",
    "update plain set id = id + 1000 where id % 5 = 0",
    "delete from plain where id % 4 = 0",
    "insert into wide (id, c0, c1, c2, c3, c4) "
    "select gen_random_uuid(), g, 'é🐘', '{\"a\": [1, null]}', '\\x00ff', now() from generate_series(1, 30) g",
    "update wide set c5 = c0, c6 = c1",
    "insert into composite select 'k' || g, g, null, repeat('x', 3000) from generate_series(1, 30) g",
    "update composite set note = 'n'",
    "update composite set a = a + 100, note = 'moved' where a % 2 = 0",
    "delete from composite where a % 3 = 0",
    "insert into whole select g, 'n', repeat('y', 3000) from generate_series(1, 30) g",
    "update whole set note = null",
    "update whole set id = -id where id % 2 = 0",
    "delete from whole where id % 3 = 0",
    "insert into by_index select g, 'y' from generate_series(1, 30) g",
    "update by_index set x = x + 100 where x % 2 = 0",
    "delete from by_index where x % 3 = 0",
    "insert into unkeyed select g, 'b' from generate_series(1, 30) g",
    "insert into one select generate_series(1, 30)",
    "truncate plain, one; truncate composite",
    "truncate whole, by_index, unkeyed, wide",
)


@pytest.fixture
def captured(postgres: Database, tmp_path: Path) -> list[RawChanges]:
    bench = CaptureBench(postgres, ChangeLog(str(tmp_path / "log")))
    bench.prepare(*TABLES)
    postgres.execute(*TRAFFIC)
    bench.capture_all()
    found = changes(bench.log)
    assert {one.schema.table.name for one in found} >= {"plain", "wide", "composite", "whole", "by_index", "unkeyed"}
    return found


def image(message: bytes, at: int, width: int) -> tuple[Image, str, int]:
    """The cells of the image at a place, their kinds, and where it ends. IndexError, struct.error: it does not."""
    (columns,) = struct.unpack_from(">h", message, at)
    if columns != width:
        raise ValueError
    at += 2
    cells: Image = []
    kinds = ""
    for _ in range(width):
        kind = chr(message[at])
        at += 1
        cell = None
        if kind == "t":
            (length,) = struct.unpack_from(">i", message, at)
            at += 4
            if length < 0 or at + length > len(message):
                raise ValueError
            cell = message[at : at + length]
            at += length
        elif kind not in "nu":
            raise ValueError
        cells.append(cell)
        kinds += kind
    return cells, kinds, at


def judged(message: bytes, op: int, schema: TableSchema) -> Image | None:
    """The row that the message brings (of a delete: its old one); None for a truncate. ValueError: it is no message."""
    if len(message) < 8 or message[0] != op or op not in b"IUDT":
        raise ValueError
    if op == ord("T"):
        (count,) = struct.unpack_from(">I", message, 1)
        if len(message) != 6 + 4 * count or schema.relation_id not in struct.unpack_from(f">{count}I", message, 6):
            raise ValueError
        return None
    (relation,) = struct.unpack_from(">I", message, 1)
    if relation != schema.relation_id:
        raise ValueError
    width = len(schema.columns)
    key = [schema.index(name) for name in schema.key]
    old: Image = []
    before, at = chr(message[5]), 6
    if before in "KO" and op != ord("I"):
        old, old_kinds, at = image(message, at, width)
        if any(old_kinds[place] != "t" for place in key):
            raise ValueError
        if op == ord("U"):
            if chr(message[at]) != "N":
                raise ValueError
            at += 1
    elif before != "N" or op == ord("D"):
        raise ValueError
    if op == ord("D"):
        new = old
    else:
        new, kinds, at = image(message, at, width)
        for place in [place for place in range(width) if kinds[place] == "u"]:
            if old and (before == "O" or place in key):
                if old_kinds[place] == "u":
                    raise ValueError
                new[place] = old[place]
        if any(new[place] is None for place in key):
            raise ValueError
    if at != len(message):
        raise ValueError
    return new


def verdict(message: bytes, op: int, schema: TableSchema) -> Image | bool | None:
    try:
        return judged(message, op, schema)
    except (ValueError, IndexError, struct.error):
        return False


def mutated(message: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """One to three of: a byte changed, a number made odd, bytes cut, put in, doubled, or taken from another message."""
    data = bytearray(message)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        at = chance.randrange(len(data)) if data else 0
        match chance.randrange(8):
            case 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                data[at : at + 1] = chance.choice((b"t", b"u", b"n", b"N", b"K", b"O", b"b", b"\0"))
            case 2:
                odd = chance.choice((-1, -(2**31), 2**31 - 1, 2**31 - 5, 0, 1, len(data), 2**16, 2**30))
                data[at : at + 4] = struct.pack(">i", odd)
            case 3:
                del data[at:]
            case 4:
                del data[at : at + chance.randrange(1, 9)]
            case 5:
                data[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 6:
                data[at:] = chance.choice(others)[at:]
            case 7:
                data[at:at] = data[at : at + chance.randrange(1, 30)]
    return bytes(data)


def batches(captured: list[RawChanges], count: int, seed: int) -> Iterator[RawChanges]:
    """`count` messages, most of them mutated, in batches of one schema each."""
    chance = random.Random(seed)
    for number in range(-(-count // AT_ONCE)):
        source = captured[number % len(captured)]
        originals = [bytes(data) for data in source.batch.column("data").to_pylist()]
        ops = source.batch.column("op").to_pylist()
        picked = [chance.randrange(len(originals)) for _ in range(AT_ONCE)]
        messages = [
            originals[p] if chance.random() < 0.05 else mutated(originals[p], originals, chance) for p in picked
        ]
        whole = source.batch.take(pa.array(picked)).set_column(6, RAW_SCHEMA.field(6), pa.array(messages, pa.binary()))
        # An operation is taken from the message by capture, so it agrees with it, but for messages cut to nothing.
        op = [message[0] if message else ops[p] for message, p in zip(messages, picked, strict=True)]
        ordinal = np.arange(AT_ONCE, dtype=np.uint64)
        whole = whole.set_column(5, RAW_SCHEMA.field(5), pa.array(op, pa.uint8()))
        yield RawChanges(source.schema, whole.set_column(1, RAW_SCHEMA.field(1), pa.array(ordinal)))


def test_mutated_messages_are_refused_or_read_as_they_are(captured: list[RawChanges], full: bool) -> None:
    outcomes: Counter[str] = Counter()
    for batch in batches(captured, 1_000_000 if full else 50_000, seed=5):
        schema = batch.schema
        data, ops = batch.batch.column("data").to_pylist(), batch.batch.column("op").to_pylist()
        expected = [verdict(message, op, schema) for message, op in zip(data, ops, strict=True)]
        fit, refused = sift(batch)
        assert [int(i) for i in fit.batch.column("ordinal").to_pylist()] == [
            i for i, right in enumerate(expected) if right is not False
        ], f"{schema.table}: the decoder and the grammar disagree"
        assert all(one.reason and one.data == data[one.ordinal] for one in refused)
        messages = Messages(fit)
        rows = np.flatnonzero(messages.new >= 0)
        cells = messages.images(rows, whole_inserts=False)
        texts = messages.bytes.to_pybytes() if len(rows) else b""
        for index in range(len(schema.columns)):
            start, end, kind = cells.start[index].tolist(), cells.end[index].tolist(), cells.kind[index].tolist()
            for place, row in enumerate(rows.tolist()):
                right = expected[int(messages.ordinal[row])]
                assert isinstance(right, list)
                found = texts[start[place] : end[place]] if kind[place] == ord("t") else None
                assert found == right[index]
            try:
                column(messages, cells, index).validate(full=True)
                outcomes["typed"] += 1
            except TableError:
                outcomes["does not fit"] += 1
        try:
            fold_clone([fit], position=0).upserts.validate(full=True)
            outcomes["folded"] += 1
        except TableError:
            outcomes["fold refused"] += 1
        outcomes["fit"] += fit.batch.num_rows
        outcomes["refused"] += len(refused)
    assert min(outcomes[one] for one in ("fit", "refused", "typed", "does not fit")) > 0, outcomes
    assert outcomes["fit"] + outcomes["refused"] >= (1_000_000 if full else 50_000)

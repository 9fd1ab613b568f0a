"""Tables without a key under REPLICA IDENTITY FULL: the fold against a multiset that is changed row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bag_source import Row, Source
from penstock.errors import KeyRequired, RowsMissing, SchemaChanged
from penstock.fold.clone import fold_append
from penstock.fold.net_effect import NetEffect
from penstock.fold.row_keys import DIGEST, encode_rows
from penstock.fold.sharing import ByRow, joined, shares
from penstock.fold.whole_rows import fold_rows
from penstock.model.change import RawChanges
from penstock.model.feed import EVERYTHING, ColumnChoice, Projection
from penstock.model.table import Column, ColumnType, TableSchema
from pgoutput_messages import (
    FLOAT8,
    INT8,
    RELATION,
    TEXT,
    Change,
    Stream,
    delete,
    insert,
    raw_changes,
    table_schema,
    truncate,
    update,
)

NUMERIC = ColumnType(1700, "numeric", held_as="decimal(38,18)")
COLUMNS = {"a": INT8, "body": TEXT, "amount": NUMERIC, "x": FLOAT8}
ARRAY = ColumnType(1007, "_int4", kind="array", element=ColumnType(23, "int4"))
HSTORE = ColumnType(90_000, "hstore")
PAIR = ColumnType(90_001, "pair", kind="composite", fields=(("n", INT8), ("t", TEXT)))
Stored = tuple[Any, ...]

BY_ROW = table_schema(COLUMNS, (), "full")
PROJECTIONS = {
    "everything": EVERYTHING,
    "some": Projection(
        where="a >= 0",
        columns=(ColumnChoice("body", dropped=True), ColumnChoice("x", name="ex")),
        constants=(("origin", "shop"),),
    ),
}


def stored(row: Row, projection: Projection) -> Stored | None:
    """The row as the lake has it, told without the fold: numerics by value, those that do not fit by text."""
    a, body, amount, x = row
    if projection.where and (a is None or int(str(a)) < 0):
        return None
    number = "NaN" if amount == "NaN" else None if amount is None else Decimal(str(amount)).normalize()
    cells = (None if a is None else int(str(a)), number, None if x is None else repr(float(str(x))))
    return (*cells, "shop") if projection else (*cells, body)


class Lake:
    """Instances of rows by their key, changed by net effects alone."""

    def __init__(self) -> None:
        self.rows: dict[bytes, list[Stored]] = {}

    def apply(self, nets: Sequence[NetEffect]) -> None:
        if nets[0].truncated:
            self.rows.clear()
        touched: set[bytes] = set()
        for net in nets:
            net.upserts.validate(full=True)
            assert net.removals is not None
            assert net.upsert_keys is not None
            assert encode_rows(net.upserts, net.rescued).equals(net.upsert_keys)
            gone, come = net.removals.keys.to_pylist(), net.upsert_keys.to_pylist()
            assert len(set(gone)) == len(gone)
            assert not touched & {*gone, *come}, "two buckets touch one row"
            touched |= {*gone, *come}
            for key, times, needed in zip(gone, net.removals.times, net.removals.needed, strict=True):
                held = self.rows.get(key, [])
                assert times <= needed <= len(held)
                del held[:times]
            rescued = [None] * len(come) if net.rescued is None else net.rescued.to_pylist()
            for key, row, texts in zip(come, net.upserts.to_pylist(), rescued, strict=True):
                self.rows.setdefault(key, []).append(_shown(row, dict(texts or [])))

    def all(self) -> Counter[Stored]:
        return Counter(row for rows in self.rows.values() for row in rows)


def _shown(row: dict[str, Any], rescued: dict[str, str]) -> Stored:
    amount = rescued.get("amount") or (None if row["amount"] is None else row["amount"].normalize())
    x = row.get("ex", row.get("x"))
    last = row["origin"] if "origin" in row else row["body"]
    return (row["a"], amount, None if x is None else repr(x), last)


cells = st.tuples(
    st.sampled_from(["-1", "0", "1", None]),
    st.sampled_from(["", "body", "x" * 40, None]),
    st.sampled_from(["1.5", "1.50", "NaN", None]),
    st.sampled_from(["0", "-0", "NaN", None]),
)
step = st.tuples(
    st.sampled_from(["truncate", "commit", "version", *["insert", "delete", "update", "again", "touch"] * 2]),
    st.integers(0, 20),
    cells,
    st.lists(st.booleans(), min_size=4, max_size=4),
)


def play(source: Source, steps: Sequence[Any]) -> None:
    for kind, choice, row, unsent in steps:
        number = choice % len(source.rows) if source.rows else None
        if kind == "insert":
            source.insert(row)
        elif kind == "commit":
            source.commit()
        elif kind == "version":
            source.version = 1 - source.version
        elif kind == "truncate" and choice < 3:
            source.truncate()
        elif number is not None and kind == "again":
            source.insert(source.rows[number])
        elif number is not None and kind == "update":
            source.update(number, row, unsent)
        elif number is not None and kind == "touch":
            source.update(number, (*source.rows[number][:3], row[3]), unsent)
        elif number is not None and kind == "delete":
            source.delete(number)


def in_buckets(
    log: Sequence[RawChanges], shared: int, position: int, until: int | None, buckets: int, projection: Projection
) -> list[NetEffect]:
    nets = []
    for bucket in range(buckets):
        own = list(log)
        if shared:
            by_row = ByRow(BY_ROW, projection)
            own = [
                RawChanges(
                    one.schema,
                    list(shares(one, position=position, until=until, buckets=buckets, by_row=by_row))[bucket],
                )
                for one in joined(log, shared)
            ]
        nets.append(
            fold_rows(
                own,
                position=position,
                until=until,
                bucket=bucket,
                buckets=buckets,
                schema=BY_ROW,
                projection=projection,
            )
        )
    return nets


@settings(max_examples=200, deadline=None)
@given(
    before=st.lists(step, max_size=15),
    steps=st.lists(step, max_size=50),
    windows=st.lists(st.integers(1, 30), max_size=3),
    cuts=st.lists(st.integers(1, 30), max_size=4),
    buckets=st.integers(1, 3),
    shared=st.sampled_from([0, 1, 300, 1 << 20]),
    projection=st.sampled_from(sorted(PROJECTIONS)),
)
def test_windows_of_a_stream_make_the_destination_an_equal_multiset(
    before: list[Any],
    steps: list[Any],
    windows: list[int],
    cuts: list[int],
    buckets: int,
    shared: int,
    projection: str,
) -> None:
    kept = PROJECTIONS[projection]
    versions = [BY_ROW, table_schema(COLUMNS, (), "full", relation=RELATION + 1)]
    source = Source()
    play(source, before)
    source.commit()
    start = source.transaction * 10
    play(source, steps)
    log = []
    for low, high in pairwise([0, *sorted(set(cuts)), source.transaction + 1]):
        for number, schema in enumerate(versions):
            inside = [c for c, v in source.changes if v == number and low * 10 <= c.commit_position < high * 10]
            log.append(raw_changes(schema, inside))
    lake = Lake()
    bounds = sorted({0, start, *(start + 10 * window for window in windows)})
    for position, until in zip(bounds, [*bounds[1:], None], strict=True):
        whole = fold_rows(log, position=position, until=until, schema=BY_ROW, projection=kept)
        nets = [whole] if buckets == 1 else in_buckets(log, shared, position, until, buckets, kept)
        assert sum(net.changes for net in nets) == whole.changes or (shared and whole.truncated)
        lake.apply(nets)
    expected = Counter(found for row in source.rows if (found := stored(row, kept)) is not None)
    assert lake.all() == expected


def folded(*messages: bytes, schema: TableSchema = BY_ROW) -> NetEffect:
    return fold_rows([Stream().transaction(*messages).raw(schema)], position=0)


ONE: Row = ("1", "one", "1.0", "0")
TWO: Row = ("2", "two", None, None)


def test_a_row_that_goes_and_comes_back_must_have_been_there_and_nothing_is_written() -> None:
    net = folded(delete(*ONE, full=True), insert(*ONE))
    assert net.removals is not None
    assert (net.upserts.num_rows, net.removals.times.tolist(), net.removals.needed.tolist()) == (0, [0], [1])


def test_a_row_that_comes_and_goes_needs_nothing() -> None:
    net = folded(insert(*ONE), update(*TWO, row=ONE), delete(*TWO, full=True))
    assert net.removals is not None
    assert (net.upserts.num_rows, len(net.removals.keys)) == (0, 0)


def test_of_equal_rows_exactly_as_many_go_as_were_deleted() -> None:
    net = folded(delete(*ONE, full=True), delete(*ONE, full=True), insert(*ONE), delete(*ONE, full=True))
    assert net.removals is not None
    assert (net.removals.times.tolist(), net.removals.needed.tolist()) == ([2], [2])


def test_a_row_that_goes_after_a_truncate_and_did_not_come_is_missing() -> None:
    with pytest.raises(RowsMissing) as caught:
        folded(insert(*ONE), truncate(), delete(*ONE, full=True))
    assert caught.value.rows == 1


def test_a_change_without_its_whole_old_row_needs_a_key() -> None:
    with pytest.raises(KeyRequired, match="partition"):
        folded(update(*TWO))
    with pytest.raises(KeyRequired, match="partition"):
        folded(delete(*ONE))


def test_another_identity_within_the_batch_is_another_structure() -> None:
    with pytest.raises(SchemaChanged, match="replica identity"):
        fold_rows(
            [Stream().transaction(insert(*ONE)).raw(replace(BY_ROW, identity="nothing"))], position=0, schema=BY_ROW
        )


def test_a_column_that_comes_within_the_batch_is_null_in_rows_from_before_it() -> None:
    numbered = replace(
        BY_ROW, columns=tuple(replace(one, number=number) for number, one in enumerate(BY_ROW.columns, 1))
    )
    grown = replace(numbered, columns=(*numbered.columns, Column("late", TEXT, number=9)))
    shrunk = replace(grown, columns=tuple(one for one in grown.columns if one.name != "body"))
    steps = [
        (numbered, insert(*ONE)),
        (numbered, insert(*TWO)),
        (grown, update(*ONE, "late", row=(*ONE, None))),
        (shrunk, delete("1", "1.00", "0", "late", full=True)),
        (shrunk, delete("2", None, None, None, full=True)),
    ]
    changes = [raw_changes(schema, [Change(10 * at, 0, message)]) for at, (schema, message) in enumerate(steps, 1)]
    net = fold_rows(changes, position=0, schema=shrunk)
    assert net.removals is not None
    assert (net.upserts.num_rows, len(net.removals.keys), net.changes) == (0, 0, 5)
    net = fold_rows(changes, position=0, until=50, schema=shrunk)
    assert net.upserts.to_pylist() == [{"a": 2, "amount": None, "x": None, "late": None}]


def test_append_takes_no_updates_of_a_table_without_a_key() -> None:
    with pytest.raises(KeyRequired, match="UPDATE of a table without a key"):
        fold_append([Stream().transaction(update(*TWO, row=ONE)).raw(BY_ROW)], position=0)


def test_rows_are_equal_when_the_lake_stores_the_same_for_them() -> None:
    columns = {"f": FLOAT8, "n": NUMERIC, "t": TEXT, "l": ARRAY, "h": HSTORE, "p": PAIR}
    schema = table_schema(columns, (), "full")
    rows: list[Row] = [
        ("0", "1.0", "", "{1,NULL}", '"a"=>"b"', "(1,x)"),
        ("-0", "1.0", "", "{1,NULL}", '"a"=>"b"', "(1,x)"),
        ("0", "1.0", None, "{1,NULL}", '"a"=>"b"', "(1,x)"),
        ("0", "1.0", "", "{1}", '"a"=>"b"', "(1,x)"),
        ("0", "1.0", "", "{}", '"a"=>"b"', "(1,x)"),
        ("0", "1.0", "", None, '"a"=>"b"', "(1,x)"),
        ("0", "1.0", "", "{1,NULL}", '"a"=>NULL', "(1,x)"),
        ("0", "1.0", "", "{1,NULL}", '"a"=>"b"', "(1,)"),
        ("0", "1.0", "", "{1,NULL}", '"a"=>"b"', "(,)"),
        ("0", "1.0", "", "{1,NULL}", '"a"=>"b"', None),
        ("0", "NaN", "", "{1,NULL}", '"a"=>"b"', "(1,x)"),
        ("0", None, "", "{1,NULL}", '"a"=>"b"', "(1,x)"),
        ("NaN", "1.0", "", "{1,NULL}", '"a"=>"b"', "(1,x)"),
        ("0", "1.0", "", "{{1},{2}}", '"a"=>"b"', "(1,x)"),  # which no list holds: rescued
        ("0", "1.0", "", "{{1},{3}}", '"a"=>"b"', "(1,x)"),
    ]
    net = folded(*(insert(*row) for row in [*rows, ("0", "1.00", *rows[0][2:])]), schema=schema)
    assert net.upsert_keys is not None
    keys = net.upsert_keys.to_pylist()
    assert keys[-1] == keys[0]
    assert len(set(keys)) == len(rows)
    assert {len(key) for key in keys} == {DIGEST}


def test_keys_do_not_depend_on_how_rows_lie_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    net = folded(*(insert(*row) for row in [ONE, TWO, ("3", "x" * 100, "NaN", None), ONE]))
    assert net.upsert_keys is not None
    pieces = [net.upserts.slice(number, 1) for number in range(4)]
    assert encode_rows(pa.concat_tables(pieces), net.rescued).equals(net.upsert_keys)
    monkeypatch.setattr("penstock.fold.row_keys._BYTES_AT_ONCE", 50)
    assert encode_rows(net.upserts, net.rescued).equals(net.upsert_keys)
    assert net.rescued is not None
    assert encode_rows(net.upserts.slice(1), net.rescued.slice(1)).equals(net.upsert_keys.slice(1))


def test_widening_a_column_leaves_the_keys() -> None:
    narrow = pa.table({"i": pa.array([1, None], pa.int32()), "f": pa.array([0.1, -0.0], pa.float32())})
    wide = narrow.cast(pa.schema([("i", pa.int64()), ("f", pa.float64())]))
    assert encode_rows(narrow).equals(encode_rows(wide))

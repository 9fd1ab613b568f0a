"""The net effect of written-out streams, and the errors of streams that cannot be applied."""

from __future__ import annotations

import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import KeyRequired, MessageNotDecodable, SchemaChanged, TableError, ValueDoesNotFit
from penstock.fold import patch
from penstock.fold.clone import fold_append, fold_clone
from penstock.fold.net_effect import NetEffect
from penstock.model.change import RawChanges
from penstock.model.table import ColumnType
from pgoutput_messages import (
    BYTEA,
    DATE,
    INT4,
    INT8,
    RELATION,
    TEXT,
    TIMESTAMPTZ,
    UNSENT,
    Stream,
    delete,
    insert,
    numeric,
    raw_changes,
    table_schema,
    truncate,
    update,
)

THINGS = table_schema({"id": INT8, "body": TEXT, "note": TEXT})
FULL = table_schema({"id": INT8, "body": TEXT, "note": TEXT}, identity="full")


def fold(stream: Stream, schema: Any = THINGS, position: int = 0, **options: Any) -> NetEffect:
    return fold_clone([stream.raw(schema)], position=position, **options)


def rows(net: NetEffect) -> list[tuple[Any, ...]]:
    net.upserts.validate(full=True)
    return sorted((tuple(row.values()) for row in net.upserts.to_pylist()), key=repr)


def fetches(net: NetEffect) -> dict[str, list[tuple[Any, Any]]]:
    """For each column: the id of the row that lacks it, and the key to fetch it by."""
    ids = net.upserts.column("id").to_pylist()
    return {
        one.column: [(ids[row], key) for row, key in zip(one.rows.tolist(), one.keys.to_pylist(), strict=True)]
        for one in net.fetches
    }


def touched(net: NetEffect) -> list[Any]:
    assert net.touched_keys is not None
    return sorted(net.touched_keys.to_pylist())


def test_null_empty_and_unsent_are_three_things() -> None:
    net = fold(Stream().transaction(insert("1", None, ""), update("2", UNSENT, None)))
    assert rows(net) == [(1, None, ""), (2, None, None)]
    assert fetches(net) == {"body": [(2, 2)]}


def test_last_image_wins_and_every_key_is_touched() -> None:
    net = fold(
        Stream()
        .transaction(insert("1", "a", "x"), insert("2", "b", "y"), insert("3", "c", "z"))
        .transaction(update("1", "A", "x"), delete("2", None, None), delete("9", None, None))
    )
    assert rows(net) == [(1, "A", "x"), (3, "c", "z")]
    assert touched(net) == [1, 2, 3, 9]
    assert net.upsert_keys is not None
    assert net.upsert_keys.to_pylist() == net.upserts.column("id").to_pylist()
    assert (net.truncated, net.changes, net.last_commit_time) == (False, 6, 2_000_000)


def test_insert_delete_insert() -> None:
    net = fold(Stream().transaction(insert("1", "a", "x"), delete("1", None, None), insert("1", "b", "y")))
    assert rows(net) == [(1, "b", "y")]
    assert touched(net) == [1]


def test_insert_and_delete_is_a_delete() -> None:
    net = fold(Stream().transaction(insert("1", "a", "x"), delete("1", None, None)))
    assert (rows(net), touched(net)) == ([], [1])


def test_partial_updates_merge_over_earlier_images() -> None:
    net = fold(
        Stream()
        .transaction(update("1", "sent", UNSENT))
        .transaction(update("1", UNSENT, UNSENT), update("1", UNSENT, UNSENT), insert("2", None, "n"))
        .transaction(update("2", UNSENT, "m"))
    )
    assert rows(net) == [(1, "sent", None), (2, None, "m")]
    assert fetches(net) == {"note": [(1, 1)]}


def test_earlier_images_in_other_slices_fill_cells() -> None:
    first = Stream().transaction(insert("1", "one", "x"), insert("2", "two", "x"), insert("3", "three", "x"))
    second = Stream(transactions=1).transaction(update("3", UNSENT, "y"), insert("4", "four", "y"))
    third = Stream(transactions=2).transaction(update("1", UNSENT, "z"), update("3", UNSENT, "z"), insert("5", "", ""))
    net = fold_clone([stream.raw(THINGS) for stream in (first, second, third)], position=0)
    assert rows(net) == [(1, "one", "z"), (2, "two", "x"), (3, "three", "z"), (4, "four", "y"), (5, "", "")]
    assert net.fetches == ()


def test_filled_columns_too_large_for_one_array_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch, "_PIECE_SHIFT", 4)
    bodies = {f"{i}": f"body {i}" * i for i in range(20)}
    stream = Stream().transaction(*[insert(key, body, "x") for key, body in bodies.items()])
    updates = [update(f"{i}", UNSENT if i % 3 else f"new {i}", "y") for i in range(20)]
    later = Stream(transactions=1).transaction(*updates)
    net = fold_clone([stream.raw(THINGS), later.raw(THINGS)], position=0)
    assert net.upserts.column("body").num_chunks > 1
    expected = [(i, bodies[f"{i}"] if i % 3 else f"new {i}", "y") for i in range(20)]
    assert rows(net) == sorted(expected, key=repr)


def test_changed_key_is_a_delete_and_an_upsert() -> None:
    net = fold(Stream().transaction(update("2", "b", UNSENT, key=("1", None, None))))
    assert (rows(net), touched(net)) == ([(2, "b", None)], [1, 2])
    assert fetches(net) == {"note": [(2, 1)]}


def test_old_key_that_is_equal_is_no_change_of_key() -> None:
    net = fold(Stream().transaction(update("1", UNSENT, "n", key=("1", None, None))))
    assert touched(net) == [1]
    assert fetches(net) == {"body": [(1, 1)]}


def test_chain_of_key_changes_leads_to_the_first_key() -> None:
    net = fold(
        Stream()
        .transaction(update("2", UNSENT, "n", key=("1", None, None)))
        .transaction(update("3", UNSENT, UNSENT, key=("2", None, None)), insert("1", "new", "row"))
        .transaction(update("3", UNSENT, UNSENT), update("1", UNSENT, "later"))
    )
    assert rows(net) == [(1, "new", "later"), (3, None, "n")]
    assert touched(net) == [1, 2, 3]
    assert fetches(net) == {"body": [(3, 1)]}


def test_swap_of_keys_in_one_transaction() -> None:
    net = fold(
        Stream().transaction(
            update("-1", UNSENT, "first", key=("1", None, None)),
            update("1", UNSENT, "second", key=("2", None, None)),
            update("2", UNSENT, UNSENT, key=("-1", None, None)),
        )
    )
    assert rows(net) == [(1, None, "second"), (2, None, "first")]
    assert touched(net) == [-1, 1, 2]
    assert sorted(fetches(net)["body"]) == [(1, 2), (2, 1)]


def test_truncate_clears_what_came_before() -> None:
    net = fold(
        Stream()
        .transaction(insert("1", "a", "x"), update("7", UNSENT, "x"))
        .transaction(insert("2", "b", "y"), truncate(99, RELATION), insert("1", "c", "z"), update("1", UNSENT, "zz"))
    )
    assert net.truncated
    assert (rows(net), touched(net), net.fetches, net.changes) == ([(1, "c", "zz")], [1], (), 6)


def test_truncate_alone() -> None:
    net = fold(Stream().transaction(insert("1", "a", "x"), truncate()))
    assert net.truncated
    assert (rows(net), touched(net)) == ([], [])
    assert net.upserts.schema.names == ["id", "body", "note"]


def test_full_identity_takes_unsent_cells_from_the_old_row() -> None:
    net = fold(
        Stream().transaction(
            update("1", UNSENT, "n", row=("1", "kept", "m")),
            update("5", UNSENT, UNSENT, row=("4", None, "moved")),
            delete("6", "b", "n", full=True),
        ),
        FULL,
    )
    assert rows(net) == [(1, "kept", "n"), (5, None, "moved")]
    assert (touched(net), net.fetches) == ([1, 4, 5, 6], ())


def test_unsent_key_comes_from_the_old_key() -> None:
    """A wide text key may be stored out of line: then it is not sent again, but the old key is."""
    schema = table_schema({"note": TEXT, "id": TEXT}, key=("id",))
    net = fold(Stream().transaction(update("n", UNSENT, key=(None, "long key"))), schema)
    assert rows(net) == [("n", "long key")]
    assert touched(net) == [b"long key"]


def test_composite_key_in_its_own_order() -> None:
    schema = table_schema({"b": TEXT, "v": INT4, "a": INT4}, key=("a", "b"))
    net = fold(Stream().transaction(insert("x", "1", "7"), insert("y", "2", "7"), delete("x", None, "7")), schema)
    assert rows(net) == [("y", 2, 7)]
    assert len(touched(net)) == 2


@pytest.mark.parametrize(
    ("position", "until", "expected"), [(0, None, 3), (100, None, 3), (101, None, 2), (200, 300, 1)]
)
def test_changes_before_the_position_are_skipped(position: int, until: int | None, expected: int) -> None:
    stream = Stream().transaction(insert("1", "", "")).transaction(insert("2", "", "")).transaction(insert("3", "", ""))
    net = fold(stream, position=position, until=until)
    assert (net.upserts.num_rows, net.changes) == (expected, expected)


def test_nothing_left_after_skipping() -> None:
    net = fold(Stream().transaction(insert("1", "", "")), position=1000)
    assert (rows(net), touched(net), net.changes, net.last_commit_time) == ([], [], 0, 0)
    empty = fold_clone([raw_changes(THINGS, [])], position=0)
    assert (rows(empty), touched(empty), empty.truncated) == ([], [], False)


def test_slices_of_two_versions_interleave() -> None:
    wider = table_schema({"id": INT8, "body": ColumnType(1043, "varchar", 24), "note": TEXT}, relation=777)
    stream = Stream().transaction(
        insert("1", "a", "1"), update("1", UNSENT, "2", relation=777), update("1", UNSENT, "3"), delete("2", None, None)
    )
    old = raw_changes(THINGS, [one for i, one in enumerate(stream.changes) if i != 1])
    new = raw_changes(wider, stream.changes[1:2])
    net = fold_clone([new, old], position=0)
    assert (rows(net), touched(net)) == ([(1, "a", "3")], [1, 2])


def test_memory_mapped_slices_with_an_offset(tmp_path: Path) -> None:
    stream = Stream()
    for i in range(50):
        stream.transaction(insert(str(i), "body" * i, None), update(str(i), UNSENT, f"{i}"))
    batch = stream.raw(THINGS).batch
    with pa.OSFile(str(tmp_path / "segment.arrow"), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    mapped = pa.ipc.open_file(pa.memory_map(str(tmp_path / "segment.arrow"))).get_batch(0)
    slices = [RawChanges(THINGS, mapped.slice(begin, 7)) for begin in range(0, 100, 7)]
    expected = [(i, "body" * i, f"{i}") for i in range(50)]
    assert rows(fold_clone(slices, position=0)) == sorted(expected, key=repr)
    assert rows(fold_clone(slices, position=2500)) == sorted(expected[24:], key=repr)


def test_buckets_share_the_keys_out() -> None:
    stream = Stream()
    for i in range(200):
        stream.transaction(insert(f"{i}", "a", "b"), update(f"{i}", UNSENT, "c"))
    stream.transaction(*[delete(f"{i}", None, None) for i in range(50)])
    nets = [fold(stream, bucket=bucket, buckets=3) for bucket in range(3)]
    assert sorted(row for net in nets for row in rows(net)) == [(i, "a", "c") for i in range(50, 200)]
    assert sorted(key for net in nets for key in touched(net)) == list(range(200))
    assert sum(net.changes for net in nets) == 450
    assert min(net.changes for net in nets) > 0


def test_buckets_with_key_changes() -> None:
    moves = [update(f"{i + 1000}", UNSENT, "n", row=(f"{i}", "b", "m")) for i in range(20)]
    nets = [fold(Stream().transaction(*moves), FULL, bucket=bucket, buckets=3) for bucket in range(3)]
    assert sorted(row for net in nets for row in rows(net)) == [(i + 1000, "b", "n") for i in range(20)]
    assert sorted(key for net in nets for key in touched(net)) == [*range(20), *range(1000, 1020)]
    moves = [update(f"{i + 1000}", "b", "n", key=(f"{i}", None, None)) for i in range(20)]
    nets = [fold(Stream().transaction(*moves), bucket=bucket, buckets=3) for bucket in range(3)]
    assert sorted(row for net in nets for row in rows(net)) == [(i + 1000, "b", "n") for i in range(20)]
    moves = [update(f"{i + 1000}", UNSENT, "n", key=(f"{i}", None, None)) for i in range(20)]
    with pytest.raises(ValueError, match="one bucket"):
        fold(Stream().transaction(*moves), buckets=3)


def test_table_without_a_key_takes_inserts() -> None:
    schema = table_schema({"id": INT8, "body": TEXT}, key=(), identity="nothing")
    stream = Stream().transaction(insert("1", "gone"), truncate(), *[insert(f"{i % 2}", "b") for i in range(10)])
    net = fold(stream, schema)
    assert net.truncated
    assert net.upserts.num_rows == 10
    assert (net.upsert_keys, net.touched_keys, net.changes) == (None, None, 12)
    nets = [fold(stream, schema, bucket=bucket, buckets=4) for bucket in range(4)]
    assert sum(one.upserts.num_rows for one in nets) == 10
    assert sum(one.changes for one in nets) == 12


@pytest.mark.parametrize("message", [update("1", "b"), delete("1", "b", full=True)])
def test_table_without_a_key_refuses_the_rest(message: bytes) -> None:
    schema = table_schema({"id": INT8, "body": TEXT}, key=(), identity="full")
    with pytest.raises(KeyRequired, match=r'ALTER TABLE "public"\."things" ADD PRIMARY KEY') as caught:
        fold(Stream().transaction(insert("1", "a"), message), schema)
    assert "0/64:1" in caught.value.what
    nothing = table_schema({"id": INT8, "body": TEXT}, identity="nothing")
    with pytest.raises(KeyRequired, match="REPLICA IDENTITY DEFAULT"):
        fold(Stream().transaction(message), nothing)


@pytest.mark.parametrize(
    "other",
    [
        table_schema({"id": INT4, "body": TEXT, "note": TEXT}),
        table_schema({"id": INT8, "body": TEXT, "note": TEXT}, key=("id", "body")),
    ],
    ids=["retyped", "other key"],
)
def test_another_key_is_refused(other: Any) -> None:
    message = insert(*["1"] * len(other.columns))
    changes = [Stream().transaction(insert("1", "a", "b")).raw(THINGS), Stream().transaction(message).raw(other)]
    with pytest.raises(SchemaChanged, match=r"public\.things"):
        fold_clone(changes, position=0)


def test_a_value_that_does_not_fit_is_named() -> None:
    schema = table_schema({"id": INT8, "at": TIMESTAMPTZ, "data": BYTEA})
    stream = Stream().transaction(*[insert(f"{i}", "2024-01-01 00:00:00+00", "\\x00") for i in range(100)])
    stream.transaction(insert("100", "infinity", "\\x00"))
    with pytest.raises(ValueDoesNotFit) as caught:
        fold(stream, schema, strict=True)
    for part in ("public.things", '"at"', "'infinity'", "0/C8:0"):
        assert part in caught.value.what
    assert caught.value.solution
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(ValueDoesNotFit, match=r"'x{40}…'"):
        fold(Stream().transaction(insert("1", None, "x" * 1000)), schema, strict=True)
    stream.transaction(update("100", "2024-01-01 00:00:00+00", "\\x00"))
    assert fold(stream, schema, strict=True).upserts.num_rows == 101


def test_cells_that_do_not_fit_are_rescued() -> None:
    schema = table_schema({"id": INT8, "at": TIMESTAMPTZ, "n": numeric(5, 1)})
    stream = Stream().transaction(insert("1", "infinity", "NaN"), insert("2", "2024-01-01 00:00:00+00", "1.5"))
    stream.transaction(insert("3", "-infinity", None), insert("4", "0044-03-15 00:00:00+00 BC", "2.0"))
    stream.transaction(update("4", None, "3.0"))
    net = fold(stream, schema)
    assert net.rescued is not None
    net.rescued.validate(full=True)
    kept = dict(zip(net.upserts["id"].to_pylist(), net.rescued.to_pylist(), strict=True))
    assert kept == {1: [("at", "infinity"), ("n", "NaN")], 2: None, 3: [("at", "-infinity")], 4: None}
    assert {row["id"]: row["n"] for row in net.upserts.to_pylist()} == {
        1: None,
        2: Decimal("1.5"),
        3: None,
        4: Decimal("3.0"),
    }
    assert [(count.column, count.cells) for count in net.rescues] == [("at", 2), ("n", 1)]
    assert net.rescues[0].sample == "infinity"
    assert net.rescues[0].place == "0/64:0"
    assert fold(Stream().transaction(insert("2", None, "1.5")), schema).rescued is None


def test_a_rescued_cell_that_is_not_sent_again_stays_rescued() -> None:
    schema = table_schema({"id": INT8, "n": numeric(5, 1), "note": TEXT})
    stream = Stream().transaction(insert("1", "NaN", "a"), insert("2", "1.0", "b"))
    stream.transaction(update("1", UNSENT, "later"), update("7", UNSENT, "moved", key=("2", None, None)))
    net = fold(stream, schema)
    assert net.rescued is not None
    kept = dict(zip(net.upserts["id"].to_pylist(), net.rescued.to_pylist(), strict=True))
    assert kept == {1: [("n", "NaN")], 7: None}


def test_a_key_is_never_rescued() -> None:
    schema = table_schema({"id": DATE, "v": INT8})
    with pytest.raises(ValueDoesNotFit, match="'infinity'") as caught:
        fold(Stream().transaction(insert("infinity", "1")), schema)
    assert "types: {id: text}" in caught.value.solution


def test_bytes_that_are_no_text_are_rescued_as_hexadecimal() -> None:
    schema = table_schema({"id": INT8, "v": TEXT})
    message = insert("1", "ab").replace(b"ab", b"a\xff")
    net = fold(Stream().transaction(message), schema)
    assert net.rescued is not None
    assert net.rescued.to_pylist() == [[("v", "\\x61ff")]]


BROKEN = {
    "empty": b"",
    "cut": insert("1", "a", "b")[:-1],
    "longer": insert("1", "a", "b") + b"!",
    "other table": insert("1", "a", "b", relation=1),
    "other operation": b"X" + insert("1", "a", "b")[1:],
    "too few columns": insert("1", "a"),
    "no new row": insert("1", "a", "b").replace(b"N", b"Z", 1),
    "unknown kind": insert("1", None, "b").replace(b"n", b"b", 1),
    "huge length": insert("1", "a", "b").replace(b"\0\0\0\x01a", b"\x7f\xff\xff\xffa"),
    "negative length": insert("1", "a", "b").replace(b"\0\0\0\x01a", b"\xff\xff\xff\xffa"),
    "update without a new row": update("1", "a", "b", key=("1", None, None))[:20],
    "key is null": insert(None, "a", "b"),
    "key is not sent": update(UNSENT, "a", "b"),
    "truncate of others": truncate(1, 2),
    "truncate too short": truncate()[:-1],
    "old row lacks a column": update("1", UNSENT, "b", row=("1", UNSENT, "b")),
}


@pytest.mark.parametrize("message", BROKEN.values(), ids=BROKEN.keys())
def test_broken_messages_are_refused(message: bytes) -> None:
    good = insert("2", "a", "b")
    for stream in (Stream().transaction(message), Stream().transaction(good, message, good)):
        with pytest.raises(MessageNotDecodable, match=r"public\.things"):
            fold(stream)


@pytest.mark.parametrize(
    "messages",
    [
        [delete("1", None, None), update("1", UNSENT, "n")],
        [truncate(), update("1", UNSENT, "n")],
        [update("2", "b", "n", key=("1", None, None)), update("1", UNSENT, "n")],
    ],
    ids=["deleted", "truncated", "moved away"],
)
def test_update_of_a_row_that_is_not_there_is_refused(messages: list[bytes]) -> None:
    with pytest.raises(TableError, match="updates a row that"):
        fold(Stream().transaction(*messages))


def test_append_knows_no_delete_and_no_truncate() -> None:
    stream = (
        Stream()
        .transaction(insert("1", "a", "x"), insert("2", "b", "y"), delete("1", None, None))
        .transaction(truncate(), insert("3", "c", "z"))
        .transaction(delete("9", None, None))
    )
    net = fold_append([stream.raw(THINGS)], position=0)
    assert (rows(net), touched(net)) == ([(1, "a", "x"), (2, "b", "y"), (3, "c", "z")], [1, 2, 3])
    assert not net.truncated


def test_append_moves_a_row_to_its_new_key() -> None:
    stream = Stream().transaction(insert("1", "a", "x"), update("2", "a", UNSENT, key=("1", None, None)))
    net = fold_append([stream.raw(THINGS)], position=0)
    assert (rows(net), touched(net), net.fetches) == ([(2, "a", "x")], [1, 2], ())

"""Rows between wire and log: whatever is packed, taken and cut when, every row leaves once, in order."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import SourceError, StreamOutOfStep
from penstock.source.postgres import transaction_buffer
from penstock.source.postgres.pgoutput import Begin
from penstock.source.postgres.transaction_buffer import TransactionBuffer
from penstock.source.sink import CapturedSlice
from pgoutput_messages import INT4, TEXT, insert, table_schema, truncate, update

SCHEMAS = {relation: table_schema({"id": INT4, "t": TEXT}, relation=relation) for relation in (7, 8, 70_000)}


def frame(message: bytes, start_lsn: int = 5) -> bytes:
    return b"w" + struct.pack(">QQq", start_lsn, 0, 0) + message


def begun(number: int) -> Begin:
    return Begin(commit_lsn=number * 100, commit_time=number * 1000, xid=number)


def buffer_with_schemas() -> TransactionBuffer:
    buffer = TransactionBuffer()
    for schema in SCHEMAS.values():
        buffer.relation(schema)
    return buffer


def rows(slices: list[CapturedSlice]) -> list[tuple[int, int, int, bytes]]:
    return [
        (item.schema.relation_id, row["commit_position"], row["ordinal"], row["data"])
        for item in slices
        for row in item.batch.to_pylist()
    ]


def test_rows_leave_by_table_with_their_transaction() -> None:
    buffer = buffer_with_schemas()
    buffer.begin(begun(1))
    buffer.frames.append(frame(insert("1", "a", relation=8), 11))
    buffer.frames.append(frame(insert("2", "b", relation=7), 12))
    buffer.commit(150)
    buffer.begin(begun(2))
    buffer.frames.append(frame(update("1", "c", key=["0", None], relation=8), 13))
    buffer.commit(250)
    end, slices = buffer.take_closed()
    assert end == 250
    first, second = slices
    assert (first.schema.relation_id, second.schema.relation_id) == (8, 7)
    assert (first.moved_keys, second.moved_keys) == (1, 0)
    assert first.batch.column("change_position").to_pylist() == [11, 13]
    assert first.batch.column("transaction").to_pylist() == [1, 2]
    assert first.batch.column("ordinal").to_pylist() == [0, 0]
    assert second.batch.column("ordinal").to_pylist() == [1]
    assert first.batch.column("op").to_pylist() == [ord("I"), ord("U")]
    assert first.batch.column("data").to_pylist()[0] == insert("1", "a", relation=8)
    assert first.batch.column("commit_time").cast("int64").to_pylist() == [1000, 2000]
    assert buffer.rows == 0


def test_an_old_image_under_identity_full_is_no_moved_key() -> None:
    buffer = TransactionBuffer()
    buffer.relation(replace(SCHEMAS[7], identity="full"))
    buffer.begin(begun(1))
    buffer.frames.append(frame(update("1", "c", row=["0", None], relation=7)))
    buffer.commit(150)
    _, (only,) = buffer.take_closed()
    assert only.moved_keys == 0


def test_an_open_transaction_stays_when_closed_ones_leave() -> None:
    buffer = buffer_with_schemas()
    buffer.begin(begun(1))
    buffer.frames.append(frame(insert("1", "a", relation=7)))
    buffer.commit(150)
    buffer.begin(begun(2))
    buffer.frames.append(frame(insert("2", "b", relation=7)))
    assert (buffer.closed_rows, buffer.rows) == (1, 2)
    assert [row[1] for row in rows(buffer.take_closed()[1])] == [100]
    buffer.frames.append(frame(insert("3", "c", relation=7)))
    buffer.commit(250)
    assert [row[1:3] for row in rows(buffer.take_closed()[1])] == [(200, 0), (200, 1)]


def test_ordinals_go_on_from_part_to_part() -> None:
    buffer = buffer_with_schemas()
    buffer.begin(begun(1))
    seen = []
    for number in range(3):
        buffer.frames.extend([frame(insert(str(number), "x", relation=7)), frame(insert(str(number), "y", relation=7))])
        seen += rows(buffer.take_open())
    buffer.commit(150)
    end, rest = buffer.take_closed()
    assert (end, rest) == (150, [])
    assert [row[2] for row in seen] == [0, 1, 2, 3, 4, 5]


def test_a_truncate_stands_under_each_of_its_tables() -> None:
    buffer = buffer_with_schemas()
    buffer.begin(begun(1))
    buffer.frames.append(frame(insert("1", "a", relation=8)))
    buffer.truncate(frame(truncate(7, 8)), (7, 8))
    buffer.frames.append(frame(insert("2", "a", relation=7)))
    buffer.commit(150)
    taken = rows(buffer.take_closed()[1])
    assert [(relation, ordinal, data[:1]) for relation, _, ordinal, data in taken] == [
        (8, 0, b"I"),
        (8, 2, b"T"),
        (7, 1, b"T"),
        (7, 3, b"I"),
    ]


def test_a_new_structure_amid_a_transaction_makes_two_slices() -> None:
    buffer = buffer_with_schemas()
    wider = table_schema({"id": INT4, "t": TEXT, "u": TEXT}, relation=7)
    buffer.begin(begun(1))
    buffer.frames.append(frame(insert("1", "a", relation=7)))
    buffer.relation(wider)
    buffer.frames.append(frame(insert("2", "a", "b", relation=7)))
    buffer.commit(150)
    _, slices = buffer.take_closed()
    assert [(item.schema, item.batch.num_rows) for item in slices] == [(SCHEMAS[7], 1), (wider, 1)]
    buffer.begin(begun(2))
    buffer.frames.append(frame(insert("3", "a", "b", relation=7)))
    buffer.commit(250)
    _, (later,) = buffer.take_closed()
    assert later.schema == wider


def test_a_change_of_an_undescribed_relation_is_refused() -> None:
    buffer = buffer_with_schemas()
    buffer.begin(begun(1))
    buffer.frames.append(frame(insert("1", relation=9)))
    buffer.commit(150)
    with pytest.raises(SourceError, match="relation 9"):
        buffer.take_closed()


def test_a_giant_row_is_taken_alone_and_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_buffer, "GIANT_BYTES", 1000)
    buffer = buffer_with_schemas()
    buffer.begin(begun(1))
    buffer.frames.append(frame(insert("1", "small", relation=7)))
    giant = frame(insert("2", "x" * 5000, relation=7))
    buffer.frames.append(giant)
    buffer.pack()
    assert [len(row[3]) < 1000 for row in rows(buffer.take_open())] == [True]
    (alone,) = buffer.take_open()
    assert rows([alone])[0][2] == 1
    address = alone.batch.column("data").buffers()[2].address
    assert address == pa.py_buffer(giant).address + 25
    assert buffer.rows == 0


@dataclass(frozen=True)
class Sent:
    """One transaction as the server sends it: of each row the relation; a structure change is negative."""

    relations: tuple[int, ...]


STEPS = st.lists(
    st.one_of(
        st.builds(Sent, st.lists(st.sampled_from([7, 8, 70_000, -7, -8]), max_size=6).map(tuple)),
        st.sampled_from(["pack", "seal"]),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(1, 200))
def test_every_row_leaves_once_whatever_happens_when(steps: list[Sent | str], part_bytes: int) -> None:
    buffer = buffer_with_schemas()
    current = dict(SCHEMAS)
    expected: list[tuple[str, int, int, bytes]] = []
    taken: list[CapturedSlice] = []
    number = 0
    for step in steps:
        if step == "pack":
            buffer.pack()
        elif step == "seal":
            if buffer.closed_rows:
                taken += buffer.take_closed()[1]
        elif isinstance(step, Sent):
            number += 1
            buffer.begin(begun(number))
            ordinal = 0
            for relation in step.relations:
                if relation < 0:
                    names = {f"c{number}_{ordinal}": TEXT}
                    current[-relation] = table_schema(names, key=(), relation=-relation)
                    buffer.relation(current[-relation])
                    continue
                message = insert(f"{number}", "x" * ordinal * 7, relation=relation)
                expected.append((current[relation].fingerprint, number * 100, ordinal, message))
                buffer.frames.append(frame(message))
                ordinal += 1
                if len(buffer.frames) * 30 > part_bytes:
                    buffer.pack()
                    if buffer.closed_rows:
                        taken += buffer.take_closed()[1]
                    if buffer.rows:
                        taken += buffer.take_open()
            buffer.commit(number * 100 + 50)
    if buffer.closed_end is not None:
        taken += buffer.take_closed()[1]
    got = [
        (item.schema.fingerprint, row["commit_position"], row["ordinal"], row["data"])
        for item in taken
        for row in item.batch.to_pylist()
    ]
    assert sorted(got, key=lambda row: row[1:3]) == expected
    for fingerprint in {row[0] for row in got}:
        places = [row[1:3] for row in got if row[0] == fingerprint]
        assert places == sorted(places), "in stream order within a table"


def test_a_transaction_within_another_is_no_data() -> None:
    buffer = buffer_with_schemas()
    buffer.begin(begun(1))
    buffer.frames.append(frame(insert("1", "a", relation=7)))
    with pytest.raises(StreamOutOfStep, match="transaction 2 begins within transaction 1"):
        buffer.begin(begun(2))


@pytest.mark.parametrize("after", [0, 1])
def test_what_stands_outside_transactions_is_no_data(after: int) -> None:
    """Neither at the start nor behind a transaction, under whose position it would go."""

    def used() -> TransactionBuffer:
        buffer = buffer_with_schemas()
        for number in range(1, after + 1):
            buffer.begin(begun(number))
            buffer.frames.append(frame(insert("1", "a", relation=7)))
            buffer.commit(number * 100 + 50)
        return buffer

    with pytest.raises(StreamOutOfStep, match="ends that did not begin"):
        used().commit(999)
    with pytest.raises(StreamOutOfStep, match="truncate"):
        used().truncate(frame(truncate(7)), (7,))
    stray = used()
    stray.frames.append(frame(insert("2", "b", relation=7)))
    stray.pack()
    for take in (stray.take_closed, lambda: stray.begin(begun(3)), lambda: stray.closed_rows):
        with pytest.raises(StreamOutOfStep, match="a row comes outside"):
            take()

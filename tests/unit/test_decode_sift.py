"""Messages that cannot be decoded: told from the others, kept byte for byte, passed over, explained."""

from __future__ import annotations

import pickle

import pytest

from penstock.decode.postgres.explain import explain
from penstock.decode.sift import sift
from penstock.decode.undecodable import Undecodable
from penstock.fold.clone import fold_clone
from penstock.model.quarantine import as_changes, raw_message
from pgoutput_messages import INT8, TEXT, Stream, delete, insert, raw_changes, table_schema, truncate, update

THINGS = table_schema({"id": INT8, "body": TEXT, "note": TEXT})
UNKEYED = table_schema({"id": INT8, "body": TEXT, "note": TEXT}, key=(), identity="nothing")
CUT = insert("7", "seven", "gone")[:-2]
NO_KEY = insert(None, "a", "b")
LONG = delete("3", None, None) + b"!"
SHORT_TRUNCATE = truncate(1, 2)[:-1]


def stream() -> Stream:
    return (
        Stream()
        .transaction(insert("1", "one", "x"), CUT, insert("2", "two", "y"))
        .transaction(NO_KEY, b"", SHORT_TRUNCATE, update("1", "uno", "x"), LONG, truncate(99))
    )


def test_every_broken_message_is_found_with_its_reason() -> None:
    fit, refused = sift(stream().raw(THINGS))
    assert [bytes(one)[:1] for one in fit.batch.column("data").to_pylist()] == [b"I", b"I", b"U"]
    assert [(one.commit_position, one.ordinal, one.data) for one in refused] == [
        (100, 1, CUT),
        (200, 0, NO_KEY),
        (200, 1, b""),
        (200, 2, SHORT_TRUNCATE),
        (200, 4, LONG),
        (200, 5, truncate(99)),
    ]
    assert [one.reason for one in refused] == [
        "a cell reaches past its end",
        'its key column "id" has no value',
        "it is too short",
        "its length does not suit the number of its tables",
        "it goes on after its last column",
        "it truncates other tables",
    ]


def test_nothing_broken_nothing_refused() -> None:
    good = Stream().transaction(insert("1", "a", "b"), truncate(), delete("1", None, None)).raw(THINGS)
    fit, refused = sift(good)
    assert (fit.batch.num_rows, refused) == (3, [])
    assert sift(raw_changes(THINGS, []))[1] == []
    unkeyed = Stream().transaction(insert("1", None, None), CUT).raw(UNKEYED)
    assert [one.data for one in sift(unkeyed)[1]] == [CUT]


def test_a_kept_message_can_be_tried_again() -> None:
    changes = stream().raw(THINGS)
    kept = raw_message(changes, 1, "whatever")
    again = as_changes(pickle.loads(pickle.dumps(kept)))
    assert again.batch.equals(changes.batch.slice(1, 1))
    assert [one.reason for one in sift(again)[1]] == ["a cell reaches past its end"]


def test_an_error_carries_its_message_to_the_driver() -> None:
    with pytest.raises(Undecodable) as caught:
        fold_clone([stream().raw(THINGS)], position=0)
    error = pickle.loads(pickle.dumps(caught.value.keeping(caught.value.messages)))
    assert (error.what, error.solution) == (caught.value.what, caught.value.solution)
    assert [(one.data, one.reason) for one in error.messages] == [(b"", "it is too short")]


def test_a_fold_may_go_on_past_them() -> None:
    fit, skipped = sift(stream().raw(THINGS))
    assert sorted(fold_clone([fit], position=0).upserts.column("body").to_pylist()) == ["two", "uno"]
    assert len(skipped) == 6


@pytest.mark.parametrize(
    ("message", "last"),
    [
        (insert("1", "one", None), "      22  note (text): NULL"),
        (CUT, "unreadable from here: note (text) would be 4 bytes, and 2 are left"),
        (LONG, "1 bytes that belong to nothing"),
        (b"X123", "unreadable from here: b'X' is no operation of a row"),
        (b"", "unreadable from here: the operation would be 1 bytes, and 0 are left"),
        (insert("1", "x", None).replace(b"n", b"b"), "b'b' is no kind of cell, for note (text)"),
        (truncate(5, 6), "of relation 6"),
    ],
)
def test_a_message_is_explained_as_far_as_it_goes(message: bytes, last: str) -> None:
    lines = explain(raw_message(Stream().transaction(message).raw(THINGS), 0, "why"))
    assert last.strip().split("  ")[-1] in lines[-1]
    if message[:1] == b"I":
        assert "INSERT" in lines[0]
        assert any("id (int8): '" in line for line in lines)

"""Anomalies: inserts of keys that are there, updates and deletes of keys that are not."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.fold.anomalies import find_anomalies
from penstock.model.anomaly import AnomalyCount, merged_anomalies
from penstock.model.position import parse_order
from pgoutput_messages import INT8, TEXT, Stream, delete, insert, table_schema, truncate, update

THINGS = table_schema({"id": INT8, "body": TEXT})


def found(stream: Stream, *there: int, position: int = 0) -> dict[str, tuple[int, int]]:
    """For each kind: how many, and the transaction of the first."""

    def has(keys: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.asarray(pc.is_in(keys, value_set=pa.array(there, pa.int64())), bool)

    counts = find_anomalies([stream.raw(THINGS)], has, position=position)
    return {one.kind: (one.changes, parse_order(one.places[0])[0] // 100) for one in counts}


def test_changes_that_suit_are_none() -> None:
    stream = (
        Stream()
        .transaction(insert("1", "a"), update("1", "b"), delete("1", None), insert("1", "c"), update("7", "x"))
        .transaction(update("8", "x", key=("7", None)), insert("7", "y"), delete("8", None))
        .transaction(truncate(), insert("1", "d"), insert("7", "e"))
    )
    assert found(stream, 7) == {}


@pytest.mark.parametrize(
    ("stream", "there", "expected"),
    [
        (Stream().transaction(insert("1", "a")), (1,), {"insert": (1, 1)}),
        (Stream().transaction(insert("1", "a")).transaction(insert("1", "b")), (), {"insert": (1, 2)}),
        (Stream().transaction(update("1", "a"), update("1", "b")), (), {"update": (1, 1)}),
        (Stream().transaction(delete("1", None), delete("1", None)), (1,), {"delete": (1, 1)}),
        (Stream().transaction(delete("1", None)).transaction(update("1", "x")), (1,), {"update": (1, 2)}),
        (Stream().transaction(truncate(), update("1", "x")), (1,), {"update": (1, 1)}),
        (Stream().transaction(update("2", "x", key=("1", None))), (), {"update": (1, 1)}),
    ],
)
def test_changes_that_do_not(stream: Stream, there: tuple[int, ...], expected: dict[str, tuple[int, int]]) -> None:
    assert found(stream, *there) == expected


def test_the_first_places_stay() -> None:
    many = [AnomalyCount("insert", 3, tuple(f"{n}" for n in range(4))), AnomalyCount("insert", 2, ("8", "9"))]
    assert merged_anomalies(many) == (AnomalyCount("insert", 5, ("0", "1", "2", "3", "8")),)

"""Encoded keys: equal if and only if the values are, wherever the columns come from."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.fold.keys import bucket_of, decode_keys, encode_keys

EVERY_TYPE = [
    pa.array([True, False]),
    pa.array([1, -1, 2**31 - 1], pa.int32()),
    pa.array([1, -1, 2**63 - 1], pa.int64()),
    pa.array([1.5, -1.5, float("inf")], pa.float32()),
    pa.array([0.1, float("-inf"), 5e-324], pa.float64()),
    pa.array([Decimal("1.50"), Decimal("-1.50"), Decimal("0.00")], pa.decimal128(10, 2)),
    pa.array(["", "a", "é🐘"]),
    pa.array([b"", b"\x00", b"\xff\x00"], pa.binary()),
    pa.array([date(1970, 1, 1), date(1, 1, 1), date(9999, 12, 31)], pa.date32()),
    pa.array([datetime(2024, 1, 1), datetime(1, 1, 1), datetime(1970, 1, 1)], pa.timestamp("us")),
    pa.array([datetime(2024, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC"))[:2],
]


def test_one_integer_column_is_its_number() -> None:
    assert encode_keys([pa.array([1, -5], pa.int32())]).equals(pa.array([1, -5], pa.int64()))


def test_one_text_column_is_its_bytes() -> None:
    assert encode_keys([pa.array(["a", "é"])]).equals(pa.array([b"a", "é".encode()], pa.binary()))


@pytest.mark.parametrize("column", EVERY_TYPE, ids=lambda column: str(column.type))
def test_the_same_from_slices_chunks_and_parquet(column: pa.Array, tmp_path: Path) -> None:
    keys = encode_keys([column])
    assert len(set(keys.to_pylist())) == len(column)
    assert encode_keys([column[1:]]).equals(keys[1:])
    assert encode_keys([pa.chunked_array([column[:1], column[1:]])]).equals(keys)
    pq.write_table(pa.table({"k": column}), tmp_path / "k.parquet")
    assert encode_keys([pq.read_table(tmp_path / "k.parquet").column("k")]).equals(keys)
    dictionaries = pq.read_table(tmp_path / "k.parquet", read_dictionary=["k"]).column("k")
    assert encode_keys([dictionaries]).equals(keys)
    composite = encode_keys([column, pa.array(["x"] * len(column))])
    assert encode_keys([column[1:], pa.array(["x"] * len(column))[1:]]).equals(composite[1:])
    assert encode_keys([column[:0]]).equals(keys[:0])
    assert encode_keys([column[:0], column[:0]]).type == pa.binary()


def test_negative_zero_is_zero_and_all_nans_are_one() -> None:
    zeros = encode_keys([pa.array([0.0, -0.0])]).to_pylist()
    assert zeros[0] == zeros[1]
    nans = np.array([0x7FF8000000000000, 0xFFF8000000000001], np.uint64).view(np.float64)
    assert len(set(encode_keys([pa.array(nans)]).to_pylist())) == 1


def test_nulls_are_refused() -> None:
    with pytest.raises(ValueError, match="null"):
        encode_keys([pa.array([1, None])])


@given(st.lists(st.tuples(st.text(), st.integers(-3, 3), st.binary(max_size=3), st.text(max_size=3)), max_size=30))
def test_composite_keys_are_equal_only_when_all_parts_are(rows: list[tuple[str, int, bytes, str]]) -> None:
    types = [pa.string(), pa.int32(), pa.binary(), pa.string()]
    columns = [pa.array([row[i] for row in rows], type) for i, type in enumerate(types)]
    keys = encode_keys(columns).to_pylist()
    assert [keys.index(key) for key in keys] == [rows.index(row) for row in rows]


@given(st.lists(st.binary(max_size=90), min_size=1, max_size=20))
def test_equal_binary_keys_share_a_bucket(values: list[bytes]) -> None:
    keys = pa.array(values, pa.binary())
    padded = pa.array([b"padding", *values], pa.binary())[1:]
    assert bucket_of(keys, 7).tolist() == bucket_of(padded, 7).tolist()
    assert bucket_of(keys, 7).tolist() == [int(bucket_of(keys[i : i + 1], 7)[0]) for i in range(len(values))]


@pytest.mark.parametrize(
    "keys",
    [
        pa.array(range(0, 80_000, 8), pa.int64()),
        encode_keys([pa.array([f"customer-{i:08}" for i in range(10_000)])]),
        encode_keys([pa.array(range(10_000)), pa.array([i % 3 for i in range(10_000)])]),
    ],
    ids=["int", "text", "composite"],
)
def test_buckets_are_of_similar_size(keys: pa.Array) -> None:
    sizes = np.bincount(bucket_of(keys, 8), minlength=8)
    assert sizes.min() > 1_000
    assert sizes.max() < 1_500


def test_buckets_never_change() -> None:
    """Tasks of one batch run in several processes: the numbers are part of the contract between them."""
    assert bucket_of(pa.array([0, 1, -1, 2**40]), 16).tolist() == [0, 5, 11, 8]
    assert bucket_of(pa.array([b"", b"a", b"customer-00000001"], pa.binary()), 16).tolist() == [0, 9, 11]


@pytest.mark.parametrize("second", [None, "text", "int"])
@pytest.mark.parametrize(
    "values",
    [
        pa.array([0, -5, 2**62], pa.int64()),
        pa.array([1, -2, 3], pa.int16()),
        pa.array(["", "a", "ключ 😀"]),
        pa.array([b"", b"\x00\xff", b"abc"]),
        pa.array([True, False, True]),
        pa.array([0.0, -1.5, float("inf")]),
        pa.array([Decimal("1.50"), Decimal("-99.99"), Decimal("0.00")], pa.decimal128(12, 2)),
        pa.array([date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)]),
        pa.array([datetime(1900, 1, 1, tzinfo=UTC)] * 3, pa.timestamp("us", "UTC")),
        pa.array([time(1, 2, 3, 4)] * 3, pa.time64("us")),
    ],
    ids=lambda values: str(values.type),
)
def test_keys_give_their_columns_back(values: pa.Array, second: str | None) -> None:
    columns = [values]
    if second is not None:
        columns.append(pa.array(["x", "", "yy"]) if second == "text" else pa.array([1, -1, 0]))
    types = [column.type for column in columns]
    keys = encode_keys(columns)
    assert decode_keys(keys, types) == columns
    assert decode_keys(keys.slice(1, 2), types) == [column.slice(1, 2) for column in columns]
    assert decode_keys(keys.slice(0, 0), types) == [column.slice(0, 0) for column in columns]

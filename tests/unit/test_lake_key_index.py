"""Sidecars: read back as they were written, found sound, and made again only when they are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.destinations.lake import key_index
from penstock.destinations.lake.file_list import LiveFile
from penstock.destinations.lake.index_room import LOOK_AFTER, IndexRoom
from penstock.destinations.lake.key_index import IndexedFile, KeyIndex, sorted_order
from penstock.destinations.lake.row_instances import require_positions
from penstock.errors import RowsMissing
from penstock.fold.keys import encode_keys
from penstock.fold.row_keys import DIGEST
from penstock.model.table import TableId

KEYS = {
    "bigint": lambda n: [pa.array(range(n, 0, -1), pa.int64())],
    "text": lambda n: [pa.array([f"key {'x' * (number % 7)}{number}" for number in range(n)], pa.string())],
    "empty text": lambda n: [pa.array([""] * min(n, 1), pa.string())],
    "composite": lambda n: [
        pa.array(range(n), pa.int64()),
        pa.array([f"{number}" for number in range(n)], pa.string()),
    ],
    "date": lambda n: [pa.array(range(n), pa.date32())],
}


def not_needed(file: IndexedFile) -> pa.Array:
    raise AssertionError(f"the sidecar of {file.path} is made again")


@pytest.mark.parametrize("count", [0, 1, 3, 1000, 4097])
@pytest.mark.parametrize("kind", KEYS)
def test_a_sidecar_that_is_sound_is_not_made_again(tmp_path: Path, kind: str, count: int) -> None:
    columns = KEYS[kind](count)
    index = KeyIndex(tmp_path, tuple(f"k{number}" for number in range(len(columns))))
    keys = encode_keys(columns)
    index.write("data/file.parquet", keys)
    key_index._open.clear()  # as in a process that has just been started
    file = IndexedFile("data/file.parquet", len(keys), 1)
    places = index.locate(keys, [file], not_needed)
    assert places.rows[np.argsort(places.keys)].tolist() == list(range(len(keys)))


@pytest.mark.parametrize("kind", KEYS)
def test_a_changed_octet_is_noticed(tmp_path: Path, kind: str) -> None:
    keys = encode_keys(KEYS[kind](1000))
    index = KeyIndex(tmp_path, ("k",))
    index.write("data/file.parquet", keys)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    rows = pa.ipc.open_file(pa.py_buffer(content)).get_batch(0)["row"].buffers()[1]
    content[rows.address - pa.py_buffer(content).address] ^= 1
    path.write_bytes(content)
    key_index._open.clear()
    made = []

    def read_keys(file: IndexedFile) -> pa.Array:
        made.append(file.path)
        return keys

    index.locate(keys, [IndexedFile("data/file.parquet", len(keys), 1)], read_keys)
    assert made == ["data/file.parquet"]


def test_equal_keys_stay_in_the_order_of_their_rows(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path, ("k",))
    sidecar = index.write("data/file.parquet", pa.array(np.tile(np.arange(50), 40)))
    assert all((np.diff(sidecar.rows[at : at + 40]) > 0).all() for at in range(0, 2000, 40))


def test_sidecars_of_files_that_are_gone_are_let_go(tmp_path: Path) -> None:
    """A table that is merged again and again has few files, and so has a process that looks keys up in it."""
    key_index._open.clear()
    index, keys = KeyIndex(tmp_path, ("k",)), pa.array([1, 2, 3])
    staying = IndexedFile("data/staying.parquet", 3, 1)
    index.write(staying.path, keys)
    for number in range(20 * key_index.FEW):
        passing = IndexedFile(f"data/{number}.parquet", 3, 2 + number)
        index.write(passing.path, pa.array([4, 5, 6]))
        assert len(index.locate(keys, [staying, passing], not_needed).keys) == 3
        index.remove_all_but([staying.path])
    assert len(key_index._open) <= key_index.FEW


def test_digests_are_ordered_as_any_other_keys() -> None:
    chance = np.random.default_rng(3)
    digests = [chance.bytes(DIGEST) for _ in range(200)]
    alike = [b"12345678" + one[8:] for one in digests[:20]]
    for keys in (digests * 2, digests + alike, alike + alike, digests[:1], [], [*digests, b"short"]):
        array = pa.array([b"", *keys], pa.binary()).slice(1)
        assert sorted_order(array).tolist() == pc.sort_indices(array).to_pylist()


def test_rows_that_somebody_ended_by_value_cannot_be_told_from_living_ones() -> None:
    ours = LiveFile("a-deletes.parquet", 1, 1, 1, "position-deletes", 0)
    require_positions(TableId("public", "bag"), [ours])
    theirs = replace(ours, path="theirs.parquet", content="equality-deletes")
    with pytest.raises(RowsMissing, match="by value"):
        require_positions(TableId("public", "bag"), [ours, theirs])


def _serial(kind: str, numbers: range) -> list[pa.Array]:
    if kind == "text":
        return [pa.array([f"order-{number:09d}" for number in numbers])]
    ids = pa.array([number - 2_000 for number in numbers], pa.int64())  # some are negative
    return [ids] if kind == "number" else [ids, pa.array(["x" * (number % 3) for number in numbers])]


def _bounds(kind: str, columns: Sequence[pa.Array]) -> tuple[int, int] | tuple[bytes, bytes]:
    """As Iceberg has them: whole numbers, and the beginning of texts, rounded outwards."""
    low, high = columns[0][0].as_py(), columns[0][-1].as_py()
    return (low.encode()[:14], high.encode()[:14] + b"~") if kind == "text" else (low, high)


@pytest.mark.parametrize("kind", ["number", "text", "several"])
def test_a_cold_index_opens_only_files_whose_bounds_have_a_key(tmp_path: Path, kind: str) -> None:
    """A thousand files of ten rows: ten keys are in eight of them."""
    parts = [_serial(kind, range(10 * number, 10 * number + 10)) for number in range(1000)]
    files = [
        IndexedFile(f"data/{number}.parquet", 10, number, _bounds(kind, part)) for number, part in enumerate(parts)
    ]
    opened: list[str] = []

    def read_keys(file: IndexedFile) -> pa.Array:
        opened.append(file.path)
        return encode_keys(parts[file.sequence])

    wanted = [4_003, 4_004, 17, 9_999, 0, 5_555, 123, 8_080, 8_081, 2_000]
    rows = [_serial(kind, range(number, number + 1)) for number in wanted]
    keys = encode_keys([pa.concat_arrays(column) for column in zip(*rows, strict=True)])
    index = KeyIndex(tmp_path, ("k",))
    places = index.locate(keys, files, read_keys)
    found = sorted(zip(places.keys.tolist(), places.files.tolist(), places.rows.tolist(), strict=True))
    assert found == [(at, number // 10, number % 10) for at, number in enumerate(wanted)]
    assert len(opened) <= 8
    everywhere = index.locate_all(keys, files, read_keys)
    assert (
        sorted(zip(everywhere.keys.tolist(), everywhere.files.tolist(), everywhere.rows.tolist(), strict=True)) == found
    )

    nowhere = _serial(kind, range(50_000, 50_001))
    opened.clear()
    assert len(index.locate(encode_keys(nowhere), files, read_keys).keys) == 0
    assert opened == []


def test_sidecars_longest_unused_make_room(tmp_path: Path) -> None:
    key_index._open.clear()
    keys, room = pa.array(range(1_000)), IndexRoom(tmp_path, 100_000)
    index = KeyIndex(tmp_path / "public" / "orders", ("id",), room=room)
    list_of_others = tmp_path / "public" / "orders.leaving" / "1.files"
    list_of_others.parent.mkdir(parents=True)
    list_of_others.write_bytes(bytes(200_000))
    for number in range(40):
        index.write(f"data/{number}.parquet", keys)
        key_index._open.clear()
        index.locate(keys, [IndexedFile("data/0.parquet", 1_000, 1)], not_needed)  # used all the time
    there = {path.name for path in index.folder.iterdir()}
    assert sum(path.stat().st_size for path in index.folder.iterdir()) <= room.most * (1 + 1 / LOOK_AFTER)
    assert {"0.parquet.keys", "39.parquet.keys"} <= there
    assert "1.parquet.keys" not in there
    assert list_of_others.exists()

"""Records in the state store are data: whatever is planted there, it is read as data or refused, and nothing runs."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.decode.rescue import RESCUED_TYPE
from penstock.destinations.contract import WrittenPart
from penstock.destinations.lake.columns import FIELD_ID, LakeColumn
from penstock.destinations.lake.data_files import COPY_PREFIX, WrittenFile
from penstock.destinations.lake.upsert_plan import LakePart
from penstock.destinations.memory_tables import MemoryPart
from penstock.fold.net_effect import NetEffect
from penstock.model.record import UnreadableRecord
from penstock.model.table import TableId
from penstock.runtime.repair_file import read_repair, write_repair
from penstock.source.postgres.copy_ranges import CopyRange

RANGE = CopyRange(TableId("public", 'o"d'), TableId("public", "leaf"), 16384, 2**33, 7, None, 3, 2**40)
FILE = WrittenFile(f"s3://lake/data/{COPY_PREFIX}1.parquet", 100, 7, {"content": "data", "column-sizes": {"keys": [1]}})
INNER = pa.map_(
    pa.field("key", pa.string(), False, {FIELD_ID: b"12"}), pa.field("value", pa.string(), True, {FIELD_ID: b"13"})
)
RESCUING = LakePart(FILE, columns=(1, 2), rescued=FILE, rescued_as=LakeColumn(11, "rescued", INNER, False))


class Planted:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._trace,)


@pytest.mark.parametrize("item", [RANGE, CopyRange(RANGE.table, RANGE.relation, 1, 2, 0, 5, 0, 0)])
def test_a_range_is_read_as_it_was_written(item: CopyRange) -> None:
    assert CopyRange.from_json(item.to_json()) == item


@pytest.mark.parametrize("part", [LakePart(FILE, columns=(1, 2)), LakePart(), RESCUING])
def test_a_part_of_a_copy_is_read_as_it_was_written(part: LakePart) -> None:
    again = LakePart.from_json(part.to_json())
    assert again == part
    if part.rescued_as is not None:
        assert again.rescued_as is not None
        assert again.rescued_as.numbers == part.rescued_as.numbers == (11, 12, 13)


def test_a_part_in_memory_is_read_as_it_was_written() -> None:
    part = MemoryPart(pa.table({"id": [1, 2], "rescued": pa.array([None, [("a", "b")]], RESCUED_TYPE)}))
    again = MemoryPart.from_json(part.to_json())
    assert (again.name, again.upserts) == (part.name, part.upserts)


@pytest.mark.parametrize("part", [LakePart(delete=FILE), MemoryPart(pa.table({"id": [1]}), pa.array([1]))])
def test_only_what_a_copy_wrote_is_recorded(part: WrittenPart) -> None:
    with pytest.raises(ValueError, match="only a part of a copy"):
        part.to_json()


def altered(text: str, **fields: object) -> str:
    return json.dumps({**json.loads(text), **fields})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no JSON"),
        ("[]", "no object"),
        ("{}", "`record` is not there"),
        ("[" * 100_000, "no JSON"),
        (altered(RANGE.to_json(), version=2), "version 2; this penstock reads version 1"),
        (altered(RANGE.to_json(), record="page of keys"), "a page of keys, version 1"),
        (altered(RANGE.to_json(), first_block="0,0)'::tid; drop table orders; --"), "`first_block` is not a number"),
        (altered(RANGE.to_json(), first_block=-1), "`first_block` is not a number"),
        (altered(RANGE.to_json(), relation_id=True), "`relation_id` is not a number"),
        (altered(RANGE.to_json(), relation={"schema": "public"}), "`name` is not there"),
    ],
)
def test_another_range_is_refused(text: str, why: str) -> None:
    with pytest.raises(UnreadableRecord, match=why):
        CopyRange.from_json(text)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"data": {"path": "/etc/passwd", "size": 1, "records": 1, "description": {}}}, "no copy has written"),
        ({"data": {"path": f"/x/{COPY_PREFIX}1.parquet", "size": 1, "records": 1}}, "`description` is not there"),
        ({"rescued_as": "!"}, "`rescued_as` is no column"),
        ({"rescued_as": "AAAA"}, "`rescued_as` is no column"),
        ({"columns": ["1"]}, "`columns` is not a list of numbers"),
    ],
)
def test_another_part_is_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(UnreadableRecord, match=why):
        LakePart.from_json(altered(RESCUING.to_json(), **fields))


@pytest.mark.parametrize("rescued", [None, pa.array([[("n", "NaN")], None], RESCUED_TYPE)])
def test_the_file_of_a_repair_is_read_as_it_was_written(tmp_path: Path, rescued: pa.Array | None) -> None:
    rows = pa.table({"id": [1, 2], "": ["a", None]})
    net = NetEffect(False, rows, pa.array([b"1", b"2"]), pa.array([b"1", b"2", b"3"]), (), 3, 0, rescued=rescued)
    assert read_repair(write_repair(net, tmp_path / "repairs")) == net
    empty = NetEffect(False, rows.slice(0, 0), pa.array([], pa.int64()), pa.array([7]), (), 1, 0)
    assert read_repair(write_repair(empty, tmp_path)) == empty


@pytest.mark.parametrize("content", ["pickle", b"", b"ARROW1\0\0", b"\xff\xff\xff\xff\x00\x00\x01\x00"])
def test_another_file_of_a_repair_is_refused(tmp_path: Path, content: str | bytes) -> None:
    trace, file = tmp_path / "trace", tmp_path / "planted.rows"
    file.write_bytes(content if isinstance(content, bytes) else pickle.dumps(Planted(trace)))
    with pytest.raises(UnreadableRecord, match="not what penstock writes"):
        read_repair(file)
    assert not trace.exists(), "it ran"

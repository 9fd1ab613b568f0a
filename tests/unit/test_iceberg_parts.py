"""Parts of the Iceberg destination that need no Java: names, settings, bounds, the choice of what to merge."""

from __future__ import annotations

import struct
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.config.destinations import IcebergDestination
from penstock.destinations.iceberg.catalog import spark_settings, table_location
from penstock.destinations.iceberg.metrics import Metrics
from penstock.destinations.lake.compaction_choice import choose
from penstock.destinations.lake.file_list import LiveFile, TableState
from penstock.destinations.lake.read_cost import read_cost
from penstock.destinations.lake.storage import safe_name
from penstock.destinations.lake.warehouse import open_warehouse
from penstock.errors import DestinationUnreachable
from penstock.model.location import in_one_request, local_path
from penstock.model.table import TableId


def config(warehouse: Path, **changes: object) -> IcebergDestination:
    return IcebergDestination.model_validate({"type": "iceberg", "warehouse": str(warehouse), **changes})


def test_odd_names_become_safe_and_stay_apart() -> None:
    names = ["orders", "Orders", "ORDERS", "or ders", "or/ders", "../orders", "ключ", "клюй", "", "x" * 200]
    safe = [safe_name(name) for name in names]
    assert safe[0] == "orders"
    assert len({name.lower() for name in safe}) == len(names)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-") for name in safe)


def test_the_embedded_catalog_is_sqlite_in_the_warehouse(tmp_path: Path) -> None:
    settings = spark_settings(config(tmp_path / "lake"), local_file_io="a.Class")
    assert settings["spark.sql.defaultCatalog"] == "lake"
    assert settings["spark.sql.catalog.lake.uri"] == f"jdbc:sqlite:{tmp_path}/lake/catalog.db"
    assert settings["spark.sql.catalog.lake.io-impl"] == "a.Class"
    assert table_location(config(tmp_path), TableId("public", "orders")) == f"{tmp_path}/public/orders"


def test_another_catalog_keeps_its_own_properties(tmp_path: Path) -> None:
    other = config(tmp_path, catalog={"type": "rest", "uri": "https://catalog"})
    settings = spark_settings(other, local_file_io="a.Class")
    assert settings["spark.sql.catalog.lake.type"] == "rest"
    assert "spark.sql.catalog.lake.io-impl" not in settings
    assert table_location(other, TableId("public", "orders")) is None


def test_the_warehouse_is_made_once(tmp_path: Path) -> None:
    settings, index = config(tmp_path / "deep" / "lake"), tmp_path / "home" / "index"
    open_warehouse(settings, index)
    open_warehouse(settings, index)
    (tmp_path / "deep" / "lake").rmdir()
    with pytest.raises(DestinationUnreachable, match="is not there"):
        open_warehouse(settings, index)
    assert not (tmp_path / "deep" / "lake").exists()


def test_local_locations() -> None:
    assert local_path("/a b/c") == Path("/a b/c")
    assert local_path("file:/a/b") == local_path("file:///a/b") == Path("/a/b")
    assert local_path("s3://bucket/a") is None


def test_small_files_are_one_request_in_s3_alone() -> None:
    assert in_one_request("s3://bucket/a") == "s3://bucket/a?allow_delayed_open=true"
    assert in_one_request("s3://bucket/a?region=eu") == "s3://bucket/a?region=eu&allow_delayed_open=true"
    for uri in ("s3://bucket/a?allow_delayed_open=false", "gs://bucket/a", "hdfs://name/a"):
        assert in_one_request(uri) == uri


def bounds(values: pa.Array) -> tuple[bytes | None, bytes | None]:
    metrics = Metrics([(1, values.type)])
    half = len(values) // 2
    metrics.add(pa.table({"c": values[:half]}))
    metrics.add(pa.table({"c": values[half:]}))
    told = metrics.as_json({1: 0})
    sides = [bytes.fromhex(told[side]["values"][0]) if told[side]["values"] else None for side in _SIDES]
    return sides[0], sides[1]


_SIDES = ("lower-bounds", "upper-bounds")


def test_bounds_are_iceberg_s_own_serialisation() -> None:
    assert bounds(pa.array([3, -1, None, 2], pa.int32())) == (struct.pack("<i", -1), struct.pack("<i", 3))
    assert bounds(pa.array([True, False])) == (b"\x00", b"\x01")
    assert bounds(pa.array([Decimal("-1.28"), Decimal("2.55")], pa.decimal128(9, 2))) == (b"\x80", b"\x00\xff")
    assert bounds(pa.array([float("nan"), 0.0, 1.5, None])) == (struct.pack("<d", -0.0), struct.pack("<d", 1.5))
    assert bounds(pa.array([float("nan"), None])) == (None, None)
    assert bounds(pa.array([None, None], pa.string())) == (None, None)


def test_long_bounds_are_cut_so_that_they_still_hold() -> None:
    assert bounds(pa.array(["a" * 20, "é" * 20])) == (b"a" * 16, ("é" * 15 + "ê").encode())
    assert (
        bounds(pa.array(["a", "\ud7ff".encode("utf-8", "surrogatepass").decode() * 17]))[1]
        == ("\ud7ff" * 15 + "\ue000").encode()
    )
    assert bounds(pa.array(["a", "\U0010ffff" * 17]))[1] is None
    assert bounds(pa.array([b"a", b"b" + b"\xff" * 20])) == (b"a", b"c")
    assert bounds(pa.array([b"a", b"\xff" * 20]))[1] is None


def data(name: str, size: int = 1000, records: int = 100) -> LiveFile:
    return LiveFile(name, records, size, 1, "data", 0)


def delete(name: str, hits: dict[str, int], size: int = 1000) -> LiveFile:
    return LiveFile(name, sum(hits.values()), size, 1, "position-deletes", 0, hits)


def chosen(files: list[LiveFile], deletes: list[LiveFile]) -> tuple[set[str], set[str]]:
    choice = choose(TableState("m", 1, 1, 1, tuple(files), tuple(deletes)), 0, 4)
    return {file.path for file in choice.data}, {file.path for file in choice.deletes}


def test_a_full_tier_is_merged() -> None:
    small, big = [data(f"s{n}") for n in range(4)], data("big", 50 << 20)
    assert chosen([*small[:3], big], []) == (set(), set())
    assert chosen([*small, big], []) == ({"s0", "s1", "s2", "s3"}, set())
    assert chosen([data(f"l{n}", 200 << 20) for n in range(9)], []) == (set(), set())


def test_files_are_rewritten_for_their_dead_rows_once_a_read_costs_too_much() -> None:
    big, other = data("big", 200 << 20), data("other", 200 << 20)
    few, many = delete("few", {"big": 20}), delete("many", {"big": 35, "other": 1})
    assert chosen([big, other], [few]) == (set(), set())
    assert chosen([big, other], [few, many]) == ({"big"}, {"few", "many"})
    one, another = data("one", 5 << 20), data("another", 5 << 20)
    assert chosen([one, another], [delete("d", {"one": 30, "another": 10})]) == (set(), set())
    assert chosen([one, another], [delete("d", {"one": 60, "another": 10})]) == ({"one"}, {"d"})


def test_of_files_with_dead_rows_those_that_give_most_come_first() -> None:
    files = [data(f"f{n}", 40 << 20) for n in range(5)]
    hits = {"f0": 5, "f1": 40, "f2": 35, "f3": 45, "f4": 9}
    assert chosen(files, [delete("d", hits)])[0] == {"f3"}, "and no more than it takes"
    assert chosen(files, [delete("d", {**hits, "f0": 60})])[0] == {"f0", "f3"}


def test_a_copy_s_files_are_left_alone_unless_there_are_very_many() -> None:
    copied = [data(f"data/penstock-copy-{n}.parquet", 6 << 20) for n in range(300)]
    assert chosen(copied[:200], []) == (set(), set())
    assert len(chosen(copied, [])[0]) > 4
    assert len(chosen([data(f"data/penstock-copy-{n}.parquet", 60 << 10) for n in range(9)], [])[0]) == 9


def test_what_a_read_costs() -> None:
    compact = TableState("m", 1, 1, 1, (data("one", 32 << 20),), ())
    assert read_cost(compact, {}).ratio == 1.0
    assert read_cost(TableState("m", 1, 1, 1, (), ()), {}).ratio < 1.5
    small = TableState("m", 1, 1, 1, tuple(data(f"{n}", 32 << 10) for n in range(100)), ())
    assert read_cost(small, {}).ratio > 3
    deletes = (delete("d", {"one": 50}),)
    assert 1.9 < read_cost(TableState("m", 1, 1, 1, compact.data, deletes), {"one": 50}).ratio < 2.1


def test_delete_files_are_merged_when_they_are_many() -> None:
    big = data("big", 50 << 20, 1_000_000)
    assert chosen([big], [delete(f"d{n}", {"big": 3}) for n in range(3)]) == (set(), set())
    assert chosen([big], [delete(f"d{n}", {"big": 3}) for n in range(4)])[1] == {"d0", "d1", "d2", "d3"}


def test_files_of_another_partitioning_are_left_alone() -> None:
    foreign = [LiveFile(f"f{n}", 1, 10, 1, "data", 7) for n in range(9)]
    assert chosen(foreign, []) == (set(), set())

"""Reads of the change log, planned and read without Spark: ranges, structures, and a log that has passed its reader."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition

from loop_bench import ORDERS, PEOPLE
from penstock.changelog.log import ChangeLog
from penstock.errors import LogPassed, UsageError
from penstock.model.position import position_text
from penstock.spark_source.reading import Reading
from penstock.spark_source.source import LogPartition, PenstockStreamReader
from pgoutput_messages import delete, insert, truncate
from pipeline_files import pipeline_file
from publish_bench import PublishBench, stream_feed


@pytest.fixture
def bench(tmp_path: Path) -> PublishBench:
    made = PublishBench(tmp_path / "log", stream_feed(ORDERS))
    made.seal(200, (ORDERS, 110, insert("1", "new")), (PEOPLE, 120, insert("2", "Ann", "x")))
    made.seal(300, (PEOPLE, 210, insert("3", "Bo", "y")))
    made.seal(400, (ORDERS, 310, insert("4", "new")), (ORDERS, 320, delete("1", None)), (ORDERS, 330, truncate(1)))
    return made


def reading(folder: Path, table: str = "", **changes: Any) -> Reading:
    return Reading.of(str(pipeline_file(folder, log={"uri": str(folder / "log")}, **changes)), table=table)


def rows(made: Reading, begin: int, end: int) -> list[dict[str, Any]]:
    """As tasks read them: with what was pickled, one after another."""
    there = pickle.loads(pickle.dumps(made))
    assert there.pipeline is None, "executors need no password"
    pieces = pickle.loads(pickle.dumps(made.pieces(begin, end)))
    return [row for piece in pieces for batch in there.read(piece) for row in batch.to_pylist()]


def test_a_range_is_read_once_by_one_piece_per_segment_that_has_changes(bench: PublishBench, tmp_path: Path) -> None:
    orders = reading(tmp_path, "public.orders")
    assert [piece.segment[:16] for piece in orders.pieces(100, 400)] == [f"{begin:016x}" for begin in (100, 300)]
    found = [(row["_op"], row["id"], row["_commit_position"]) for row in rows(orders, 100, 400)]
    assert found == [("insert", 1, 110), ("insert", 4, 310), ("delete", 1, 320), ("truncate", None, 330)]
    cuts = [100, 111, 150, 320, 400]
    parts = [row for begin, end in pairwise(cuts) for row in rows(orders, begin, end)]
    assert [(row["_op"], row["id"], row["_commit_position"]) for row in parts] == found, "wherever a range is cut"
    assert rows(orders, 400, 400) == []


def test_events_of_all_tables(bench: PublishBench, tmp_path: Path) -> None:
    bench.drain()
    found = rows(reading(tmp_path), 100, 400)
    assert [row["table"] for row in found] == ["orders", "people", "people", "orders", "orders", "orders"]
    only = rows(reading(tmp_path, tables=[{"match": "public.people"}]), 100, 400)
    assert {row["table"] for row in only} == {"people"}, "a table that no rule matches is not read"
    published = [json.loads(value) for value in bench.store.values("shop")[0] if value is not None]
    own = {"database", "schema_sequence"}  # what the bench's state store has, and the file's url
    for row, event in zip([row for row in found if row["table"] == "orders"], published, strict=True):
        read = json.loads(row["value"])
        assert {key: read[key] for key in read.keys() - own} == {key: event[key] for key in event.keys() - own}


def test_a_log_that_has_passed_its_reader_names_the_position(bench: PublishBench, tmp_path: Path) -> None:
    orders = reading(tmp_path, "public.orders")
    pieces = orders.pieces(100, 400)
    log = ChangeLog(str(tmp_path / "log"))
    log.remove(log.segments()[0])
    wanted = rf"from {position_text(100)} on .* begins at {position_text(200)}"
    with pytest.raises(LogPassed, match=wanted):
        orders.pieces(100, 400)
    fresh = reading(tmp_path, "public.orders")
    with pytest.raises(LogPassed, match=wanted):
        list(fresh.read(pieces[0]))
    assert len(rows(orders, 200, 400)) == 3


def positions(partitions: Sequence[InputPartition]) -> list[str]:
    return [one.piece.segment[:16] for one in partitions if isinstance(one, LogPartition)]


def test_offsets_of_a_stream_are_positions_of_one_log(bench: PublishBench, tmp_path: Path) -> None:
    stream = PenstockStreamReader(reading(tmp_path, "public.orders"), "start")
    begin, end = stream.initialOffset(), stream.latestOffset()
    assert (begin["position"], end["position"]) == ("0/64", "0/190")
    assert len(positions(stream.partitions(begin, end))) == 2
    with pytest.raises(LogPassed, match="of another change log"):
        stream.partitions({**begin, "log": "another"}, end)
    at_end = PenstockStreamReader(reading(tmp_path, "public.orders"), "end")
    assert at_end.initialOffset() == end
    bench.seal(500, (ORDERS, 410, insert("5", "new")))
    assert positions(stream.partitions(end, stream.latestOffset())) == [f"{400:016x}"]
    empty = {"position": "0/0", "log": ""}
    assert len(positions(stream.partitions(empty, end))) == 2, "a stream that began before the log"


def test_what_cannot_be_read_is_refused(bench: PublishBench, tmp_path: Path) -> None:
    different = [
        {"match": "public.orders", "to": ["a"], "columns": {"state": "drop"}},
        {"match": "public.orders", "to": ["b"]},
    ]
    destinations = [{"type": "files", "name": name, "path": f"./{name}"} for name in ("a", "b")]
    with pytest.raises(UsageError, match="different rules"):
        reading(tmp_path, "public.orders", tables=different, destinations=destinations)
    file = str(pipeline_file(tmp_path, log={"uri": str(tmp_path / "log")}, tables=different, destinations=destinations))
    assert "state" not in Reading.of(file, table="public.orders", destination="a").arrow_schema().names
    assert "state" in Reading.of(file, table="public.orders", destination="b").arrow_schema().names
    with pytest.raises(UsageError, match="no rule"):
        reading(tmp_path, "private.orders")

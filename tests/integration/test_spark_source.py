"""`.format("penstock")` in a Spark session of one's own, over the log that a real pipeline has left: batches, and a
stream that is stopped and goes on from its checkpoint. The pipeline's destination is standard output, which is checked
on the way."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from databases import Database
from penstock.changelog.log import ChangeLog
from penstock.model.position import position_text
from penstock.spark_source.source import PenstockSource
from running import PipelineFile, Running, await_condition, make_pipeline, running

ORDERS = "public.orders"
PAGE = Path(__file__).parents[2] / "docs" / "spark-source.md"


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(PenstockSource)
    return spark


@pytest.fixture
def pipeline(postgres: Database, tmp_path: Path) -> PipelineFile:
    postgres.execute(
        "create table orders (id int primary key, amount numeric(8,2), at timestamptz, tags text[], secret text)",
        "create table notes (id int primary key, what text)",
    )
    rules: list[dict[str, Any]] = [
        {"match": ORDERS, "columns": {"secret": "mask"}},
        {"match": "public.*"},
    ]
    return make_pipeline(
        tmp_path,
        postgres,
        tables=rules,
        destinations=[{"type": "stdout"}],
        mask_salt="pepper",
        log={"replay": "1h", "segment_bytes": "1KiB"},
    )


def printed(run: Running, count: int) -> list[dict[str, Any]]:
    """Wait until the run has printed so many events, and return all of them."""

    def lines() -> list[str]:
        return [line for line in run.text().splitlines() if line.startswith("{")]

    await_condition(lambda: len(lines()) >= count, f"{count} events:\n{run.tail()}", 120)
    return [json.loads(line) for line in lines()]


def read(session: SparkSession, pipeline: PipelineFile, **options: str) -> DataFrame:
    return session.read.format("penstock").options(pipeline=str(pipeline.path), **options).load()


def in_order(rows: DataFrame) -> list[Row]:
    return rows.orderBy("_commit_position", "_ordinal").collect()


def test_batches_streams_and_standard_output(session: SparkSession, pipeline: PipelineFile, tmp_path: Path) -> None:
    with running(pipeline) as run:
        _read(session, pipeline, run, tmp_path)
    assert len(printed(run, 58)) == 58, "once, as nobody was killed"
    _refused(session, pipeline)


def _read(session: SparkSession, pipeline: PipelineFile, run: Running, tmp_path: Path) -> None:
    database = pipeline.database
    database.execute(
        *(f"insert into orders values ({n}, {n}.5, '2026-01-01 00:00Z', '{{a,b}}', 's{n}')" for n in range(1, 41)),
        "insert into notes values (1, 'one')",
        "update orders set amount = 0 where id <= 3",
        "update orders set id = 100 where id = 4",
    )
    events = printed(run, 46)
    assert [event["op"] for event in events] == ["insert"] * 41 + ["update"] * 3 + ["delete", "insert"]
    log = ChangeLog(str(pipeline.log))
    middle = log.end()
    assert middle is not None

    rows = in_order(read(session, pipeline, table=ORDERS))
    assert [row["_op"] for row in rows] == ["insert"] * 40 + ["update"] * 4
    first = rows[0].asDict()
    assert (first["id"], str(first["amount"]), first["tags"]) == (1, "1.50", ["a", "b"])
    assert first["secret"] != "s1", "the rule of the table holds"
    assert len(first["secret"]) == 64
    assert (rows[-1]["id"], rows[-1]["_before"]["id"]) == (100, 4)
    assert read(session, pipeline, table=ORDERS).rdd.getNumPartitions() > 3, "one task per segment with its changes"
    every = read(session, pipeline).collect()
    assert {row["place"]: json.loads(row["value"]) for row in every} == {event["place"]: event for event in events}
    assert {(row["schema"], row["table"]) for row in every} == {("public", "orders"), ("public", "notes")}

    assert _pasted(session, pipeline, tmp_path) == [39, 40]
    target, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")

    def stream() -> None:
        query = (
            session.readStream.format("penstock")
            .options(pipeline=str(pipeline.path), table=ORDERS)
            .load()
            .drop("_before")
            .writeStream.format("parquet")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start(target)
        )
        query.awaitTermination()

    stream()
    assert session.read.parquet(target).count() == 44
    database.execute("delete from orders where id > 30 and id < 100", "alter table orders add column extra int")
    database.execute("update orders set extra = 7 where id = 100", "truncate notes")
    assert [event["op"] for event in printed(run, 58)][46:] == ["delete"] * 10 + ["update", "truncate"]
    stream()
    streamed = session.read.option("mergeSchema", "true").parquet(target)
    assert streamed.select("_commit_position", "_ordinal").distinct().count() == streamed.count() == 55
    assert [row["_op"] for row in in_order(streamed)][-11:] == ["delete"] * 10 + ["update"]

    later = in_order(read(session, pipeline, table=ORDERS, **{"from": position_text(middle)}))
    assert [row["_op"] for row in later] == ["delete"] * 10 + ["update"]
    assert later[-1]["extra"] == 7
    before = read(session, pipeline, table=ORDERS, to=position_text(middle))
    assert before.count() == 44
    assert before.filter("extra is not null").count() == 0, "older rows, at the newest structure"


def _pasted(session: SparkSession, pipeline: PipelineFile, folder: Path) -> list[int]:
    """Run the page's example with other paths and another amount, and return the ids that it has written."""
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    text, out = found[1], str(folder / "large-orders")
    for word, ours in (("shop.yaml", str(pipeline.path)), ("/srv/large-orders", out), ("1000", "39")):
        assert word in text
        text = text.replace(word, ours)
    names: dict[str, Any] = {}
    exec(compile(text, str(PAGE), "exec"), names)
    names["query"].processAllAvailable()
    names["query"].stop()
    return sorted(row["id"] for row in session.read.parquet(out).select("id").collect())


def _refused(session: SparkSession, pipeline: PipelineFile) -> None:
    log = ChangeLog(str(pipeline.log))
    begin = log.start()
    assert begin is not None
    for name in log.segments()[:3]:
        log.remove(name)
    with pytest.raises(Exception, match=rf"from {position_text(begin)} on .* begins at .*those in between are gone"):
        read(session, pipeline, table=ORDERS, **{"from": position_text(begin)}).collect()
    for options, problem in (
        ({"table": "orders"}, "is not named in full"),
        ({"table": "public.missing"}, "has no change of table public.missing"),
        ({"from": "yesterday"}, "is no position"),
        ({"tabel": ORDERS}, "unknown option tabel"),
    ):
        with pytest.raises(Exception, match=problem):
            read(session, pipeline, **options).collect()

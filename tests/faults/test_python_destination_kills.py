"""Two destinations of a user's own in the driver, which is killed at every step: once with a position, else at least.

Neither needs Spark, and the run starts none. The source keeps its own account of every change, which is the oracle.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import python_destinations
from accounted_traffic import SETUP, TABLES, Traffic, assert_equal, provoke
from databases import Database, fresh_database
from penstock.demo.server import PostgresServer
from python_destinations import ledger_events, line_events
from running import PipelineFile, Running, make_pipeline

STEPS = ("publish.file_written", "publish.taken", "publish.committed", "publish.batch_done")
Streams = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def database(embedded_server: PostgresServer) -> Iterator[Database]:
    with fresh_database(embedded_server) as database:
        with database.connect() as connection:
            connection.execute(SETUP.encode())
        yield database


@pytest.fixture
def pipeline(database: Database, tmp_path: Path) -> PipelineFile:
    shutil.copy(python_destinations.__file__, tmp_path)
    shared = {"type": "python", "shards": 2, "start": "log", "batch": 50}
    ledger = {"name": "ledger", "class": "python_destinations:Ledger", "config": {"path": str(tmp_path / "ledger.db")}}
    config = {"path": str(tmp_path / "lines.jsonl"), "refuses": "extras"}
    lines = {"name": "lines", "class": "python_destinations:Lines", "config": config}
    rules = [{"match": f"public.{table}"} for table in (*TABLES, "extras")]
    return make_pipeline(tmp_path, database, destinations=[shared | ledger, shared | lines], tables=rules)


def test_every_event_once_with_a_position_and_at_least_once_without(
    database: Database, pipeline: PipelineFile, tmp_path: Path
) -> None:
    traffic = Traffic(database)
    for step in STEPS:
        run = Running(pipeline)
        try:
            run.await_streaming()
            provoke(pipeline, traffic, step, run)
            run.await_killed()
        finally:
            run.clean_up()
        assert "spark.log" not in {path.name for path in pipeline.home.iterdir()}, "no Spark was started"
    database.execute("insert into extras values (1)")
    traffic.transactions(20)
    done = pipeline.command("run", "FILE", "--once")
    assert done.returncode == 1, done.stderr
    assert "destination lines: 1 of 3 tables are Errored: public.extras" in done.stderr
    ledger, lines = ledger_events(tmp_path / "ledger.db"), line_events(tmp_path / "lines.jsonl")
    assert_equal(database, _shards(ledger))
    distinct = {(stream, event["id"]): event for stream, event in lines}
    assert_equal(database, _shards([(stream, event) for (stream, _), event in distinct.items()]))
    tables = {(one["destination"], one["table"]): one for one in pipeline.status()["tables"]}
    errored = tables["lines", "public.extras"]
    assert errored["state"] == "Errored"
    assert "ValueError: no extras here" in errored["error"]
    assert {one["state"] for one in tables.values() if one is not errored} == {"Ready"}
    assert [event["key"] for _, event in ledger if event["table"] == "extras"] == [{"id": 1}]


def _shards(found: Streams) -> list[list[dict[str, Any]]]:
    followed = [(stream, event) for stream, event in found if event["table"] in TABLES]
    streams = sorted({stream for stream, _ in followed})
    assert len(streams) == 2
    return [[event for stream, event in followed if stream == name] for name in streams]

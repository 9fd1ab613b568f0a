"""A stream with a Python processor that loops and raises, killed in between: nothing is lost, nothing is there twice.

What the processor fails on is a dead letter, of changes and of copied rows alike, and is sent again once corrected.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databases import Database, fresh_database
from penstock.demo.server import PostgresServer
from running import PipelineFile, Running, await_condition, make_pipeline
from stream_reader import StreamReader

FUNCTION = """
import time

def process(event):
    row = event["after"] or event["before"]
    if row["name"] == "bad":
        raise ValueError("not this one")
    while row["name"] == "loop":
        time.sleep(0.01)
    if event["after"] is not None:
        event["after"]["name"] = row["name"].upper()
    return event
"""
FAILS = (3, 7)  # ids of a change and of another; 1 is a row of the copy


@pytest.fixture(scope="module")
def database(embedded_server: PostgresServer) -> Iterator[Database]:
    with fresh_database(embedded_server) as database:
        database.execute("create table people (id bigint primary key, name text, price numeric)")
        database.execute("insert into people values (0, 'zero', 12.50), (1, 'bad', 1)")
        yield database


@pytest.fixture
def pipeline(database: Database, tmp_path: Path) -> PipelineFile:
    processor = {"type": "python", "function": "mine:process", "rows": True, "limits": {"seconds": 2}}
    stream = {"name": "changes", "type": "files", "path": "./changes", "shards": 2, "snapshot": True}
    (tmp_path / "mine.py").write_text(FUNCTION)
    return make_pipeline(
        tmp_path, database, destinations=[{**stream, "processors": [processor]}], tables=[{"match": "public.people"}]
    )


def test_what_a_processor_fails_on_is_kept_once_and_sent_again_once(
    database: Database, pipeline: PipelineFile, tmp_path: Path
) -> None:
    run = Running(pipeline)
    try:
        await_condition(lambda: failed(pipeline) == [1], "the row that fails", 120)
        for number in range(2, 10):
            name = {3: "bad", 7: "loop"}.get(number, f"n{number}")
            database.execute(f"insert into people values ({number}, '{name}', {number}.50)")
        await_condition(lambda: any("processors.worker" in " ".join(one.cmdline()) for one in run.members()), "it", 60)
        run.kill()  # also the process that runs the function, whatever that does

        run = Running(pipeline)
        await_condition(lambda: sorted(failed(pipeline)) == [1, *FAILS], "three dead letters", 120)
        database.execute("update people set price = 100 where id in (0, 7)", "delete from people where id = 2")
        await_condition(lambda: published(tmp_path).get(("delete", 2), 0) > 0, "the delete", 60)
        assert pipeline.status()["tables"][0]["dead_letters"] == 4, "and the update of a row that loops"
        run.stop()

        (tmp_path / "mine.py").write_text(FUNCTION.replace('"bad"', "None").replace('"loop"', "None"))
        assert "will be sent again" in pipeline.command("dlq", "retry", str(pipeline.path)).stdout
        pipeline.run_once()
    finally:
        run.clean_up()
    assert failed(pipeline) == [1], "a row of the copy is not kept as the source sent it"
    inserted = {("insert", number): 1 for number in range(2, 10)}
    assert published(tmp_path) == {("read", 0): 1, **inserted, ("update", 0): 1, ("update", 7): 1, ("delete", 2): 1}
    images = {event["key"]["id"]: event["after"] for event in events(tmp_path) if event["op"] == "insert"}
    assert images[4] == {"id": 4, "name": "N4", "price": "4.50"}, "what is not changed is as the source wrote it"


def failed(pipeline: PipelineFile) -> list[int]:
    """The ids of rows that have a dead letter."""
    said = pipeline.command("dlq", "list", str(pipeline.path), "--json")
    return sorted({json.loads(one["key"])["id"] for one in json.loads(said.stdout or "{}").get("dead_letters", [])})


def events(folder: Path) -> list[dict[str, Any]]:
    (source,) = [path for path in (folder / "changes").iterdir() if path.is_dir()]
    return StreamReader(source).events()


def published(folder: Path) -> dict[tuple[str, int], int]:
    return dict(Counter((event["op"], event["key"]["id"]) for event in events(folder)))

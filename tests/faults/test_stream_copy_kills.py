"""A stream that begins with the rows of its tables, killed while it publishes them: each row once per snapshot, none
missing, and all of them before the table's first change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from databases import Database, fresh_database
from penstock.demo.server import PostgresServer
from running import PipelineFile, Running, await_condition, make_pipeline
from stream_reader import StreamReader

ROWS = 3000
TASK_STEPS = ("publish.rows_published", "publish.committed")
DRIVER_STEPS = ("copy.range_finished", "publish.rows_complete")
SETUP = f"""
create table goods (id bigint primary key, state text, weight numeric(8,3));
insert into goods select n, 'old', n / 8.0 from generate_series(1, {ROWS}) n;
create table keyless (note text);
insert into keyless select 'note ' || n from generate_series(1, 500) n;
create table nothing (id bigint primary key);
"""


@pytest.fixture
def database(embedded_server: PostgresServer) -> Iterator[Database]:
    with fresh_database(embedded_server) as database:
        with database.connect() as connection:
            connection.execute(SETUP.encode())
        yield database


@pytest.fixture
def pipeline(database: Database, tmp_path: Path) -> PipelineFile:
    stream = {"name": "changes", "type": "files", "path": "./changes", "shards": 2, "snapshot": True}
    tables = [{"match": "public.*"}]
    return make_pipeline(
        tmp_path, database, destinations=[stream], tables=tables, copy={"range_bytes": 8192, "discover_every": "500ms"}
    )


def test_rows_through_kills(database: Database, pipeline: PipelineFile, full: bool) -> None:
    tasks, drivers = (TASK_STEPS, DRIVER_STEPS) if full else (TASK_STEPS[:1], DRIVER_STEPS[:1])
    random = Random(3)
    for step in drivers:
        pipeline.arm(step, 5 if step == "copy.range_finished" else 1)
        run = Running(pipeline)
        try:
            run.await_killed()
        finally:
            run.clean_up()
        _change(database, random, 20)
    run = Running(pipeline)
    try:
        for step in tasks:  # a Spark worker dies; the driver runs its task again
            pipeline.arm(step)
            await_condition(lambda: _change(database, random, 5) and pipeline.fired(), f"{step}:\n{run.tail()}", 90)
            assert run.process.poll() is None, run.tail()
        await_condition(lambda: set(_states(pipeline).values()) == {"Ready"}, "the rows", 90)
        with database.connect() as connection:
            connection.execute(
                b"create table late (id bigint primary key); insert into late select generate_series(1, 50)"
            )
        await_condition(lambda: _states(pipeline).get("public.late") == "Ready", "a table that came later", 90)
        _change(database, random, 20)
        with database.connect() as connection:
            connection.execute(b"insert into keyless values ('the end')")
        stream = StreamReader(pipeline.folder / "changes" / pipeline.name)
        await_condition(lambda: _written(database) == _published(stream), "the last change", 90)
        assert set(_states(pipeline).values()) == {"Ready"}
        run.stop()
    finally:
        run.clean_up()
    _assert_equal(database, stream.shards())


def _written(database: Database) -> int:
    with database.connect() as connection:
        row = connection.execute(b"select count(*) from keyless").fetchone()
        return int(row[0]) if row is not None else 0


def _published(stream: StreamReader) -> int:
    """How many rows of the table without a key are published, by its last snapshot and later."""
    own = [event["place"] for event in stream.events() if event["table"] == "keyless"]
    last = max(event["place"] for event in stream.events() if event["op"] == "read" and event["table"] == "keyless")
    return sum(place >= last.split("/")[0] for place in own)


def _change(database: Database, random: Random, count: int) -> bool:
    with database.connect() as connection:
        for _ in range(count):
            key = random.randrange(1, ROWS + 200)
            connection.execute(
                random.choice(
                    (
                        f"update goods set state = 'new {random.random()}' where id = {key}",
                        f"delete from goods where id = {key}",
                        f"insert into goods values ({key}, 'again', 1) on conflict do nothing",
                        f"insert into keyless values ('note {random.random()}')",
                    )
                ).encode()
            )
    return True


def _states(pipeline: PipelineFile) -> dict[str, str]:
    return {table["table"]: table["state"] for table in pipeline.status()["tables"]}


def _assert_equal(database: Database, shards: list[list[dict[str, Any]]]) -> None:
    with database.connect() as connection:
        goods = {
            row[0]: {"id": row[0], "state": row[1], "weight": row[2]}
            for row in connection.execute(b"select id, state, weight::text from goods")
        }
        notes = sorted(row[0] for row in connection.execute(b"select note from keyless"))
    events = [event for shard in shards for event in shard]
    by_table: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        by_table.setdefault(event["table"], []).append(event)
    assert "nothing" not in by_table
    assert sorted(event["after"]["id"] for event in by_table["late"]) == list(range(1, 51))
    for table in ("goods", "keyless"):
        reads = [event for event in by_table[table] if event["op"] == "read"]
        of_snapshot: dict[str, list[str]] = {}
        for event in reads:
            of_snapshot.setdefault(event["place"].split("/")[0], []).append(json.dumps(event["after"]))
        assert all(len(rows) == len(set(rows)) for rows in of_snapshot.values()), "each row once per snapshot"
        last = max(of_snapshot)
        for shard in shards:
            own = [event for event in shard if event["table"] == table]
            changes = [number for number, event in enumerate(own) if event["op"] != "read"]
            rows = [number for number, event in enumerate(own) if event["op"] == "read"]
            assert not changes or not rows or max(rows) < min(changes), "all rows come before the first change"
            assert all(own[number]["place"] > f"{int(last, 16) + 1:016x}" for number in changes)
            places = [own[number]["place"] for number in changes]
            assert places == sorted(set(places)), "each change once, and in order"
        by_table[table] = [event for event in by_table[table] if not _is_older_read(event, last)]
    images: dict[int, dict[str, Any]] = {}
    for event in by_table["goods"]:
        key = event["key"]["id"]
        if event["op"] == "delete":
            del images[key]
        else:
            assert (key in images) is (event["op"] == "update"), f"an event that does not follow: {event}"
            images[key] = event["after"]
    assert {key: {**row, "weight": str(row["weight"])} for key, row in images.items()} == goods
    assert sorted(event["after"]["note"] for event in by_table["keyless"]) == notes


def _is_older_read(event: dict[str, Any], last: str) -> bool:
    return bool(event["op"] == "read" and event["place"].split("/")[0] < last)

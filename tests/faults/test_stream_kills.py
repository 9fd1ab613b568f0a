"""A pipeline with two streams, files and a webhook, killed at every step: each event once, in order, none lost.

A webhook may get a request again, with the same Idempotency-Key and body.

The source keeps its own account of every change (triggers, in the same transaction), which is the oracle. The stream is
read by a reader that knows nothing of penstock.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accounted_traffic import SETUP, TABLES, Traffic, assert_equal, provoke
from databases import Database, fresh_database
from penstock.demo.server import PostgresServer
from running import PipelineFile, Running, await_condition, make_pipeline
from stream_reader import StreamReader
from webhook import SECRET, Webhook, webhook

TASK_STEPS = ("publish.file_written", "publish.recorded", "publish.taken", "publish.committed", "publish.visible")


@pytest.fixture
def database(embedded_server: PostgresServer) -> Iterator[Database]:
    with fresh_database(embedded_server) as database:
        with database.connect() as connection:
            connection.execute(SETUP.encode())
            connection.execute(b"create table rejects (id int primary key)")
        yield database


@pytest.fixture
def receiver() -> Iterator[Webhook]:
    with webhook() as made:
        yield made


@pytest.fixture
def pipeline(database: Database, receiver: Webhook, tmp_path: Path) -> PipelineFile:
    files = {"name": "changes", "type": "files", "path": "./changes", "shards": 2}
    files |= {"transactions": True, "schema_changes": True, "messages": ["shop.%"]}
    hooks = {"name": "hooks", "type": "http", "url": receiver.url, "batch": 5, "shards": 2}
    hooks |= {"signature": {"secret": SECRET}, "headers": {"Authorization": "Bearer hunter2"}}
    rules: list[dict[str, Any]] = [{"match": f"public.{table}"} for table in TABLES]
    rules += [{"match": "public.extras", "to": ["changes"]}, {"match": "public.rejects", "to": ["hooks"]}]
    return make_pipeline(tmp_path, database, destinations=[files, hooks], tables=rules)


def test_every_event_once_and_in_order_through_kills(
    database: Database, pipeline: PipelineFile, receiver: Webhook, tmp_path: Path
) -> None:
    traffic = Traffic(database)
    run = Running(pipeline)
    try:
        run.await_streaming()
        traffic.transactions(40)
        _emit(database, 0)
        for step in TASK_STEPS:  # a Spark worker dies; the driver runs the batch again
            provoke(pipeline, traffic, step, run)
            assert run.process.poll() is None, run.tail()
        receiver.kill()
        traffic.transactions(20)
        await_condition(lambda: pipeline.component("destination hooks")["state"] == "retrying", "a receiver away", 60)
        receiver.start()
        provoke(pipeline, traffic, "publish.batch_done", run)
        run.await_killed()
        traffic.transactions(40)
        _emit(database, 1)
        run = Running(pipeline)
        run.await_streaming()
        traffic.transactions(40)
        _lose_events(database, pipeline)
        receiver.refuses = lambda event: 422 if b'"table": "rejects"' in event and b'"id": 13' in event else 0
        database.execute("insert into rejects values (13), (14)")
        run.stop()
    finally:
        run.clean_up()
    pipeline.run_once()
    tables = {table["table"]: table["state"] for table in pipeline.status()["tables"]}
    own = ("transaction", "ddl", "relation", "message")
    named = (*own, *(f"public.{table}" for table in (*TABLES, "extras", "rejects")))
    assert tables == dict.fromkeys(named, "Ready")
    checked = pipeline.command("check", "FILE")
    assert checked.returncode == 0, checked.stdout
    assert "rows that the tables had before are not published" in " ".join(checked.stdout.split())
    files = StreamReader(pipeline.folder / "changes" / pipeline.name)
    rows = [event for event in files.events() if "after" in event]
    assert {event["key"]["id"] for event in rows if event["table"] == "extras"} == {1, 3}
    received = _received(receiver)
    assert [event["key"]["id"] for shard in received for event in shard if event["table"] == "rejects"] == [14]
    (letter,) = json.loads(pipeline.command("dlq", "list", "FILE", "--json").stdout)["dead_letters"]
    assert (letter["destination"], letter["table"]) == ("hooks", "public.rejects")
    assert "422" in letter["reason"]
    _assert_transactions(files.events())
    of_rows = [[event for event in shard if "after" in event] for shard in files.shards()]
    for shards in (of_rows, received):
        assert len(shards) == 2
        assert all(shards)
        assert_equal(database, shards)
    assert receiver.forged == 0
    assert "hunter2" not in "".join(path.read_text(errors="replace") for path in tmp_path.glob("output-*.log"))


def _received(receiver: Webhook) -> list[list[dict[str, Any]]]:
    """The events of each shard. That a key stands for one body only is checked by `distinct`."""
    shards: dict[str, list[dict[str, Any]]] = {}
    for request in receiver.distinct():
        shards.setdefault(request.key.split("-")[1], []).extend(request.events)
    return [shards[name] for name in sorted(shards)]


def _lose_events(database: Database, pipeline: PipelineFile) -> None:
    """A table leaves the publication and comes back between two looks: Errored, until an operator lets it go on."""

    def extras(shown: str) -> set[Any]:
        return {table[shown] for table in pipeline.status()["tables"] if table["table"] == "public.extras"}

    publication = f"penstock_{pipeline.name}"
    with database.connect() as connection:
        connection.execute(b"insert into extras values (1)")
        await_condition(lambda: extras("changes") == {1}, "the first event", 240)
        connection.execute(f"alter publication {publication} drop table extras".encode())
        connection.execute(b"insert into extras values (2)")
        connection.execute(f"alter publication {publication} add table extras".encode())
        await_condition(lambda: extras("state") == {"Errored"}, "the lost event to be noticed", 240)
        assert all("events may be missing" in error for error in extras("error"))
        assert all("resync" in solution for solution in extras("solution"))
        assert pipeline.command("resync", "FILE", "public.extras").returncode == 0
        await_condition(lambda: extras("state") == {"Ready"}, "the table to go on", 240)
        connection.execute(b"insert into extras values (3)")


def _emit(database: Database, number: int) -> None:
    with database.connect() as connection:
        connection.execute(f"select pg_logical_emit_message(true, 'shop.note', '{number}')".encode())
        connection.execute(f"select pg_logical_emit_message(true, 'else', '{number}')".encode())


def _assert_transactions(events: list[dict[str, Any]]) -> None:
    """Every transaction begins and ends once, and ends with as many changes as there are events of it."""
    assert len({event["id"] for event in events if event["op"] != "truncate"}) == sum(
        event["op"] != "truncate" for event in events
    )
    begun = [event["transaction"] for event in events if event["op"] == "begin"]
    ended = {event["transaction"]: event for event in events if event["op"] == "commit"}
    assert len(begun) == len(set(begun))
    assert set(begun) == set(ended)
    changes: dict[tuple[int, str], set[str]] = {}
    for event in (one for one in events if "after" in one):
        changes.setdefault((event["transaction"], event["table"]), set()).add(event["place"].partition(".")[0])
    for transaction, commit in ended.items():
        said = {one["table"]: one["changes"] for one in commit["tables"] if one["table"] not in ("rejects", "extras")}
        made = {table: len(some) for (of, table), some in changes.items() if of == transaction and table != "extras"}
        assert said == made
    notes = [event["message"] for event in events if event["op"] == "message"]
    assert [(note["prefix"], note["content"]) for note in notes] == [("shop.note", "MA=="), ("shop.note", "MQ==")]
    assert {event["table"] for event in events if event["op"] == "relation"} >= set(TABLES)

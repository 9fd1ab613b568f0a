"""A pipeline with two streams, files and a webhook, killed at every step: each event once, in order, none lost.

A webhook may get a request again, with the same Idempotency-Key and body.

The source keeps its own account of every change (triggers, in the same transaction), which is the oracle. The stream is
read by a reader that knows nothing of penstock.
"""

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
from stream_reader import StreamReader, last_images
from webhook import SECRET, Webhook, webhook

TASK_STEPS = ("publish.file_written", "publish.recorded", "publish.taken", "publish.committed", "publish.visible")
TABLES = ("parcels", "notes")
SETUP = """
create table account (n bigserial primary key, at_table text, op text, key bigint);
create table parcels (id bigint primary key, state text, weight numeric(8,3), label text);
create table notes (id bigint primary key, state text, weight numeric(8,3), label text);
alter table notes replica identity full;
alter table parcels alter column label set storage external;
create table extras (id bigint primary key);
create function note_row() returns trigger language plpgsql as $$
begin
  if tg_op = 'INSERT' then insert into account (at_table, op, key) values (tg_table_name, 'insert', new.id);
  elsif tg_op = 'DELETE' then insert into account (at_table, op, key) values (tg_table_name, 'delete', old.id);
  elsif old.id = new.id then insert into account (at_table, op, key) values (tg_table_name, 'update', new.id);
  else insert into account (at_table, op, key)
       values (tg_table_name, 'delete', old.id), (tg_table_name, 'insert', new.id);
  end if;
  return null;
end $$;
create function note_truncate() returns trigger language plpgsql as $$
begin insert into account (at_table, op) values (tg_table_name, 'truncate'); return null; end $$;
create trigger noted after insert or update or delete on parcels for each row execute function note_row();
create trigger noted after insert or update or delete on notes for each row execute function note_row();
create trigger emptied after truncate on parcels for each statement execute function note_truncate();
"""


class Traffic:
    """Transactions of random size over few keys: inserts, updates, changes of keys, deletes, some rolled back."""

    def __init__(self, database: Database) -> None:
        self._random, self._database = Random(15), database

    def transactions(self, count: int) -> None:
        with self._database.connect() as connection:
            for _ in range(count):
                with connection.transaction(force_rollback=self._random.random() < 0.1):
                    for _ in range(self._random.choice((1, 1, 2, 9))):
                        connection.execute(self._statement().encode())

    def _statement(self) -> str:
        table, key, other = self._random.choice(TABLES), self._random.randrange(40), self._random.randrange(40)
        state = f"state = 'state {self._random.random()}'"
        return self._random.choice(
            (
                f"insert into {table} values ({key}, 'new', {self._random.random():.3f}, repeat('x', 3000)) "
                f"on conflict (id) do update set {state}",
                f"update {table} set {state} where id = {key}",
                f"update {table} set id = {other}, label = 'moved', {state} where id = {key} "
                f"and not exists (select from {table} where id = {other})",
                f"delete from {table} where id = {key}",
                "truncate parcels" if self._random.random() < 0.05 else f"update {table} set weight = 1.5",
            )
        )


@pytest.fixture(scope="module")
def database(embedded_server: PostgresServer) -> Iterator[Database]:
    with fresh_database(embedded_server) as database:
        with database.connect() as connection:
            connection.execute(SETUP.encode())
        yield database


@pytest.fixture
def receiver() -> Iterator[Webhook]:
    with webhook() as made:
        yield made


@pytest.fixture
def pipeline(database: Database, receiver: Webhook, tmp_path: Path) -> PipelineFile:
    files = {"name": "changes", "type": "files", "path": "./changes", "shards": 2}
    hooks = {"name": "hooks", "type": "http", "url": receiver.url, "batch": 5, "shards": 2}
    hooks |= {"signature": {"secret": SECRET}, "headers": {"Authorization": "Bearer hunter2"}}
    rules = [{"match": f"public.{table}"} for table in (*TABLES, "extras")]
    return make_pipeline(tmp_path, database, destinations=[files, hooks], tables=rules)


def test_every_event_once_and_in_order_through_kills(
    database: Database, pipeline: PipelineFile, receiver: Webhook, tmp_path: Path
) -> None:
    traffic = Traffic(database)
    run = Running(pipeline)
    try:
        run.await_streaming()
        traffic.transactions(40)
        for step in TASK_STEPS:  # a Spark worker dies; the driver runs the batch again
            _provoke(pipeline, traffic, step, run)
            assert run.process.poll() is None, run.tail()
        receiver.kill()
        traffic.transactions(20)
        await_condition(lambda: pipeline.component("destination hooks")["state"] == "retrying", "a receiver away", 60)
        receiver.start()
        _provoke(pipeline, traffic, "publish.batch_done", run)
        run.await_killed()
        traffic.transactions(40)
        run = Running(pipeline)
        run.await_streaming()
        traffic.transactions(40)
        _lose_events(database, pipeline)
        run.stop()
    finally:
        run.clean_up()
    pipeline.run_once()
    tables = {table["table"]: table["state"] for table in pipeline.status()["tables"]}
    assert tables == {f"public.{table}": "Ready" for table in (*TABLES, "extras")}
    checked = pipeline.command("check", "FILE")
    assert checked.returncode == 0, checked.stdout
    assert "rows that the tables had before are not published" in " ".join(checked.stdout.split())
    for shards in (StreamReader(pipeline.folder / "changes" / pipeline.name).shards(), _received(receiver)):
        _assert_equal(database, shards)
        assert {event["key"]["id"] for shard in shards for event in shard if event["table"] == "extras"} == {1, 3}
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

    def extras(shown: str) -> set[str]:
        return {table[shown] for table in pipeline.status()["tables"] if table["table"] == "public.extras"}

    publication = f"penstock_{pipeline.name}"
    with database.connect() as connection:
        connection.execute(b"insert into extras values (1)")
        connection.execute(f"alter publication {publication} drop table extras".encode())
        connection.execute(b"insert into extras values (2)")
        connection.execute(f"alter publication {publication} add table extras".encode())
        await_condition(lambda: extras("state") == {"Errored"}, "the lost event to be noticed", 60)
        assert all("events may be missing" in error for error in extras("error"))
        assert all("resync" in solution for solution in extras("solution"))
        assert pipeline.command("resync", "FILE", "public.extras").returncode == 0
        await_condition(lambda: extras("state") == {"Ready"}, "the table to go on", 60)
        connection.execute(b"insert into extras values (3)")


def _provoke(pipeline: PipelineFile, traffic: Traffic, step: str, run: Running) -> None:
    pipeline.arm(step)

    def fired() -> bool:
        traffic.transactions(3)
        return pipeline.fired()

    await_condition(fired, f"{step} to be reached:\n{run.tail()}", 60)


def _assert_equal(database: Database, shards: list[list[dict[str, Any]]]) -> None:
    assert len(shards) == 2
    assert all(shards)
    with database.connect() as connection:
        account = connection.execute(b"select at_table, op, key from account order by n").fetchall()
        rows = {
            table: {
                json.dumps({"id": row[0]}): {"id": row[0], "state": row[1], "weight": row[2], "label": row[3]}
                for row in connection.execute(f"select id, state, weight::text, label from {table}".encode())
            }
            for table in TABLES
        }
    for table in TABLES:
        for key in range(40):
            written = [op for at, op, of in account if (at, of) == (table, key)]
            read = [
                event["op"]
                for shard in shards
                for event in shard
                if (event["table"], event["key"]) == (table, {"id": key})
            ]
            assert read == written, f"{table} {key}: every event once, and in commit order"
    truncates = sum(op == "truncate" for _, op, _ in account)
    assert [sum(event["op"] == "truncate" for event in shard) for shard in shards] == [truncates, truncates]
    for shard in shards:
        assert [event["place"] for event in shard] == sorted(event["place"] for event in shard)
    assert {table: last_images(shards).get(table, {}) for table in TABLES} == rows

"""Traffic that the source keeps its own account of, in the same transactions, and the comparison with a stream.

The account is the oracle: every event once, none missing, each key in order, and the last images are the rows.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from random import Random
from typing import Any

from databases import Database
from running import PipelineFile, Running, await_condition
from stream_reader import last_images

TABLES = ("parcels", "notes")
KEYS = 40
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
        table, key, other = self._random.choice(TABLES), self._random.randrange(KEYS), self._random.randrange(KEYS)
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


def provoke(
    pipeline: PipelineFile, traffic: Traffic, step: str, run: Running, send: signal.Signals = signal.SIGKILL
) -> None:
    """Have the next process that reaches the step die there, or get another signal, with traffic going on."""
    pipeline.arm(step, send=send)

    def fired() -> bool:
        traffic.transactions(3)
        return pipeline.fired()

    try:
        await_condition(fired, f"{step} to be reached", 300, every=0.2)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{run.tail()}") from None


def assert_equal(database: Database, sequences: Sequence[Sequence[dict[str, Any]]]) -> None:
    """Compare the events of a stream, in sequences that are each in order, with the account and with the rows."""
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
        for key in range(KEYS):
            written = [op for at, op, of in account if (at, of) == (table, key)]
            read = [
                event["op"]
                for sequence in sequences
                for event in sequence
                if (event["table"], event["key"]) == (table, {"id": key})
            ]
            assert read == written, f"{table} {key}: every event once, and in commit order"
    truncates = sum(op == "truncate" for _, op, _ in account)
    for sequence in sequences:
        if any(event["table"] == "parcels" for event in sequence):
            assert sum(event["op"] == "truncate" for event in sequence) == truncates
        assert [event["place"] for event in sequence] == sorted(event["place"] for event in sequence)
    folded = last_images([list(sequence) for sequence in sequences])
    assert {table: folded.get(table, {}) for table in TABLES} == rows

"""A message that cannot be decoded, from outside: its table alone stops; a person sees it, tries it, gives it up."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from databases import Database
from lake import Lake
from penstock.changelog.log import ChangeLog
from penstock.changelog.segment import SliceRows
from penstock.changelog.writer import SegmentWriter
from penstock.model.change import RAW_SCHEMA
from running import PipelineFactory, PipelineFile, await_condition, running


def damage(file: PipelineFile, database: Database) -> bytes:
    """Puts a message into the log that Postgres never sends: an insert that ends in the middle of a value."""
    log = ChangeLog(str(file.log))
    last = log.segments()[-1]
    header = log.header(last)
    relation = int(database.value("select 'orders'::regclass::oid::int"))
    with_orders = next(
        part.table_schema
        for name in reversed(log.segments())
        for part in log.slices(name)
        if part.table_schema.table.name == "orders"
    )
    message = b"I" + relation.to_bytes(4, "big") + b"N\0\2t\0\0\0\1" + b"9" + b"t\0\0\1\0cut"
    row = {
        "commit_position": last.end,
        "ordinal": 0,
        "change_position": last.end,
        "transaction": 1,
        "commit_time": 1_700_000_000_000_000,
        "op": ord("I"),
        "data": message,
    }
    with SegmentWriter(log) as writer:
        writer.begin(last.end, header.system_id, header.timeline)
        writer.append(last.end + 8, [SliceRows(with_orders, pa.RecordBatch.from_pylist([row], schema=RAW_SCHEMA), 0)])
    with database.connect() as connection:  # as if it had been captured: it must not be sent again
        moved = (
            "select pg_replication_slot_advance(slot_name, %s::pg_lsn) from pg_replication_slots where database = %s"
        )
        connection.execute(moved, (f"{last.end + 8 >> 32:X}/{(last.end + 8) & 0xFFFFFFFF:X}", database.name))
    return message


def table(file: PipelineFile, name: str) -> dict[str, Any]:
    (found,) = [one for one in file.status()["tables"] if one["table"] == name]
    return dict(found)


def test_a_message_in_quarantine(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    postgres.execute(
        *(f"create table {name} (id int primary key, note text)" for name in ("orders", "items")),
        *(f"insert into {name} select g, 'n' || g from generate_series(1, 50) g" for name in ("orders", "items")),
    )
    file = pipeline(log={"replay": "1h"})
    with running(file) as run:
        run.drain()
        postgres.execute("insert into orders values (100, 'streamed')")
        run.drain()
    postgres.execute("create schema elsewhere", "create table elsewhere.busy as select 1 as one")
    message = damage(file, postgres)
    with running(file) as run:
        await_condition(lambda: table(file, "public.orders")["quarantined"] == 1, f"the message\n{run.tail()}", 60)
        postgres.execute("update items set note = 'on' where id < 10", "update orders set note = 'held' where id < 10")
        run.drain()
        lake.assert_equals(postgres, ["public.items"])
        assert lake.sql("select count(*) from lake.public.orders where note = 'held'")[0][0] == 0

        (kept,) = json.loads(file.command("quarantine", "list", "FILE", "--json").stdout)["quarantine"]
        shown = json.loads(file.command("quarantine", "show", "FILE", str(kept["id"]), "--json").stdout)
        assert bytes.fromhex(shown["data"]) == message
        assert "id (int4): '9'" in " ".join(shown["parts"])
        replayed = file.command("quarantine", "replay", "FILE")
        assert replayed.returncode == 1
        assert "still not decodable: a cell reaches past its end" in replayed.stdout
        assert file.command("quarantine", "drop", "FILE").returncode == 2, "without --yes nothing is dropped"
        assert table(file, "public.orders")["state"] == "Errored"

        dropped = file.command("quarantine", "drop", "FILE", "public.orders", "--yes")
        assert dropped.returncode == 0, dropped.stderr
        assert "public.orders will be copied again" in dropped.stdout
        await_condition(lambda: table(file, "public.orders")["state"] == "Ready", f"orders\n{run.tail()}", 60)
        postgres.execute("insert into orders values (101, 'after')")
        run.drain()
        lake.assert_equals(postgres, ["public.orders", "public.items"])
        assert table(file, "public.orders")["quarantined"] == 0

"""A message that cannot be decoded, from outside: its table alone stops; a person sees it, tries it, gives it up."""

from __future__ import annotations

import json
from typing import Any

from damaged_log import damage
from databases import Database
from lake import Lake
from running import PipelineFactory, PipelineFile, await_condition, running


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

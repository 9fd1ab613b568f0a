"""faucet's quick start, as docs/from-faucet.md has it, with two words changed: the host and the database's name.

The reader knows nothing of penstock: it does with `changes.jsonl` what a program does that was written for faucet.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from databases import Database, fresh_database
from penstock.demo.server import PostgresServer
from running import PipelineFile, await_condition, running

PAGE = Path(__file__).parents[2] / "docs" / "from-faucet.md"
KEYS = ["op", "schema", "table", "lsn", "ts_ms", "before", "after"]
# What faucet's quick start has people do at the server
SETUP = (
    "create role faucet with login replication",
    "create table users (id int4 primary key, name text)",
    "create table orders (id int8 primary key, total numeric(8,2), data jsonb, placed timestamptz, big text)",
    "alter table orders alter big set storage external",
    "create publication faucet_pub for table public.users, public.orders",
    "grant select on users, orders to faucet",
)
CHANGES = (
    "insert into users values (1, 'ann'), (2, 'bo')",
    "insert into orders values (7, 12.50, '{\"a\": [1, 2.50]}', '2026-01-02 03:04:05.678+00', repeat('x', 3000))",
    "update orders set total = 13 where id = 7",  # the large value is not sent
    "update users set name = null where id = 2",
    "alter table users replica identity full; delete from users where id = 1",
    "truncate users",
)


def quick_start(database: Database, folder: Path) -> PipelineFile:
    """Return the page's first file, with another host and database."""
    found = re.search(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    text = found[1]
    at = urlsplit(database.url)
    for word, ours in (("localhost:5432", f"{at.hostname}:{at.port}"), ("appdb", database.name)):
        assert text.count(word) == 1
        text = text.replace(word, ours)
    file = PipelineFile(folder, database, yaml.safe_load(text))
    file.path.write_text(text)
    return file


def mirror(lines: list[dict[str, Any]]) -> dict[str, dict[int, dict[str, Any]]]:
    """Keep the last row of each key, as a program does that reads faucet's events."""
    tables: dict[str, dict[int, dict[str, Any]]] = {"users": {}, "orders": {}}
    for event in lines:
        rows = tables[event["table"]]
        if event["op"] == "truncate":
            rows.clear()
        elif event["op"] == "delete":
            del rows[event["before"]["id"]]
        else:
            after = dict(event["after"])
            unsent = after.pop("__unchanged_toast__", [])
            rows[after["id"]] = {**{name: rows[after["id"]][name] for name in unsent}, **after}
    return tables


def test_the_quick_start_works_as_written(embedded_server: PostgresServer, tmp_path: Path) -> None:
    with fresh_database(embedded_server) as database:
        database.execute(*SETUP)
        try:
            file = quick_start(database, tmp_path)
            checked = file.command("check", "FILE")
            assert checked.returncode == 0, checked.stdout + checked.stderr
            changes = tmp_path / "changes.jsonl"
            with running(file) as run:
                run.await_streaming()
                database.execute(*CHANGES)
                await_condition(lambda: changes.exists() and changes.read_bytes().count(b"\n") == 7, run.tail(), 120)
            events = [json.loads(line) for line in changes.read_text().splitlines()]
        finally:
            database.execute("drop owned by faucet", "drop role faucet")
    assert all(list(event) == KEYS for event in events)
    assert [(event["op"], event["table"]) for event in events] == [
        ("insert", "users"), ("insert", "users"), ("insert", "orders"), ("update", "orders"),
        ("update", "users"), ("delete", "users"), ("truncate", "users"),
    ]  # fmt: skip
    assert events[0]["lsn"] == events[1]["lsn"], "the commit's position"
    assert all(re.fullmatch(r"[0-9A-F]+/[0-9A-F]+", event["lsn"]) and event["schema"] == "public" for event in events)
    assert events[3]["before"] is None
    assert events[3]["after"]["__unchanged_toast__"] == ["big"]
    assert events[5]["before"] == {"id": 1, "name": "ann"}
    assert mirror(events[:6])["users"] == {2: {"id": 2, "name": None}}
    row = mirror(events)["orders"][7]
    assert (row["data"], row["big"], row["placed"][:19]) == ({"a": [1, 2.5]}, "x" * 3000, "2026-01-02 03:04:05")
    assert float(row["total"]) == 13

"""A server that was put back, as an operator meets it: the gap is shown, and then the lake is the source again."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from databases import Database
from lake import Lake
from penstock.demo.server import PostgresServer
from running import PipelineFile, make_pipeline, running
from server_image import ServerImage

TABLES = ["public.orders", "public.empty"]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as own:
        yield own


def says(file: PipelineFile, *arguments: str, exits: int) -> str:
    done = file.command(*arguments)
    assert done.returncode == exits, (arguments, done.returncode, done.stdout, done.stderr[-3000:])
    return done.stdout + done.stderr


def test_from_the_gap_to_equal_tables(server: PostgresServer, tmp_path: Path, lake: Lake) -> None:
    database = Database("shop", server.url())
    database.execute(
        "create table orders (id int primary key, note text)",
        "create table empty (id int primary key)",
        "insert into orders select g, 'before' from generate_series(1, 50) g",
    )
    file = make_pipeline(tmp_path, database)
    file.run_once()
    image = ServerImage(server)
    with running(file) as run:
        database.execute(
            "insert into orders values (100, 'a future that never happens')", "insert into empty values (1)"
        )
        run.drain()
        assert "running already" in says(file, "reset", "FILE", "--yes", exits=1)
    image.put_back()

    assert "was restored" in says(file, "run", "FILE", "--once", exits=1)
    status = file.status()
    assert {table["state"] for table in status["tables"]} == {"Errored"}
    assert all("was restored" in table["error"] for table in status["tables"])
    assert all("penstock reset" in table["solution"] for table in status["tables"])
    checked = " ".join(says(file, "check", "FILE", exits=1).split())
    assert "gap: changes after" in checked
    assert "penstock reset" in checked

    # by hand, as people do; the server's positions are below those of the lake
    database.execute(f"select pg_drop_replication_slot('{file.slot}')", "insert into orders values (101, 'happened')")
    shutil.rmtree(file.log)
    file.run_once()
    lake.assert_equals(database, TABLES)

    before = sorted(path.name for path in file.log.glob("*.arrow"))
    said = " ".join(says(file, "reset", "FILE", exits=2).split())
    assert f"it drops slot {file.slot}" in said
    assert "copies all 2 tables again" in said
    assert sorted(path.name for path in file.log.glob("*.arrow")) == before

    file.arm("reset.slot_dropped")
    assert file.command("reset", "FILE", "--yes").returncode == -signal.SIGKILL
    database.execute("update orders set note = 'unseen' where id < 5", "insert into empty values (2)")
    assert "the slot no longer exists" in says(file, "run", "FILE", "--once", exits=1)
    assert "removed" in says(file, "reset", "FILE", "--yes", exits=0)
    assert list(file.log.glob("*.arrow")) == []
    file.run_once()
    lake.assert_equals(database, TABLES)
    assert {table["state"] for table in file.status()["tables"]} == {"Ready"}

    file.arm("reset.log_removed")
    assert file.command("reset", "FILE", "--yes").returncode == -signal.SIGKILL
    database.execute("update orders set note = 'unseen as well' where id < 5", "delete from empty")
    file.run_once()
    lake.assert_equals(database, TABLES)

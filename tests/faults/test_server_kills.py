"""`penstock serve` is killed while rows flow, and so is what it supervises: no row is lost or written twice.

Tables go into a Postgres database, which needs no Spark. After each kill another server takes the pipeline up, and its
page is back with what was asked for.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event
from typing import Any

import pytest

from background import in_background
from databases import Database, fresh_database
from penstock.demo.server import PostgresServer
from penstock.state.lock import holder
from running import PipelineFactory, PipelineFile, Running, await_condition

SECONDS = 90.0


@contextmanager
def traffic(database: Database) -> Iterator[None]:
    """Rows come, change and go, in a table with a key and in one without, where nothing that comes twice could hide."""
    numbers = iter(range(1, 1_000_000))

    def write(stop: Event) -> None:
        with database.connect() as connection:
            while not stop.wait(0.01):
                number = next(numbers)
                with connection.transaction():
                    connection.execute("insert into orders values (%s, 'new')", (number,))
                    connection.execute("update orders set note = 'seen' where id = %s", (number // 2,))
                    connection.execute("delete from orders where id = %s and id %% 3 = 0", (number // 3,))
                    connection.execute("insert into ledger values (%s)", (number,))

    with in_background(write):
        yield


class Servers:
    """One server after the other over a pipeline's file, at one address."""

    def __init__(self, file: PipelineFile) -> None:
        self._file, self._listen = file, "127.0.0.1:0"
        self._all: list[Running] = []
        self._token = ""

    def start(self) -> None:
        server = Running(self._file, ("serve", "FILE", "--listen", self._listen))
        self._all.append(server)
        server.await_text("listening", SECONDS)
        found = re.search(r"http://([\d.:]+)", server.text())
        assert found is not None
        self._listen = found[1]
        if token := re.search(r"pst_\S+", server.text()):
            self._token = token[0]

    def kill(self) -> None:
        server = self._all[-1].process
        os.kill(server.pid, signal.SIGKILL)
        server.wait()

    def stop(self) -> None:
        self._all[-1].stop()

    def clean_up(self) -> None:
        for server in self._all:
            server.clean_up()

    def shown(self) -> dict[str, Any]:
        """What the server says of the pipeline."""
        request = urllib.request.Request(
            f"http://{self._listen}/pipelines/{self._file.name}", headers={"Authorization": f"Bearer {self._token}"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found


def rows(database: Database, table: str) -> list[tuple[Any, ...]]:
    with database.connect() as connection:
        return connection.execute(f"select * from {table} order by 1".encode()).fetchall()


def is_equal(source: Database, copy: Database) -> bool:
    return all(rows(source, table) == rows(copy, table) for table in ("orders", "ledger"))


@pytest.mark.timeout(900)
def test_no_row_is_lost_whoever_is_killed(
    pipeline: PipelineFactory, postgres: Database, embedded_server: PostgresServer, full: bool
) -> None:
    chance = random.Random(18)
    postgres.execute(
        "create table orders (id int primary key, note text)",
        "create table ledger (id int)",
        "insert into orders select -n, 'old' from generate_series(1, 500) n",
    )
    with fresh_database(embedded_server) as copy:
        file = pipeline(
            tables=[{"match": "public.*"}],
            destinations=[{"name": "copy", "type": "postgres", "url": copy.url}],
        )
        servers = Servers(file)
        try:
            servers.start()
            with traffic(postgres):
                for kills in range(20 if full else 4):
                    time.sleep(chance.uniform(0.0, 4.0))
                    run = holder(file.home / "lock")
                    servers.kill()
                    if kills % 2 and run is not None:
                        with suppress(ProcessLookupError):
                            os.kill(run, signal.SIGKILL)
                    time.sleep(chance.uniform(0.0, 1.0))
                    servers.start()
                    if not kills % 2 and run is not None:
                        assert holder(file.home / "lock") == run, "a server that is killed takes no pipeline with it"
                await_condition(lambda: copy.value("select count(*) from ledger") > 0, "rows to arrive", SECONDS)
            await_condition(lambda: is_equal(postgres, copy), "the copy to equal the source", SECONDS, every=0.5)
            shown = servers.shown()
            assert shown["name"] == file.name
            servers.stop()
            assert holder(file.home / "lock") is None
        finally:
            servers.clean_up()
        assert rows(postgres, "ledger") == rows(copy, "ledger")
        assert is_equal(postgres, copy)

"""The suite of state stores that penstock ships, over its own: in memory, SQLite, Postgres, and one source's view."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from penstock.demo.server import PostgresServer
from penstock.state.memory import MemoryStateStore
from penstock.state.sql import open_store
from penstock.state.store import StateStore
from penstock.testing import StoreSuite, store_suite

DATABASES = itertools.count()

TestMemory = store_suite(lambda folder: MemoryStateStore())
TestSqlite = store_suite(lambda folder: open_store(folder / "deep" / "state.db"))
TestScoped = store_suite(lambda folder: open_store(folder / "state.db").of_source("eu"))


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


class TestPostgres(StoreSuite):
    @pytest.fixture
    def store(self, server: PostgresServer) -> Iterator[StateStore]:
        database = f"state_{next(DATABASES)}"
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(SQL("create database {}").format(Identifier(database)))
        store = open_store(server.url(database))
        yield store
        store.close()

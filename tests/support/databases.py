"""Databases for tests: each test has one of its own on a server that the whole session shares."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.demo.server import PostgresServer

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Database:
    """A database of its own on a running server; `name` is a legal pipeline name too."""

    name: str
    url: str

    @contextmanager
    def connect(self) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            yield connection

    def execute(self, *statements: str) -> None:
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def value(self, query: str) -> Any:
        with self.connect() as connection:
            row = connection.execute(query.encode()).fetchone()
        assert row is not None, f"no row: {query}"
        return row[0]

    def flush_position(self) -> int:
        return int(self.value("select pg_current_wal_flush_lsn() - '0/0'::pg_lsn"))


@contextmanager
def fresh_database(server: PostgresServer) -> Iterator[Database]:
    """A database that takes its slots with it when it goes."""
    name = f"t{next(_numbers)}"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
        yield Database(name, server.url(name))
        connection.execute(
            "select pg_terminate_backend(active_pid) from pg_replication_slots where database = %s and active", (name,)
        )
        for attempt in itertools.count():
            try:
                connection.execute(
                    "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s", (name,)
                )
                break
            except (psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):  # a copy's may be going by itself
                if attempt == 100:
                    raise
                connection.execute("select pg_sleep(0.05)")
        connection.execute(f"drop database {name} with (force)".encode())

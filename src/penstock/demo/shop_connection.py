"""A connection to the shop's database, as its traffic uses it: Postgres here, MariaDB in shop_on_mariadb.py.

Statements are written so that both understand them; values stand for `%s`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.resources import files
from typing import Any, Protocol

import psycopg


class ShopConnection(Protocol):
    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """What a statement that fails raises."""

    def create_schema(self) -> None: ...

    def transaction(self) -> AbstractContextManager[object]: ...

    def run(self, statement: str, values: Sequence[Any]) -> int:
        """Return how many rows it concerned."""

    def run_each(self, statement: str, values: Sequence[Sequence[Any]]) -> None: ...

    def one(self, statement: str, values: Sequence[Any]) -> Sequence[Any]:
        """Return the one row that it gives."""

    def insert_order(self, statement: str, values: Sequence[Any]) -> int:
        """Return the number that the database gave it."""

    def close(self) -> None: ...


Connect = Callable[[], ShopConnection]


class PostgresShop:
    failures = (psycopg.Error,)

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection

    @classmethod
    def at(cls, url: str) -> PostgresShop:
        return cls(psycopg.connect(url, autocommit=True))

    def create_schema(self) -> None:
        self._connection.execute(files("penstock.demo").joinpath("shop.sql").read_text().encode())

    def transaction(self) -> AbstractContextManager[object]:
        return self._connection.transaction()

    def run(self, statement: str, values: Sequence[Any]) -> int:
        return self._connection.execute(statement.encode(), values).rowcount

    def run_each(self, statement: str, values: Sequence[Sequence[Any]]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(statement.encode(), values)

    def one(self, statement: str, values: Sequence[Any]) -> Sequence[Any]:
        row = self._connection.execute(statement.encode(), values).fetchone()
        assert row is not None
        return row

    def insert_order(self, statement: str, values: Sequence[Any]) -> int:
        return int(self.one(f"{statement} RETURNING id", values)[0])

    def close(self) -> None:
        self._connection.close()

"""The table of modes (mode_cases.py), from a real server's messages through decode and fold into the memory twin: every
case in every mode, in every way in which it may arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from followed_table import Follower, RawRow, SourceTable, database_with_slot
from mode_cases import CASES, Case, Rows, told, wanted
from penstock.demo.server import PostgresServer
from penstock.model.feed import Mode
from penstock.model.table import TableSchema

Sent = tuple[TableSchema, list[list[RawRow]]]  # a case's table, and its transactions; the first is what is copied


@pytest.fixture(scope="module")
def connection(embedded_server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with database_with_slot(embedded_server, "modes") as session:
        yield session


@pytest.fixture(scope="module")
def sent(connection: psycopg.Connection[Any]) -> Callable[[Case], Sent]:
    """Runs a case at the server, once."""
    known: dict[str, Sent] = {}

    def run(case: Case) -> Sent:
        if case.name not in known:
            source = SourceTable(connection)
            known[case.name] = source.schema, [source.run(some) for some in (case.copied, *case.transactions)]
            assert told("clone", source.select()) == wanted("clone", case), "a clone is what the source itself holds"
        return known[case.name]

    return run


def in_one_batch(follower: Follower, transactions: list[list[RawRow]]) -> None:
    follower.apply([change for changes in transactions for change in changes])


def across_batches(follower: Follower, transactions: list[list[RawRow]]) -> None:
    for changes in transactions:
        follower.apply(changes)


def replayed(follower: Follower, transactions: list[list[RawRow]]) -> None:
    """Every batch comes again from the start, each time longer by a transaction, and the last one twice."""
    for number in (*range(len(transactions)), len(transactions) - 1):
        in_one_batch(follower, transactions[: number + 1])


def killed_between(follower: Follower, transactions: list[list[RawRow]]) -> None:
    """The driver dies with every batch written and not committed; the next one does it again."""
    for changes in transactions:
        follower.apply(changes, killed=True)
        follower.apply(changes)


WAYS = (in_one_batch, across_batches, replayed, killed_between)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.replace("_", " "))
@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_a_mode_makes_of(
    case: Case, mode: Mode, way: Callable[[Follower, list[list[RawRow]]], None], sent: Callable[[Case], Sent]
) -> None:
    schema, (copied, *transactions) = sent(case)
    follower = Follower(schema, mode)
    follower.apply(copied)
    way(follower, transactions)
    assert told(mode, follower.rows()) == streamed(mode, case)


def streamed(mode: Mode, case: Case) -> Rows:
    """What there is without a copy: what would be read has been inserted."""
    rows = wanted(mode, case)
    return [("insert", *row[1:]) if row[0] == "read" else row for row in rows]

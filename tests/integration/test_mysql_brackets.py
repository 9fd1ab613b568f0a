"""A copy's range stands between two positions: everything before the lower one is in it, nothing from the upper one on.

Four sessions commit as fast as they can while ranges are read; afterwards the binlog says what stood before each place.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from binlog_capture import ListSink, capture_all, pipeline_of
from mysql_server import MariadbServer, MysqlServer, Server
from penstock.model.change import UPDATE
from penstock.source.mysql.connect import connect, rows
from penstock.source.mysql.copy_places import begin_snapshot, visible_position
from penstock.source.mysql.positions import head, position_of

SESSIONS = 4
SEEN = " UNION ALL ".join(f"SELECT n FROM shop.c{number}" for number in range(SESSIONS))


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with request.param(tmp_path / "server", ["--sync-binlog=1"]) as started:
        yield started


class Fire:
    """Sessions that count up, each in a table of its own: one transaction for each number."""

    def __init__(self, server: Server) -> None:
        self._server, self._stop = server, threading.Event()
        for number in range(SESSIONS):
            server.execute(f"CREATE TABLE shop.c{number} (id int primary key, n int)")
        self._threads = [threading.Thread(target=self._count, args=(number,)) for number in range(SESSIONS)]

    def __enter__(self) -> Fire:
        self._server.execute(*[f"INSERT INTO shop.c{number} VALUES (1, 0)" for number in range(SESSIONS)])
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _count(self, number: int) -> None:
        connection = self._server.connect("shop")
        with connection.cursor() as cursor:
            while not self._stop.is_set():
                cursor.execute(f"UPDATE c{number} SET n = n + 1")
        connection.close()


def wrong(brackets: list[tuple[int, list[int], int]], sink: ListSink) -> tuple[int, int]:
    """Return of how many brackets the lower bound is too high, and of how many the upper one too low."""
    commits = []
    for number in range(SESSIONS):
        changes = sink.of(f"c{number}")
        updates = changes.filter(pc.equal(changes["op"], UPDATE))
        commits.append(np.sort(updates["commit_position"].to_numpy()))
    low_is_wrong = high_is_wrong = 0
    for low, seen, high in brackets:
        low_is_wrong += any(np.searchsorted(of, low) > n for of, n in zip(commits, seen, strict=True))
        high_is_wrong += any(np.searchsorted(of, high) < n for of, n in zip(commits, seen, strict=True))
    return low_is_wrong, high_is_wrong


def bracketed(server: Server, pipeline: Any, count: int, *, low_is_head: bool) -> list[tuple[int, list[int], int]]:
    address = pipeline.source.address
    connection = connect(address)
    found: list[tuple[int, list[int], int]] = []
    with Fire(server):
        while len(found) < count:
            if isinstance(server, MariadbServer):
                low = begin_snapshot(connection, address)
                assert low is not None
            elif low_is_head:
                low = position_of(*head(connection, address))
            else:
                low = visible_position(connection, address)
            seen = [int(n) for (n,) in rows(connection, address, SEEN)]
            high = low
            if isinstance(server, MariadbServer):
                rows(connection, address, "COMMIT")
            else:
                high = position_of(*head(connection, address))
            found.append((low, seen, high))
    connection.close()
    return found


@pytest.mark.full
@pytest.mark.parametrize("server", [MysqlServer, MariadbServer], indirect=True)
def test_a_thousand_brackets_under_fire_hold_what_they_say(server: Server, tmp_path: Path) -> None:
    pipeline, sink = pipeline_of(tmp_path, server.url), ListSink()
    capture_all(pipeline, sink)
    brackets = bracketed(server, pipeline, 1000, low_is_head=False)
    capture_all(pipeline, sink, seconds=300)
    assert wrong(brackets, sink) == (0, 0)


@pytest.mark.full
@pytest.mark.parametrize("server", [MysqlServer], indirect=True)
def test_the_end_of_the_binlog_is_no_lower_bound(server: Server, tmp_path: Path) -> None:
    """So the test above can fail: a transaction stands in MySQL's binlog before readers see it."""
    pipeline, sink = pipeline_of(tmp_path, server.url), ListSink()
    capture_all(pipeline, sink)
    brackets = bracketed(server, pipeline, 1000, low_is_head=True)
    capture_all(pipeline, sink, seconds=300)
    low_is_wrong, high_is_wrong = wrong(brackets, sink)
    assert low_is_wrong > 0
    assert high_is_wrong == 0

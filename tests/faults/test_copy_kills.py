"""SIGKILL in the middle of the initial copy: it goes on where it was, and in the end lake equals source."""

from __future__ import annotations

import re

import pytest

from databases import Database
from lake import Lake
from running import PipelineFactory, Running, running
from workload import Workload, create_tables

KILLS = [
    ("copy.begun", 1),
    pytest.param("copy.range_finished", 1, marks=pytest.mark.full),
    ("copy.range_finished", 20),
    pytest.param("copy.range_finished", 60, marks=pytest.mark.full),
    ("copy.finished", 2),
    ("copy.committed", 2),
]


@pytest.mark.parametrize(("name", "nth"), KILLS)
def test_killed_while_copying(pipeline: PipelineFactory, postgres: Database, lake: Lake, name: str, nth: int) -> None:
    create_tables(postgres.url)
    with Workload(postgres.url, seed=nth, connections=2, bulk_rows=3000) as workload:
        workload.take_turns(30)
        postgres.execute(
            "create table large (id int primary key, t text, n int)",
            "insert into large select n, repeat('x', 200), n from generate_series(1, 20000) n",
        )
        file = pipeline(copy={"range_bytes": "64KiB", "max_connections": 2})
        file.arm(name, nth)
        run = Running(file)
        try:
            run.await_killed(120)
        finally:
            run.clean_up()
        assert file.fired()
        workload.take_turns(10)
        postgres.execute(
            "update large set n = -n where id % 5 = 0",
            "update large set id = id + 1000000 where id % 11 = 0",
            "delete from large where id % 7 = 0",
        )
        with running(file) as again:
            workload.take_turns(5)
            again.drain()
            lake.assert_equals(postgres)
            lake.assert_equals(postgres, ["public.large"])
            if name == "copy.range_finished" and nth > 1:
                went_on = re.findall(r"copy goes on\s+finished=(\d+)", again.text())
                assert went_on, f"finished ranges must not be read again:\n{again.tail()}"

"""Kills at random moments of one long run under traffic from several connections. CI has the kill matrix instead."""

from __future__ import annotations

from random import Random
from threading import Event, Thread

import pytest

from databases import Database
from lake import Lake
from running import PipelineFactory, Running
from workload import Workload, create_tables

KILLS = 20


@pytest.mark.full
def test_random_kills(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    create_tables(postgres.url)
    file = pipeline()
    random = Random(77)
    stop = Event()
    run = Running(file)
    try:
        run.await_streaming()
        with Workload(postgres.url, seed=77, connections=3, bulk_rows=1_000) as workload:
            traffic = Thread(target=_trickle, args=(workload, stop))
            traffic.start()
            try:
                for number in range(KILLS):
                    stop.wait(random.uniform(0.2, 3.0))
                    if number % 3 == 2:
                        run.capture().kill()
                        run.capture()
                        continue
                    run.kill()
                    run = Running(file)
                    if number % 2:
                        run.await_streaming()  # otherwise the next kill may hit a start or a recovery
                    else:
                        run.await_text("capture started")
            finally:
                stop.set()
                traffic.join()
            committed = workload.counts["committed"]
        run.await_streaming()
        run.drain()
        lake.assert_equals(postgres)
        run.stop()
    finally:
        run.clean_up()
    assert committed > 100


def _trickle(workload: Workload, stop: Event) -> None:
    """Steady traffic, so that every kill meets work, but not so much that the restarts cannot keep up."""
    while not stop.wait(0.15):
        workload.run_together(2, stop)

"""Somebody else rewrites the tables' files, from another Spark, between batches and while one is on its way."""

from __future__ import annotations

import time
from threading import Event, Thread

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from databases import Database
from lake import Lake, split_name
from running import PipelineFactory, Running, running
from workload import Workload, create_tables

REWRITTEN = ("public.every_type", "public.documents", "public.keyless", "public.index_identity")


def _rewrite(lake: Lake, table: str) -> int:
    """Every data file anew; gives how many were replaced."""
    schema, name = split_name(table)
    (row,) = lake.sql(
        f"call lake.system.rewrite_data_files(table => '{schema}.{name}', "
        "options => map('rewrite-all', 'true', 'remove-dangling-deletes', 'true'))"
    )
    return int(row["rewritten_data_files_count"])


def test_tables_rewritten_by_somebody_else(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    create_tables(postgres.url)
    with running(pipeline()) as run, Workload(postgres.url, seed=12, connections=2) as workload:
        replaced = 0
        for _ in range(2):
            workload.take_turns(40)
            run.drain()
            replaced += sum(_rewrite_at_last(lake, table) for table in REWRITTEN)
            lake.assert_equals(postgres)
        assert replaced >= 6, "the tables were hardly rewritten between batches"
        _rewrite_during_batches(lake, run, workload)
        run.drain()
        lake.assert_equals(postgres)


def _rewrite_at_last(lake: Lake, table: str) -> int:
    """Maintenance and positions that move on may be first, a few times."""
    for _ in range(5):
        try:
            return _rewrite(lake, table)
        except (PySparkException, Py4JJavaError):
            time.sleep(0.5)
    return _rewrite(lake, table)


def _rewrite_during_batches(lake: Lake, run: Running, workload: Workload) -> None:
    """Traffic and rewrites at once, until both have been first in the race for a table."""
    stop = Event()
    replaced: list[int] = []

    def rewrite_on_and_on() -> None:
        while not stop.is_set():
            for table in REWRITTEN:
                try:
                    replaced.append(_rewrite(lake, table))
                except (PySparkException, Py4JJavaError):
                    replaced.append(0)  # this time the pipeline's commit was first; both cannot win

    rewriter = Thread(target=rewrite_on_and_on)
    rewriter.start()
    try:
        for _ in range(300):
            workload.take_turns(3)
            if sum(map(bool, replaced)) >= 6 and "commit refused" in run.text():
                break
            stop.wait(0.1)
    finally:
        stop.set()
        rewriter.join()
    assert sum(map(bool, replaced)) >= 6, "the tables were hardly rewritten during batches"
    assert "commit refused" in run.text(), "no batch met a rewrite"

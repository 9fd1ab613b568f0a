"""Spark's runner from several threads at once: a copy runs beside batches."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.errors import RangeVoid
from penstock.runtime.spark.runner import SparkRunner


def test_jobs_of_several_threads_run_beside_each_other(spark: SparkSession, tmp_path: Path) -> None:
    """The first job ends only when the second, of another thread, has run."""
    runner, sign = SparkRunner(spark), tmp_path / "the other one has run"

    def wait_for_other(path: str) -> bool:
        until = time.monotonic() + 60
        while not Path(path).exists() and time.monotonic() < until:
            time.sleep(0.01)
        return Path(path).exists()

    def leave_sign(path: str) -> bool:
        Path(path).touch()
        return True

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(runner.run, wait_for_other, [str(sign)])
        second = threads.submit(runner.run, leave_sign, [str(sign)])
        assert second.result() == [True]
        assert first.result() == [True]


def test_every_thread_gets_its_own_results_and_errors(spark: SparkSession) -> None:
    runner = SparkRunner(spark)

    def double(number: int) -> int:
        if number < 0:
            raise RangeVoid(f"range {number}")
        return number * 2

    def job(number: int) -> list[int] | str:
        try:
            return runner.run(double, [number, number + 1, -number if number % 3 == 0 else number])
        except RangeVoid as error:
            return error.what

    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(job, range(1, 25)))
    assert found == [f"range {-n}" if n % 3 == 0 else [2 * n, 2 * n + 2, 2 * n] for n in range(1, 25)]

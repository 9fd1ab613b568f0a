"""How tasks are spread over partitions, and what is said when Java is missing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from penstock.errors import EnvironmentMissing, StaleBase
from penstock.runtime.spark.runner import BYTES_WORTH_A_PARTITION as WORTH
from penstock.runtime.spark.runner import spread
from penstock.runtime.spark.session import _last_words, executors_python, on_this_machine, require_java
from penstock.runtime.spark.worker_entry import Done, Failed, run_partition


def test_little_work_is_one_partition() -> None:
    assert spread([10, 20, 30], 8) == [[2, 1, 0]]


def test_work_is_spread_evenly() -> None:
    weights = [WORTH * n for n in (8, 1, 1, 1, 5, 2, 6)]
    partitions = spread(weights, 2)
    assert sorted(number for partition in partitions for number in partition) == list(range(7))
    assert [sum(weights[n] for n in partition) // WORTH for partition in partitions] == [12, 12]


def test_no_more_partitions_than_tasks_or_slots() -> None:
    assert len(spread([WORTH * 100], 8)) == 1
    assert len(spread([WORTH] * 20, 4)) == 4


def test_an_error_of_one_task_is_a_value() -> None:
    def work(task: int) -> int:
        if task == 2:
            raise StaleBase("what", "do")
        return task * 10

    done = run_partition(work, [(0, 1), (1, 2), (2, 3)])
    assert [type(outcome) for outcome in done] == [Done, Failed, Done]
    assert isinstance(done[1], Failed)
    assert done[1].error.solution == "do"


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_no_java(no_java: Path) -> None:
    with pytest.raises(EnvironmentMissing, match="there is no Java") as raised:
        require_java()
    assert "Install Java 17" in raised.value.solution
    assert raised.value.exit_code == 3


@pytest.mark.parametrize(("version", "fits"), [("1.8.0_392", False), ("11.0.2", False), ("17.0.1", True), ("21", True)])
def test_old_java(no_java: Path, version: str, fits: bool) -> None:
    java = no_java / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    java.chmod(0o755)
    if fits:
        require_java()
    else:
        with pytest.raises(EnvironmentMissing, match="17 is needed"):
            require_java()


def test_java_home_wins(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(no_java / "nowhere"))
    with pytest.raises(EnvironmentMissing, match=f"nowhere{os.sep}bin{os.sep}java"):
        require_java()


def test_the_interpreter_of_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"spark.master": "spark://host:7077"}
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert executors_python(cluster) == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert executors_python(cluster) == "/opt/python"
    assert executors_python(cluster | {"spark.pyspark.python": "./env/bin/python"}) == "./env/bin/python"
    assert executors_python({"spark.master": "local[2]"}) == sys.executable, "it is this machine"


def test_a_reading_session_leaves_the_cluster_to_the_run() -> None:
    assert on_this_machine({"spark.master": "spark://host:7077", "spark.x": "1"}) == {"spark.x": "1"}
    assert on_this_machine({"spark.master": "local[2]"}) == {"spark.master": "local[2]"}


def test_why_spark_did_not_start_is_the_cause_and_not_the_end_of_a_trace(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    log.write_text("java.lang.Error: of an earlier start\n")
    begins = log.stat().st_size
    with log.open("a") as more:
        more.write(
            "WARNING: Using incubator modules\n"
            'Exception in thread "main" java.net.BindException: Cannot assign requested address\n'
            "\tat sun.nio.ch.Net.bind0(Native Method)\n"
            "\tat java.base/java.lang.Thread.run(Thread.java:840)\n"
        )
    assert _last_words(log, begins) == (
        'Exception in thread "main" java.net.BindException: Cannot assign requested address'
    )
    log.write_text("Error: Could not find or load main class X\nCaused by: nothing\n")
    assert _last_words(log, 0) == "Error: Could not find or load main class X"
    assert _last_words(tmp_path / "none", 0) == ""

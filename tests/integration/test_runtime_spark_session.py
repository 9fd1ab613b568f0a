"""The Spark session that commands start, in a process of its own: jobs of plain tasks, their errors, Ctrl-C."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from penstock.runtime.spark import jars

SCRIPT = """
import json, os, signal, sys, threading
from pathlib import Path
from penstock.config.destinations import IcebergDestination
from penstock.destinations.iceberg.catalog import spark_settings
from penstock.errors import DestinationUnreachable, StaleBase
from penstock.runtime.spark.session import start_session
from penstock.runtime.spark.runner import SparkRunner


def times_ten(task):
    if task == 3:
        raise StaleBase("three", "do it again")
    return task * 10


def die(task):
    os._exit(task)


def archives(task):
    return [entry for entry in sys.path if entry.endswith(".zip") and Path(entry).exists()]


def slow(task):
    import time
    time.sleep(task)
    return "finished"


def main():
    folder = Path(sys.argv[1])
    (folder / "warehouse").mkdir()
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append("interrupted"))
    config = IcebergDestination(type="iceberg", warehouse=str(folder / "warehouse"))
    spark = start_session("test", spark_settings(config), folder / "spark.log")
    runner = SparkRunner(spark)
    told = {"results": runner.run(times_ten, [5, 1, 4]), "none": runner.run(times_ten, [])}
    try:
        runner.run(times_ten, [1, 3])
    except StaleBase as error:
        told["error"] = [error.what, error.solution]
    try:
        runner.run(die, [7])
    except DestinationUnreachable as error:
        told["died"] = error.what
    told["after"] = runner.run(times_ten, [1])
    told["archives"] = runner.run(archives, [1])
    threading.Timer(0.5, lambda: os.killpg(0, signal.SIGINT)).start()
    told["interrupted job"] = runner.run(slow, [1.5])
    told["seen"] = seen
    runtime = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
    told["java"] = list(runtime.getInputArguments())
    spark.sql("CREATE NAMESPACE public")
    spark.sql("CREATE TABLE public.t (a int) USING iceberg")
    told["catalog"] = spark.sql("SHOW TABLES IN lake.public").count()
    spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
"""


def test_a_session_runs_jobs_and_leaves_ctrl_c_to_us(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # what Java says goes to spark.log
    told = json.loads(done.stdout)
    assert told["results"] == [50, 10, 40]
    assert told["none"] == []
    assert told["error"] == ["three", "do it again"]
    assert "a Spark job failed" in told["died"]
    assert told["after"] == [10]
    assert told["archives"] == [[]]
    assert told["interrupted job"] == ["finished"]
    assert told["seen"] == ["interrupted"]
    assert told["catalog"] == 1
    assert f"-XX:SharedArchiveFile={jars.class_archive()}" in told["java"], "`make install` has built it"

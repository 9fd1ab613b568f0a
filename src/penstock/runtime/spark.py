"""Spark as penstock uses it: one session in local mode (or what the pipeline's `spark:` says), and jobs of plain tasks.

`session(pipeline)` is what commands call. Python tasks are made cheap as the design measured: a daemon of our own
(`spark_daemon`), Unix sockets between Java and workers, RDD jobs without SQL planning. Ctrl-C belongs to penstock:
neither Spark's Java process nor its workers get it, and Spark's own handler, which cancels jobs, is put aside. What
the Java process says goes to `spark.log` in the pipeline's folder. Neighbours: `jars` knows which jars,
`destinations/iceberg/catalog` the catalog's settings.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from penstock.config.model import Pipeline
from penstock.destinations.iceberg.catalog import spark_settings
from penstock.errors import DestinationUnreachable, EnvironmentMissing
from penstock.runtime import jars, local_file_io
from penstock.runtime.partition import Done, Failed, run_partition

JAVA_MINIMUM = 17
LOGGING = Path(__file__).with_name("log4j2.xml")
BYTES_WORTH_A_PARTITION = 1 << 20

Task = TypeVar("Task")
Result = TypeVar("Result")


def session(pipeline: Pipeline) -> SparkSession:
    """The session of a pipeline, with a catalog for each of its destinations; the first is the default catalog."""
    settings: dict[str, str] = {}
    file_io = local_file_io.CLASS if jars.installed() is not None else None
    for destination in reversed(pipeline.destinations):
        settings |= spark_settings(destination, local_file_io=file_io)
    # Ranges of a copy mostly wait for the source: they get slots of their own, or batches would wait behind them.
    settings["spark.master"] = f"local[{cores() + pipeline.copying.max_connections * len(pipeline.lanes)}]"
    settings["spark.default.parallelism"] = str(cores())
    # No row goes through Java: its second compiler would take more of the cores than it gives back.
    settings["spark.driver.extraJavaOptions"] = _java_options("-XX:TieredStopAtLevel=1")
    pipeline.home.mkdir(parents=True, exist_ok=True)
    return start_session(pipeline.name, settings | pipeline.spark, pipeline.home / "spark.log")


def start_session(name: str, settings: Mapping[str, str], log: Path) -> SparkSession:
    """Starts Java and Spark; `log` takes what the Java process writes. `settings` win over ours."""
    require_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).resolve().parent))
    conf = SparkConf(loadDefaults=False).setAll(
        list((_defaults(name) | _jar_settings(settings) | dict(settings)).items())
    )
    handler = signal.getsignal(signal.SIGINT)
    try:
        with log.open("ab") as output:
            start: Any = launch_gateway  # pyspark leaves it without types
            gateway = start(conf, {"stdout": output, "stderr": output})
        context = SparkContext(conf=conf, gateway=gateway)
    except (PySparkRuntimeError, Py4JError) as error:
        raise EnvironmentMissing(
            f"Spark did not start: {_last_words(log) or error}",
            f"Read {log}; see that `java -version` says 17 or later",
        ) from error
    finally:
        signal.signal(signal.SIGINT, handler)
    context.setLogLevel("ERROR")
    return SparkSession(context)


def require_java() -> None:
    """EnvironmentMissing unless the Java that Spark would start is 17 or later."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    solution = (
        f"Install Java {JAVA_MINIMUM} or later (Debian: apt install openjdk-17-jre-headless) "
        "and put it on PATH or in JAVA_HOME"
    )
    if java is None:
        raise EnvironmentMissing("there is no Java: no `java` on PATH, and JAVA_HOME is not set", solution)
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError as error:
        raise EnvironmentMissing(f"Java cannot be started: {java}: {error.strerror}", solution) from error
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    if version is None or int(version[1]) < JAVA_MINIMUM:
        found = version[1] if version else said.strip() or "no version"
        raise EnvironmentMissing(f"{java} is Java {found}, and {JAVA_MINIMUM} is needed", solution)


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _defaults(name: str) -> dict[str, str]:
    sockets = tempfile.mkdtemp(prefix="penstock-")  # short: a socket's path holds 108 bytes
    atexit.register(shutil.rmtree, sockets, ignore_errors=True)
    return {
        "spark.app.name": f"penstock {name}",
        "spark.master": "local[*]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": _java_options(),
        "spark.python.daemon.module": "penstock.runtime.spark_daemon",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": sockets,
        "spark.scheduler.mode": "FAIR",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores()),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _java_options(*more: str) -> str:
    options = [f"-Dlog4j2.configurationFile={LOGGING.as_uri()}", *more]
    archive = jars.class_archive()
    if archive.is_file():
        options += [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    return " ".join(options)


def _jar_settings(settings: Mapping[str, str]) -> dict[str, str]:
    installed = jars.installed()
    if installed is None:
        return {"spark.jars.packages": ",".join(jars.PACKAGES)}
    if settings.get("spark.master", "local").startswith("local"):  # one process: nothing is to be shipped to executors
        return {"spark.driver.extraClassPath": os.pathsep.join(map(str, installed))}
    return {"spark.jars": ",".join(map(str, installed))}


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else ""


class SparkRunner:
    """Runs tasks as one RDD job, in as few partitions as there is work for, evenly filled by the tasks' `weight`
    (bytes).

    May be called from several threads at once: each has its own thread in Java. Jobs of one function are one pool of
    Spark's scheduler, in which they take turns; pools share the cores evenly, so that a batch does not wait behind all
    ranges of a copy. A task that runs is never interrupted."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self.slots = self._context.defaultParallelism

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """Results in the order of the tasks. The first error is raised, after all are done."""
        if not tasks:
            return []
        partitions = spread([getattr(task, "weight", BYTES_WORTH_A_PARTITION) for task in tasks], self.slots)
        work = [[(number, tasks[number]) for number in partition] for partition in partitions]
        outcomes: list[Done[Result] | Failed] = []
        try:
            self._context.setLocalProperty("spark.scheduler.pool", _pool(function))  # of this thread's next job
            for part in self._context.parallelize(work, len(work)).map(partial(run_partition, function)).collect():
                outcomes += part
        except Py4JJavaError as error:
            raise DestinationUnreachable(
                f"a Spark job failed: {_reason(error)}",
                "It is tried again; if it goes on, read spark.log in the pipeline's folder",
            ) from error
        except (Py4JError, ConnectionError) as error:
            raise EnvironmentMissing(
                "Spark's Java process has ended", "Start penstock again; spark.log in the pipeline's folder may say why"
            ) from error
        results = []
        for outcome in sorted(outcomes, key=lambda outcome: outcome.number):
            if isinstance(outcome, Failed):
                raise outcome.error
            results.append(outcome.result)
        return results


def _pool(function: Callable[[Task], Result]) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def spread(weights: Sequence[int], slots: int) -> list[list[int]]:
    """Task numbers by partition: heaviest first, each to the lightest partition."""
    count = max(1, min(len(weights), slots, sum(weights) // BYTES_WORTH_A_PARTITION))
    partitions: list[list[int]] = [[] for _ in range(count)]
    filled = [0] * count
    for number in sorted(range(len(weights)), key=lambda number: -weights[number]):
        lightest = filled.index(min(filled))
        partitions[lightest].append(number)
        filled[lightest] += weights[number] + 1
    return partitions


def _reason(error: Py4JJavaError) -> str:
    lines = [line.strip() for line in str(error.java_exception.getMessage()).splitlines() if line.strip()]
    told = [line for line in lines if re.match(r"[A-Za-z_.]*(Error|Exception)\b", line)]
    return (told or lines or ["no reason given"])[-1][:300]

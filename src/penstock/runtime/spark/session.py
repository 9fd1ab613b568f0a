"""Spark as penstock uses it: one session, in local mode or on the cluster that the pipeline's `spark:` names.

`session(pipeline)` is what commands call; `runner` runs jobs of plain tasks in it. Python tasks are made cheap as
the design measured: a daemon of our own (`worker_daemon`), Unix sockets between Java and workers. Ctrl-C belongs to
penstock: neither Spark's Java process nor its workers get it, and Spark's own handler, which cancels jobs, is put
aside. What the Java process says goes to `spark.log` in the pipeline's folder.
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
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyspark
import structlog
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from penstock.config.model import Pipeline
from penstock.destinations.destination_type import DestinationSettings
from penstock.destinations.registry import spark_settings, store_packages
from penstock.errors import EnvironmentMissing
from penstock.runtime.spark import jars, java_process
from penstock.runtime.spark.lazy_session import LazySession
from penstock.runtime.spark.standalone_master import (
    is_registered,
    is_standalone,
    not_registered,
    require_master,
    telling_of_a_wait,
    why_ended,
)

_CAUSE = re.compile(r"\b(?:Error|Exception|Could not|Unrecognized|Invalid|Conflicting)\b|Error:|Exception:")
JAVA_MINIMUM = 17
LOG = structlog.get_logger("spark")
LAST_IN_CLASS_PATH = "SPARK_DIST_CLASSPATH"
LOGGING = Path(__file__).with_name("log4j2.xml")


def session(pipeline: Pipeline) -> LazySession:
    """Return the session of a pipeline, with a catalog for each destination; the first is the default catalog."""
    require_java()
    settings = spark_settings(pipeline.destinations, compiled=True)
    if is_local(pipeline.spark):
        # Ranges of a copy mostly wait for the source: they get slots of their own, or batches would wait behind them.
        settings["spark.master"] = f"local[{cores() + pipeline.copying.max_connections * len(pipeline.source_views)}]"
        settings["spark.default.parallelism"] = str(cores())
    # No row goes through Java: its second compiler would take more of the cores than it gives back.
    settings["spark.driver.extraJavaOptions"] = _java_options("-XX:TieredStopAtLevel=1")
    where = where_set(pipeline)
    require_master(pipeline.spark, where)
    pipeline.home.mkdir(parents=True, exist_ok=True)
    settings |= pipeline.spark
    return LazySession(
        start_context(pipeline.name, settings, spark_log(pipeline), where, destinations=pipeline.destinations)
    )


def spark_log(pipeline: Pipeline) -> Path:
    """Return the file that the Java process of the pipeline's run logs to."""
    return pipeline.home / "spark.log"


def where_set(pipeline: Pipeline) -> str:
    """Say where the master's address is set."""
    return f"`spark.master` in {pipeline.file}"


def start_session(
    name: str, settings: Mapping[str, str], log: Path, destinations: Sequence[DestinationSettings] = ()
) -> SparkSession:
    """Do as `start_context` does, with SQL."""
    context = start_context(name, settings, log, destinations=destinations)
    with java_process.needing(context):
        return SparkSession(context)


def start_context(
    name: str,
    settings: Mapping[str, str],
    log: Path,
    where: str = "spark.master",
    destinations: Sequence[DestinationSettings] = (),
) -> SparkContext:
    """Start Java and Spark; `log` takes what the Java process writes.

    `settings` win over ours, `where` says where their master comes from, and Java gets what reaches the object stores
    of these destinations. EnvironmentMissing unless a context is there that can run jobs.
    """
    require_java()
    jars.fetch(_say_that_jars_are_fetched, store_packages(destinations))
    stores = jars.for_stores(destinations)
    _put_last(stores)
    os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"] = executors_python(settings), sys.executable
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).resolve().parent))
    ours = (
        _defaults(name)
        | (_in_local_mode() if is_local(settings) else _on_a_cluster())
        | _jar_settings(settings, stores)
    )
    conf = SparkConf(loadDefaults=False).setAll(list((ours | dict(settings)).items()))
    master = conf.get("spark.master", "")
    handler, log_begins = signal.getsignal(signal.SIGINT), log.stat().st_size if log.exists() else 0
    on_main_thread = threading.current_thread() is threading.main_thread()  # no other may set handlers
    try:
        with log.open("ab") as output:
            start: Any = launch_gateway  # pyspark leaves it without types
            gateway = start(_on_command_line(conf), {"stdout": output, "stderr": output})
        with telling_of_a_wait(settings):
            context = SparkContext(conf=conf, gateway=gateway)
    except (PySparkRuntimeError, Py4JError, ConnectionError) as error:
        why = why_ended(log, log_begins)
        if why:
            raise not_registered(master, where, why) from error
        raise EnvironmentMissing(
            f"Spark did not start: {_last_words(log, log_begins) or error}",
            f"Read {log}; see that `java -version` says 17 or later"
            + ("" if is_local(settings) else f", and that {master} ({where}) can be reached from here"),
        ) from error
    finally:
        if on_main_thread:
            signal.signal(signal.SIGINT, handler)
    if is_standalone(settings) and not is_registered(context.applicationId):
        context.stop()
        raise not_registered(master, where, why_ended(log, log_begins))
    java_process.without_tracebacks(context)
    with java_process.needing(context):
        context.setLogLevel("ERROR")
    return context


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
    """Return those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_local(settings: Mapping[str, str]) -> bool:
    """Return whether tasks run in processes of this machine's Spark, and nowhere else."""
    return settings.get("spark.master", "local").startswith("local")


def on_this_machine(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings without the cluster."""
    return {name: value for name, value in settings.items() if name != "spark.master" or is_local(settings)}


def executors_python(settings: Mapping[str, str]) -> str:
    """Return the interpreter that runs tasks.

    On a cluster it may lie elsewhere than here: `spark.pyspark.python` says so, or PYSPARK_PYTHON in the environment.
    """
    if is_local(settings):
        return sys.executable
    return settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable


def _defaults(name: str) -> dict[str, str]:
    return {
        "spark.app.name": f"penstock {name}",
        "spark.driver.extraJavaOptions": _java_options(),
        "spark.redaction.regex": "(?i)secret|password|passwd|token|credential|access[.-]?key",
        "spark.python.daemon.module": "penstock.runtime.spark.worker_daemon",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores()),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _in_local_mode() -> dict[str, str]:
    sockets = tempfile.mkdtemp(prefix="penstock-")  # short: a socket's path holds 108 bytes
    atexit.register(shutil.rmtree, sockets, ignore_errors=True)
    return {
        "spark.master": "local[*]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.python.unix.domain.socket.dir": sockets,
    }


def _on_a_cluster() -> dict[str, str]:
    """Return a folder that every machine has, and that is short: an executor's own temporary one may be too long."""
    return {"spark.python.unix.domain.socket.dir": "/tmp"}


def _java_options(*more: str) -> str:
    options = [f"-Dlog4j2.configurationFile={LOGGING.as_uri()}", *more]
    archive = jars.class_archive()
    if archive.is_file():
        options += [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    return " ".join(options)


def _say_that_jars_are_fetched(folder: Path, count: int) -> None:
    if structlog.is_configured():
        LOG.info("fetching jars for the first start of Spark", jars=count, folder=str(folder))
    else:
        sys.stderr.write(f"penstock: fetching {count} jars for the first start of Spark into {folder}\n")


def _jar_settings(settings: Mapping[str, str], stores: Sequence[Path]) -> dict[str, str]:
    installed = jars.for_writing()
    here = {"spark.driver.extraClassPath": os.pathsep.join(map(str, installed))}
    return here if is_local(settings) else here | {"spark.jars": ",".join(map(str, [*installed, *stores]))}


def _on_command_line(conf: SparkConf) -> SparkConf:
    """Return what Java must know when it starts. Catalogs may hold credentials, which any user could see there."""
    there = [(name, value) for name, value in conf.getAll() if not name.startswith("spark.sql.catalog.")]
    return SparkConf(loadDefaults=False).setAll(there)


def _put_last(stores: Sequence[Path]) -> None:
    """Put jars last in Java's class path: the archive of classes fits those that begin as the one it was made with."""
    there = [one for one in os.environ.get(LAST_IN_CLASS_PATH, "").split(os.pathsep) if one]
    there += [str(jar) for jar in stores if str(jar) not in there]
    if there:
        os.environ[LAST_IN_CLASS_PATH] = os.pathsep.join(there)


def _last_words(log: Path, begins: int = 0) -> str:
    """Say why Java ended, from what it wrote from `begins` on: the first line that names an error, else the last line.

    The lines of a stack trace say nothing to an operator.
    """
    said = log.read_bytes()[begins:].decode(errors="replace") if log.exists() else ""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("at ", "... "))]
    return next((line for line in told if _CAUSE.search(line)), told[-1] if told else "")

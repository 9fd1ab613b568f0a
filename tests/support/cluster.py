"""A Spark standalone cluster of this machine: a master and workers as processes of their own, from the Spark that is
installed. Each worker has one core, so two tasks at once run on two executors.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyspark

from databases import Database
from running import await_condition

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
DEPLOY = "org.apache.spark.deploy"
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
START_SECONDS = 60.0
NEEDS_OF_A_DAEMON = {"SPARK_DAEMON_MEMORY": "128m", "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1"}
NOT_FOR_EXECUTORS = ("PGPASSWORD", "PENSTOCK_FAILPOINT_FILE", "SPARK_HOME")
COPIES = (
    "select client_port from pg_stat_activity "
    "where application_name = 'penstock copy' and datname = current_database() and client_port > 0"
)


@dataclass
class Cluster:
    """`settings` are what a pipeline's `spark:` says to run on it."""

    folder: Path
    master: psutil.Popen = field(init=False)
    url: str = field(init=False)
    workers: list[psutil.Popen] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, Any]:
        return {"master": self.url, "driver.host": "127.0.0.1", "executor.memory": "512m"}

    def start(self, workers: int) -> None:
        self.master = self._daemon("master.Master", "--port", "0")
        self.url = self._said("master", r"Starting Spark master at (spark://\S+)")
        self.add_workers(workers)

    def add_workers(self, count: int = 1) -> None:
        numbers = range(len(self.workers), len(self.workers) + count)
        for number in numbers:
            work = self.folder / f"work-{number}"
            options = ("--cores", "1", "--memory", "600m", "--work-dir", str(work), self.url)
            self.workers.append(self._daemon("worker.Worker", *options, log=f"worker-{number}"))
        for number in numbers:
            self._said(f"worker-{number}", r"Successfully registered with master (\S+)")

    def living_workers(self) -> list[psutil.Popen]:
        return [worker for worker in self.workers if worker.is_running() and worker.poll() is None]

    def executors(self) -> list[psutil.Process]:
        """Living ones of all workers."""
        found = []
        for worker in self.workers:
            with suppress(psutil.NoSuchProcess):
                found += [child for child in worker.children() if _is_executor(child)]
        return found

    def copying(self, database: Database) -> list[psutil.Process]:
        """The executors that read the database for a copy at this moment: Postgres tells the ports of those who are
        connected, and the system which processes they are."""
        with database.connect() as connection:
            ports = {port for (port,) in connection.execute(COPIES).fetchall()}
        found = []
        for executor in self.executors():
            with suppress(psutil.NoSuchProcess):
                family = [executor, *executor.children(recursive=True)]
                if any(one.laddr.port in ports for member in family for one in member.net_connections("tcp")):
                    found.append(executor)
        return found

    def end_applications(self) -> None:
        """As a person does: each one's form on the master's page, sent with all that is in it."""
        page = self._said("master", r"started at (http://\S+)")
        with urllib.request.urlopen(page) as answer:
            forms = re.findall(r'<form action="app/kill/".*?</form>', answer.read().decode(), re.DOTALL)
        assert forms, "the cluster runs no application"
        for form in forms:
            filled = urllib.parse.urlencode(re.findall(r'name="(\w+)" value="([^"]*)"', form))
            urllib.request.urlopen(f"{page}/app/kill/", filled.encode()).close()

    def clean_up(self) -> None:
        daemons = [*self.workers, self.master]
        family = [child for daemon in daemons if daemon.is_running() for child in daemon.children(recursive=True)]
        for process in [*daemons, *family]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for daemon in daemons:
            daemon.wait(START_SECONDS)

    def _daemon(self, name: str, *arguments: str, log: str = "master") -> psutil.Popen:
        environment = {name: value for name, value in os.environ.items() if name not in NOT_FOR_EXECUTORS}
        command = [str(SPARK_CLASS), f"{DEPLOY}.{name}", "--host", "127.0.0.1", "--webui-port", "0", *arguments]
        with (self.folder / f"{log}.log").open("wb") as output:
            return psutil.Popen(
                command,
                env=environment | NEEDS_OF_A_DAEMON | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _said(self, log: str, pattern: str) -> str:
        def found() -> re.Match[str] | None:
            return re.search(pattern, (self.folder / f"{log}.log").read_text(errors="replace"))

        await_condition(lambda: found() is not None, f"`{pattern}` from the {log}", START_SECONDS)
        match = found()
        assert match is not None
        return match[1]


@contextmanager
def standalone_cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """Nothing of it outlives the block."""
    folder.mkdir()
    cluster = Cluster(folder)
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.clean_up()


def _is_executor(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE and EXECUTOR in process.cmdline()
    return False

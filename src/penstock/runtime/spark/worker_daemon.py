"""The daemon that forks Spark's Python workers, without what makes every task slow.

Each executor runs `python -m penstock.runtime.spark.worker_daemon pyspark.worker` (`spark.python.daemon.module`).
Before every task a worker calls `importlib.invalidate_caches()`, which reads the directory of each archive on
`sys.path` again: some 100 ms. Where pyspark is installed as a folder too, archives leave the path before pyspark is
imported; workers inherit that. What tasks need is imported here, once, and not in every worker.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import runpy
import sys

EXECUTOR_PID = "PENSTOCK_EXECUTOR_PID"  # in the workers' environment: the Java process that they belong to
FOR_ALL_WORKERS = ("penstock.runtime.apply.task", "penstock.runtime.spark.worker_entry")


def drop_archives() -> None:
    """Unless they hold what is nowhere else: an executor's Python may have no pyspark but its Spark's own archive."""

    def is_archive(entry: str) -> bool:
        return entry.endswith((".zip", ".egg", ".jar"))

    before = list(sys.path)
    sys.path[:] = [entry for entry in sys.path if not is_archive(entry)]
    if any(importlib.util.find_spec(name) is None for name in ("pyspark", "py4j")):
        sys.path[:] = before
        return
    for entry in [entry for entry in sys.path_importer_cache if is_archive(entry)]:
        del sys.path_importer_cache[entry]


if __name__ == "__main__":
    drop_archives()
    os.environ[EXECUTOR_PID] = str(os.getppid())
    for module in FOR_ALL_WORKERS:
        importlib.import_module(module)
    for module in importlib.import_module("penstock.destinations.registry").worker_modules():
        importlib.import_module(module)
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)

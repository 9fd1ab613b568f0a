"""The daemon that forks Spark's Python workers, without what makes every task slow.

Spark runs `python -m penstock.runtime.spark_daemon pyspark.worker` (`spark.python.daemon.module`). Before every task
a worker calls `importlib.invalidate_caches()`, which reads the directory of each archive on `sys.path` again: some
100 ms. pyspark is installed as a folder too, so archives leave the path before pyspark is imported; workers inherit
that. What tasks need is imported here, once, and not in every worker.
"""

from __future__ import annotations

import importlib
import runpy
import sys

FOR_ALL_WORKERS = ("penstock.runtime.apply_task", "penstock.runtime.partition", "penstock.destinations.iceberg.plan")


def drop_archives() -> None:
    def is_archive(entry: str) -> bool:
        return entry.endswith((".zip", ".egg", ".jar"))

    sys.path[:] = [entry for entry in sys.path if not is_archive(entry)]
    for entry in [entry for entry in sys.path_importer_cache if is_archive(entry)]:
        del sys.path_importer_cache[entry]


if __name__ == "__main__":
    drop_archives()
    for module in FOR_ALL_WORKERS:
        importlib.import_module(module)
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)

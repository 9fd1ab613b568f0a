"""Check what the pipeline needs of this machine: Java, a cluster's master, and folders that can be written to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from penstock.config.destinations import StreamSection
from penstock.config.model import Pipeline
from penstock.control.check.foresight import (
    check_renamed,
    check_streams,
)
from penstock.control.check.iceberg_catalog import check_catalogs
from penstock.control.check.reachable import check_postgres
from penstock.errors import (
    ConfigError,
    EnvironmentMissing,
)
from penstock.runtime.spark.session import require_java, where_set
from penstock.runtime.spark.standalone_master import require_master
from penstock.source.finding import Finding


def check_destination(pipeline: Pipeline) -> Iterator[Finding]:
    """Java, a cluster's master, and the folders that the pipeline writes to.

    A remote warehouse is first touched by `run`.
    """
    for require in (require_java, lambda: require_master(pipeline.spark, where_set(pipeline), wait=0)):
        try:
            require()
        except (EnvironmentMissing, ConfigError) as error:
            yield Finding("error", error.what, error.solution)
    yield from check_catalogs(pipeline)
    yield from check_streams(pipeline)
    for destination_view in pipeline.destination_views:
        yield from check_renamed(destination_view)
    for destination in pipeline.destinations:
        if isinstance(destination, StreamSection):
            if destination.folder is not None:
                yield from _folder(f"the stream {destination.name}", destination.folder)
        elif destination.type == "postgres":
            yield from check_postgres(destination)
        elif destination.folder is not None:
            yield from _folder("warehouse", destination.folder)
        else:
            what = "the warehouse is not on this machine, so `penstock run` is the first to look at it"
            yield Finding("note", what, "")
    yield from _folder("the pipeline's own folder", pipeline.home)


def _folder(name: str, folder: Path) -> Iterator[Finding]:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        yield Finding("error", f"{name} {folder}: {there} is not a folder", f"Remove {there}, or name another folder")
    elif not os.access(there, os.W_OK | os.X_OK):
        yield Finding("error", f"{name} {folder}: {there} may not be written to", f"chown or chmod {there}")
    else:
        try:
            with tempfile.TemporaryFile(dir=there):  # a read-only or full file system shows only when it is written to
                pass
        except OSError as error:
            what = f"{name} {folder}: nothing can be written to {there}: {error.strerror or error}"
            yield Finding("error", what, "Make room there, or name another folder")

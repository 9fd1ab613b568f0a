"""Report the end of Spark's Java process in one line: whoever calls Java next meets it in a way of its own.

A call may fail with an error of py4j, of a socket, or of a stream that stops in the middle; and stopping a session
whose Java is gone fails as well. So it is asked whether the process still runs.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.errors import DestinationError, EnvironmentMissing, PenstockError
from penstock.java_error import java_has_ended
from penstock.runtime.apply.table_boundary import JAVA_ENDED, START_AGAIN

LOG = structlog.get_logger("spark")
PY4J_FAILED = "Exception while sending command."
ENDING_SECONDS = 0.5  # a process that has been killed is not gone at once


def ended() -> EnvironmentMissing:
    return EnvironmentMissing(JAVA_ENDED, START_AGAIN)


def process_of(context: SparkContext) -> subprocess.Popen[bytes] | None:
    """Return the Java process that we started for Spark."""
    process: subprocess.Popen[bytes] | None = getattr(context._gateway, "proc", None)
    return process


@contextmanager
def needing(context: SparkContext) -> Iterator[None]:
    """Turn what fails in the block because Java has ended into EnvironmentMissing."""
    process = process_of(context)
    try:
        yield
    except Exception as error:
        if isinstance(error, PenstockError) and not isinstance(error, DestinationError):
            raise
        if java_has_ended(error) or _has_ended(process):
            raise ended() from error
        raise


def without_tracebacks(context: SparkContext) -> None:
    """Keep pyspark and py4j from printing tracebacks when Java ends: the error is raised and shown anyway.

    One is of the server that takes accumulators from Java, the other of py4j, which says it to the root
    logger."""
    server: Any = context._accumulatorServer
    server.handle_error = lambda request, address: LOG.debug("accumulator server failed", exc_info=True)
    root = logging.getLogger()
    if _is_not_py4j not in root.filters:
        root.addFilter(_is_not_py4j)


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return record.msg != PY4J_FAILED


def stop(session: SparkSession | SparkContext) -> None:
    """Stop a session, or what is left of one whose Java has ended."""
    try:
        session.stop()
    except (Py4JError, ConnectionError) as error:
        if not java_has_ended(error):
            raise
        LOG.debug("session not stopped", what=JAVA_ENDED)


def _has_ended(process: subprocess.Popen[bytes] | None) -> bool:
    if process is None:
        return False
    try:
        process.wait(ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True

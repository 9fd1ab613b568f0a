"""Spark SQL over a pipeline's destination, for reading only. Results are Arrow tables, which `result_view.py` shows.

A statement is refused before it runs unless it only reads. Spark's own parser says what it is: anything in it that is
a command, a statement or a call may change tables, except SHOW, DESCRIBE and EXPLAIN.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from py4j.java_gateway import JavaObject, is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import SparkSession

from penstock.config.model import Pipeline
from penstock.destinations.factory import make_readable
from penstock.destinations.registry import spark_settings
from penstock.errors import DestinationUnreachable, PenstockError, UsageError
from penstock.java_error import java_reason
from penstock.runtime.spark import jars, java_process
from penstock.runtime.spark.session import on_this_machine, require_java, start_session

LOGICAL = "org.apache.spark.sql.catalyst.plans.logical"
WRITING = (f"{LOGICAL}.Command", f"{LOGICAL}.ParsedStatement", f"{LOGICAL}.Call")
SPARK_ERROR_LOG = "SQLQueryContextLogger"  # repeats every error of a query on stderr, with Java's whole stack
FIRST_WORD = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*([A-Za-z]+)\b", re.DOTALL)
WRITING_WORDS = frozenset(
    {"ADD", "ALTER", "ANALYZE", "CACHE", "CALL", "CLEAR", "CREATE", "DELETE", "DROP", "EXECUTE", "INSERT", "LOAD"}
    | {"MERGE", "MSCK", "REFRESH", "REPAIR", "REPLACE", "RESET", "SET", "TRUNCATE", "UNCACHE", "UPDATE", "USE"}
)
CALLS_JAVA = re.compile(r"\b(java_method|reflect|try_reflect)\b", re.IGNORECASE)
# A statement reads the destination's tables: not files of this machine, nor settings and variables with secrets in them
CONFINED = {"spark.sql.runSQLOnFiles": "false", "spark.sql.variable.substitute": "false"}
READING_COMMANDS = ("Show", "Describe", "Explain")


def refuse_writing(statement: str) -> None:
    """UsageError for a statement whose first word says that it changes something: that takes no Spark to know.

    What is not refused here is parsed by Spark, which refuses the rest.
    """
    word = FIRST_WORD.match(statement)
    if word is not None and word[1].upper() in WRITING_WORDS:
        raise _only_reads()
    if (called := CALLS_JAVA.search(statement)) is not None:
        raise UsageError(f"{called[1]} calls Java, and `penstock query` only reads tables", "Ask without it")


def _only_reads() -> UsageError:
    return UsageError(
        "this statement may change something, and `penstock query` only reads",
        "Ask with SELECT, WITH, VALUES, SHOW, DESCRIBE or EXPLAIN",
    )


@contextmanager
def reading_session(pipeline: Pipeline, *, consistent: bool = False) -> Iterator[SparkSession]:
    """Give a session of its own on this machine, which may work beside `penstock run`.

    With `consistent` all tables are as they were at one instant.

    On a cluster it might wait for cores that the run holds. Its log does not go where the run's does.
    """
    require_java()
    destination = pipeline.lake
    tables = make_readable(destination)
    tables.require_there()
    with tempfile.TemporaryDirectory(prefix="penstock-query-") as folder:
        settings = spark_settings([destination], compiled=False, reading=True) | on_this_machine(pipeline.spark)
        more = ",".join(map(str, jars.for_reading([destination])))
        instant = tables.instant(Path(folder)) if consistent else None
        settings |= instant.settings if instant is not None else {}
        settings |= CONFINED | ({"spark.jars": more} if more else {})
        spark = start_session(f"query {pipeline.name}", settings, Path(folder) / "spark.log", [destination])
        try:
            with java_process.needing(spark.sparkContext):
                if instant is not None:
                    instant.choose()
                yield spark
        finally:
            java_process.stop(spark)


def run_query(spark: SparkSession, statement: str, limit: int | None = None) -> pa.Table:
    """Return the whole answer, or its first rows. UsageError when the statement is wrong or would change something."""
    logging.getLogger(SPARK_ERROR_LOG).disabled = True
    try:
        _require_reading(spark, statement)
        answer = spark.sql(statement)
        _require_distinct_names(answer.columns)
        return (answer if limit is None else answer.limit(limit)).toArrow()
    except (AnalysisException, ParseException) as error:
        raise UsageError(f"the query is wrong: {_first_lines(error)}", "Tables are named schema.table") from error
    except PySparkException as error:
        raise PenstockError(f"the query failed: {_first_lines(error)}", "See what the message says") from error
    except Py4JJavaError as error:
        raise DestinationUnreachable(
            f"the query failed: {java_reason(error.java_exception)}",
            "See that the destination's catalog and storage can be reached, and that its files are whole",
        ) from error


def _require_reading(spark: SparkSession, statement: str) -> None:
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(statement)
    if _may_write(spark, plan):
        raise _only_reads()


def _may_write(spark: SparkSession, plan: JavaObject) -> bool:
    kind = plan.getClass().getSimpleName()
    writes = any(is_instance_of(spark.sparkContext._gateway, plan, name) for name in WRITING)
    if writes and not kind.startswith(READING_COMMANDS):
        return True
    inner = plan.children()
    return any(_may_write(spark, inner.apply(number)) for number in range(inner.size()))


def _require_distinct_names(columns: list[str]) -> None:
    twice = [name for name, times in Counter(columns).items() if times > 1]
    if twice:
        raise UsageError(f"two columns of the answer are named {twice[0]}", f"Rename one: … AS other_{twice[0]}")


def _first_lines(error: PySparkException) -> str:
    """Return Spark's message up to where it quotes the statement or draws plans."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    said = []
    for line in lines:
        if not line or line.startswith(("==", "'", "+-", "JVM stacktrace", "at ")):
            break
        said.append(line)
    return " ".join(said).rstrip(".") or lines[0]

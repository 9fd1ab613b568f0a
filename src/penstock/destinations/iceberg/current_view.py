"""`{target}__current`: a view of a history's open versions, without the columns of their period.

An Iceberg view, in the table's own catalog, so that every reader of it has the view too. It is made when the table is
opened and again when its columns change; once the table has RESCUED, so has the view. A catalog that
knows no views does without. Neighbour: `destination`.
"""

from __future__ import annotations

import structlog
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from penstock.destinations.spark_session import Session
from penstock.fold.layout import Layout
from penstock.java_error import java_reason
from penstock.model.table import TableId

LOG = structlog.get_logger("iceberg")
SUFFIX = "__current"


def make_current_view(spark: Session, catalog: str, target: TableId, columns: list[str], layout: Layout) -> None:
    """Nothing for a table without a period."""
    if layout.period is None:
        return
    table, view = (".".join(map(_quoted, (catalog, target.schema, target.name + end))) for end in ("", SUFFIX))
    chosen = ", ".join(map(_quoted, columns))
    ends = f"{_quoted(layout.period.valid_to)} = TIMESTAMP '9999-01-01 00:00:00Z'"
    try:
        spark.sql(f"CREATE OR REPLACE VIEW {view} AS SELECT {chosen} FROM {table} WHERE {ends}")
    except (PySparkException, Py4JJavaError) as error:
        reason = java_reason(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
        LOG.warning("view not made", view=f"{target}{SUFFIX}", why=reason.splitlines()[0])


def drop_current_view(spark: Session, catalog: str, target: TableId) -> None:
    """Nothing where there is none, or where the catalog knows no views."""
    try:
        spark.sql(f"DROP VIEW IF EXISTS {'.'.join(map(_quoted, (catalog, target.schema, target.name + SUFFIX)))}")
    except (PySparkException, Py4JJavaError) as error:
        reason = java_reason(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
        LOG.warning("view not dropped", view=f"{target}{SUFFIX}", why=reason.splitlines()[0])


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"

"""Whose fault an error of the server is: a table's own, with the row's key where the server names it, or nobody's."""

from __future__ import annotations

import re

import psycopg
import pyarrow as pa
from psycopg import errors as pg

from penstock.destinations.contract import TableCommit
from penstock.destinations.postgres.connection import refusal
from penstock.destinations.postgres.parts import ours
from penstock.destinations.postgres.plan import PostgresPlan
from penstock.errors import TableError, TableLocked

_KEY = re.compile(r"Key \((.+?)\)=\((.*?)\) ")
_LINE = re.compile(r"COPY \S+, line (\d+)")


def table_error(plan: PostgresPlan, commit: TableCommit, error: psycopg.Error) -> TableError | None:
    """Return what is this table's own; a lock that somebody holds on it is waited for while the others go on."""
    if isinstance(error, pg.LockNotAvailable | pg.DeadlockDetected):
        return TableLocked(
            f"table {plan.target}: another session locks it at the destination",
            "Nothing: it is tried again by itself. Who holds it: SELECT pid, query FROM pg_stat_activity WHERE pid IN "
            f"(SELECT pid FROM pg_locks WHERE granted AND relation = '{plan.target}'::regclass)",
        )
    return refusal(plan.target, error, _row_key(plan, commit, error))


def _row_key(plan: PostgresPlan, commit: TableCommit, error: psycopg.Error) -> str:
    """Return the key of the row that the server names, as far as it does."""
    shape = plan.shape
    tables = [part.upserts for part in ours(commit.parts) if part.upserts is not None]
    if not shape.key or not tables:
        return ""
    rows = pa.concat_tables(tables, promote_options="default")
    line, named = _LINE.search(error.diag.context or ""), _KEY.search((error.diag.message_detail or "") + " ")
    failing = re.match(r"Failing row contains \((.*)\)", error.diag.message_detail or "")
    row: int | None = None
    if line is not None and int(line[1]) <= rows.num_rows:
        row = int(line[1]) - 1
    elif named is not None and all(name in rows.column_names for name in named[1].split(", ")):
        wanted = named[2].split(", ")
        columns = [[str(cell) for cell in rows[name].to_pylist()] for name in named[1].split(", ")]
        row = next((n for n, cells in enumerate(zip(*columns, strict=True)) if list(cells) == wanted), None)
    elif failing is not None:
        cells = failing[1].split(", ")
        texts = [str(cell) for cell in rows[shape.key[0]].to_pylist()]
        row = next((n for n, text in enumerate(texts) if text in cells[: len(shape.columns)]), None)
    if row is None:
        return ""
    return ", ".join(f"{name} = {rows[name][row].as_py()}" for name in shape.key)

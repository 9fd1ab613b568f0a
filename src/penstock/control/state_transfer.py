"""Export, import and reset a pipeline's state store, while no run is up.

What an import puts back may be older than the tables. That is safe for what the store says of whole copies, because
each is compared with the source's catalogue at the next start, and what differs is copied again. It is not safe for
copies under way, whose files may be part of the table by now, or gone: those begin again. Health, cuts of `verify` and
copies under way are therefore left out of an export.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.config.model import Pipeline
from penstock.errors import StateError, UsageError
from penstock.model.table_state import State
from penstock.state.lock import PipelineLock
from penstock.state.opening import find_store, open_store
from penstock.state.sql import SqlStateStore
from penstock.state.sql_tables import COPIES, COPY_NOTES, COPY_RANGES, FORMAT, HEALTH, PINS, TABLE_STATUS
from penstock.state.sql_transfer import Rows, put_in, require_known, taken_out

KIND = "penstock state"
LEFT_OUT = {table.name for table in (COPY_RANGES, COPY_NOTES, HEALTH, PINS)}
SETTLED = (State.READY, State.ERRORED, State.INIT)


def export(pipeline: Pipeline) -> dict[str, Any]:
    """Return the state as a JSON object. LockedError while a run is up, UsageError when there is none yet."""
    with PipelineLock(pipeline.home / "lock"):
        store = _sql(find_store(pipeline.state_url))
        if store is None:
            raise UsageError(f"pipeline {pipeline.name} has no state yet", "`penstock run` makes it")
        try:
            rows = {name: rows for name, rows in taken_out(store).items() if name not in LEFT_OUT}
        finally:
            store.close()
    now = datetime.now(UTC).isoformat()
    return {"kind": KIND, "format": FORMAT, "pipeline": pipeline.name, "at": now, "tables": _settled(rows)}


def import_(pipeline: Pipeline, text: str, *, replace: bool) -> int:
    """Make the state what was exported, and return the number of rows.

    UsageError when it is no export of this pipeline, or when there is a state already and `replace` is not set.
    """
    try:
        given = json.loads(text)
    except ValueError as error:
        raise UsageError("this is no JSON", "Give what `penstock state export` has written") from error
    if not isinstance(given, dict) or given.get("kind") != KIND:
        raise UsageError("this is no exported state", "Give what `penstock state export` has written")
    require_known(given.get("format"), given.get("tables"))
    if given.get("pipeline") != pipeline.name:
        raise UsageError(
            f"this is the state of pipeline {given.get('pipeline')}, not of {pipeline.name}",
            "Import it with that pipeline's file",
        )
    kept = {name: rows for name, rows in given["tables"].items() if name not in LEFT_OUT}
    with PipelineLock(pipeline.home / "lock"):
        store = _sql(open_store(pipeline.state_url))
        assert store is not None
        try:
            if not replace and any(taken_out(store).values()):
                raise UsageError(
                    f"pipeline {pipeline.name} has a state already",
                    f"To replace it: penstock state import {pipeline.file} … --yes",
                )
            return put_in(store, _settled(kept))
        finally:
            store.close()


def reset(pipeline: Pipeline) -> int:
    """Remove everything that the store holds; return the number of tables that are to be copied again."""
    with PipelineLock(pipeline.home / "lock"):
        store = _sql(find_store(pipeline.state_url))
        if store is None:
            return 0
        try:
            tables = len(taken_out(store)[TABLE_STATUS.name])
            put_in(store, {})
            return tables
        finally:
            store.close()


def tables_of(pipeline: Pipeline) -> int:
    """Return of how many tables the store has a state."""
    store = _sql(find_store(pipeline.state_url))
    if store is None:
        return 0
    try:
        return len(taken_out(store)[TABLE_STATUS.name])
    finally:
        store.close()


def write_private(path: Path, text: str) -> None:
    """Write a file that nobody else may read: dead letters and quarantined messages have rows of tables."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(descriptor, 0o600)
            file.write(text)
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror}", "Give another path with --output") from error


def _settled(rows: Rows) -> Rows:
    """Have tables whose copy is under way begin it again."""
    statuses = [
        row
        if row["state"] in SETTLED
        else {**row, "state": State.INIT.value, "reason": "", "solution": "", "retry": "", "code": ""}
        for row in rows.get(TABLE_STATUS.name, [])
    ]
    copies = [row for row in rows.get(COPIES.name, []) if row["ended"] is not None]
    return {**rows, TABLE_STATUS.name: statuses, COPIES.name: copies}


def _sql(store: object) -> SqlStateStore | None:
    if store is None or isinstance(store, SqlStateStore):
        return store
    raise UsageError(
        "the state is kept by a class of yours (`state: {type: python}`)", "Export and import it by that store's means"
    )

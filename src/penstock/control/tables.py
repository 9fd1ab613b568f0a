"""What an operator asks about tables, and asks of them: where each stands, to be copied anew, to be tried again.

Everything goes through the state store, so it works while a run is under way and while none is: `look` reads it, and
`ask` leaves requests in it, which the run takes up between two batches, or the next run at its start. Shown by
`tables_view.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.config.model import Pipeline
from penstock.errors import UsageError
from penstock.model.feed import Feed
from penstock.model.table import TableId
from penstock.model.table_state import State, TableStatus
from penstock.state.lock import holder
from penstock.state.sql import SqlStateStore, find_store
from penstock.state.store import CopyProgress, Request, RequestKind


@dataclass(frozen=True)
class TableSummary:
    """One table at one destination. `copy` is None when it was never copied; `requests` were not taken up yet."""

    destination: str
    table: TableId
    target: TableId
    state: State
    since: datetime | None
    copy: CopyProgress | None
    error: str
    solution: str
    retry: str
    requests: tuple[Request, ...]


@dataclass(frozen=True)
class Tables:
    """All tables of a pipeline. `has_run` is False before its first run, and then there are none."""

    pipeline: str
    file: str
    at: datetime
    pid: int | None  # of the run under way
    has_run: bool
    tables: list[TableSummary]


@dataclass(frozen=True)
class Asked:
    """What became of a request: tables newly asked for, asked for before, and those with nothing to do (retry only)."""

    pid: int | None  # of the run that takes it up; None: the next one does
    new: list[TableId]
    before: list[TableId]
    in_order: list[TableId]


def look(pipeline: Pipeline) -> Tables:
    store = find_store(pipeline.state_url)
    try:
        return Tables(
            pipeline=pipeline.name,
            file=str(pipeline.file),
            at=datetime.now(UTC),
            pid=holder(pipeline.home / "lock"),
            has_run=store is not None,
            tables=[] if store is None else _summaries(pipeline, store),
        )
    finally:
        if store is not None:
            store.close()


def ask(pipeline: Pipeline, kind: RequestKind, names: Sequence[str]) -> Asked:
    """Leaves a request for each table named `schema.table`; for none of them when one is not known."""
    store = _store_of(pipeline, kind)
    try:
        summaries = _summaries(pipeline, store)
        wanted = _named(pipeline, {summary.table for summary in summaries}, names)
        errored = {summary.table for summary in summaries if summary.state is State.ERRORED}
        in_order = [table for table in wanted if kind == "retry" and table not in errored]
        waiting = {request.table for request in store.requests() if request.kind == kind}
        before = [table for table in wanted if table in waiting and table not in in_order]
        new = [table for table in wanted if table not in (*in_order, *before)]
        for table in new:
            store.add_request(kind, table)
        return Asked(holder(pipeline.home / "lock"), new, before, in_order)
    finally:
        store.close()


def feed_named(pipeline: Pipeline, name: str, purpose: str) -> Feed:
    """The feed of that name, which the pipeline follows. `purpose`, a verb, is what is wanted of it."""
    store = _store_of(pipeline, purpose)
    try:
        (table,) = _named(pipeline, {summary.table for summary in _summaries(pipeline, store)}, [name])
    finally:
        store.close()
    feed = pipeline.feed(table)
    assert feed is not None
    return feed


def followed(pipeline: Pipeline, store: SqlStateStore, names: Sequence[str]) -> dict[TableId, Feed]:
    """The feeds of these names, by the names that people know them by, or all that the pipeline follows when there are
    none. With a list of sources `eu:` stands for all tables of that source."""
    known = sorted({summary.table for summary in _summaries(pipeline, store)})
    wanted = [] if names else known
    for name in names:
        if is_whole_source(pipeline, name):
            source = pipeline.lane(name.removesuffix(":")).source.name
            wanted += [table for table in known if table.schema.startswith(f"{source}:")]
        else:
            wanted += _named(pipeline, known, [name])
    return {table: feed for table in wanted for feed in [pipeline.feed(table)] if feed is not None}


def is_whole_source(pipeline: Pipeline, name: str) -> bool:
    """Whether the name, as a person gave it, stands for all tables of a source."""
    return pipeline.is_scoped and name.endswith(":") and "." not in name


def _store_of(pipeline: Pipeline, purpose: str) -> SqlStateStore:
    store = find_store(pipeline.state_url)
    if store is None:
        raise UsageError(
            f"pipeline {pipeline.name} has not run yet, so there is no table to {purpose}",
            f"`penstock run {pipeline.file}` copies every table",
        )
    return store


def _summaries(pipeline: Pipeline, store: SqlStateStore) -> list[TableSummary]:
    requests = store.requests()
    return [
        _summary(pipeline, destination.name, table, statuses.get(table), copies.get(table), requests)
        for destination in pipeline.destinations
        for statuses in [store.table_status(destination.name)]
        for copies in [store.copy_progress(destination.name)]
        for table in sorted({*statuses, *copies})
    ]


def _summary(
    pipeline: Pipeline,
    destination: str,
    table: TableId,
    status: TableStatus | None,
    copy: CopyProgress | None,
    requests: Sequence[Request],
) -> TableSummary:
    feed = pipeline.feed(table)
    return TableSummary(
        destination=destination,
        table=table,
        target=feed.target if feed else table,
        state=status.state if status else State.INIT,
        since=status.since if status else None,
        copy=copy,
        error=status.reason if status else "",
        solution=status.solution if status else "",
        retry=status.retry if status else "",
        requests=tuple(request for request in requests if request.table == table),
    )


def _named(pipeline: Pipeline, known: Collection[TableId], names: Sequence[str]) -> list[TableId]:
    """The tables of these names, each once. Only names that are known are compared: a name may have dots in it."""
    by_name = {str(table): table for table in sorted(known)}
    list_them = f"`penstock tables {pipeline.file}` lists them all"
    wanted = []
    for name in dict.fromkeys(names):
        table = by_name.get(name)
        if table is None:
            near = _nearest(name, by_name)
            hint = f"Did you mean {near}? " if near else ""
            raise UsageError(f"pipeline {pipeline.name} has no table {name}", hint + list_them)
        if pipeline.feed(table) is None:
            raise UsageError(
                f"table {name} is not among the tables of {pipeline.file} any more",
                "Let an entry of `tables:` match it, and start the pipeline again",
            )
        wanted.append(table)
    return wanted


def _nearest(name: str, known: dict[str, TableId]) -> str | None:
    bare = [full for full, table in known.items() if table.name.casefold() == name.casefold()]
    return next(iter(bare or difflib.get_close_matches(name, known, n=1, cutoff=0.5)), None)

"""What an operator asks about tables, and asks of them: where each stands, to be copied, tried or made again.

Everything goes through the state store, so it works while a run is under way and while none is: `look` reads it, `ask`
leaves requests in it, which the run takes up between two batches, or the next run at its start, and `forget` removes
what it keeps of a table that is no longer followed. Shown by `view.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from penstock.config.model import Pipeline
from penstock.config.patterns import BadPattern, matches, names_one_table
from penstock.control.fetching_advice import fetching_advice
from penstock.errors import UsageError
from penstock.model.feed import Feed
from penstock.model.scoped_name import ScopedName
from penstock.model.table import TableId
from penstock.model.table_state import GONE, NOT_FOLLOWED, State, TableProgress, TableStatus
from penstock.state.lock import holder
from penstock.state.opening import find_store
from penstock.state.store import CopyProgress, Request, RequestKind, StateStore

SHOWN_STATES = {name.casefold(): name for name in (*(state.value for state in State), NOT_FOLLOWED)}


@dataclass(frozen=True)
class TableSummary:
    """One table at one destination. `copy` is None when it was never copied; `requests` were not taken up yet."""

    destination: str
    table: ScopedName
    target: TableId
    state: State
    since: datetime | None
    copy: CopyProgress | None
    error: str
    solution: str
    retry: str
    code: str
    requests: tuple[Request, ...]
    fetched: int = 0  # values that the source left out of updates, read back from the destination
    advice: str = ""  # how to have them sent, where they are many
    followed: bool = True  # False: no rule of the file matches it any more

    @property
    def shown_state(self) -> str:
        return self.state.value if self.followed else NOT_FOLLOWED


@dataclass(frozen=True)
class Tables:
    """All tables of a pipeline. `has_run` is False before its first run, and then there are none."""

    pipeline: str
    file: str
    at: datetime
    pid: int | None  # of the run under way
    has_run: bool
    tables: list[TableSummary]
    left_out: int = 0  # by a filter


@dataclass(frozen=True)
class Asked:
    """What became of a request: tables newly asked for, asked for before, and those with nothing to do (retry only)."""

    pid: int | None  # of the run that takes it up; None: the next one does
    new: list[ScopedName]
    before: list[ScopedName]
    in_order: list[ScopedName]


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


def filtered(found: Tables, names: Sequence[str] = (), states: Sequence[str] = ()) -> Tables:
    """Return only the tables of these names or patterns, and in one of these states, whatever the case of letters.

    UsageError for a name or a pattern that stands for none of them, and for a state that there is not.
    """
    unknown = next((one for one in states if one.casefold() not in SHOWN_STATES), None)
    if unknown is not None:
        raise UsageError(f"there is no state {unknown}", f"It may be {', '.join(SHOWN_STATES.values())}")
    kept = found.tables
    if names:
        known = {one.table for one in kept}
        wanted = {table for name in names for table in _shown_as(found, known, name)}
        kept = [one for one in kept if one.table in wanted]
    if states:
        asked = {SHOWN_STATES[one.casefold()] for one in states}
        kept = [one for one in kept if one.shown_state in asked]
    return replace(found, tables=kept, left_out=len(found.tables) - len(kept))


def ask(pipeline: Pipeline, kind: RequestKind, names: Sequence[str], *, everything: bool = False) -> Asked:
    """Leave a request for each table that a name or a pattern stands for, or for all that are followed.

    No request is left when one of the names is not known.
    """
    if everything == bool(names):
        raise UsageError(
            "name tables or say --all, not both" if names else f"there is no table named to {kind}",
            f"penstock {kind} {pipeline.file} schema.table, or 'schema.*', or --all",
        )
    store = _store_of(pipeline, kind)
    try:
        summaries = _summaries(pipeline, store)
        known = {summary.table for summary in summaries}
        if everything:
            wanted = sorted(summary.table for summary in summaries if summary.followed)
        else:
            wanted = list(dict.fromkeys(table for name in names for table in _standing_for(pipeline, known, name)))
        asked = Asked(holder(pipeline.home / "lock"), [], [], [])
        for table in wanted:
            places = [one for one in summaries if one.table == table]  # one per destination
            open_places = [one for one in places if kind != "retry" or one.state is State.ERRORED]
            fresh = [one for one in open_places if kind not in {request.kind for request in one.requests}]
            for one in fresh:
                store.of_source(table.source).add_request(one.destination, table.name, kind)
            (asked.new if fresh else asked.before if open_places else asked.in_order).append(table)
        return asked
    finally:
        store.close()


def forget(pipeline: Pipeline, name: str) -> ScopedName:
    """Remove what the state store keeps of a table that is no longer followed, and return the table's name.

    Such a table matches no rule, or is gone at the source. The destination's table stays.
    """
    store = _store_of(pipeline, "forget")
    try:
        found = {str(summary.table): summary for summary in _summaries(pipeline, store)}
        summary = found.get(name)
        if summary is None:
            raise _unknown(pipeline, name, {text: one.table for text, one in found.items()})
        if summary.followed and not (summary.state is State.ERRORED and GONE in summary.error):
            raise UsageError(
                f"table {name} is followed: its rule in {pipeline.file} matches it",
                f"Exclude it in {pipeline.file} and start the pipeline again; then forget it",
            )
        store.of_source(summary.table.source).forget_table(summary.destination, summary.table.name)
        return summary.table
    finally:
        store.close()


def feed_named(pipeline: Pipeline, name: str, purpose: str) -> Feed:
    """Return the feed of that name, which the pipeline follows. `purpose`, a verb, is what is wanted of it."""
    store = _store_of(pipeline, purpose)
    try:
        (table,) = _named(pipeline, {summary.table for summary in _summaries(pipeline, store)}, [name])
    finally:
        store.close()
    feed = pipeline.scoped_feed(table)
    assert feed is not None
    return feed


def followed(pipeline: Pipeline, store: StateStore, names: Sequence[str]) -> dict[ScopedName, Feed]:
    """Return the feeds of these names, by the names that users know them by; without names, all that are followed.

    With a list of sources, `eu:` stands for all tables of that source.
    """
    known = sorted({summary.table for summary in _summaries(pipeline, store)})
    wanted = [] if names else known
    for name in names:
        if is_whole_source(pipeline, name):
            source = pipeline.source_view(name.removesuffix(":")).source.name
            wanted += [table for table in known if table.source == source]
        else:
            wanted += _named(pipeline, known, [name])
    return {table: feed for table in wanted for feed in [pipeline.scoped_feed(table)] if feed is not None}


def tables_named(pipeline: Pipeline, store: StateStore, names: Sequence[str]) -> list[tuple[str, ScopedName]]:
    """Destination and name of every followed table that a name or a pattern stands for."""
    summaries = _summaries(pipeline, store)
    known = {summary.table for summary in summaries}
    wanted = {table for name in names for table in _standing_for(pipeline, known, name)}
    return [(one.destination, one.table) for one in summaries if one.table in wanted]


def is_whole_source(pipeline: Pipeline, name: str) -> bool:
    """Whether the name, as an operator gave it, stands for all tables of a source."""
    return pipeline.is_scoped and name.endswith(":") and "." not in name


def _store_of(pipeline: Pipeline, purpose: str) -> StateStore:
    store = find_store(pipeline.state_url)
    if store is None:
        raise UsageError(
            f"pipeline {pipeline.name} has not run yet, so there is no table to {purpose}",
            f"`penstock run {pipeline.file}` copies every table",
        )
    return store


def _summaries(pipeline: Pipeline, store: StateStore) -> list[TableSummary]:
    return [
        _summary(
            source_view,
            destination.name,
            table,
            status=statuses.get(table),
            copy=copies.get(table),
            progress=progress.get(table),
            requests=requests,
        )
        for destination in pipeline.destinations
        for source_view in pipeline.source_views
        for own in [store.of_source(source_view.scope)]
        for statuses in [own.table_status(destination.name)]
        for copies in [own.copy_progress(destination.name)]
        for progress in [own.progress(destination.name)]
        for requests in [own.requests(destination.name)]
        for table in sorted({*statuses, *copies})
    ]


def _summary(
    source_view: Pipeline,
    destination: str,
    table: TableId,
    *,
    status: TableStatus | None,
    copy: CopyProgress | None,
    progress: TableProgress | None,
    requests: Sequence[Request],
) -> TableSummary:
    feed = source_view.destination_view(destination).feed(table)
    return TableSummary(
        destination=destination,
        table=ScopedName(source_view.scope, table),
        target=feed.target if feed else table,
        state=status.state if status else State.INIT,
        since=status.since if status else None,
        copy=copy,
        error=status.reason if status else "",
        solution=status.solution if status else "",
        retry=status.retry_text if status else "",
        code=status.code if status else "",
        requests=tuple(one for one in requests if one.table == table),
        fetched=progress.fetched if progress else 0,
        advice=fetching_advice(source_view.source.type, feed, progress),
        followed=feed is not None,
    )


def _standing_for(pipeline: Pipeline, known: Collection[ScopedName], name: str) -> list[ScopedName]:
    """Return the followed tables of a name, or those that a pattern stands for."""
    if name in map(str, known):
        return _named(pipeline, known, [name])
    try:
        if names_one_table(name):
            return _named(pipeline, known, [name])
        found = sorted(table for table in known if _matches(name, table) and pipeline.scoped_feed(table) is not None)
    except BadPattern as error:
        raise UsageError(f"{name} is no table and no pattern", str(error)) from error
    if not found:
        raise UsageError(
            f"pattern {name} stands for no table that pipeline {pipeline.name} follows",
            f"`penstock tables {pipeline.file}` lists them all",
        )
    return found


def _shown_as(found: Tables, known: Collection[ScopedName], name: str) -> list[ScopedName]:
    """Return the tables of a name or a pattern, also those that are no longer followed."""
    by_name = {str(table): table for table in sorted(known)}
    if name in by_name:
        return [by_name[name]]
    try:
        fitting = [] if names_one_table(name) else [table for table in known if _matches(name, table)]
    except BadPattern as error:
        raise UsageError(f"{name} is no table and no pattern", str(error)) from error
    if not fitting:
        near = _nearest(name, by_name)
        hint = f"Did you mean {near}? " if near else ""
        raise UsageError(
            f"pipeline {found.pipeline} has no table {name}", f"{hint}`penstock tables {found.file}` lists them all"
        )
    return fitting


def _matches(pattern: str, table: ScopedName) -> bool:
    """Whether an operator's pattern stands for the table: it is compared with the name as he sees it."""
    schema = table.name.schema if table.source is None else f"{table.source}:{table.name.schema}"
    return matches(pattern, TableId(schema, table.name.name))


def _named(pipeline: Pipeline, known: Collection[ScopedName], names: Sequence[str]) -> list[ScopedName]:
    """Return the tables of these names, each once.

    Only names that are known are compared: a name may have dots in it.
    """
    by_name = {str(table): table for table in sorted(known)}
    wanted = []
    for name in dict.fromkeys(names):
        table = by_name.get(name)
        if table is None:
            raise _unknown(pipeline, name, by_name)
        if pipeline.scoped_feed(table) is None:
            raise UsageError(
                f"table {name} is not among the tables of {pipeline.file} any more",
                "Let an entry of `tables:` match it, and start the pipeline again; or have it no longer shown: "
                f"`penstock forget {pipeline.file} {name}`",
            )
        wanted.append(table)
    return wanted


def _unknown(pipeline: Pipeline, name: str, by_name: dict[str, ScopedName]) -> UsageError:
    near = _nearest(name, by_name)
    hint = f"Did you mean {near}? " if near else ""
    list_them = f"`penstock tables {pipeline.file}` lists them all"
    return UsageError(f"pipeline {pipeline.name} has no table {name}", hint + list_them)


def _nearest(name: str, known: dict[str, ScopedName]) -> str | None:
    bare = [full for full, table in known.items() if table.name.name.casefold() == name.casefold()]
    return next(iter(bare or difflib.get_close_matches(name, known, n=1, cutoff=0.5)), None)

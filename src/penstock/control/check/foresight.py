"""What the next run would do because of what the file says now: foreseen from the state store, without Spark.

The destination has the rules that count; the state store notes them for this purpose (`fold.rule.noted`). A lost store
foresees nothing and loses nothing. Called by `penstock check`, which asks nothing of the destination.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from penstock.config.destinations import StreamSection
from penstock.config.model import Pipeline
from penstock.fold.rule import carried_types, mode_of, retyped_by_name, rule_text
from penstock.model.feed import Feed, Mode
from penstock.model.table import TableId, TableSchema
from penstock.runtime.watch.rule_changes import compared, hidden_remark, refusal
from penstock.source.finding import Finding
from penstock.state.opening import find_store

HOME = "penstock-"  # before the pipeline's name: the folder of its state


def check_rule_changes(view: Pipeline, schemas: Iterable[TableSchema]) -> Iterator[Finding]:
    """Yield tables that are there and would be copied again, or become Errored, because their rule has changed."""
    noted = _noted(view)
    for schema in schemas:
        carried = view.carried(schema)
        for feed in view.feeds(schema.table):
            if feed.name in noted:
                yield from _rule_change(view, feed, carried, json.loads(noted[feed.name]))


def check_unfollowed(view: Pipeline, tables: Iterable[TableId]) -> Iterator[Finding]:
    """Yield tables that were followed and are not any more."""
    followed = {feed.name for table in tables for feed in view.feeds(table)}
    for name in sorted(_noted(view).keys() - followed):
        why = "is not at the source" if view.feed(name) is not None else f"no rule of {view.file.name} matches it"
        yield Finding(
            "warning",
            f"table {name} was followed, and is not any more: {why}; its table at the destination stays as it is",
            f"If that is meant: penstock forget {view.file} {name}",
            name,
        )


def check_unmatched_rules(pipeline: Pipeline, tables: Iterable[TableId]) -> Iterator[Finding]:
    """Rules under `tables:` that no table of any source is under."""
    used = {id(pipeline.rule_for(table)) for table in tables}
    for rule in pipeline.tables:
        if id(rule) not in used:
            yield Finding(
                "warning",
                f"rule {rule.match} matches no table, or only tables that an earlier rule takes",
                f"Correct `match` in {pipeline.file.name}, or move the rule up; a table that appears later is taken",
            )


def check_renamed(pipeline: Pipeline) -> Iterator[Finding]:
    """Another pipeline's state beside this one's, with the same tables: positions are kept under the old name."""
    if pipeline.state is not None or pipeline.home.exists():
        return
    for folder in sorted(pipeline.home.parent.glob(f"{HOME}*/state.db")):
        other = folder.parent.name.removeprefix(HOME)
        same = sorted(set(_targets(pipeline, folder)))
        if same:
            shown = ", ".join(same[:3]) + (f" and {len(same) - 3} more" if len(same) > 3 else "")
            yield Finding(
                "error",
                f"pipeline {pipeline.name} has not run yet, and {other} in the same place has filled {shown}: "
                "positions are kept under the pipeline's name, so these tables would be Errored",
                f"Name the pipeline {other} again, or give its tables other names in `target`",
            )


def check_streams(pipeline: Pipeline) -> Iterator[Finding]:
    """Report what a stream does not have, so that nobody waits for it."""
    for destination in pipeline.destinations:
        if isinstance(destination, StreamSection) and not destination.publishes_rows:
            yield Finding(
                "note",
                f"destination {destination.name}: a stream has the changes from where it begins on; rows that the "
                "tables had before are not published",
                "To have them first, set `snapshot: true`",
            )


def _rule_change(view: Pipeline, feed: Feed, schema: TableSchema, noted: dict[str, str]) -> Iterator[Finding]:
    was = mode_of(noted["rule"])
    if noted["target"] != str(feed.target):
        yield Finding(
            "warning",
            f"table {feed.name} is copied to {feed.target} by the next run; {noted['target']}, where it went before, "
            "stays as it is",
            f"If that is meant, drop {noted['target']} when nobody reads it any more",
            feed.name,
        )
        return
    if _shape(was) != _shape(feed.mode):
        yield Finding(
            "error",
            f"table {feed.name} is Errored at the next run: its mode changed from {was} to {feed.mode}",
            f"Set it back, or give the new mode another `target`; or, after that run: penstock drop {view.file} "
            f"{feed.name} --yes, and it is copied again",
            feed.name,
        )
        return
    types: dict[str, str] = noted["types"]  # type: ignore[assignment]
    change = compared(feed, noted["rule"], rule_text(feed), retyped_by_name(types, carried_types(schema)))
    if change is None:
        return
    if change.loses:
        error = refusal(feed, view.file, change)
        what = f"table {feed.name} is Errored at the next run: {change.why}; a new copy would remove rows that only the"
        yield Finding("error", f"{what} destination has", error.solution, feed.name)
        return
    yield Finding(
        "warning",
        f"table {feed.name} is copied again by the next run: {change.why}",
        f"If that is not meant, set it back in {view.file}",
        feed.name,
    )
    if change.hidden:
        remark = hidden_remark(feed, view.destination.name, change.hidden)
        yield Finding("warning", remark, "", feed.name)


def _shape(mode: Mode) -> str:
    """Modes of the same shape can take over each other's tables."""
    return "rows" if mode in (Mode.CLONE, Mode.APPEND) else str(mode)


def _noted(view: Pipeline) -> dict[TableId, str]:
    store = find_store(view.state_url)
    if store is None:
        return {}
    try:
        return store.of_source(view.scope).rules(view.destination.name)
    finally:
        store.close()


def _targets(pipeline: Pipeline, state: Path) -> Iterator[str]:
    """Return the targets that another pipeline of the same place has filled, and this one would fill too."""
    store = find_store(str(state))
    if store is None:
        return
    try:
        for name, noted in store.rules(pipeline.destination.name).items():
            target = str(json.loads(noted)["target"])
            feed = None if pipeline.is_scoped else pipeline.feed(name)
            if feed is not None and str(feed.target) == target:
                yield target
    finally:
        store.close()

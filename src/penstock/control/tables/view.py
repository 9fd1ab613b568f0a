"""Render tables as text and as JSON. Prints nothing itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from penstock.control.fetching_advice import fetched_text
from penstock.control.status.view import STATE_STYLES
from penstock.control.tables.requests import Tables, TableSummary
from penstock.control.text.commands import with_file
from penstock.control.text.copy_figures import copy_json, rows_copied_text
from penstock.control.text.figures import moment_text, percent_text
from penstock.model.table_state import State


def as_text(found: Tables) -> RenderableType:
    """Readable without colours too."""
    if not found.tables and found.left_out:
        return Text(f"none of the {found.left_out} tables is in such a state", style="dim")
    if not found.tables:
        said = "no table yet" if found.has_run else "this pipeline has not run yet"
        return Text(f"{said}; `penstock run {found.file}` starts it", style="dim")
    parts: list[RenderableType] = [_table(found)]
    for summary in found.tables:
        parts += _remarks(summary, found.file)
    if found.pid is None:
        parts += [Text(), Text(f"not running; `penstock run {found.file}` starts it", style="yellow")]
    return Group(*parts)


def as_json(found: Tables) -> dict[str, Any]:
    """JSON values only. Times are ISO 8601 in UTC; what is unknown is null."""
    return {
        "pipeline": found.pipeline,
        "file": found.file,
        "at": found.at.isoformat(),
        "run": {"running": found.pid is not None, "pid": found.pid},
        "state": {"exists": found.has_run},
        "tables": [_summary_json(summary, found.file) for summary in found.tables],
    }


def _table(found: Tables) -> Table:
    several = len({summary.destination for summary in found.tables}) > 1
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("table", overflow="fold")
    if several:
        table.add_column("destination")
    table.add_column("state")
    table.add_column("since", no_wrap=True)
    table.add_column("rows copied", justify="right")
    table.add_column("progress", justify="right", no_wrap=True)
    for summary in found.tables:
        table.add_row(
            Text(str(summary.table)),
            *([summary.destination] if several else []),
            Text(summary.shown_state, STATE_STYLES.get(summary.shown_state, "yellow")),
            moment_text(summary.since),
            rows_copied_text(summary.copy),
            percent_text(summary.copy.fraction if summary.copy else None),
        )
    return table


def _remarks(summary: TableSummary, file: str) -> Iterator[RenderableType]:
    """Render what the overview has no room for: notes on the copy, pending requests, errors."""
    copy = summary.copy
    if not summary.followed:
        way_out = f"no rule of {file} matches it. `penstock forget {file} {summary.table}` removes it from this list"
        yield from (Text(), _remark(f"{summary.table} is no longer followed", way_out, "yellow"))
        return
    if copy is not None and copy.note:
        yield from (Text(), _remark(f"The copy of {summary.table}", copy.note, "yellow"))
    if copy is not None and copy.ended is None and copy.attempts > 1:
        again = f"it began from zero {copy.attempts} times, last at {moment_text(copy.started)}"
        yield from (Text(), _remark(f"{summary.table} is copied again", again, "yellow"))
    if summary.state is not State.ERRORED and summary.error:
        yield from (Text(), _remark(f"{summary.table} is copied again, by itself", summary.error, "yellow"))
    if summary.advice:
        yield from (Text(), _remark(f"{summary.table}: {fetched_text(summary.fetched)}", summary.advice, "yellow"))
    for request in summary.requests:
        yield from (Text(), _remark(f"{summary.table}: {request.kind} asked for", moment_text(request.at), "yellow"))
    if summary.state is State.ERRORED:
        retry = f", retry: {summary.retry}" if summary.retry else ""
        code = f" [{summary.code}]" if summary.code else ""
        title = f"{summary.table} is Errored{code} since {moment_text(summary.since)}{retry}"
        yield from (Text(), _remark(title, summary.error, "bold red"))
        if summary.solution:
            yield Padding.indent(Text(with_file(summary.solution, file), style="bold"), 2)


def _remark(title: str, text: str, style: str) -> RenderableType:
    return Group(Text(title, style=style), Padding.indent(Text(text), 2))


def _summary_json(summary: TableSummary, file: str) -> dict[str, Any]:
    return {
        "destination": summary.destination,
        "table": str(summary.table),
        "target": str(summary.target),
        "state": summary.shown_state,
        "followed": summary.followed,
        "since": summary.since.isoformat() if summary.since else None,
        "copy": copy_json(summary.copy),
        "fetched_values": summary.fetched,
        "error": (summary.error or None) if summary.state is State.ERRORED else None,
        "copied_again": (summary.error or None) if summary.state is not State.ERRORED else None,
        "solution": with_file(summary.solution, file) or None,
        "retry": summary.retry or None,
        "code": (summary.code or None) if summary.state is State.ERRORED else None,
        "requests": [
            {"id": request.id, "kind": request.kind, "at": request.at.isoformat()} for request in summary.requests
        ],
    }

"""Render a status as text and as JSON. Prints nothing itself."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from penstock.control.fetching_advice import fetched_text
from penstock.control.status.report import (
    Delivery,
    DestinationReport,
    LogReport,
    Problem,
    SourceReport,
    SourceSection,
    Status,
    TableReport,
    errored,
)
from penstock.control.text.commands import with_file
from penstock.control.text.copy_figures import copy_json, rows_copied_text
from penstock.control.text.figures import UNKNOWN, bytes_text, count_text, percent_text, rate_text, seconds_text
from penstock.model.anomaly import KINDS
from penstock.model.partitions import RemarkKind
from penstock.model.position import Position, position_text
from penstock.model.table_state import NOT_FOLLOWED, State
from penstock.model.upkeep import Upkeep
from penstock.state.store import Health, component_of

STATE_STYLES: dict[str, str] = {State.READY: "green", State.ERRORED: "bold red", NOT_FOLLOWED: "dim"}
_BY_HAND = "`penstock resync FILE TABLE` makes it equal to the source, without what was kept of other partitions"
REMARKS: dict[RemarkKind, str] = {
    "kept": "is gone at the source, and its rows are kept here; a resync would remove them",
    "missing": f"was attached with rows that were never sent: they are missing here. {_BY_HAND}",
    "stale": f"was truncated at the source, which is never sent: its rows are still here. {_BY_HAND}",
    "replaced": f"was detached and attached again, or created again: its rows may differ here. {_BY_HAND}",
}
HOLDS_LOG = (
    "the log is kept for it, up to log.max_bytes and log.max_age, until the next start: fix the cause, then start "
    "the pipeline again"
)
SEVERITY_STYLES = {"ok": "", "warning": "yellow", "error": "bold red"}
HEALTH_STYLES = {"ok": "green", "retrying": "yellow", "paused": "yellow", "stopped": "dim", "failed": "bold red"}


def as_text(status: Status) -> RenderableType:
    """Readable without colours too."""
    parts: list[RenderableType] = [_summary(status)]
    if status.tables:
        parts += [Text(), _tables(status)]
    elif status.problem is None:
        said = "no table yet" if status.has_run else "this pipeline has not run yet"
        parts += [Text(), Text(f"{said}; `penstock run {status.file}` starts it", style="dim")]
    for table in status.tables:
        if table.copy is not None and table.copy.note:
            parts += [Text(), Text(f"copy of {table.table}: {table.copy.note}", style="yellow")]
    for table in status.tables:
        for remark in table.remarks:
            said = f"{table.table}: partition {remark.relation} {REMARKS[remark.kind]}"
            parts += [
                Text(),
                Text(said.replace("FILE", status.file).replace("TABLE", str(table.table)), style="yellow"),
            ]
        if table.advice:
            said = f"{table.table}: {fetched_text(table.fetched)}. {table.advice}"
            parts += [Text(), Text(said, style="yellow")]
        for found in table.anomalies:
            said = f"{table.table}: {count_text(found.changes)} {KINDS[found.kind]}, first at {', '.join(found.places)}"
            parts += [Text(), Text(said, style="yellow")]
        for count in table.rescued:
            cells = "1 cell" if count.cells == 1 else f"{count_text(count.cells)} cells"
            rescued = f"{table.table}.{count.column}: {cells} rescued, the last {count.sample!r} at {count.place}"
            parts += [Text(), Text(rescued, style="yellow")]
    for table in status.tables:
        if table.upkeep is not None and table.upkeep.shape.doing and status.pid is not None:
            parts += [Text(), Text(f"{table.table}: {table.upkeep.shape.doing}", style="dim")]
    for table in status.tables:
        if table.quarantined:
            kept = (
                f"{table.table} has {count_text(table.quarantined)} in quarantine (messages that cannot be decoded); "
            )
            parts += [Text(), Text(f"{kept}see `penstock quarantine list {status.file}`", style="yellow")]
        if table.letters.kept or table.letters.dropped:
            parts += [Text(), Text(_letters(table, status.file), style="yellow")]
    for table in status.tables:
        if table.followed and table.error and table.state is not State.ERRORED:
            parts += [Text(), Text(f"{table.table} is copied again: {table.error}", style="yellow")]
    for table in [table for table in status.tables if not table.followed]:
        way_out = f"`penstock forget {status.file} {table.table}` removes it from this list"
        said = f"{table.table} is no longer followed: no rule of the file matches it. {way_out}"
        parts += [Text(), Text(said, style="yellow")]
    for table in errored(status.tables):
        since = f" since {_moment(table.since)}" if table.since else ""
        retry = f", retry: {table.retry}" if table.retry else ""
        code = f" [{table.code}]" if table.code else ""
        way_out = with_file(table.solution, status.file)
        parts += [Text(), _trouble(f"{table.table} is Errored{code}{since}{retry}", table.error, way_out)]
    if status.events:
        parts += [Text(), Text("events", style="bold"), _events(status)]
    return Group(*parts)


def as_json(status: Status) -> dict[str, Any]:
    """JSON values only. Positions are as Postgres writes them, times ISO 8601 in UTC; what is unknown is null."""
    return {
        "pipeline": status.pipeline,
        "file": status.file,
        "at": status.at.isoformat(),
        "run": {"running": status.pid is not None, "pid": status.pid},
        **_lanes_json(status),
        "state": {"exists": status.has_run, **_problem_json(status.problem)},
        "delivered": [_delivery_json(delivery) for delivery in status.deliveries],
        "destinations": [_destination_json(destination, status.file) for destination in status.destinations],
        "tables": [table_json(table, status.file) for table in status.tables],
        "components": [
            {"name": name, **asdict(health), "since": health.since.isoformat()}
            for name, health in status.components.items()
        ],
        "events": [
            {
                "at": event.at.isoformat(),
                "kind": event.kind,
                "message": event.message,
                "table": None if event.table is None else str(event.table),
            }
            for event in status.events
        ],
    }


def _summary(status: Status) -> Table:
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="bold", no_wrap=True)
    lines.add_column(overflow="fold")
    lines.add_row("pipeline", Text.assemble(status.pipeline, ("  " + status.file, "dim")))
    lines.add_row("run", Text(f"process {status.pid}", style="green") if status.pid else Text("not running", "yellow"))
    for source_view in status.source_views or (SourceSection("", status.source, status.log),):
        suffix = f" {source_view.name}" if source_view.name else ""
        lines.add_row(f"source{suffix}", _source(source_view.source))
        lines.add_row(f"log{suffix}", _log(source_view.log))
    if status.problem is not None:
        lines.add_row("state", _problem(status.problem))
    shown = {_component(destination) for destination in status.destinations}
    for name, health in status.components.items():
        if name not in shown:
            lines.add_row(name, _health(health, status.file))
    for destination in status.destinations:
        lines.add_row(_component(destination), _destination(destination, status.file))
    for delivery in status.deliveries if status.has_run else ():
        lines.add_row("delivered" if delivery.source is None else f"{delivery.source}:delivered", _delivery(delivery))
    return lines


def _component(destination: DestinationReport) -> str:
    """Return the destination's name among the components."""
    prefix = "" if destination.source is None else f"{destination.source}:"
    return prefix + component_of(destination.name)


def _destination(destination: DestinationReport, file: str) -> Text:
    text = Text("not begun", "dim") if destination.health is None else _health(destination.health, file)
    if destination.position is not None:
        behind = ", ".join(
            said
            for known, said in (
                (destination.lag_bytes, bytes_text(destination.lag_bytes)),
                (destination.lag_seconds, seconds_text(destination.lag_seconds)),
            )
            if known is not None
        )
        text.append(f"; at {position_text(destination.position)}" + (f", {behind} behind the source" if behind else ""))
    for state, number in sorted(destination.states.items()):
        text.append("; " if state == min(destination.states) else ", ")
        text.append(f"{count_text(number)} {state}", STATE_STYLES.get(state, "yellow"))
    if not destination.counts:
        text.append("; does not count as delivered", "dim")
    if destination.holds_log:
        text.append(f"; {HOLDS_LOG}", "yellow")
    return text


def _delivery(delivery: Delivery) -> Text:
    several = len(delivery.among) > 1
    needed = "all" if delivery.least == len(delivery.among) else f"any {delivery.least}"
    policy = f" to {needed} of {', '.join(delivery.among)}" if several else ""
    waiting = "".join(f"; {name}: {why}" for name, why in delivery.waiting.items())
    if delivery.position is None:
        return Text.assemble(("not everything", "yellow"), policy, waiting)
    behind = "" if delivery.lag_bytes is None else f", {bytes_text(delivery.lag_bytes)} behind the source"
    return Text(
        f"everything before {position_text(delivery.position)}{policy}{behind}" + (f"; {waiting}" * bool(waiting))
    )


def _source(source: SourceReport) -> Text:
    if source.problem is not None:
        return _problem(source.problem)
    text = Text(f"{source.endpoint}, at {_shown(source.position)}")
    facts = source.health.facts if source.health is not None else ()
    for separator, fact in zip(("; ", *([", "] * len(facts))), facts, strict=False):
        value = bytes_text(fact.value) if isinstance(fact.value, int) else fact.value
        text.append(f"{separator}{fact.label} ").append(value, SEVERITY_STYLES[fact.severity])
    return text


def _log(log: LogReport) -> Text:
    if log.problem is not None:
        return _problem(log.problem)
    if not log.segments:
        return Text.assemble("empty", (f"  {log.uri}", "dim"))
    segments = "1 segment" if log.segments == 1 else f"{count_text(log.segments)} segments"
    reach = f"{segments}, {bytes_text(log.bytes)}, from {_shown(log.start)} to {_shown(log.end)}"
    return Text.assemble(reach, (f"  {log.uri}", "dim"))


def _health(health: Health, file: str) -> Text:
    text = Text.assemble((health.state, HEALTH_STYLES[health.state]))
    if health.state == "retrying":
        text.append(f", attempt {health.attempts}")
    text.append(f" since {_moment(health.since)}", "dim")
    if health.message:
        text.append(f": [{health.code}] {health.message}" if health.code else f": {health.message}")
    if health.solution:
        text.append(f". {with_file(health.solution, file)}", "bold")
    return text


def _tables(status: Status) -> Table:
    several = len({report.destination for report in status.tables}) > 1
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("table", overflow="fold")
    if several:
        table.add_column("destination")
    table.add_column("state")
    copying = any(report.copy is not None and report.copy.ended is None for report in status.tables)
    for heading in (*(("rows copied", "progress") if copying else ()), "changes", "rate", "lag", "behind"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("files", justify="right", no_wrap=True)
    table.add_column("read cost", justify="right", no_wrap=True)
    table.add_column("newest change", no_wrap=True)
    for report in status.tables:
        table.add_row(
            Text(str(report.table)),
            *([report.destination] if several else []),
            _state(report),
            *(
                [rows_copied_text(report.copy), percent_text(report.copy.fraction if report.copy else None)]
                if copying
                else []
            ),
            count_text(report.changes),
            rate_text(report.rate),
            seconds_text(report.lag_seconds),
            bytes_text(report.lag_bytes),
            *_shape_texts(report.upkeep),
            _moment(report.newest) if report.newest else UNKNOWN,
        )
    return table


def _state(report: TableReport) -> Text:
    text = Text(report.shown_state, STATE_STYLES.get(report.shown_state, "yellow"))
    return text.append(", paused", "yellow") if report.paused else text


def _letters(table: TableReport, file: str) -> str:
    """Events that are not in the stream: those kept as dead letters, and those that no longer are."""
    letters = table.letters
    number = "1 dead letter" if letters.kept == 1 else f"{count_text(letters.kept)} dead letters"
    said = f"{table.table} has {number} at {table.destination}: events that the stream went on without"
    if letters.dropped:
        said += f"; {count_text(letters.dropped)} more were dropped for their age, or because there was no room"
    return f"{said}. See `penstock dlq list {file}`"


def _shape_texts(upkeep: Upkeep | None) -> tuple[str, str]:
    """Return how many files, and what reading them costs beside the compact table."""
    if upkeep is None:
        return UNKNOWN, UNKNOWN
    shape = upkeep.shape
    return count_text(shape.files + shape.delete_files), f"{shape.read_cost:.1f} ×"


def _events(status: Status) -> Table:
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="dim", no_wrap=True)
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    for event in status.events:
        subject = event.source if event.table is None else str(event.table)
        about = f"{subject}: " if subject is not None and subject not in event.message else ""
        lines.add_row(_moment(event.at), event.kind, about + event.message)
    return lines


def _trouble(title: str, what: str, solution: str) -> RenderableType:
    parts: list[RenderableType] = [Text(title, style="bold red"), Padding.indent(Text(what), 2)]
    if solution:
        parts.append(Padding.indent(Text(solution, style="bold"), 2))
    return Group(*parts)


def _problem(problem: Problem) -> Text:
    return Text.assemble(
        f"[{problem.code}] ", (problem.what, "red"), f". {problem.solution}" if problem.solution else ""
    )


def _lanes_json(status: Status) -> dict[str, Any]:
    """`source` and `log` of the only one, or a list of `sources`."""
    if not status.source_views:
        return {"source": _source_json(status.source), "log": _log_json(status.log)}
    return {
        "sources": [
            {"name": one.name, **_source_json(one.source), "log": _log_json(one.log)} for one in status.source_views
        ]
    }


def _destination_json(destination: DestinationReport, file: str) -> dict[str, Any]:
    health = destination.health
    return {
        "name": destination.full_name,
        "type": destination.type,
        "counts": destination.counts,
        "processed": _position(destination.position),
        "lag_bytes": destination.lag_bytes,
        "lag_seconds": destination.lag_seconds,
        "tables": destination.states,
        "state": None if health is None else health.state,
        "since": None if health is None else health.since.isoformat(),
        "attempts": None if health is None else health.attempts,
        "holds_log": destination.holds_log,
        "error": (health.message or None) if health is not None else None,
        "solution": (with_file(health.solution, file) or None) if health is not None else None,
        "code": (health.code or None) if health is not None else None,
    }


def _delivery_json(delivery: Delivery) -> dict[str, Any]:
    return {
        "source": delivery.source,
        "position": _position(delivery.position),
        "lag_bytes": delivery.lag_bytes,
        "least": delivery.least,
        "among": list(delivery.among),
        "waiting": delivery.waiting,
    }


def _source_json(source: SourceReport) -> dict[str, Any]:
    return {
        "endpoint": source.endpoint,
        "reachable": source.problem is None,
        "position": _position(source.position),
        **source.details,
        **_problem_json(source.problem),
    }


def _log_json(log: LogReport) -> dict[str, Any]:
    return {
        "uri": log.uri,
        "segments": log.segments,
        "bytes": log.bytes,
        "start": _position(log.start),
        "end": _position(log.end),
        **_problem_json(log.problem),
    }


def table_json(table: TableReport, file: str) -> dict[str, Any]:
    """Return one table as JSON values; `file` is named in commands."""
    return {
        "destination": table.destination,
        "table": str(table.table),
        "target": str(table.target),
        "state": table.shown_state,
        "followed": table.followed,
        "paused": table.paused,
        "since": table.since.isoformat() if table.since else None,
        "position": _position(table.position),
        "lag_bytes": table.lag_bytes,
        "lag_seconds": table.lag_seconds,
        "changes": table.changes,
        "rate": table.rate,
        "newest": table.newest.isoformat() if table.newest else None,
        "fetched_values": table.fetched,
        "error": (table.error or None) if table.state is State.ERRORED else None,
        "copied_again": (table.error or None) if table.state is not State.ERRORED else None,
        "solution": with_file(table.solution, file) or None,
        "retry": table.retry or None,
        "code": (table.code or None) if table.state is State.ERRORED else None,
        "copy": copy_json(table.copy),
        "quarantined": table.quarantined,
        "dead_letters": table.letters.kept,
        "dead_letters_dropped": table.letters.dropped,
        "partitions": [
            {"partition": str(remark.relation), "is": remark.kind, "since": remark.since.isoformat()}
            for remark in table.remarks
        ],
        "rescued": [asdict(count) for count in table.rescued],
        "anomalies": [
            {"kind": one.kind, "changes": one.changes, "places": list(one.places)} for one in table.anomalies
        ],
        "maintenance": None if table.upkeep is None else _upkeep_json(table.upkeep),
    }


def _upkeep_json(upkeep: Upkeep) -> dict[str, Any]:
    figures = asdict(upkeep)
    return {"at": figures.pop("at").isoformat(), **figures.pop("shape"), **figures}


def _problem_json(problem: Problem | None) -> dict[str, Any]:
    if problem is None:
        return {"error": None, "solution": None, "code": None}
    return {"error": problem.what, "solution": problem.solution, "code": problem.code}


def _position(position: Position | None) -> str | None:
    return None if position is None else position_text(position)


def _shown(position: Position | None) -> str:
    return UNKNOWN if position is None else position_text(position)


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"

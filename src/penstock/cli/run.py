"""`penstock run` and `penstock capture`: run the pipeline or its capture alone, and log to standard error."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from datetime import datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer
from rich.console import Console
from structlog.typing import EventDict, Processor

from penstock.changelog.log import ChangeLog
from penstock.cli.arguments import PipelineFile, Source
from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.config.units import parse_duration
from penstock.control.status.copy_progress import CopyView
from penstock.control.text.commands import with_file
from penstock.control.text.positions import parse_position_or_time
from penstock.control.text.secrets import scrub
from penstock.errors import SourceError, UsageError
from penstock.model.position import Position
from penstock.runtime.capture.preparation import prepare_source
from penstock.runtime.capture.process import require_free_log, run_capture
from penstock.runtime.capture.publisher import Publisher
from penstock.runtime.pipeline import run as run_pipeline
from penstock.runtime.process import log_level
from penstock.runtime.process.signals import SignalFlag, stop_on_signals
from penstock.runtime.run_end import RunEnd
from penstock.source.factory import source_of


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


LogFormatOption = Annotated[LogFormat, typer.Option("--log-format", help="json is one object per line.")]
LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", help="debug has every batch and maintenance.")]
LOG = structlog.get_logger("capture")
COPY = structlog.get_logger("copy")


def run(
    file: PipelineFile,
    once: Annotated[
        bool, typer.Option("--once", help="Apply everything up to the source's position now, then exit.")
    ] = False,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="LSN|TIME|now",
            help="Apply what committed before this position, or up to this time, and nothing later; then exit.",
        ),
    ] = None,
    idle: Annotated[
        str | None, typer.Option("--idle", metavar="30s", help="Exit when no change has come for so long.")
    ] = None,
    max_changes: Annotated[
        int | None,
        typer.Option("--max-changes", metavar="N", min=1, help="Exit after the transaction with the Nth change."),
    ] = None,
    snapshot_only: Annotated[
        bool, typer.Option("--snapshot-only", help="Copy the tables that are not copied yet, apply nothing else, exit.")
    ] = False,
    log_format: LogFormatOption = LogFormat.TEXT,
    level: LogLevelOption = LogLevel.INFO,
    strict: Annotated[
        bool, typer.Option("--strict", help="A value that fits no column makes its table Errored; it is not rescued.")
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Also serve REST, metrics and the page for this pipeline."),
    ] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="With --listen on loopback: ask for no token.")] = False,
    tls_certificate: Annotated[
        Path | None, typer.Option("--tls-certificate", metavar="FILE", help="With --listen: a certificate in PEM.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="With --listen: the certificate's key in PEM.")
    ] = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait, ready, until no other run has the pipeline; then take over.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Let tables that no rule matches any more leave the publication.")
    ] = False,
) -> None:
    """Run the pipeline until it is stopped. SIGTERM and Ctrl-C finish the batch in flight and exit 0."""
    pipeline = load(file)
    end = _run_end(pipeline, once=once, until=until, idle=idle, max_changes=max_changes, snapshot_only=snapshot_only)
    log_to_stderr(level, log_format, str(file), pipeline.home / log_level.FILE_NAME)
    may_leave = yes or (sys.stdin.isatty() and _confirmed_leaving(pipeline))
    several = len(pipeline.destinations) > 1
    with ExitStack() as beside, CopyView(Console(stderr=True), say=COPY.info, names_destinations=several) as view:
        if listen is not None:
            # Only those who want it wait for it, and need the extra.
            from penstock.cli.serve import serving_own_run  # noqa: PLC0415

            beside.enter_context(serving_own_run(pipeline, listen, tls_certificate, tls_key, no_auth=no_auth))
        run_pipeline(pipeline, end=end, strict=strict, progress=view, may_leave=may_leave, standby=standby)


def _run_end(
    pipeline: Pipeline,
    *,
    once: bool,
    until: str | None,
    idle: str | None,
    max_changes: int | None,
    snapshot_only: bool,
) -> RunEnd:
    """Return when the run is to end by itself. UsageError for options that contradict each other."""
    others = {"--until": until, "--idle": idle, "--max-changes": max_changes}
    given = [name for name, value in others.items() if value is not None]
    alone = ["--once"] * once + ["--snapshot-only"] * snapshot_only
    if len(alone) > 1 or (alone and given):
        raise UsageError(
            f"{alone[0]} and {[*alone, *given][1]} are two ways to end a run",
            f"Use one of them: {alone[0]} stands alone",
        )
    where: Position | datetime | None = None
    if until is not None and until != "now":
        where = parse_position_or_time("--until", until)
    if until is not None and not isinstance(where, datetime) and len(pipeline.sources) > 1:
        raise UsageError(
            f"--until {until} is a position of one source, and pipeline {pipeline.name} has {len(pipeline.sources)}",
            "Give a time, such as 2026-01-02T03:04:05Z",
        )
    try:
        quiet = None if idle is None else parse_duration(idle)
    except ValueError as error:
        raise UsageError(f"--idle {idle} {error}", "Give it as 30s or 5m") from error
    if until == "now":
        with source_of(pipeline.source).connect() as session:
            where = session.head()
    return RunEnd(once=once, until=where, idle=quiet, max_changes=max_changes, copies_only=snapshot_only)


def _confirmed_leaving(pipeline: Pipeline) -> bool:
    """Ask whether tables may leave the publications, if some would.

    A source that does not answer is not asked about: then they stay.
    """
    leaving: list[str] = []
    for source_view in pipeline.source_views:
        try:
            with source_of(source_view.source).connect() as session:
                changes = session.leaving(source_view)
        except SourceError as error:
            LOG.warning("tables leaving the publication not checked", what=error.what)
            continue
        leaving += [change.about(table) for change in changes for table in change.tables]
    if not leaving:
        return False
    typer.echo("No rule matches these tables any more:", err=True)
    for table in leaving:
        typer.echo(f"  {table}", err=True)
    return typer.confirm(
        "Take them out of the publication? Their changes are then lost, and a table that comes back is copied again",
        default=False,
        err=True,
    )


def capture(
    file: PipelineFile,
    source: Source = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Only fill the change log, without Spark; a `run` elsewhere may apply it later."""
    log_to_stderr(level, log_format, str(file))
    pipeline = load(file).source_view(source)
    if not pipeline.source.keeps_changes:
        raise UsageError(
            "a log whose source keeps nothing ends with the run that reads it: capture alone is no use",
            "Use `penstock run`, or leave `slot_type: temporary` out",
        )
    stop = SignalFlag()
    stop_on_signals(stop)
    require_free_log(pipeline)
    with source_of(pipeline.source).connect() as session:
        prepare_source(session, pipeline, ChangeLog(pipeline.log_uri), Publisher(pipeline, None))
    run_capture(pipeline, stop, _say)


def log_to_stderr(
    least: LogLevel = LogLevel.INFO,
    form: LogFormat = LogFormat.TEXT,
    file: str = "FILE",
    level_file: Path | None = None,
) -> None:
    """Log readable lines, coloured on a terminal, or one JSON object per line.

    Times are in UTC. `least` is the level of what is logged, until somebody writes another into `level_file`; `file` is
    named in commands that messages give. No line has a secret in it.
    """
    last: Processor = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=24)
    if form is LogFormat.JSON:
        last = structlog.processors.JSONRenderer(ensure_ascii=False)
    structlog.configure(
        processors=[
            log_level.follow(least.value, level_file),
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso" if form is LogFormat.JSON else "%Y-%m-%d %H:%M:%SZ", utc=True),
            partial(_naming, file),
            *([structlog.processors.format_exc_info] if form is LogFormat.JSON else []),
            last,
            _without_secrets,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # whatever it is now: a live view may stand in
        cache_logger_on_first_use=False,
    )


def _naming(file: str, _logger: object, _method: str, event: EventDict) -> EventDict:
    return {name: with_file(value, file) if isinstance(value, str) else value for name, value in event.items()}


def _without_secrets(_logger: object, _method: str, line: Any) -> str:
    """Scrub what the renderer has made of an event, tracebacks too."""
    return scrub(str(line))


def _say(report: dict[str, Any]) -> None:
    fields = {name: value for name, value in report.items() if name != "event"}
    LOG.info(str(report.get("event")), **fields)

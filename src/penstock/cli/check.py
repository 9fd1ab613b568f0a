"""`penstock check FILE`: look at the file, the source and the destination, and say what to fix. Changes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from penstock.changelog.log import ChangeLog
from penstock.cli.arguments import PipelineFile
from penstock.cli.terminal import stdout
from penstock.config.destinations import StreamSection
from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.control.check.environment import check_destination
from penstock.control.check.foresight import (
    check_unmatched_rules,
)
from penstock.control.check.rules import check_rules
from penstock.control.check.view import Found, SourceSeen, as_json, as_lines, as_sql, count_text, counts, verdict
from penstock.control.text.secrets import scrub
from penstock.errors import (
    CheckFailed,
    SourceUnreachable,
    UsageError,
)
from penstock.model.table import TableId
from penstock.runtime.apply.target_claims import TargetClaims
from penstock.runtime.capture.preparation import find_log_gap
from penstock.source.factory import source_of
from penstock.source.finding import Finding


def check(
    file: PipelineFile,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
    only_sql: Annotated[bool, typer.Option("--sql", help="Only the statements for the source, for psql.")] = False,
) -> None:
    """List what must be fixed before the pipeline can run, and how. Exit 1 if there is an error."""
    if json_output and only_sql:
        raise UsageError("--json and --sql are two ways to print", "Use one of them")
    pipeline = load(file)
    seen: list[SourceSeen] = []
    found: list[Found] = []
    tables: list[TableId] = []
    owners = {one.name: TargetClaims() for one in pipeline.destinations}
    for source_view in pipeline.source_views:
        where = f"source {source_view.source.name}" if pipeline.is_scoped else ""
        try:
            source, matched, findings = _check_source(source_view, owners)
        except SourceUnreachable as error:
            if not pipeline.is_scoped:
                raise
            found.append(Found(where, Finding("error", error.what, error.solution)))
            continue
        seen.append(source)
        tables += matched
        found += [Found(where, finding) for finding in findings]
    found += [Found("", finding) for finding in check_destination(pipeline)]
    if len(seen) == len(pipeline.source_views):
        found += [Found("", finding) for finding in check_unmatched_rules(pipeline, tables)]
    if json_output:
        typer.echo(json.dumps(as_json(str(file), pipeline.name, seen, found), indent=2, ensure_ascii=False))
    elif only_sql:
        for line in as_sql(found):
            typer.echo(line)
    else:
        _print(pipeline, file, seen, found)
    if counts(found)["error"]:
        raise CheckFailed(f"{file}: {verdict(found)}", "Do what stands below each ERROR, then check again")


def _print(pipeline: Pipeline, file: Path, seen: Sequence[SourceSeen], found: Sequence[Found]) -> None:
    console = stdout()
    console.print(f"{file}: pipeline {pipeline.name}", markup=False)
    for one in seen:
        name = f"source {one.name}" if pipeline.is_scoped else "source"
        followed = f"{count_text(one.tables, 'table')} to follow"
        console.print(f"{name}: {one.version} at {one.endpoint}, {followed}", markup=False)
    for destination in pipeline.destinations:
        if isinstance(destination, StreamSection):
            where = destination.where
        else:
            where = f"warehouse {scrub(destination.warehouse)}"
        console.print(f"destination: {destination.name}, {where}", markup=False)
    for line in as_lines(found):
        console.print(line)
    if not counts(found)["error"]:
        console.print(verdict(found))


def _check_source(
    source_view: Pipeline, owners: Mapping[str, TargetClaims]
) -> tuple[SourceSeen, list[TableId], list[Finding]]:
    """Check one source: its findings, the tables followed, and targets that another source has taken."""
    source = source_of(source_view.source)
    with source.connect() as session:
        schemas = session.discover(source_view)
        tables = [schema.table for schema in schemas]
        findings = session.check(source_view)
        gap = find_log_gap(session, ChangeLog(source_view.log_uri))
        version = session.version
    if gap is not None:
        findings.insert(0, Finding("error", f"gap: {gap.what}", gap.solution))
    for destination_view in source_view.destination_views:
        own = check_rules(destination_view, schemas, owners[destination_view.destination.name], source.advice)
        findings += [finding for finding in own if finding not in findings]
    return SourceSeen(source_view.source.name, source.endpoint, version, len(tables)), tables, findings

"""`penstock check FILE`: look at the file, the source and the destination, and say what to fix. Changes nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.arguments import PipelineFile
from penstock.cli.terminal import stdout
from penstock.config.destinations import StreamSection
from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.control.check.view import Found, SourceSeen, as_json, as_lines, as_sql, count_text, counts, verdict
from penstock.control.check.whole import check_pipeline
from penstock.control.text.secrets import scrub
from penstock.errors import (
    CheckFailed,
    UsageError,
)


def check(
    file: PipelineFile,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
    only_sql: Annotated[bool, typer.Option("--sql", help="Only the statements for the source, for psql.")] = False,
) -> None:
    """List what must be fixed before the pipeline can run, and how. Exit 1 if there is an error."""
    if json_output and only_sql:
        raise UsageError("--json and --sql are two ways to print", "Use one of them")
    pipeline = load(file)
    checked = check_pipeline(pipeline)
    seen, found = checked.seen, checked.found
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
        where = destination.where if isinstance(destination, StreamSection) else scrub(destination.where)
        console.print(f"destination: {destination.name}, {where}", markup=False)
    for line in as_lines(found):
        console.print(line)
    if not counts(found)["error"]:
        console.print(verdict(found))

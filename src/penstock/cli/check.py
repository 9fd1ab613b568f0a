"""`penstock check FILE`: look at the file, the source and the destination, and say what to fix. Changes nothing."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from penstock.changelog.log import ChangeLog
from penstock.cli.arguments import PipelineFile
from penstock.cli.terminal import stdout
from penstock.config.destinations import StreamSection
from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.config.values import local_path
from penstock.control.check.foresight import (
    check_catalog,
    check_renamed,
    check_rule_changes,
    check_streams,
    check_unfollowed,
    check_unmatched_rules,
)
from penstock.control.check.view import Found, SourceSeen, as_json, as_lines, as_sql, count_text, counts, verdict
from penstock.control.text.secrets import scrub
from penstock.decode.dialect import dialect_named, dialect_of_key
from penstock.decode.schema import arrow_schema
from penstock.errors import (
    CheckFailed,
    ColumnNotCarried,
    ColumnsRequired,
    ConfigError,
    EnvironmentMissing,
    SchemaChanged,
    SourceUnreachable,
    UsageError,
)
from penstock.fold.layout import layout_of
from penstock.fold.projection import check_projection
from penstock.model.table import TableId, TableSchema
from penstock.runtime.apply.target_claims import TargetClaims
from penstock.runtime.capture.preparation import find_log_gap
from penstock.runtime.spark.session import require_java, where_set
from penstock.runtime.spark.standalone_master import require_master
from penstock.source.contract import Advice
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
        own = _check_branch(destination_view, schemas, owners[destination_view.destination.name], source.advice)
        findings += [finding for finding in own if finding not in findings]
    return SourceSeen(source_view.source.name, source.endpoint, version, len(tables)), tables, findings


def _check_branch(
    source_view: Pipeline, schemas: Sequence[TableSchema], owners: TargetClaims, advice: Advice
) -> list[Finding]:
    """What is found of one source at one destination."""
    tables = [schema.table for schema in schemas]
    findings = [
        *check_targets(source_view, tables),
        *check_columns(source_view, schemas),
        *check_projections(source_view, schemas, advice),
    ]
    findings += [*check_rule_changes(source_view, schemas), *check_unfollowed(source_view, tables)]
    for feed in (feed for table in tables for feed in source_view.feeds(table)) if source_view.is_scoped else ():
        owner = owners.claim(source_view.source.name, feed)
        if owner is not None and owner.source != source_view.source.name:
            what = f"{feed.name} would be written to {feed.target}, and so is {owner.feed.name} of {owner.source}"
            findings.append(Finding("error", what, "Put {source} into both `target`s, or into neither"))
    return findings


def check_columns(pipeline: Pipeline, schemas: Iterable[TableSchema]) -> Iterator[Finding]:
    """Check that every column has a place at the destination, and every choice under `types` a column."""
    used: dict[str, set[str]] = {}
    for schema in schemas:
        rule = pipeline.rule_for(schema.table)
        if rule is not None:
            used.setdefault(rule.match, set()).update(column.name for column in schema.columns)
        try:
            arrow_schema(pipeline.carried(schema))
        except ColumnNotCarried as error:
            yield Finding("error", error.what, error.solution, schema.table)
    for rule in pipeline.tables:
        for key in sorted(rule.types.keys() - used.get(rule.match, rule.types.keys())):
            if dialect_of_key(key) is None:
                prefix = dialect_named(pipeline.source.type).type_prefix
                what = f"types.{key} of the rule {rule.match} names a column that none of its tables has"
                yield Finding("warning", what, f"Correct the name, or write {prefix}{key} if a type is meant")


def check_targets(pipeline: Pipeline, tables: Iterable[TableId]) -> list[Finding]:
    """Check that no two feeds share a table at the destination."""
    sources: dict[TableId, list[TableId]] = {}
    named: dict[TableId, list[TableId]] = {}
    for feed in (feed for table in tables for feed in pipeline.feeds(table)):
        sources.setdefault(feed.target, []).append(feed.name)
        named.setdefault(feed.name, []).append(feed.table)
    return (
        [
            Finding(
                "error",
                f"{name} is the name both of a table and of {several[0].name} in another of its modes",
                "Leave one of them out with `exclude`, or let the table's first mode be the other one",
            )
            for name, several in named.items()
            if len(several) > 1
        ]
        + [
            Finding(
                "error",
                f"{' and '.join(map(str, several))} would both be written to {target}",
                "Give them different names in `target`, for example {schema}_{table}",
            )
            for target, several in sources.items()
            if len(several) > 1
        ]
        + [
            Finding(
                "warning",
                f"{' and '.join(map(str, several))} differ only in case: where the catalog ignores that, they are "
                "one table, and the second is Errored",
                "Give them different names in `target`, for example {schema}_{table}",
            )
            for several in _alike(sources)
            if any(lake.catalog for lake in pipeline.lakes)
        ]
    )


def _alike(targets: Iterable[TableId]) -> Iterator[list[TableId]]:
    """Return names that differ only in case."""
    found: dict[str, list[TableId]] = {}
    for target in targets:
        found.setdefault(str(target).lower(), []).append(target)
    return (several for several in found.values() if len(several) > 1)


def check_projections(pipeline: Pipeline, schemas: Iterable[TableSchema], advice: Advice) -> Iterator[Finding]:
    """Check that `where`, `columns`, `set` and the names of history columns suit every table they apply to."""
    for schema in schemas:
        for feed in pipeline.feeds(schema.table):
            problems = check_projection(feed.projection, schema)
            for problem in problems:
                yield Finding("error", f"table {schema.table}: {problem}", "Correct the table's rule", schema.table)
            try:
                if not problems:
                    layout_of(feed).require_room(layout_of(feed).kept(schema))
            except (ColumnsRequired, ColumnNotCarried, SchemaChanged) as error:
                yield Finding("warning", error.what, error.solution, schema.table)
            if feed.projection.where and schema.identity != "full":
                yield Finding(
                    "warning",
                    f"table {schema.table}: an UPDATE that brings a row into `where` and leaves a value of some "
                    "kilobytes unchanged does not send that value; the table then becomes Errored",
                    advice.whole_rows(schema.table),
                    schema.table,
                )


def check_destination(pipeline: Pipeline) -> Iterator[Finding]:
    """Java, a cluster's master, and the folders that the pipeline writes to. A remote warehouse is first touched by
    `run`."""
    for require in (require_java, lambda: require_master(pipeline.spark, where_set(pipeline), wait=0)):
        try:
            require()
        except (EnvironmentMissing, ConfigError) as error:
            yield Finding("error", error.what, error.solution)
    yield from check_catalog(pipeline)
    yield from check_streams(pipeline)
    for destination_view in pipeline.destination_views:
        yield from check_renamed(destination_view)
    for destination in pipeline.destinations:
        if isinstance(destination, StreamSection):
            if destination.folder is not None:
                yield from _folder(f"the stream {destination.name}", destination.folder)
        elif (warehouse := local_path(destination.warehouse)) is not None:
            yield from _folder("warehouse", warehouse)
        else:
            what = "the warehouse is not on this machine, so `penstock run` is the first to look at it"
            yield Finding("note", what, "")
    yield from _folder("the pipeline's own folder", pipeline.home)


def _folder(name: str, folder: Path) -> Iterator[Finding]:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        yield Finding("error", f"{name} {folder}: {there} is not a folder", f"Remove {there}, or name another folder")
    elif not os.access(there, os.W_OK | os.X_OK):
        yield Finding("error", f"{name} {folder}: {there} may not be written to", f"chown or chmod {there}")
    else:
        try:
            with tempfile.TemporaryFile(dir=there):  # a read-only or full file system shows only when it is written to
                pass
        except OSError as error:
            what = f"{name} {folder}: nothing can be written to {there}: {error.strerror or error}"
            yield Finding("error", what, "Make room there, or name another folder")

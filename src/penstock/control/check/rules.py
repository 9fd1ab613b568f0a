"""Check the rules of the file against the tables of the source: columns, targets, projections.

Looks at the file and at structures only. What a changed rule would do is `foresight.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from penstock.config.destinations import IcebergDestination, StreamSection
from penstock.config.model import Pipeline
from penstock.config.patterns import matches
from penstock.control.check.foresight import (
    check_rule_changes,
    check_unfollowed,
)
from penstock.decode.dialect import dialect_named, dialect_of_key
from penstock.decode.schema import arrow_schema
from penstock.errors import (
    ColumnNotCarried,
    ColumnsRequired,
    SchemaChanged,
)
from penstock.fold.layout import layout_of
from penstock.fold.projection import check_projection, kept_schema
from penstock.model.table import TableId, TableSchema
from penstock.render.processed import check_processors
from penstock.render.template import unpublished, unsent_by_deletes
from penstock.runtime.apply.processed import check_table_processors
from penstock.runtime.apply.target_claims import TargetClaims
from penstock.source.contract import Advice
from penstock.source.finding import Finding


def check_rules(view: Pipeline, schemas: Sequence[TableSchema], owners: TargetClaims, advice: Advice) -> list[Finding]:
    """Check the rules that one destination has for the tables of one source. `owners`: who writes to which target."""
    tables = [schema.table for schema in schemas]
    findings = [
        *check_targets(view, tables),
        *check_columns(view, schemas),
        *check_projections(view, schemas, advice),
        *check_processing(view, schemas, advice),
        *check_templates(view, schemas, advice),
        *check_stream_tables(view, tables),
    ]
    findings += [*check_rule_changes(view, schemas), *check_unfollowed(view, tables)]
    for feed in (feed for table in tables for feed in view.feeds(table)) if view.is_scoped else ():
        owner = owners.claim(view.source.name, feed)
        if owner is not None and owner.source != view.source.name:
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


def check_stream_tables(view: Pipeline, tables: Sequence[TableId]) -> Iterator[Finding]:
    """Check that every pattern under a stream's `tables` stands for a table that it publishes."""
    destination = view.destination
    for pattern in (destination.tables or ()) if isinstance(destination, StreamSection) else ():
        if not any(matches(pattern, table) for table in tables if view.wants(table)):
            yield Finding(
                "warning",
                f"`tables` of the stream {destination.name} has {pattern}, which stands for no table of its rules",
                "Correct the pattern, or add a rule that covers the table",
            )


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
            if any(isinstance(lake, IcebergDestination) and lake.catalog for lake in pipeline.lakes)
        ]
    )


def _alike(targets: Iterable[TableId]) -> Iterator[list[TableId]]:
    """Return names that differ only in case."""
    found: dict[str, list[TableId]] = {}
    for target in targets:
        found.setdefault(str(target).lower(), []).append(target)
    return (several for several in found.values() if len(several) > 1)


def check_processing(pipeline: Pipeline, schemas: Iterable[TableSchema], advice: Advice) -> Iterator[Finding]:
    """Check that processors find their functions, and the columns that they name in every table they concern."""
    for schema in schemas:
        for feed in pipeline.feeds(schema.table):
            if not feed.processors or check_projection(feed.projection, schema):
                continue
            carried = pipeline.carried(schema)
            if isinstance(pipeline.destination, StreamSection):
                problem = check_processors(feed.processors, carried, feed.projection)
            else:
                problem = check_table_processors(feed, carried)
            if problem is not None:
                yield Finding("error", f"table {schema.table}: {problem}", "Correct the processor", schema.table)
                break
            if not isinstance(pipeline.destination, StreamSection) and schema.identity != "full":
                yield Finding(
                    "warning",
                    f"table {schema.table}: an UPDATE that leaves a value of some kilobytes unchanged does not send "
                    "it; where a processor needs that value, or lets a row in that it left out before, the table then "
                    "becomes Errored",
                    advice.whole_rows(schema.table),
                    schema.table,
                )
                break


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


def check_templates(pipeline: Pipeline, schemas: Iterable[TableSchema], advice: Advice) -> Iterator[Finding]:
    """Check that the tables of a stream have the columns that its templates name, in deletes too."""
    stream = pipeline.destination
    if not isinstance(stream, StreamSection):
        return
    format = stream.record_format
    templates = {f"headers.{name}": template for name, template in format.headers}
    templates |= {name: one for name, one in (("topic", format.topic), ("key", format.key)) if one is not None}
    for schema in schemas:
        feed = next(iter(pipeline.feeds(schema.table)), None)
        if feed is None or check_projection(feed.projection, schema):
            continue
        shown = [column.name for column in kept_schema(feed.projection, schema).columns]
        for name, template in templates.items():
            what = f"table {schema.table}: {name} of destination {stream.name} is {template.text}, and"
            unknown = unpublished(template, shown)
            if unknown:
                problem = f"{what} the table does not publish a column {unknown[0]}"
                yield Finding("error", problem, "Correct the template, or leave the table out", schema.table)
            elif unsent := unsent_by_deletes(template, schema):
                problem = f"{what} its deletes do not have the column {unsent[0]}"
                solution = f"Name columns of its key; or: {advice.whole_rows(schema.table)}"
                yield Finding("error", problem, solution, schema.table)

"""Check a whole pipeline: file, sources, destinations and rules. The command and the server both ask here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.changelog.log import ChangeLog
from penstock.config.model import Pipeline
from penstock.control.check.environment import check_destination
from penstock.control.check.foresight import check_unmatched_rules
from penstock.control.check.reachable import check_tables_there
from penstock.control.check.rules import check_rules
from penstock.control.check.view import Found, SourceSeen
from penstock.errors import SourceUnreachable
from penstock.model.table import TableId
from penstock.runtime.apply.target_claims import TargetClaims
from penstock.runtime.capture.preparation import find_log_gap
from penstock.source.factory import source_of
from penstock.source.finding import Finding


@dataclass(frozen=True)
class Checked:
    """The sources that answered, and everything that was found."""

    seen: list[SourceSeen]
    found: list[Found]


def check_pipeline(pipeline: Pipeline) -> Checked:
    """Look at everything, and change nothing.

    SourceUnreachable when the only source does not answer; of several, one that does not is a finding.
    """
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
    return Checked(seen, found)


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
        own += check_tables_there(destination_view, tables)
        findings += [finding for finding in own if finding not in findings]
    return SourceSeen(source_view.source.name, source.endpoint, version, len(tables)), tables, findings

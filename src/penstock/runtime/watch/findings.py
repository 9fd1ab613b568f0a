"""What is wrong with single tables of one destination, by a look at the source's catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from penstock.config.model import Pipeline
from penstock.errors import TableError
from penstock.model.table import TableId
from penstock.model.write_counters import WriteCounters
from penstock.runtime.watch.catalogue import Catalogue
from penstock.runtime.watch.unsent_writes import find_unsent_writes
from penstock.source.contract import Session
from penstock.source.factory import source_of
from penstock.state.store import CopyFacts, TableStates


@dataclass(frozen=True)
class Findings:
    """What a look found about single tables, by the feed's name.

    `troubles` are of tables that cannot be followed as they are. `unknown` are to be copied again, with the reason.
    `compared` are the counters from before the last copy that a table's present ones were compared with.
    """

    troubles: Mapping[TableId, TableError] = field(default_factory=dict)
    unknown: Mapping[TableId, str] = field(default_factory=dict)
    compared: Mapping[TableId, WriteCounters] = field(default_factory=dict)


class FindingState(CopyFacts, TableStates, Protocol):
    """What a judgement needs of the state store."""


def find(session: Session, pipeline: Pipeline, state: FindingState, catalogue: Catalogue) -> Findings:
    """Judge the catalogue's tables for one destination. `pipeline` is as that destination sees it."""
    troubles = {feed.name: trouble for table, trouble in catalogue.troubles.items() for feed in pipeline.feeds(table)}
    compared = state.write_counters(pipeline.destination.name)
    advice = source_of(pipeline.source).advice
    unsent = find_unsent_writes(session, advice, pipeline, state, compared, catalogue.schemas, catalogue.inserts_only)
    return Findings({**unsent.errors, **troubles}, unsent.unknown, compared)

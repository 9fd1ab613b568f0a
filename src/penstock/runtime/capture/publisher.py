"""Look at the source's tables and have it send their changes.

Looking and adding are two things: what cannot be published is that table's trouble, and the look goes on. `Publisher`
is used at the start (`preparation`) and by `watch.catalogue`; both act on what `look` returns. Every change
of what the source sends is logged before and after it is made, and kept as an event.
"""

from __future__ import annotations

from typing import Protocol

import structlog

from penstock.config.model import Pipeline
from penstock.model.table import TableId
from penstock.runtime.watch.catalogue import Catalogue
from penstock.source.contract import Alteration, Following, Session
from penstock.source.factory import source_of
from penstock.state.store import Events, TableStates

LOG = structlog.get_logger("publication")


class PublisherState(Events, TableStates, Protocol):
    """What publishing needs of the state store."""


class Publisher:
    """`state` is None where only the change log is filled.

    With `may_leave`, tables that nothing matches any more are no longer sent, as far as penstock manages that; without,
    they stay.
    """

    def __init__(self, pipeline: Pipeline, state: PublisherState | None, *, may_leave: bool = False) -> None:
        self._pipeline, self._state, self._may_leave = pipeline, state, may_leave
        self._said: set[str] = set()

    def look(self, session: Session, *, reading: frozenset[str]) -> Catalogue:
        """Have the source send the changes of the wanted tables; return these with what is wrong with some of them.

        `reading` is what capture reads, or will from its start on, in the source's own names.
        """
        pipeline = self._pipeline
        schemas = session.discover(pipeline)
        following = session.follow(pipeline, schemas, reading=reading, may_leave=self._may_leave, before=self._announce)
        self._report(following)
        if following.done:
            schemas = session.discover(pipeline)
        # Of a table that was moved just now, changes that were sent are counted too; it is copied again anyway.
        moved = {table for change in following.done for table in change.tables}
        wanted = {schema.table for schema in schemas}
        troubles = {table: trouble for table, trouble in following.troubles.items() if table in wanted}
        return Catalogue(schemas, troubles, frozenset(following.inserts_only - moved))

    def _announce(self, change: Alteration) -> None:
        """Before the change. One that is refused is tried at every look, and announced once."""
        if change.text in self._said:
            return
        self._said.add(change.text)
        LOG.info(change.doing, statement=change.text)
        if self._state is None or not change.adds_tables:
            return
        for table in change.tables:
            if self._is_followed(self._state, table):
                LOG.warning(
                    "table was missing from its publication",
                    table=str(table),
                    what="somebody took it out, or it did not match for a while; it is put back, and copied again",
                )

    def _is_followed(self, state: PublisherState, table: TableId) -> bool:
        """Return whether a destination has taken the table in before."""
        return any(
            feed.name in state.table_status(view.destination.name)
            for view in self._pipeline.destination_views
            for feed in view.feeds(table)
        )

    def _report(self, following: Following) -> None:
        for change in following.done:
            self._said.discard(change.text)
            LOG.info(change.done, statement=change.text)
            for table in change.tables or (None,):
                if self._state is not None:
                    self._state.add_event("publication", f"{change.done}: {change.about(table)}", table)
        for change in following.staying:
            self._once(
                f"stay {change.text}",
                "tables stay in the publication, though no rule matches them",
                tables=", ".join(map(str, change.tables)),
                solution=f"`penstock run --yes` takes them out; or run: {change.text}",
            )
        advice = source_of(self._pipeline.source).advice
        for table in sorted(following.inserts_only):
            self._once(
                f"inserts {table}",
                "table has no replica identity, only its inserts are followed",
                table=str(table),
                solution=f"{advice.identity(table)}; an UPDATE or DELETE makes it Errored",
            )

    def _once(self, key: str, event: str, **fields: str) -> None:
        if key not in self._said:
            self._said.add(key)
            LOG.warning(event, **fields)

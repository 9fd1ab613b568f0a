"""Look at the source's tables and keep its publications in step with them.

Looking and adding are two things: what cannot be published is that table's trouble, and the look goes on. `Publisher`
is used at the start (`preparation`) and by the watch of `membership`; both act on what `look` returns. Every change of
a publication is logged before and after it is made, and kept as an event.
"""

from __future__ import annotations

import structlog

from penstock.config.model import Pipeline
from penstock.model.table import TableId, TableSchema
from penstock.runtime.watch.catalogue import Catalogue
from penstock.source.postgres.connect import Connection
from penstock.source.postgres.discover import discover
from penstock.source.postgres.publication import inserts_publication, read_members, read_publications
from penstock.source.postgres.publishing import Change, Published, planned, publish
from penstock.state.store import StateStore

LOG = structlog.get_logger("publication")
_DONE = {
    "create": "publication made",
    "options": "publication's options set",
    "add": "tables added to the publication",
    "move": "tables moved between the publications",
    "leave": "tables taken out of the publication",
}
_DOING = {
    "create": "making the publication",
    "options": "setting the publication's options",
    "add": "adding tables to the publication",
    "move": "moving tables between the publications",
    "leave": "taking tables out of the publication",
}


class Publisher:
    """`state` is None where only the change log is filled. With `may_leave`, tables that nothing matches any more are
    taken out of publications that penstock manages; without, they stay there."""

    def __init__(self, pipeline: Pipeline, state: StateStore | None, *, may_leave: bool = False) -> None:
        self._pipeline, self._state, self._may_leave = pipeline, state, may_leave
        self._said: set[str] = set()

    def look(self, connection: Connection, *, inserts_read: bool) -> Catalogue:
        """Bring the publications into step, and return the wanted tables with what is wrong with some of them.

        `inserts_read`: capture reads the publication for tables without an identity, or will from its start.
        """
        pipeline, source = self._pipeline, self._pipeline.source
        schemas = self._discover(connection)
        published = publish(
            connection,
            source.publication,
            schemas,
            pipeline.name,
            inserts_read=inserts_read,
            may_leave=self._may_leave,
            before=self._announce,
        )
        self._report(published)
        if published.done:
            schemas = self._discover(connection)
        # Of a table that was moved just now, changes that were sent are counted too; it is copied again anyway.
        moved = {table for change in published.done for table in change.tables}
        wanted = {schema.table for schema in schemas}
        troubles = {table: trouble for table, trouble in published.troubles.items() if table in wanted}
        return Catalogue(schemas, troubles, frozenset(published.inserts_only - moved))

    def leaving(self, connection: Connection) -> list[Change]:
        """Return what `look` would take out of the publications if it may. Changes nothing."""
        source = self._pipeline.source
        members = read_members(connection, self._discover(connection))
        changes = planned(read_publications(connection, source.publication), members, self._pipeline.name)
        return [change for change in changes if change.kind == "leave"]

    def _discover(self, connection: Connection) -> list[TableSchema]:
        pipeline = self._pipeline

        def wanted(table: TableId) -> bool:
            return pipeline.rule_for(table) is not None

        return discover(connection, wanted, pipeline.source.publication, pipeline.each_partition)

    def _announce(self, change: Change) -> None:
        """Before the change. One that is refused is tried at every look, and announced once."""
        if change.text in self._said:
            return
        self._said.add(change.text)
        LOG.info(_DOING[change.kind], statement=change.text)
        if self._state is None or change.kind not in ("add", "create"):
            return
        for table in change.tables:
            if self._is_followed(self._state, table):
                LOG.warning(
                    "table was missing from its publication",
                    table=str(table),
                    what="somebody took it out, or it did not match for a while; it is put back, and copied again",
                )

    def _is_followed(self, state: StateStore, table: TableId) -> bool:
        """Whether a destination has taken the table in before."""
        return any(
            feed.name in state.table_status(view.destination.name)
            for view in self._pipeline.branches
            for feed in view.feeds(table)
        )

    def _report(self, published: Published) -> None:
        for change in published.done:
            self._said.discard(change.text)
            LOG.info(_DONE[change.kind], statement=change.text)
            for table in change.tables or (None,):
                if self._state is not None:
                    self._state.add_event("publication", f"{_DONE[change.kind]}: {_told(change, table)}", table)
        for change in published.staying:
            self._once(
                f"stay {change.text}",
                "tables stay in the publication, though no rule matches them",
                tables=", ".join(map(str, change.tables)),
                solution=f"`penstock run --yes` takes them out; or run: {change.text}",
            )
        second = inserts_publication(self._pipeline.source.publication)
        for table in sorted(published.inserts_only):
            self._once(
                f"inserts {table}",
                "table has no replica identity, only its inserts are followed",
                table=str(table),
                publication=second,
                solution="Give it a primary key or REPLICA IDENTITY FULL; an UPDATE or DELETE makes it Errored",
            )

    def _once(self, key: str, event: str, **fields: str) -> None:
        if key not in self._said:
            self._said.add(key)
            LOG.warning(event, **fields)


def _told(change: Change, table: TableId | None) -> str:
    """The change, or what it is for one of its tables."""
    if table is None:
        return change.text
    places = (("into", change.into), ("out of", change.out_of))
    return f"{table} {' and '.join(f'{word} {name}' for word, name in places if name)}"

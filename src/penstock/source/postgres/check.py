"""What must be fixed at a source before a pipeline can follow it, each finding with the exact statement that fixes it.

Looks only, changes nothing. `penstock check` prints the findings, `penstock run` refuses errors that concern the whole
source (`table` is None) and goes on with those of one table. The parts: the server and the role here, publishing.py's
statements, the slot in check_slot.py, each table in check_tables.py, what copies need in check_copy.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol

from penstock.model.table import TableId
from penstock.source.finding import Finding
from penstock.source.postgres.check_copy import check_capacity, check_readable
from penstock.source.postgres.check_ddl_trigger import check_ddl_trigger
from penstock.source.postgres.check_partitions import check_each
from penstock.source.postgres.check_slot import check_slot
from penstock.source.postgres.check_tables import check_tables
from penstock.source.postgres.connect import Connection, source_errors
from penstock.source.postgres.discover import discover
from penstock.source.postgres.publication import (
    INSERTS_ONLY,
    OPERATIONS,
    Member,
    Publications,
    read_members,
    read_publications,
)
from penstock.source.postgres.publishing import Change, Refusal, is_managed, lacking_rights, planned, shortened
from penstock.source.postgres.slot import slot_state
from penstock.source.postgres.statements import quoted

__all__ = ["Finding", "SourceNames", "check_source"]

OLDEST_MAJOR, NEWEST_MAJOR = 14, 18
FIRST_MAJOR_DECODING_ON_REPLICAS = 16
_ERRORED = "they are Errored until they are published, and then copied"
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1", "")


class SourceNames(Protocol):
    """What `config.sources.PostgresSource` says of a source, beside its URL."""

    @property
    def publication(self) -> str: ...

    @property
    def slot(self) -> str: ...

    @property
    def create_slot(self) -> bool: ...

    @property
    def keeps_changes(self) -> bool: ...

    @property
    def pipeline(self) -> str: ...


def check_source(
    connection: Connection,
    source: SourceNames,
    wanted: Callable[[TableId], bool],
    each: Callable[[TableId], bool] | None = None,
    modes: Callable[[TableId], Collection[str]] = lambda _: ("clone",),
) -> list[Finding]:
    """Return everything found, the server's first, then publication, slot and tables.

    `each` is discover's; `modes` are those that a table is wanted in.
    """
    with source_errors("checking the source"):
        schemas = discover(connection, wanted, source.publication, each)
        found = read_publications(connection, source.publication)
        members = read_members(connection, schemas)
        slot = slot_state(connection, source.slot)
        tables = [schema.table for schema in schemas]
        return [
            *_server(connection),
            *_role(connection),
            *check_capacity(connection, slot),
            *_publications(connection, source, found, members),
            *check_slot(
                connection,
                source.slot,
                slot,
                found,
                makes_it=source.create_slot,
                lasting=source.keeps_changes,
            ),
            *check_ddl_trigger(connection),
            *_no_table(connection, tables),
            *check_tables(connection, schemas, members, found, source.pipeline, slot, wanted, modes),
            *(check_each(connection, schemas, wanted, each) if each is not None else ()),
            *check_readable(connection, schemas, found, slot),
        ]


def _server(connection: Connection) -> Iterator[Finding]:
    major = connection.info.server_version // 10000
    if major < OLDEST_MAJOR:
        yield Finding("error", f"the server is Postgres {major}", f"Upgrade it to {OLDEST_MAJOR}–{NEWEST_MAJOR}")
    elif major > NEWEST_MAJOR:
        yield Finding("warning", f"the server is Postgres {major}, newer than penstock knows", "Update penstock")
    if _setting(connection, "wal_level") != "logical":
        fix = "ALTER SYSTEM SET wal_level = 'logical'; then restart the server"
        if _is_rds(connection):
            fix = "Set rds.logical_replication = 1 in the instance's parameter group, then reboot it"
        yield Finding("error", f"wal_level is {_setting(connection, 'wal_level')}, not logical", fix)
    if _value(connection, "SELECT pg_is_in_recovery()"):
        if major < FIRST_MAJOR_DECODING_ON_REPLICAS:
            yield Finding(
                "error",
                f"the server is a replica, and Postgres {major} cannot be read from there",
                f"Name the primary in source.url, or upgrade to {FIRST_MAJOR_DECODING_ON_REPLICAS} or newer",
            )
        elif _setting(connection, "hot_standby_feedback") != "on":
            yield Finding(
                "warning",
                "the server is a replica without hot_standby_feedback: its primary may remove what the slot needs",
                "On the replica: ALTER SYSTEM SET hot_standby_feedback = on; SELECT pg_reload_conf()",
            )
    if not connection.pgconn.ssl_in_use and not _is_local(connection.info.host):
        yield Finding(
            "warning",
            "the connection is not encrypted",
            "Add sslmode=verify-full and sslrootcert=… to source.url (and ssl = on at the server)",
        )


def _role(connection: Connection) -> Iterator[Finding]:
    role = connection.info.user
    may = _value(
        connection,
        "SELECT rolsuper OR rolreplication OR EXISTS (SELECT 1 FROM pg_roles g WHERE g.rolname = 'rds_replication'"
        " AND pg_has_role(r.oid, g.oid, 'MEMBER')) FROM pg_roles r WHERE rolname = current_user",
    )
    if not may:
        fix = f"ALTER ROLE {quoted(role)} REPLICATION"
        if _is_rds(connection):
            fix = f"GRANT rds_replication TO {quoted(role)}"
        yield Finding("error", f"role {role} may not replicate", fix)


def _publications(
    connection: Connection, source: SourceNames, found: Publications, members: Sequence[Member]
) -> Iterator[Finding]:
    """Report changes that the publications need: notes where `run` makes them, errors where an operator has to."""
    changes = planned(found, members, source.pipeline)
    refused = {change: lacking_rights(connection, found, change) for change in changes}
    needed = [change for change in changes if change.kind != "leave"]
    by_hand = "; ".join(change.text for change in needed)
    if found.main is None:
        missing = f"publication {found.name} is missing"
        lacking = next((why for change in needed if (why := refused[change]) is not None), None)
        if lacking is None:
            yield Finding("note", f"{missing}; `penstock run` makes it", by_hand)
        else:
            yield Finding("error", f"{missing} and cannot be made here: {lacking.reason}", by_hand)
        return
    for change in changes:
        ours = is_managed(found, change, source.pipeline)
        if change.kind == "leave":
            yield Finding(
                "warning",
                f"no rule matches {shortened([str(table) for table in change.tables])}, still in publication "
                f"{change.out_of}: they would leave it, and be copied again if they came back. `penstock run` asks, "
                "`penstock run --yes` takes them out",
                change.text,
            )
        elif ours and refused[change] is None:
            where = change.into or change.out_of
            yield Finding(
                "note", f"publication {where} is not in step with the tables; `penstock run` alters it", change.text
            )
        elif change.kind == "options":
            yield _options(found, change)
        elif change.tables:
            yield _not_published(change, refused[change] if ours else None)


def _options(found: Publications, change: Change) -> Finding:
    publication = next(one for one in found.present if one.name == change.into)
    wanted = OPERATIONS if publication is found.main else INSERTS_ONLY
    lacks = [operation for operation in wanted if operation not in publication.operations]
    if lacks:
        return Finding("error", f"publication {publication.name} does not publish {', '.join(lacks)}", change.text)
    return Finding("error", f"publication {publication.name} does not publish partitioned tables as one", change.text)


def _not_published(change: Change, refusal: Refusal | None) -> Finding:
    """Of tables only: the others are followed."""
    names = shortened([str(table) for table in change.tables])
    why = f", and {refusal.reason}" if refusal is not None else ""
    return Finding(
        "error",
        f"publication {change.into or change.out_of} lacks {names}{why}: {_ERRORED}",
        change.text,
        change.tables[0],
    )


def _no_table(connection: Connection, tables: Sequence[TableId]) -> Iterator[Finding]:
    if tables:
        return
    there = [str(schema.table) for schema in discover(connection, lambda _: True, "")]
    has = f"database {connection.info.dbname} has {shortened(there, 10)}" if there else "the database has no tables"
    yield Finding("error", "no table matches", f"Change `tables` in the pipeline file; {has}")


def _is_local(host: str) -> bool:
    return host in _LOCAL_HOSTS or host.startswith("/")


def _is_rds(connection: Connection) -> bool:
    return bool(_value(connection, "SELECT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'rds_superuser')"))


def _setting(connection: Connection, name: str) -> str:
    return str(connection.execute("SELECT current_setting(%s)", (name,)).fetchall()[0][0])


def _value(connection: Connection, query: str) -> object:
    return _row(connection, query)[0]


def _row(connection: Connection, query: str) -> tuple[Any, ...]:
    return connection.execute(query.encode()).fetchall()[0]

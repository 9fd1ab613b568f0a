"""Findings about the replication slot: whether this pipeline can go on reading it. Part of check.py."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
from psycopg import sql

from penstock.source.finding import Finding
from penstock.source.postgres.connect import Connection
from penstock.source.postgres.publication import Publication, Publications
from penstock.source.postgres.slot import PLUGIN, SlotState
from penstock.source.postgres.statements import literal

_PEEK_TIMEOUT = "5s"
# Before, a change older than the publication stops decoding; since, it is left out with a warning.
_LEAVES_OUT = 180000
_MADE_AGAIN = "`penstock run` then makes the publication before the slot, and copies every table"


def check_slot(
    connection: Connection,
    name: str,
    slot: SlotState | None,
    found: Publications,
    *,
    makes_it: bool = True,
    lasting: bool = True,
) -> Iterator[Finding]:
    """`makes_it`: penstock may make the slot. Not `lasting`: every run makes a temporary one."""
    if not lasting:
        yield from _temporary(connection, name, slot)
        return
    yield from _given_up_by_the_server(connection)
    if slot is None and not makes_it:
        yield Finding("error", f"slot {name} is missing, and source.create_slot is false", by_hand(name))
        return
    if slot is None:
        yield Finding("note", f"slot {name} is missing; `penstock run` makes it", "")
        return
    other_name = "Name another slot in source.slot"
    drop = drop_by_hand(name)
    if slot.plugin is None or slot.plugin != PLUGIN:
        kind = f"decodes with {slot.plugin}" if slot.plugin else "is physical"
        yield Finding("error", f"slot {name} {kind}, not with {PLUGIN}", f"{other_name}, or {drop}")
        return
    if slot.database != connection.info.dbname:
        yield Finding("error", f"slot {name} belongs to database {slot.database}", other_name)
        return
    if slot.invalidation is not None:
        yield Finding(
            "error",
            f"the server gave slot {name} up ({slot.invalidation}): changes after the log's end are lost",
            f"{drop}; then `penstock reset` copies the pipeline's tables again",
        )
        return
    if slot.active_pid is not None:
        yield _active(connection, slot)
        return
    if found.main is None:
        yield Finding(
            "error" if connection.info.server_version < _LEAVES_OUT else "warning",
            f"slot {name} is there but its publication is not: changes before the publication is made cannot be read",
            f"`penstock reset` drops the slot; {_MADE_AGAIN}",
        )
    else:
        yield from _older_than_publication(connection, slot, found.main)


def _temporary(connection: Connection, name: str, slot: SlotState | None) -> Iterator[Finding]:
    if slot is None:
        yield Finding("note", f"slot {name} is temporary: each run makes it, and copies every table", "")
    elif not slot.temporary:
        what = f"slot {name} is permanent, and source.slot_type is temporary"
        yield Finding("error", what, f"Name another slot in source.slot, or drop it: {drop_by_hand(name)}")
    elif slot.active_pid is not None:
        yield _active(connection, slot)


def drop_by_hand(name: str) -> str:
    """Return the statement that drops the slot."""
    return f"SELECT pg_drop_replication_slot({literal(name)})"


def by_hand(name: str) -> str:
    """Return the statement that makes the slot."""
    return f"SELECT pg_create_logical_replication_slot({literal(name)}, {literal(PLUGIN)})"


def _active(connection: Connection, slot: SlotState) -> Finding:
    rows = connection.execute(
        "SELECT coalesce(application_name, ''), coalesce(host(client_addr), 'this machine')"
        " FROM pg_stat_activity WHERE pid = %s",
        (slot.active_pid,),
    ).fetchall()
    application, address = rows[0] if rows else ("", "an unknown address")
    ours = application.startswith("penstock")
    return Finding(
        "note" if ours else "warning",
        f"slot {slot.name} is being read by process {slot.active_pid} ({application or 'unnamed'} from {address})",
        "" if ours else f"End that reader, or SELECT pg_terminate_backend({slot.active_pid})",
    )


def _older_than_publication(connection: Connection, slot: SlotState, publication: Publication) -> Iterator[Finding]:
    """Transaction ids tell whether it may be so; a look at the slot's first change, which takes nothing, if it is."""
    rows = connection.execute(
        "SELECT age(p.xmin) BETWEEN 0 AND age(s.catalog_xmin) FROM pg_publication p, pg_replication_slots s"
        " WHERE p.pubname = %s AND s.slot_name = %s",
        (publication.name, slot.name),
    ).fetchall()
    if not rows or not rows[0][0]:
        return
    skipped: list[str] = []

    def heard(diagnostic: psycopg.errors.Diagnostic) -> None:
        if "skipped loading publication" in (diagnostic.message_primary or ""):
            skipped.append(publication.name)

    peek = sql.SQL(
        "SELECT count(*) FROM pg_logical_slot_peek_binary_changes({slot}, NULL, 1,"
        " 'proto_version', '1', 'publication_names', {publication})"
    ).format(slot=sql.Literal(slot.name), publication=sql.Literal(sql.Identifier(publication.name).as_string(None)))
    what = f"slot {slot.name} is older than publication {publication.name}"
    fix = f"`penstock reset` drops the slot; {_MADE_AGAIN}"
    connection.add_notice_handler(heard)
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL statement_timeout TO '{_PEEK_TIMEOUT}'".encode())
            connection.execute(peek)
    except psycopg.errors.UndefinedObject:
        yield Finding("error", f"{what}: its first changes cannot be read", fix)
        return
    except psycopg.errors.QueryCanceled:
        yield Finding("warning", f"{what} perhaps: reading its first change took longer than {_PEEK_TIMEOUT}", fix)
        return
    except (psycopg.errors.ObjectInUse, psycopg.errors.InsufficientPrivilege):
        return  # a reader came in between and will see for itself; a missing right is a finding of its own
    finally:
        connection.remove_notice_handler(heard)
    if skipped:
        yield Finding("warning", f"{what}: changes made before the publication are left out", fix)


def _given_up_by_the_server(connection: Connection) -> Iterator[Finding]:
    """Limits at which the server gives up a slot that nobody reads."""
    rows = connection.execute(
        "SELECT name, current_setting(name) FROM pg_settings"
        " WHERE (name = 'max_slot_wal_keep_size' AND setting <> '-1')"
        " OR (name = 'idle_replication_slot_timeout' AND setting <> '0')"
    ).fetchall()
    for name, value in rows:
        yield Finding(
            "note",
            f"{name} is {value}: the server gives the slot up when the pipeline stands still beyond that",
            f"To keep it whatever happens: ALTER SYSTEM RESET {name}; SELECT pg_reload_conf()",
        )

"""Bring the publications in step with the tables that a pipeline wants, one table's trouble at a time.

`planned` says which changes are needed; check.py prints them as statements. `publish` makes those that it may and
reports, for each table that is not published as it must be, why and what to run. A table moves from one publication to
the other in one transaction. What was not sent before a table was added or moved is unknown, so it has to be copied
again: table_marks.py notices every change of a table's membership and has it copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import psycopg

from penstock.errors import NotPublished, SourceMisconfigured
from penstock.model.table import TableId, TableSchema
from penstock.source.postgres.connect import Connection, source_errors
from penstock.source.postgres.publication import (
    INSERTS_ONLY,
    OPERATIONS,
    Member,
    Publication,
    Publications,
    inserts_publication,
    managed_comment,
    read_members,
    read_publications,
)
from penstock.source.postgres.statements import literal, quoted, quoted_table

_VIA_ROOT = "publish_via_partition_root = true"
_LOCK_TIMEOUT = "5s"
_AS_OWNER = "As a role that owns the tables and the publication, and may create in the database,"
_BY_ITSELF = "it is then copied by itself"

Kind = Literal["create", "options", "add", "move", "leave"]
_DONE: dict[Kind, str] = {
    "create": "publication made",
    "options": "publication's options set",
    "add": "tables added to the publication",
    "move": "tables moved between the publications",
    "leave": "tables taken out of the publication",
}
_DOING: dict[Kind, str] = {
    "create": "making the publication",
    "options": "setting the publication's options",
    "add": "adding tables to the publication",
    "move": "moving tables between the publications",
    "leave": "taking tables out of the publication",
}


@dataclass(frozen=True)
class Change:
    """One change of the publications, made in one transaction.

    `into` and `out_of` name the publications that `tables` are added to and taken out of. `before` are statements that
    come first: the making of a publication or the setting of its options.
    """

    kind: Kind
    tables: tuple[TableId, ...] = ()
    into: str = ""
    out_of: str = ""
    before: tuple[str, ...] = ()

    @property
    def statements(self) -> tuple[str, ...]:
        names = _tables(self.tables)
        out = (f"ALTER PUBLICATION {quoted(self.out_of)} DROP TABLE {names}",) if self.out_of and names else ()
        into = (f"ALTER PUBLICATION {quoted(self.into)} ADD TABLE {names}",) if self.into and names else ()
        if self.kind == "create" and names:
            create, *rest = self.before
            head, _, options = create.partition(" WITH ")
            return (f"{head} FOR TABLE {names} WITH {options}", *rest)
        return (*self.before, *out, *into)

    @property
    def text(self) -> str:
        return "; ".join(self.statements)

    @property
    def doing(self) -> str:
        return _DOING[self.kind]

    @property
    def done(self) -> str:
        return _DONE[self.kind]

    @property
    def adds_tables(self) -> bool:
        return self.kind in ("add", "create")

    def about(self, table: TableId | None) -> str:
        """Return the change in words, or what it means for one of its tables."""
        if table is None:
            return self.text
        places = (("into", self.into), ("out of", self.out_of))
        return f"{table} {' and '.join(f'{word} {name}' for word, name in places if name)}"


@dataclass(frozen=True)
class Published:
    """What `publish` found and did.

    `troubles` are the tables that are not published as they must be. Of `inserts_only` no update and no delete is sent.
    `staying` are tables that nothing matches any more and that were left in their publication.
    """

    done: tuple[Change, ...] = ()
    troubles: dict[TableId, NotPublished] = field(default_factory=dict)
    inserts_only: frozenset[TableId] = frozenset()
    staying: tuple[Change, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """Why a change was not made."""

    reason: str
    instead: str  # what somebody else has to do


def planned(
    found: Publications, members: Sequence[Member], pipeline: str, *, hold_inserts: bool = False
) -> list[Change]:
    """Return the changes that bring the publications in step, whoever may make them.

    Tables that are no longer wanted leave publications that penstock manages (kind "leave"); another's may have them
    for somebody else. With `hold_inserts` no table goes into the second publication yet: capture does not read it.
    """
    main, inserts = found.main, found.inserts
    second = inserts_publication(found.name)
    ours = main is None or main.managed_by(pipeline)
    fixed = {one.table for one in members if main is not None and main.covers_broadly(one.table)}
    if main is not None and not ours:
        fixed |= main.listed
    full = [one for one in members if not one.lacks_identity or one.table in fixed]
    few = [one for one in members if one.lacks_identity and one.table not in fixed]
    changes = [
        *_existence(found.name, main, full, pipeline, OPERATIONS),
        *(_existence(second, inserts, [] if hold_inserts else few, pipeline, INSERTS_ONLY) if ours or few else ()),
    ]
    changes += _placement(found.name, main, inserts, full, pipeline)
    changes += _placement(second, inserts, main, few, pipeline, hold=hold_inserts)
    wanted = {one.table for one in members}
    for one in found.present:
        if one.managed_by(pipeline) and (gone := one.listed - wanted):
            changes.append(Change("leave", tuple(sorted(gone)), out_of=one.name))
    return changes


def _existence(
    name: str, present: Publication | None, members: Sequence[Member], pipeline: str, operations: Sequence[str]
) -> list[Change]:
    """Return the changes that create the publication, or correct its options."""
    publish = f"publish = '{', '.join(operations)}'"
    if present is None:
        before = (
            f"CREATE PUBLICATION {quoted(name)} WITH ({publish}, {_VIA_ROOT})",
            f"COMMENT ON PUBLICATION {quoted(name)} IS {literal(managed_comment(pipeline))}",
        )
        return [Change("create", tuple(sorted(one.table for one in members)), into=name, before=before)]
    managed = present.managed_by(pipeline)
    options = []
    if not present.operations >= set(operations) or (managed and present.operations != set(operations)):
        options.append(publish)
    partitioned = any(one.partitioned and present.covers(one.table) for one in members)
    if not present.via_root and (managed or partitioned):
        options.append(_VIA_ROOT)
    alter = f"ALTER PUBLICATION {quoted(name)} SET ({', '.join(options)})"
    return [Change("options", into=name, before=(alter,))] if options else []


def _placement(
    name: str,
    right: Publication | None,
    wrong: Publication | None,
    members: Sequence[Member],
    pipeline: str,
    *,
    hold: bool = False,
) -> list[Change]:
    """Return tables that are to be in the publication `name` and are not, or are in the other one as well."""
    movable = wrong.listed if wrong is not None and wrong.managed_by(pipeline) else frozenset()
    absent = [one.table for one in members if right is not None and not right.covers(one.table)]
    added = sorted(table for table in absent if table not in movable)
    moved = sorted(table for table in absent if table in movable)
    doubled = sorted(one.table for one in members if one.table in movable and one.table not in moved)
    into = "" if hold or right is None else name
    changes = [Change("add", tuple(added), into=into)] if added and into else []
    if moved and wrong is not None:
        changes.append(Change("move", tuple(moved), into=into, out_of=wrong.name))
    if doubled and wrong is not None:  # which includes a publication that is only about to be made
        changes.append(Change("move", tuple(doubled), out_of=wrong.name))
    return changes


def publish(
    connection: Connection,
    name: str,
    schemas: Sequence[TableSchema],
    pipeline: str,
    *,
    inserts_read: bool = True,
    may_leave: bool = False,
    before: Callable[[Change], None] = lambda _: None,
) -> Published:
    """Make the changes that are needed, as far as the role may, and say what is left.

    `inserts_read` says whether capture reads, or can read from its start, the second publication. `before` is called
    with each change that is about to be made. Raises SourceMisconfigured when the publication itself cannot be made.
    """
    members = read_members(connection, schemas)
    found = read_publications(connection, name)
    changes = planned(found, members, pipeline, hold_inserts=not inserts_read)
    refused: dict[TableId, Refusal] = {}
    done: list[Change] = []
    for change in changes:
        if change.kind == "leave" and not may_leave:
            continue
        if not is_managed(found, change, pipeline):
            continue
        refused |= _make(connection, found, change, before, done)
        if change.kind == "create" and change.into == name and not any(one.into == name for one in done):
            needed = "; ".join(one.text for one in changes if one.kind != "leave")
            refusal = lacking_rights(connection, found, change) or Refusal("it was refused", "As its owner")
            raise SourceMisconfigured(
                f"publication {name} is missing and cannot be made: {refusal.reason}",
                f"{refusal.instead} run: {needed}",
            )
    if done:
        found = read_publications(connection, name)
    troubles: dict[TableId, NotPublished] = {}
    for one in members:
        trouble = _trouble(found, one, pipeline, refused.get(one.table), inserts_read=inserts_read)
        if trouble is not None:
            troubles[one.table] = trouble
    sends = {one.table: found.sends(one.table) for one in members if one.table not in troubles}
    return Published(
        done=tuple(done),
        troubles=troubles,
        inserts_only=frozenset(table for table, sent in sends.items() if not {"update", "delete"} <= sent),
        staying=tuple(change for change in changes if change.kind == "leave" and not may_leave),
    )


def is_managed(found: Publications, change: Change, pipeline: str) -> bool:
    """Return whether each publication that the change concerns is managed by penstock, or about to be made by it."""
    if change.kind == "create":
        return found.main is None or found.main.managed_by(pipeline)
    names = {change.into, change.out_of}
    return all(one.managed_by(pipeline) for one in found.present if one.name in names)


def _make(
    connection: Connection, found: Publications, change: Change, before: Callable[[Change], None], done: list[Change]
) -> dict[TableId, Refusal]:
    """Make one change; where it is refused as a whole, table by table. Return the tables that it was refused for."""
    refusal = lacking_rights(connection, found, replace(change, tables=()))
    if refusal is not None:
        return dict.fromkeys(change.tables, refusal)
    before(change)
    refusal = lacking_rights(connection, found, change) or _attempt(connection, change)
    if refusal is None:
        done.append(change)
        return {}
    if change.kind == "create":
        empty = replace(change, tables=())
        if _attempt(connection, empty) is not None:
            return dict.fromkeys(change.tables, refusal)
        done.append(empty)
        change = Change("add", change.tables, into=change.into)
    refused = {}
    for table in change.tables:
        single = replace(change, tables=(table,))
        refusal = lacking_rights(connection, found, single) or _attempt(connection, single)
        if refusal is None:
            done.append(single)
        else:
            refused[table] = refusal
    return refused


def lacking_rights(connection: Connection, found: Publications, change: Change) -> Refusal | None:
    """Return why the role cannot make the change, as far as the catalogue says; None when it can.

    Asked first, so that a refusal does not fill the server's log at every look.
    """
    with source_errors("reading the rights on the publications"):
        (replica, may_create, database) = connection.execute(
            "SELECT pg_is_in_recovery(), has_database_privilege(current_database(), 'CREATE'), current_database()"
        ).fetchall()[0]
        if replica:
            return Refusal("the source is a read-only replica", "On its primary")
        if change.kind == "create" and not may_create:
            return Refusal(f"the role lacks CREATE on database {database}", _AS_OWNER)
        foreign = [one.name for one in found.present if one.name in (change.into, change.out_of) and not one.owned]
        if foreign:
            return Refusal(f"the role does not own publication {', '.join(foreign)}", _AS_OWNER)
        rows = connection.execute(
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE NOT pg_has_role(c.relowner, 'USAGE') AND c.relkind IN ('r', 'p')"
        ).fetchall()
    others = {TableId(*row) for row in rows}
    not_owned = [str(table) for table in change.tables if change.into and table in others]
    return Refusal(f"the role does not own {shortened(not_owned)}", _AS_OWNER) if not_owned else None


def shortened(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _attempt(connection: Connection, change: Change) -> Refusal | None:
    """Run the change's statements in one transaction. A role's read-only default is not what makes a replica."""
    with source_errors("altering the publications"):
        try:
            with connection.transaction():
                connection.execute("SET TRANSACTION READ WRITE")
                connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'".encode())
                for statement in change.statements:
                    connection.execute(statement.encode())
        except psycopg.errors.InsufficientPrivilege as error:
            return Refusal(f"the role may not: {error.diag.message_primary}", _AS_OWNER)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            return Refusal("somebody holds a lock on it; it is tried again at the next look", "Or end that session, or")
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedObject, psycopg.errors.DuplicateObject) as error:
            return Refusal(f"{error.diag.message_primary}; it is tried again at the next look", "Or")
    return None


def _trouble(
    found: Publications, member: Member, pipeline: str, refusal: Refusal | None, *, inserts_read: bool
) -> NotPublished | None:
    """Say why changes of the table do not arrive as they must; None when they do."""
    table, main = member.table, found.main
    if member.unlogged:
        names = shortened([str(one) for one in member.unlogged])
        logged = "; ".join(f"ALTER TABLE {quoted_table(one)} SET LOGGED" for one in member.unlogged)
        what = f"changes of table {table} are not sent whole: of its unlogged partitions Postgres sends none: {names}"
        return NotPublished(what, f"Run: {logged}; {_BY_ITSELF}")
    for one in found.present:
        hiding = [root for root in member.part_of if one.via_root and one.covers(root)]
        if hiding:
            return NotPublished(
                f"table {table} is followed by itself, but publication {one.name} publishes it as part of "
                f"{', '.join(map(str, hiding))}",
                f"Run: {_unhidden(one, hiding)}; {_BY_ITSELF}",
            )
    covering = [one for one in found.present if one.covers(table)]
    if covering and not inserts_read and all(one is found.inserts for one in covering):
        return _unread(found, table)
    few = member.lacks_identity and all(one is found.inserts for one in covering)
    expected = INSERTS_ONLY if few else OPERATIONS
    missing = [operation for operation in expected if operation not in found.sends(table)]
    unrooted = [one.name for one in covering if member.partitioned and not one.via_root]
    if covering and not missing and not unrooted:
        return None
    changes = [
        replace(change, tables=(table,) if change.tables else ())
        for change in planned(found, [member], pipeline)
        if change.kind != "leave" and (table in change.tables or change.kind == "options")
    ]
    text = "; ".join(change.text for change in changes)
    if not covering and not inserts_read and member.lacks_identity and refusal is None:
        return _unread(found, table)
    if refusal is not None:
        return NotPublished(
            f"table {table} is not published: {refusal.reason}", f"{refusal.instead} run: {text}; {_BY_ITSELF}"
        )
    if not covering:
        lacks = "it is not in"
    elif missing:
        lacks = f"{', '.join(missing)} is not published by"
    else:
        lacks = "partitioned tables are not published as one by"
    name = covering[0].name if covering else found.name
    whose = (
        "" if main is not None and main.managed_by(pipeline) else ", which this pipeline did not make and never alters"
    )
    return NotPublished(
        f"table {table} is not published as it must be: {lacks} publication {name}{whose}",
        f"Run: {text} — or name another publication in source.publication; {_BY_ITSELF}",
    )


def _unread(found: Publications, table: TableId) -> NotPublished:
    return NotPublished(
        f"table {table} has no replica identity, and publication {inserts_publication(found.name)}, which is for such "
        "tables, is younger than what the slot reads next",
        "Nothing: capture reads it as soon as the transactions that are older than the publication have ended and "
        f"the server has noted that, mostly within a minute; {_BY_ITSELF}",
    )


def _tables(tables: Sequence[TableId]) -> str:
    return ", ".join(f"ONLY {quoted_table(table)}" for table in tables)


def _unhidden(publication: Publication, roots: Sequence[TableId]) -> str:
    alter = f"ALTER PUBLICATION {quoted(publication.name)}"
    if set(roots) <= publication.listed:
        return f"{alter} DROP TABLE {_tables(roots)}"
    return f"{alter} SET (publish_via_partition_root = false)"

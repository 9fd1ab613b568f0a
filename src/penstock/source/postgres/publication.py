"""The publication: made when missing, kept in step with the tables that match, never altered unless penstock made it.

A publication that penstock manages carries a comment with its pipeline's name. `needed` says which statements would
bring one in step; `ensure_publication` runs them, or raises with them where it may not. check.py shows the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from penstock.errors import SourceMisconfigured
from penstock.model.table import TableId
from penstock.source.postgres.connect import Connection, source_errors
from penstock.source.postgres.statements import literal, quoted, quoted_table

OPERATIONS = ("insert", "update", "delete", "truncate")
_PUBLISH = f"publish = '{', '.join(OPERATIONS)}'"
_VIA_ROOT = "publish_via_partition_root = true"


@dataclass(frozen=True)
class Publication:
    """What the catalogue says. `listed` tables were added by name; whole `schemas` since 15; `partitioned` are all
    partitioned tables of the database, whether published or not."""

    name: str
    comment: str
    owned: bool
    all_tables: bool
    missing_operations: tuple[str, ...]
    via_root: bool
    listed: frozenset[TableId]
    schemas: frozenset[str]
    partitioned: frozenset[TableId]

    def managed_by(self, pipeline: str) -> bool:
        return self.comment == managed_comment(pipeline)

    def covers(self, table: TableId) -> bool:
        return self.all_tables or table in self.listed or table.schema in self.schemas


def managed_comment(pipeline: str) -> str:
    return f"managed by penstock, pipeline {pipeline}"


def read_publication(connection: Connection, name: str) -> Publication | None:
    """The publication as it is now; None when there is none of that name."""
    with source_errors(f"reading publication {name}"):
        row = connection.execute(
            """
            SELECT oid, coalesce(obj_description(oid, 'pg_publication'), ''), pg_has_role(pubowner, 'USAGE'),
                   puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot
            FROM pg_publication WHERE pubname = %s
            """,
            (name,),
        ).fetchone()
        if row is None:
            return None
        oid, comment, owned, all_tables, *published, via_root = row
        listed = connection.execute(
            "SELECT n.nspname, c.relname FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE r.prpubid = %s",
            (oid,),
        ).fetchall()
        partitioned = connection.execute(
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relkind = 'p'"
        ).fetchall()
        schemas = []
        if connection.info.server_version >= 150000:
            schemas = connection.execute(
                "SELECT n.nspname FROM pg_publication_namespace p JOIN pg_namespace n ON n.oid = p.pnnspid"
                " WHERE p.pnpubid = %s",
                (oid,),
            ).fetchall()
    return Publication(
        name=name,
        comment=comment,
        owned=owned,
        all_tables=all_tables,
        missing_operations=tuple(op for op, there in zip(OPERATIONS, published, strict=True) if not there),
        via_root=via_root,
        listed=frozenset(TableId(*names) for names in listed),
        schemas=frozenset(schema for (schema,) in schemas),
        partitioned=frozenset(TableId(*names) for names in partitioned),
    )


def needed(name: str, publication: Publication | None, tables: Sequence[TableId], pipeline: str) -> list[str]:
    """The statements that bring the publication in step with `tables`.

    Tables that are no longer wanted are taken out of a publication that penstock manages; another's may have them for
    somebody else. ONLY, for children of plain inheritance are tables of their own; partitions come with their root.
    """
    if publication is None:
        what = f" FOR TABLE {_tables(sorted(tables))}" if tables else ""
        return [
            f"CREATE PUBLICATION {quoted(name)}{what} WITH ({_PUBLISH}, {_VIA_ROOT})",
            f"COMMENT ON PUBLICATION {quoted(name)} IS {literal(managed_comment(pipeline))}",
        ]
    managed = publication.managed_by(pipeline)
    alter = f"ALTER PUBLICATION {quoted(name)}"
    options = []
    if publication.missing_operations:
        options.append(_PUBLISH)
    if not publication.via_root and (managed or publication.partitioned & set(tables)):
        options.append(_VIA_ROOT)
    statements = [f"{alter} SET ({', '.join(options)})"] if options else []
    if added := sorted(table for table in tables if not publication.covers(table)):
        statements.append(f"{alter} ADD TABLE {_tables(added)}")
    if managed and (dropped := sorted(publication.listed - set(tables))):
        statements.append(f"{alter} DROP TABLE {_tables(dropped)}")
    return statements


def ensure_publication(connection: Connection, name: str, tables: Sequence[TableId], pipeline: str) -> list[str]:
    """Brings the publication in step with `tables` and returns the statements it ran for that, none when it was.

    SourceMisconfigured, with the statements for somebody who may, when it is not ours to alter or we lack the right.
    """
    publication = read_publication(connection, name)
    statements = needed(name, publication, tables, pipeline)
    if not statements:
        return []
    by_hand = "; ".join(statements)
    if publication is not None and not publication.managed_by(pipeline):
        raise SourceMisconfigured(
            f"publication {name} lacks what the pipeline needs, and is not altered, for this pipeline did not make it",
            f"Run: {by_hand} — or name another publication in source.publication",
        )
    with source_errors(f"bringing publication {name} in step with the tables"):
        try:
            with connection.transaction():
                for statement in statements:
                    connection.execute(statement.encode())
        except psycopg.errors.InsufficientPrivilege as error:
            raise SourceMisconfigured(
                f"the role may not make or alter publication {name}: {error.diag.message_primary}",
                f"As a role that owns the tables and may create in the database run: {by_hand}",
            ) from error
        except psycopg.errors.ReadOnlySqlTransaction as error:
            raise SourceMisconfigured(
                f"publication {name} is not in step with the tables, and the source is a read-only replica",
                f"On its primary run: {by_hand}",
            ) from error
    return statements


def _tables(tables: Sequence[TableId]) -> str:
    return ", ".join(f"ONLY {quoted_table(table)}" for table in tables)

"""What penstock notes at the destination, in the schema `penstock`: a row per table and source, and tables in use.

The row of a table and a source holds its position, and is locked, compared and set in the transaction that changes the
rows. `token` is another one after every commit: a plan names the token that it was made under, so a commit by anybody
else makes it stale even where the position is the same. `relation` and `filenode` say which table it is, so that one
that somebody dropped, replaced or truncated is noticed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from penstock.destinations.postgres.connection import Connection
from penstock.errors import LineageLost, StaleBase, TableDropped
from penstock.fold.layout import ROWS
from penstock.model.feed import Sid
from penstock.model.position import Position
from penstock.model.table import TableId, TableSchema

SCHEMA = "penstock"
_STATE = """
CREATE SCHEMA IF NOT EXISTS penstock;
CREATE TABLE IF NOT EXISTS penstock.tables (
    target_schema text NOT NULL, target_name text NOT NULL, source text NOT NULL,
    relation oid NOT NULL, filenode oid NOT NULL,
    position numeric(20), moment bigint NOT NULL DEFAULT 0, history text NOT NULL DEFAULT '',
    token uuid NOT NULL, epoch uuid NOT NULL,
    structure text NOT NULL, layout text NOT NULL, rule text NOT NULL,
    former text[] NOT NULL DEFAULT '{}', columns jsonb NOT NULL, created boolean NOT NULL,
    sid_column text, sid_value text, family text,
    PRIMARY KEY (target_schema, target_name, source)
);
CREATE TABLE IF NOT EXISTS penstock.parts (
    name text PRIMARY KEY, target_schema text NOT NULL, target_name text NOT NULL, source text NOT NULL
);
"""
_COLUMNS = (
    "target_schema, target_name, source, relation::bigint, filenode::bigint, position, moment, history, token::text,"
    " epoch::text, structure, layout, rule, former, columns, created, sid_column, sid_value, family"
)


@dataclass(frozen=True)
class Record:
    """One row of `penstock.tables`. `former`: columns that followed the source once, and are kept."""

    target: TableId
    source: str
    relation: int
    filenode: int
    position: Position | None
    moment: int
    history: str
    token: str
    epoch: str
    structure: TableSchema
    layout: str
    rule: str
    former: tuple[str, ...]
    columns: Mapping[str, int]  # that follow the source, by name, with the numbers that they have there
    created: bool
    sid: Sid | None


def prepare(connection: Connection) -> None:
    """Make what penstock notes its tables in, if it is not there."""
    if connection.execute("SELECT to_regclass('penstock.parts')").fetchone() == (None,):
        connection.execute(_STATE.encode())


def new_token() -> str:
    return str(uuid.uuid4())


def read(connection: Connection, target: TableId, source: str | None = None, *, lock: bool = False) -> list[Record]:
    """Return what is noted of a table: of one source, or of all that feed it."""
    whose = "" if source is None else " AND source = %s"
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM penstock.tables WHERE target_schema = %s AND target_name = %s{whose}"
        f" ORDER BY source{' FOR UPDATE' if lock else ''}".encode(),
        [target.schema, target.name, *([] if source is None else [source])],
    ).fetchall()
    return [_record(row) for row in rows]


def _record(row: Sequence[object]) -> Record:
    schema, name, source, relation, filenode, position, moment, history, token, epoch = row[:10]
    structure, layout, rule, former, columns, created, sid_column, sid_value, family = row[10:]
    sid = None if sid_column is None else Sid(str(sid_column), json.loads(str(sid_value)), str(family))
    return Record(
        TableId(str(schema), str(name)),
        str(source),
        int(str(relation)),
        int(str(filenode)),
        None if position is None else int(str(position)),
        int(str(moment)),
        str(history),
        str(token),
        str(epoch),
        TableSchema.from_json(str(structure)),
        str(layout),
        str(rule),
        tuple(former) if isinstance(former, list) else (),
        columns if isinstance(columns, dict) else {},
        bool(created),
        sid,
    )


def insert(connection: Connection, record: Record) -> None:
    sid = record.sid
    connection.execute(
        f"INSERT INTO penstock.tables VALUES ({', '.join(['%s'] * 19)})".encode(),
        (
            record.target.schema,
            record.target.name,
            record.source,
            record.relation,
            record.filenode,
            record.position,
            record.moment,
            record.history,
            record.token,
            record.epoch,
            record.structure.to_json(),
            record.layout,
            record.rule,
            list(record.former),
            json.dumps(dict(record.columns)),
            record.created,
            None if sid is None else sid.column,
            None if sid is None else json.dumps(sid.value),
            None if sid is None else sid.family,
        ),
    )


def update(connection: Connection, record: Record) -> None:
    """Set all that may change of a row, inside the transaction that has locked it."""
    connection.execute(
        "UPDATE penstock.tables SET relation = %s, filenode = %s, position = %s, moment = %s, history = %s, token = %s,"
        " epoch = %s, structure = %s, rule = %s, former = %s, columns = %s"
        " WHERE target_schema = %s AND target_name = %s AND source = %s",
        (
            record.relation,
            record.filenode,
            record.position,
            record.moment,
            record.history,
            record.token,
            record.epoch,
            record.structure.to_json(),
            record.rule,
            list(record.former),
            json.dumps(dict(record.columns)),
            record.target.schema,
            record.target.name,
            record.source,
        ),
    )


def rewrote(connection: Connection, target: TableId, before: int) -> int:
    """Note for all sources of a table that we have given it another file; return its number."""
    found = storage(connection, target)
    assert found is not None
    if found[1] != before:
        connection.execute(
            "UPDATE penstock.tables SET filenode = %s WHERE target_schema = %s AND target_name = %s AND filenode = %s",
            (found[1], target.schema, target.name, before),
        )
    return found[1]


def delete(connection: Connection, target: TableId, source: str) -> None:
    connection.execute(
        "DELETE FROM penstock.tables WHERE target_schema = %s AND target_name = %s AND source = %s",
        (target.schema, target.name, source),
    )


def storage(connection: Connection, target: TableId) -> tuple[int, int] | None:
    """Return the numbers of a table and of its file; None when there is no such table.

    The file of a partitioned table is those of its partitions, as one number.
    """
    row = connection.execute(
        "SELECT c.oid::bigint, CASE c.relkind WHEN 'r' THEN c.relfilenode::bigint ELSE (SELECT"
        " coalesce(hashtext(string_agg(pg_relation_filenode(p.relid)::text, ' ' ORDER BY p.relid))::bigint, 0)"
        " & 2147483647 FROM pg_partition_tree(c.oid) p WHERE p.isleaf) END"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')",
        (target.schema, target.name),
    ).fetchone()
    return None if row is None else (int(row[0]), int(row[1]))


def require_descended(connection: Connection, record: Record) -> int:
    """Return the number of the table's file.

    TableDropped when it is another table than we wrote to, or none; LineageLost when somebody emptied it, also if they
    have filled it again.

    A file that changed was rewritten. VACUUM FULL leaves every row the transaction that it is of, so the table has
    rows that are no younger than what we noted last; a table that was emptied has none. One whose rows were all written
    anew, as by ALTER TABLE, counts as emptied where a copy loses nothing.
    """
    found = storage(connection, record.target)
    if found is None or found[0] != record.relation:
        raise TableDropped(
            f"table {record.target} was dropped or replaced at the destination", "Nothing: it is copied again by itself"
        )
    if found[1] == record.filenode or record.position is None:
        return found[1]
    conditions: list[sql.Composable] = [sql.SQL("TRUE")]
    if record.layout == ROWS.to_json():
        noted = sql.SQL("target_schema = {} AND target_name = {} AND source = {}").format(
            sql.Literal(record.target.schema), sql.Literal(record.target.name), sql.Literal(record.source)
        )
        conditions.append(
            sql.SQL("age(t.xmin) >= (SELECT age(xmin) FROM penstock.tables WHERE {})").format(noted),
        )
    if record.sid is not None:
        whose = sql.SQL("t.{} = {}").format(sql.Identifier(record.sid.column), sql.Literal(str(record.sid.value)))
        conditions.append(whose)
    rows = sql.SQL("SELECT EXISTS (SELECT FROM {} t WHERE {})").format(
        sql.Identifier(record.target.schema, record.target.name), sql.SQL(" AND ").join(conditions)
    )
    if connection.execute(rows).fetchone() == (False,):
        raise LineageLost(
            f"table {record.target}: somebody truncated it or rewrote all its rows at the destination",
            f"`penstock resync` copies {record.target} again",
        )
    return found[1]


def require_token(record: Record | None, target: TableId, token: str) -> Record:
    if record is None or record.token != token:
        raise StaleBase(f"table {target} has changed since its state was read", "The batch is redone")
    return record


def register_part(connection: Connection, name: str, target: TableId, source: str) -> None:
    connection.execute("INSERT INTO penstock.parts VALUES (%s, %s, %s, %s)", (name, target.schema, target.name, source))


def drop_parts(connection: Connection, names: Sequence[str]) -> None:
    """Remove tables with rows that nobody needs any more."""
    for name in names:
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(SCHEMA, name)))
        connection.execute("DELETE FROM penstock.parts WHERE name = %s", (name,))


def parts_of(connection: Connection, target: TableId, source: str) -> list[str]:
    rows = connection.execute(
        "SELECT name FROM penstock.parts WHERE target_schema = %s AND target_name = %s AND source = %s",
        (target.schema, target.name, source),
    ).fetchall()
    return [str(row[0]) for row in rows]

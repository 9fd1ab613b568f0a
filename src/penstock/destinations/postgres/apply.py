"""Commits: what parts make of a table, in statements that find rows by index, and all tables of a batch in one go.

Inside the transaction each table has a savepoint. What its own rows or constraints refuse undoes that table alone, and
the others are committed; a foreign key between two tables of the batch is tried again when the other one is through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import psycopg
import pyarrow as pa
from psycopg import errors as pg
from psycopg import sql

from penstock.decode.rescue import RESCUED
from penstock.destinations.contract import TableCommit
from penstock.destinations.postgres import records
from penstock.destinations.postgres.afresh import may_be_removed, put_in_afresh
from penstock.destinations.postgres.connection import Connection, Session, Sessions
from penstock.destinations.postgres.parts import PostgresPart, ours
from penstock.destinations.postgres.plan import (
    PostgresPlan,
    removal_columns,
)
from penstock.destinations.postgres.records import SCHEMA, Record
from penstock.destinations.postgres.refusals import table_error
from penstock.destinations.postgres.shape import Shape, TargetColumn, names_of
from penstock.destinations.postgres.staging import (
    NEEDED,
    NUMBER,
    PART,
    TIMES,
    key_columns,
    own_share,
    row_columns,
    same_key,
    sid_literal,
    staged,
)
from penstock.destinations.postgres.version_commit import apply_versions
from penstock.errors import (
    CommitUnknown,
    CopyNeeded,
    StaleBase,
    TableError,
)
from penstock.fold.whole_rows import rows_missing

# A batch costs what it touches: left alone, the planner may scan a table for the keys of a batch.
_BY_INDEX = "SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_seqscan = off"
BY_SCAN = "SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on; SET LOCAL enable_seqscan = on"
_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '2s'"


@dataclass
class _Pending:
    place: int
    plan: PostgresPlan
    commit: TableCommit
    record: Record


def commit_batch(
    sessions: Sessions, commits: Sequence[tuple[PostgresPlan, TableCommit]], before_commit: Callable[[], None]
) -> list[TableError | None]:
    """Commit the tables in one transaction; return the error of each that cannot take its own part."""
    outcomes: list[TableError | None] = [None] * len(commits)
    while True:
        left = [place for place, outcome in enumerate(outcomes) if outcome is None]
        late = _attempt(sessions, commits, left, outcomes, before_commit)
        if late is None:
            return outcomes
        outcomes[late[0]] = late[1]


def _attempt(
    sessions: Sessions,
    commits: Sequence[tuple[PostgresPlan, TableCommit]],
    places: Sequence[int],
    outcomes: list[TableError | None],
    before_commit: Callable[[], None],
) -> tuple[int, TableError] | None:
    """Commit the tables at these places, all but those that get an outcome.

    Return the table that a deferred constraint refuses at the end: then nothing is committed, and the rest is tried
    again without it.
    """
    with sessions.session() as session:
        connection = session.connection
        session.used.clear()
        connection.execute("BEGIN")
        try:
            connection.execute(f"{_BY_INDEX}; {_LOCK_TIMEOUT}; SET CONSTRAINTS ALL DEFERRED".encode())
            pending = _locked(connection, [(place, *commits[place]) for place in places])
            _apply_all(session, pending, outcomes)
            late = _deferred(connection, pending, outcomes)
            if late is not None:
                connection.execute("ROLLBACK")
                return late
        except BaseException:
            _roll_back(connection)
            raise
        before_commit()
        _commit(connection)
    return None


def _roll_back(connection: Connection) -> None:
    try:
        connection.execute("ROLLBACK")
    except psycopg.Error:
        connection.close()  # the server rolls back when its session is gone


def _commit(connection: Connection) -> None:
    """CommitUnknown when the answer does not come."""
    try:
        connection.execute("COMMIT")
    except psycopg.Error as error:
        if error.sqlstate is not None and not isinstance(error, psycopg.OperationalError):
            raise
        connection.close()
        raise CommitUnknown(
            "the destination's server did not answer to COMMIT", "The tables' positions say whether it took place"
        ) from error


def _locked(connection: Connection, commits: Sequence[tuple[int, PostgresPlan, TableCommit]]) -> list[_Pending]:
    """Lock the records in one order, so that no two commits wait for each other. StaleBase when one has moved."""
    pending = []
    for place, plan, commit in sorted(commits, key=lambda one: (str(one[1].target), one[1].source)):
        found = records.read(connection, plan.target, plan.source, lock=True)
        record = records.require_token(found[0] if found else None, plan.target, plan.base)
        pending.append(_Pending(place, plan, commit, record))
    return pending


def _apply_all(session: Session, pending: Sequence[_Pending], outcomes: list[TableError | None]) -> None:
    waiting = list(pending)
    while waiting:
        again: list[tuple[_Pending, TableError]] = []
        for one in waiting:
            error = _applied(session, one)
            if error is not None and isinstance(error.__cause__, pg.ForeignKeyViolation):
                again.append((one, error))
            else:
                outcomes[one.place] = error
        if len(again) == len(waiting):  # none of them gets any further by waiting
            for one, error in again:
                outcomes[one.place] = error
            return
        waiting = [one for one, _ in again]


def _applied(session: Session, one: _Pending) -> TableError | None:
    """Apply one table's part, or leave the table as it was and return why."""
    error = _tried(session, one, afresh=False)
    if (
        error is not None
        and isinstance(error.__cause__, pg.UniqueViolation)
        and may_be_removed(session, one.plan.shape)
    ):
        error = _tried(session, one, afresh=True)
    return error


def _tried(session: Session, one: _Pending, *, afresh: bool) -> TableError | None:
    connection = session.connection
    connection.execute("SAVEPOINT one_table")
    used, staging = set(session.used), dict(session.staging)
    try:
        apply(session, one.plan, one.record, one.commit, afresh=afresh)
        connection.execute("RELEASE one_table")
        return None
    except psycopg.Error as error:
        own = table_error(one.plan, one.commit, error)
        if own is None or connection.closed:
            raise
        own.__cause__ = error
    except TableError as error:
        own = error
    connection.execute("ROLLBACK TO one_table; RELEASE one_table")
    session.used, session.staging = used, staging
    return own


def _deferred(
    connection: Connection, pending: Sequence[_Pending], outcomes: Sequence[TableError | None]
) -> tuple[int, TableError] | None:
    """Check what was deferred, as COMMIT would."""
    connection.execute("SAVEPOINT deferred")
    try:
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        return None
    except psycopg.IntegrityError as error:
        schema, name = error.diag.schema_name, error.diag.table_name
        tables = [one for one in pending if outcomes[one.place] is None]
        whose = [one for one in tables if (one.plan.target.schema, one.plan.target.name) == (schema, name)]
        one = (whose or tables)[0]
        own = table_error(one.plan, one.commit, error)
        assert own is not None
        return one.place, own


def apply(session: Session, plan: PostgresPlan, record: Record, commit: TableCommit, *, afresh: bool = False) -> None:
    """Change one table and its record, inside a transaction that has locked the record.

    `afresh`: take rows that change out before any is put in.
    """
    connection, shape, parts = session.connection, plan.shape, ours(commit.parts)
    connection.execute(sql.SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(shape.identifier))
    filenode = records.require_descended(connection, record)
    for statement in plan.move.statements:
        connection.execute(statement)
    rescued = rescuing(connection, shape, parts)
    shape = replace(shape, rescued=shape.rescued or rescued)
    emptied = commit.truncated and shape.layout.period is None
    if emptied:
        empty(connection, shape)
    if shape.layout.period is not None:
        apply_versions(session, shape, parts)
    else:
        _apply_rows(session, shape, parts, emptied=emptied, afresh=afresh)
    if plan.move.statements or emptied:
        filenode = records.rewrote(connection, plan.target, filenode)
    moved = replace(
        record,
        filenode=filenode,
        position=commit.position,
        moment=record.moment if commit.moment is None else commit.moment,
        token=plan.made,
        structure=plan.move.structure,
        former=shape.former,
        columns=shape.numbers,
    )
    records.update(connection, moved)


def rescuing(connection: Connection, shape: Shape, parts: Sequence[PostgresPart]) -> bool:
    """Give the table the column for what was rescued, when the first row needs it."""
    needs = any(part.upserts is not None and RESCUED in part.upserts.column_names for part in parts)
    if not needs and not shape.rescued:
        for part in parts:
            if part.stored is not None and part.rows:
                query = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {} IS NOT NULL AND {} = {})").format(
                    sql.Identifier(SCHEMA, part.stored.table),
                    sql.Identifier(RESCUED),
                    sql.Identifier(PART),
                    sql.Literal(part.stored.part),
                )
                needs |= connection.execute(query).fetchone() == (True,)
    if needs:
        connection.execute(
            sql.SQL("ALTER TABLE {} ADD COLUMN IF NOT EXISTS {} jsonb").format(
                shape.identifier, sql.Identifier(RESCUED)
            )
        )
    return needs


def empty(connection: Connection, shape: Shape) -> None:
    """Remove all rows of this source."""
    if shape.sid is not None:
        connection.execute(sql.SQL("DELETE FROM {} t WHERE {}").format(shape.identifier, own_share(shape, "t")))
    elif is_referenced(connection, shape):
        connection.execute(sql.SQL("DELETE FROM {}").format(shape.identifier))
    else:
        connection.execute(sql.SQL("TRUNCATE {}").format(shape.identifier))


def is_referenced(connection: Connection, shape: Shape) -> bool:
    """Whether a foreign key of another table points here, which TRUNCATE does not allow."""
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_constraint WHERE contype = 'f' AND confrelid = %s::text::regclass"
        " AND conrelid <> confrelid)",
        (shape.identifier.as_string(None),),
    ).fetchone()
    return row == (True,)


@dataclass(frozen=True)
class _Source:
    """Staged rows: a table, the condition that chooses them, and the part that they are of."""

    table: sql.Identifier
    where: sql.Composable
    part: PostgresPart


def _sources(session: Session, shape: Shape, parts: Sequence[PostgresPart]) -> list[_Source]:
    found = []
    for part in parts:
        if part.upserts is not None:
            rows, columns = part.upserts, row_columns(shape)
            if part.fetches:
                rows = rows.append_column(NUMBER, pa.array(range(rows.num_rows)))
                columns = [*columns, TargetColumn(NUMBER, "bigint")]
            found.append(_Source(staged(session, columns, rows), sql.SQL("TRUE"), part))
        elif part.stored is not None and part.rows:
            where = sql.SQL("s.{} = {}").format(sql.Identifier(PART), sql.Literal(part.stored.part))
            table = sql.Identifier(SCHEMA, part.stored.table)
            require_stored(session.connection, part)
            found.append(_Source(table, where, part))
    return found


def require_stored(connection: Connection, part: PostgresPart) -> None:
    """StaleBase when rows that a task stored are gone: a server that crashed has emptied unlogged tables."""
    assert part.stored is not None
    try:
        with connection.transaction():
            row = connection.execute(
                sql.SQL("SELECT count(*) FROM {} WHERE {} = {}").format(
                    sql.Identifier(SCHEMA, part.stored.table), sql.Identifier(PART), sql.Literal(part.stored.part)
                )
            ).fetchone()
    except pg.UndefinedTable:
        row = None
    if row is None or int(row[0]) != part.rows:
        raise StaleBase("rows that a task stored at the destination are gone", "The batch is redone")


def _apply_rows(session: Session, shape: Shape, parts: Sequence[PostgresPart], *, emptied: bool, afresh: bool) -> None:
    connection = session.connection
    joined = _joined(parts)
    sources = _sources(session, shape, joined)
    for source in sources:
        _fill(session, shape, source)
    for part in joined:
        if part.gone is not None and not emptied:
            gone = staged(session, key_columns(shape), part.gone)
            _delete_keys(connection, shape, gone)
        if part.removals is not None:
            _remove(session, shape, part.removals)
    if afresh and shape.key:
        put_in_afresh(connection, shape, [(source.table, source.where) for source in sources])
        return
    for source in sources:
        insert(connection, shape, source.table, source.where, plain=emptied)


def _joined(parts: Sequence[PostgresPart]) -> list[PostgresPart]:
    """Return parts whose rows are plain, as one: one COPY and one statement for all of them."""
    plain = [part for part in parts if part.stored is None and not part.fetches and part.removals is None]
    if len(plain) < 2:
        return list(parts)
    upserts = [part.upserts for part in plain if part.upserts is not None]
    gone = [part.gone for part in plain if part.gone is not None]
    whole = PostgresPart(
        pa.concat_tables(upserts, promote_options="default") if upserts else None,
        gone=pa.concat_tables(gone) if gone else None,
        rows=sum(part.rows for part in plain),
    )
    return [whole, *(part for part in parts if part not in plain)]


def _fill(session: Session, shape: Shape, source: _Source) -> None:
    """Fill the cells that the source did not send from the rows that are there. CopyNeeded when one is not."""
    for fetch in source.part.fetches:
        columns = [*key_columns(shape), TargetColumn(NUMBER, "bigint")]
        keys = staged(session, columns, fetch.keys.append_column(NUMBER, pa.array(fetch.rows)))
        rescued = sql.SQL("")
        if shape.rescued:
            rescued = sql.SQL(
                ", {r} = CASE WHEN t.{r} ? {n} THEN coalesce(s.{r}, '{{}}') || jsonb_build_object({n}, t.{r} -> {n})"
                " ELSE s.{r} END"
            ).format(r=sql.Identifier(RESCUED), n=sql.Literal(fetch.column))  # type: ignore[assignment]
        done = session.connection.execute(
            sql.SQL("UPDATE {} s SET {} = t.{}{} FROM {} k JOIN {} t ON {} AND {} WHERE k.{} = s.{} AND {}").format(
                source.table,
                sql.Identifier(fetch.column),
                sql.Identifier(fetch.column),
                rescued,
                keys,
                shape.identifier,
                same_key(shape, "t", "k"),
                own_share(shape, "t"),
                sql.Identifier(NUMBER),
                sql.Identifier(NUMBER),
                source.where,
            )
        )
        missing = len(fetch.rows) - done.rowcount
        if missing > 0:
            raise CopyNeeded(
                f"table {shape.target}: {missing} updated rows are missing, and the source did not send unchanged "
                f"large values of {fetch.column}; somebody may have deleted rows there",
                "Nothing: it is copied again by itself",
            )


def _delete_keys(connection: Connection, shape: Shape, keys: sql.Identifier) -> None:
    connection.execute(
        sql.SQL("DELETE FROM {} t USING {} k WHERE {} AND {}").format(
            shape.identifier, keys, same_key(shape, "t", "k"), own_share(shape, "t")
        )
    )


def insert(
    connection: Connection,
    shape: Shape,
    source: sql.Identifier,
    where: sql.Composable,
    *,
    plain: bool = False,
    tail: sql.Composable | None = None,
) -> None:
    """Put rows in, in place of those of their keys. `plain`: there are none. `tail`: FROM and WHERE, if it is more."""
    names = [*shape.names, *([RESCUED] if shape.rescued else [])]
    alias = "s" if tail is None else "c"
    into, values = (
        [sql.Identifier(name) for name in names],
        [sql.SQL("{}.{}").format(sql.SQL(alias), sql.Identifier(name)) for name in names],
    )
    if shape.sid is not None:
        into.insert(0, sql.Identifier(shape.sid.column))
        values.insert(0, sql.SQL("{}").format(sid_literal(shape.sid)))
    statement = sql.SQL("INSERT INTO {} ({}) SELECT {} ").format(
        shape.identifier, sql.SQL(", ").join(into), sql.SQL(", ").join(values)
    ) + (sql.SQL("FROM {} s WHERE {}").format(source, where) if tail is None else sql.SQL("{}").format(tail))
    if shape.key and not plain:
        if not shape.unique:
            rows = sql.SQL("SELECT {} {}").format(
                names_of(shape.key), sql.SQL("FROM {} s WHERE {}").format(source, where) if tail is None else tail
            )
            connection.execute(
                sql.SQL("DELETE FROM {} t USING ({}) k WHERE {} AND {}").format(
                    shape.identifier, rows, same_key(shape, "t", "k"), own_share(shape, "t")
                )
            )
        else:
            settings = [
                sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in names if name not in shape.key
            ]
            settings += [sql.SQL("{} = NULL").format(sql.Identifier(name)) for name in shape.former]
            statement += sql.SQL(" ON CONFLICT ({}) DO ").format(names_of(shape.conflict_key))
            statement += (
                sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(settings)) if settings else sql.SQL("NOTHING")
            )
    connection.execute(statement)


def _remove(session: Session, shape: Shape, removals: pa.Table) -> None:
    """Remove whole rows, as many instances of each as the source removed. RowsMissing when there are fewer."""
    rows = staged(
        session, removal_columns(shape), removals.append_column(PART, pa.nulls(removals.num_rows, pa.int64()))
    )
    remove_rows(session.connection, shape, shape.identifier, rows, own_share(shape, "t"))


def remove_rows(
    connection: Connection, shape: Shape, table: sql.Identifier, removals: sql.Identifier, where: sql.Composable
) -> None:
    connection.execute(BY_SCAN.encode())
    rescued = [RESCUED] if shape.rescued else []
    names = [*shape.names, *rescued]
    held, gone = (
        sql.SQL("ROW({})::text").format(
            sql.SQL(", ").join(sql.SQL("{}.{}").format(sql.SQL(alias), sql.Identifier(name)) for name in names)
        )
        for alias in ("t", "g")
    )
    numbered = sql.SQL(
        "SELECT t.tableoid, t.ctid, g.{times} AS times, g.{needed} AS needed, g.ctid AS which, row_number() OVER "
        "(PARTITION BY g.ctid) AS place, count(*) OVER (PARTITION BY g.ctid) AS there"
        " FROM {table} t JOIN {removals} g ON {held} = {gone} WHERE {where}"
    ).format(
        times=sql.Identifier(TIMES),
        needed=sql.Identifier(NEEDED),
        table=table,
        removals=removals,
        held=held,
        gone=gone,
        where=where,
    )
    missing = connection.execute(
        sql.SQL(
            "WITH n AS ({}), d AS (DELETE FROM {} t USING n WHERE t.ctid = n.ctid AND t.tableoid = n.tableoid AND "
            "n.place <= n.times) SELECT coalesce(sum(greatest(0, g.{} - coalesce(f.there, 0))), 0) FROM {} g LEFT JOIN"
            " (SELECT which, max(there) AS there FROM n GROUP BY which) f ON f.which = g.ctid"
        ).format(numbered, table, sql.Identifier(NEEDED), removals)
    ).fetchone()
    connection.execute(_BY_INDEX.encode())
    if missing is not None and int(missing[0]):
        raise rows_missing(shape.target, int(missing[0]))

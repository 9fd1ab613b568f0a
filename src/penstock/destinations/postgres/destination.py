"""Tables in a Postgres database: `contract.TableDestination`, with whole batches in one transaction.

The driver's side. Every call takes a session of its own from `connection.Sessions`; nothing is kept between calls but
what `ensure_table` was asked for. `plan` has what executors run, `apply` the statements of a commit, `records` what the
destination notes about its tables.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from psycopg import errors as pg
from psycopg import sql
from pydantic import SecretStr

from penstock.destinations.contract import (
    Capabilities,
    JobRunner,
    MaintenanceReport,
    TableCommit,
    WritePlan,
    WrittenPart,
)
from penstock.destinations.postgres import apply, records
from penstock.destinations.postgres.bookmarks import Bookmarks
from penstock.destinations.postgres.connection import Connection, Sessions
from penstock.destinations.postgres.copy_commit import commit_copy
from penstock.destinations.postgres.new_table import NewTable, forget_lost, take_in
from penstock.destinations.postgres.parts import PostgresPart, ours
from penstock.destinations.postgres.plan import (
    GROUP_ROWS,
    PostgresCatchup,
    PostgresCopy,
    PostgresPlan,
    make_copy_tables,
)
from penstock.destinations.postgres.records import Record
from penstock.destinations.postgres.shape import (
    Move,
    Shape,
    moved,
    shape_of,
    wanted_columns,
)
from penstock.destinations.postgres.type_map import POSTGRES_TYPES
from penstock.destinations.spark_session import Session
from penstock.destinations.structure import OnDrop, numbered
from penstock.destinations.union import require_same_names
from penstock.errors import (
    FilesLost,
    FileUnreadable,
    LineageLost,
    OtherLayout,
    PenstockError,
    PositionLost,
    StaleBase,
    TableDropped,
    TableError,
)
from penstock.failpoints import reach
from penstock.fold.layout import ROWS, Layout
from penstock.model.feed import Mode, Sid
from penstock.model.position import Position, position_text
from penstock.model.table import TableId, TableSchema


class PostgresSettings(Protocol):
    """What the file says of the destination (`config.postgres_destination`)."""

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> SecretStr: ...

    @property
    def create(self) -> bool: ...

    @property
    def enums(self) -> Literal["text", "enum"]: ...


@dataclass(frozen=True)
class _Copying:
    """A copy that was planned: its base, and where its rows go."""

    token: str
    epoch: str
    move: Move
    rows: Shape  # of the copy's own tables
    table: str


class PostgresDestination:
    capabilities = Capabilities(
        modes=frozenset(Mode),
        maintained=False,
        bookmarks=True,
        types=POSTGRES_TYPES,
        whole_batches=True,
        looks_up="commit",
        strict="position",
    )

    def __init__(self, settings: PostgresSettings) -> None:
        self.name = settings.name
        self._create, self._enums = settings.create, settings.enums == "enum"
        self._sessions = Sessions(settings.url.get_secret_value(), settings.name)
        self._layouts: dict[tuple[TableId, str], Layout] = {}  # as they were asked for
        self._copying: dict[tuple[TableId, str], _Copying] = {}
        self._bookmarks = Bookmarks(self._sessions)

    def open(self) -> None:
        with self._sessions.transaction() as session:
            session.connection.execute("SELECT pg_advisory_xact_lock(hashtext('penstock'))")
            records.prepare(session.connection)

    def close(self) -> None:
        self._bookmarks.close()
        self._sessions.close()

    # ------------------------------------------------------------------------------------------------- tables

    def ensure_table(
        self,
        target: TableId,
        schema: TableSchema,
        source: str,
        start: Position | None,
        keep: Sequence[WrittenPart] = (),
        layout: Layout = ROWS,
        sid: Sid | None = None,
    ) -> Position | None:
        layout.require_room(layout.kept(schema))
        with self._sessions.for_table(target) as session:
            connection = session.connection
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"penstock {target}",))
            known = records.read(connection, target, lock=True)
            found = records.storage(connection, target)
            known = forget_lost(connection, known, found)
            record = next((one for one in known if one.source == source), None)
            if record is None:
                wanted = NewTable(target, numbered(schema), source, start, layout, sid)
                record = take_in(connection, wanted, known, found, create=self._create, enums=self._enums)
            if record.layout != layout.to_json():
                raise OtherLayout(f"table {target} was made for another mode", f"Drop {target} to start again")
            self._layouts[target, source] = layout
            shape_of(connection, record, layout)  # SchemaChanged when columns are gone
            kept = {part.stored.table for part in ours(keep) if part.stored is not None}
            kept |= {f"{name}{tail}" for name in kept for tail in ("_ended", "_gone")}
            left = [name for name in records.parts_of(connection, target, source) if name not in kept]
            if left:
                records.update(connection, replace(record, epoch=records.new_token()))
                records.drop_parts(connection, left)
            return record.position

    def position(self, target: TableId, source: str) -> Position | None:
        with self._sessions.for_table(target) as session:
            found = records.read(session.connection, target, source)
            return found[0].position if found else None

    def history(self, target: TableId, source: str) -> str:
        with self._sessions.for_table(target) as session:
            found = records.read(session.connection, target, source)
            return found[0].history if found else ""

    def structure(self, target: TableId, source: str) -> TableSchema:
        with self._sessions.for_table(target) as session:
            record = self._record(session.connection, target, source)
            records.require_descended(session.connection, record)
            return record.structure

    def rule(self, target: TableId, source: str) -> str | None:
        with self._sessions.for_table(target) as session:
            return self._record(session.connection, target, source).rule or None

    def _record(self, connection: Connection, target: TableId, source: str, *, lock: bool = False) -> Record:
        found = records.read(connection, target, source, lock=lock)
        if not found:
            raise TableDropped(
                f"table {target} was dropped at the destination", "Nothing: it is copied again by itself"
            )
        return found[0]

    def drop_table(self, target: TableId, source: str) -> None:
        with self._sessions.for_table(target) as session:
            connection = session.connection
            known, found = records.read(connection, target, lock=True), records.storage(connection, target)
            if any(one.source != source or one.sid is not None for one in known) or (found is not None and not known):
                raise TableError(f"table {target} has rows of others", f"Drop {target} yourself")
            records.drop_parts(connection, records.parts_of(connection, target, source))
            records.delete(connection, target, source)
            if found is None:
                return
            identifier = sql.Identifier(target.schema, target.name)
            if known[0].created:
                connection.execute(sql.SQL("DROP TABLE {}").format(identifier))
            else:
                connection.execute(sql.SQL("DELETE FROM {}").format(identifier))

    # ------------------------------------------------------------------------------------------------- batches

    def plan(
        self,
        target: TableId,
        source: str,
        schema: TableSchema | None = None,
        on_drop: OnDrop = "keep",
        *,
        thorough: bool = False,
        presumed: bool = False,
    ) -> PostgresPlan:
        with self._sessions.for_table(target) as session:
            record = self._record(session.connection, target, source)
            if record.position is None:
                raise PositionLost(f"table {target} holds no position of {source}", "It is copied first")
            records.require_descended(session.connection, record)
            if record.sid is not None:
                require_same_names(target, record.structure, schema)
            return self._planned(session.connection, record, self._move(session.connection, record, schema, on_drop))

    def _planned(self, connection: Connection, record: Record, move: Move, *, merges: bool = False) -> PostgresPlan:
        groups = 1
        if move.shape.layout.period is not None or merges:
            row = connection.execute(
                "SELECT reltuples FROM pg_class WHERE oid = %s::bigint::oid", (record.relation,)
            ).fetchone()
            groups = 1 if row is None else max(1, int(row[0]) // GROUP_ROWS)
        position = 0 if record.position is None else record.position
        token = records.new_token()
        return PostgresPlan(
            self._sessions, record.source, position, record.moment, record.token, token, move, groups, merges
        )

    def _move(
        self,
        connection: Connection,
        record: Record,
        schema: TableSchema | None,
        on_drop: OnDrop,
        *,
        copied: Layout | None = None,
    ) -> Move:
        """How the table gets to this structure; as it is, if it has it. `copied`: the layout of a copy's rows."""
        layout = self._layouts[record.target, record.source]
        own = replace(layout, projection=layout.projection)
        shape = replace(shape_of(connection, record, own), unique=self._unique(connection, record, own))
        same = schema is None or schema.fingerprint == record.structure.fingerprint
        if same and copied is None:
            return Move(shape, record.structure)
        return moved(connection, record, shape, schema or record.structure, on_drop, enums=self._enums, layout=copied)

    def _unique(self, connection: Connection, record: Record, layout: Layout) -> bool:
        """Whether a unique index over exactly the key is there, as in all tables that penstock made."""
        if record.created:
            return True
        key = [*layout.kept(record.structure).key, *([record.sid.column] if record.sid is not None else [])]
        row = connection.execute(
            "SELECT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = %s::bigint::oid AND i.indisunique AND"
            " i.indpred IS NULL AND i.indexprs IS NULL AND i.indimmediate AND i.indisvalid AND"
            " ARRAY(SELECT a.attname::text FROM unnest(i.indkey) WITH ORDINALITY"
            " AS k (number, place) JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number"
            " WHERE k.place <= i.indnkeyatts ORDER BY 1) = ARRAY(SELECT unnest(%s::text[]) ORDER BY 1))",
            (record.relation, key),
        ).fetchone()
        return row == (True,)

    def commit(
        self,
        plan: WritePlan,
        parts: Sequence[WrittenPart],
        *,
        truncated: bool,
        position: Position,
        moment: int | None = None,
    ) -> None:
        [error] = self.commit_batch([TableCommit(plan, parts, truncated, position, moment)])
        if error is not None:
            raise error

    def commit_batch(self, commits: Sequence[TableCommit]) -> list[TableError | None]:
        planned = [(_ours(one.plan), one) for one in commits]
        outcomes = apply.commit_batch(self._sessions, planned, lambda: reach("postgres.before_commit"))
        stored = [part for one in commits for part in ours(one.parts) if _is_batch(part)]
        if stored:
            self.discard(stored)
        return outcomes

    def plan_after(
        self, plan: WritePlan, parts: Sequence[WrittenPart], *, position: Position, moment: int | None = None
    ) -> PostgresPlan | None:
        base = _ours(plan)
        rescues = any(part.upserts is not None and "_rescued" in part.upserts.column_names for part in ours(parts))
        if base.layout.period is not None or base.move.statements or (rescues and not base.shape.rescued):
            return None  # its write reads what the commit has still to bring
        return replace(base, position=position, base=base.made, made=records.new_token())

    def advance(self, target: TableId, source: str, expected: Position, position: Position) -> None:
        with self._sessions.for_table(target) as session:
            connection = session.connection
            record = self._record(connection, target, source, lock=True)
            self._shut_out_truncates(connection, target)
            filenode = records.require_descended(connection, record)
            if record.position is None or record.position < expected:
                raise LineageLost(
                    f"table {target}: its position went back from {position_text(expected)}: somebody restored it",
                    f"`penstock resync` copies {target} again",
                )
            if record.position != expected:
                raise StaleBase(f"table {target} is not at {position_text(expected)}", "Its position is read again")
            if position != expected:
                at = replace(record, position=position, token=records.new_token(), filenode=filenode)
                records.update(connection, at)

    def _shut_out_truncates(self, connection: Connection, target: TableId) -> None:
        """Lock the table against TRUNCATE until the transaction ends. StaleBase when somebody holds it.

        What a TRUNCATE leaves must be younger than what is noted here.
        """
        table = sql.Identifier(target.schema, target.name)
        try:
            with connection.transaction():
                connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE NOWAIT").format(table))
        except pg.LockNotAvailable as error:
            raise StaleBase(f"table {target} is locked at the destination", "It is looked at again later") from error
        except pg.UndefinedTable:
            return  # it was dropped, which is found next

    # ------------------------------------------------------------------------------------------------- copies

    def plan_copy(
        self, target: TableId, source: str, schema: TableSchema | None = None, on_drop: OnDrop = "keep"
    ) -> PostgresCopy:
        layout = self._layouts[target, source]
        with self._sessions.for_table(target) as session:
            connection = session.connection
            record = self._record(connection, target, source)
            found = records.storage(connection, target)
            if found is None or found[0] != record.relation:
                raise TableDropped(f"table {target} was dropped at the destination", "It is copied again by itself")
            move = self._move(connection, record, schema, on_drop, copied=layout)
            columns = wanted_columns(connection, move.shape.kept, enums=self._enums)
            if not record.created or record.sid is not None:
                columns = move.shape.columns
            rows = replace(move.shape, columns=columns, layout=replace(ROWS, projection=layout.projection))
            table = f"copy_{uuid.uuid4().hex}"
            make_copy_tables(connection, rows, source, table)
            self._copying[target, source] = _Copying(record.token, record.epoch, move, rows, table)
            return PostgresCopy(self._sessions, rows, table)

    def plan_catchup(
        self, target: TableId, source: str, base: Sequence[WrittenPart], position: Position
    ) -> PostgresCatchup:
        copying = self._copying[target, source]
        return PostgresCatchup(self._sessions, source, position, copying.rows, copying.table, tuple(ours(base)))

    def commit_copy(
        self, target: TableId, source: str, parts: Sequence[WrittenPart], position: Position, history: str = ""
    ) -> None:
        copying = self._copying[target, source]
        with self._sessions.for_table(target) as session:
            record = self._copied_over(session.connection, target, source, copying)
            records.require_descended(session.connection, replace(record, position=None))
            plan = PostgresPlan(self._sessions, source, 0, 0, record.token, records.new_token(), copying.move)
            with_rows = [part for part in ours(parts) if not part.empty]
            commit_copy(session, record, plan, with_rows, position, history)
            reach("postgres.before_commit")
        self._drop_copy(target, source)

    def _copied_over(self, connection: Connection, target: TableId, source: str, copying: _Copying) -> Record:
        record = self._record(connection, target, source, lock=True)
        if (record.token, record.epoch) != (copying.token, copying.epoch):
            raise StaleBase(
                f"table {target} has moved since its copy was planned", "Its copy goes on over its new state"
            )
        return record

    def _drop_copy(self, target: TableId, source: str) -> None:
        """Remove the tables of all copies of a table: one of them has been committed."""
        with self._sessions.for_table(target) as session:
            names = records.parts_of(session.connection, target, source)
            records.drop_parts(session.connection, [name for name in names if name.startswith("copy_")])

    def plan_merge(self, target: TableId, source: str) -> PostgresPlan:
        with self._sessions.for_table(target) as session:
            record = self._record(session.connection, target, source)
            return self._planned(session.connection, record, self._copying[target, source].move, merges=True)

    def commit_merge(
        self,
        plan: WritePlan,
        parts: Sequence[WrittenPart],
        position: Position,
        moment: int | None = None,
        history: str = "",
    ) -> None:
        base, copying = _ours(plan), self._copying[plan.target, plan.source]
        with self._sessions.for_table(plan.target) as session:
            connection = session.connection
            self._copied_over(connection, plan.target, plan.source, copying)
            record = records.require_token(
                self._record(connection, plan.target, plan.source, lock=True), plan.target, base.base
            )
            fresh = replace(record, history=history, rule=base.layout.rule)
            apply.apply(session, base, replace(fresh, position=None), TableCommit(plan, parts, False, position, moment))
            reach("postgres.before_commit")
        self._drop_copy(plan.target, plan.source)

    def part_from_json(self, text: str) -> PostgresPart:
        return PostgresPart.from_json(text)

    def parts_intact(self, parts: Sequence[WrittenPart]) -> list[bool]:
        intact = []
        for part in ours(parts):
            try:
                with self._sessions.transaction() as session:
                    if part.stored is not None:
                        apply.require_stored(session.connection, part)
                intact.append(True)
            except StaleBase:
                intact.append(False)
        return intact

    def discard(self, parts: Sequence[WrittenPart]) -> None:
        stored = [part.stored for part in ours(parts) if part.stored is not None]
        with self._sessions.transaction() as session:
            records.drop_parts(session.connection, [one.table for one in stored if one.table.startswith("batch_")])
            for one in stored:
                if one.table.startswith("copy_"):
                    session.connection.execute(
                        sql.SQL("DELETE FROM {} WHERE {} = {}").format(
                            sql.Identifier(records.SCHEMA, one.table), sql.Identifier("penstock part"), one.part
                        )
                    )

    # ------------------------------------------------------------------------------------------------- the rest

    def bookmark(self, target: TableId, source: str, name: str) -> str:
        return self._bookmarks.keep(target, name)

    def release(self, target: TableId, source: str, name: str) -> None:
        self._bookmarks.release(target, name)

    def maintain(self, target: TableId, source: str, run: JobRunner) -> MaintenanceReport:
        return MaintenanceReport()

    def diagnose(self, target: TableId, source: str, error: FileUnreadable) -> PenstockError:
        """No table here consists of files that we read."""
        return FilesLost(f"table {target}: {error.what}", f"Copy it again: penstock resync FILE {target}")


def _is_batch(part: PostgresPart) -> bool:
    return part.stored is not None and part.stored.table.startswith("batch_")


def _ours(plan: WritePlan) -> PostgresPlan:
    if not isinstance(plan, PostgresPlan):
        raise TypeError(f"{type(plan).__name__} is not a plan of a committed table")
    return plan


def make_tables(settings: PostgresSettings, spark: Session, index: Path) -> PostgresDestination:
    """Make the destination that a section of the pipeline file describes; it needs neither Spark nor a folder."""
    return PostgresDestination(settings)

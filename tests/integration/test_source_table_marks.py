"""What a real server's catalogue shows of a table and no change tells: which looks find that it has to be copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from databases import Database
from penstock.config.model import Pipeline
from penstock.demo.server import PostgresServer
from penstock.model.table import TableId, TableSchema
from penstock.model.table_marks import TableMarks
from penstock.model.table_state import State, TableStatus
from penstock.runtime.watch.table_watch import NOT_RECORDED, PUT_BACK, TableWatch
from penstock.source.postgres.connect import connect
from penstock.source.postgres.discover import discover
from penstock.source.postgres.mark_comparison import CatalogueMarks, PublishedBy
from penstock.source.postgres.session import PostgresSession
from penstock.source.postgres.snapshot import export_snapshot, snapshot_connection
from penstock.source.postgres.table_marks import read_marks
from penstock.state.memory import MemoryStateStore
from pipeline_files import of_postgres
from server_image import ServerImage

TYPES = (
    "create type {t}_mood as enum ('calm', 'cross')",
    "create domain {t}_humour as {t}_mood",
    "create type {t}_inner as (x int, y int)",
    "create type {t}_pair as (a int, b {t}_inner, m {t}_mood)",
    "create domain {t}_couple as {t}_pair",
    "create type {t}_moods as range (subtype = {t}_mood)",
)
TABLE = "create table {t} (id int primary key, n int, word text{columns})"
LISTED = "create publication {p} for table {t}"
ROW = "insert into {t} (id, n) values (1, 1)"


@dataclass(frozen=True)
class Case:
    """What is done to a table between two looks, and a part of the reason to copy it; "": none."""

    done: tuple[str, ...]
    why: str = ""
    columns: str = ""
    made: tuple[str, ...] = (LISTED,)


LEFT = "left publication {p} and came back"
ALTERED = "publication {p} was altered"
CASES = {
    "nothing": Case(()),
    "rows": Case(("insert into {t} values (2, 2)", "update {t} set n = 3", "delete from {t} where id = 2")),
    "housekeeping": Case(
        (
            "vacuum full {t}",
            "cluster {t} using {t}_pkey",
            "analyze {t}",
            "create index on {t} (n)",
            "grant select on {t} to public",
            "comment on table {t} is 'mine'",
            "truncate {t}",
            "vacuum freeze pg_publication_rel",
            "vacuum full pg_publication_rel",
        )
    ),
    "another table joins the publication": Case(
        ("create table {t}_other (id int primary key)", "alter publication {p} add table {t}_other")
    ),
    "dropped from the publication, and added": Case(
        ("alter publication {p} drop table {t}", "alter publication {p} add table {t}"), LEFT
    ),
    "set to other tables, and back": Case(
        (
            "create table {t}_other (id int primary key)",
            "alter publication {p} set table {t}_other",
            "alter publication {p} set table {t}, {t}_other",
        ),
        LEFT,
    ),
    "the same set again": Case(("alter publication {p} set table {t}",)),
    "publication created again": Case(("drop publication {p}", LISTED), ALTERED),
    "publish altered and set back": Case(
        (
            "alter publication {p} set (publish = 'insert')",
            "alter publication {p} set (publish = 'insert, update, delete, truncate')",
        ),
        ALTERED,
    ),
    "row filter altered and set back": Case(
        ("alter publication {p} set table {t} where (id > 5)", "alter publication {p} set table {t}"), LEFT
    ),
    "row filter altered": Case(("alter publication {p} set table {t} where (id > 5)",), LEFT),
    "column list altered and set back": Case(
        ("alter publication {p} set table {t} (id)", "alter publication {p} set table {t}"), LEFT
    ),
    "added after the copy": Case(
        ("alter publication {p} add table {t}",), "added to publication {p}", made=("create publication {p}",)
    ),
    "in no publication": Case(("alter publication {p} drop table {t}",)),
    "moved to another schema and back": Case(
        ("create schema {t}_away", "alter table {t} set schema {t}_away", "alter table {t}_away.{t} set schema public"),
        "moved to another schema",
    ),
    "a publication of all tables, made again": Case(
        ("drop publication {p}", "create publication {p} for all tables"),
        ALTERED,
        made=("create publication {p} for all tables",),
    ),
    "unlogged for a while": Case(
        (
            "insert into {t} values (2, 2), (3, 3)",
            "alter table {t} set unlogged",
            "update {t} set n = -n where id = 1",
            "alter table {t} set logged",
            "insert into {t} values (4, 4)",
            "create index on {t} (n)",
            "analyze {t}",
        ),
        "SET UNLOGGED and SET LOGGED",
        made=("create publication {p} for all tables",),
    ),
    "unlogged for a while in a schema that is published": Case(
        ("begin; alter table {t} set unlogged; delete from {t} where id = 9; alter table {t} set logged; commit",),
        "SET UNLOGGED and SET LOGGED",
        made=("create publication {p} for tables in schema public",),
    ),
    "housekeeping in a publication of all tables": Case(
        (
            "insert into {t} values (2, 2), (3, 3)",
            "vacuum full {t}",
            "cluster {t} using {t}_pkey",
            "truncate {t}",
            "insert into {t} values (4, 4)",
            "begin; truncate {t}; insert into {t} values (5, 5); create index on {t} (n); commit",
        ),
        made=("create publication {p} for all tables",),
    ),
    "its schema left the publication and came back": Case(
        ("alter publication {p} drop tables in schema public", "alter publication {p} add tables in schema public"),
        LEFT,
        made=("create publication {p} for tables in schema public",),
    ),
    "enum value added": Case(
        ("alter type {t}_mood add value 'odd' before 'cross'", "insert into {t} (id, m) values (2, 'odd')"),
        columns=", m {t}_mood",
    ),
    "enum value renamed": Case(
        ("alter type {t}_mood rename value 'calm' to 'quiet'",), "'calm' of enum {t}_mood was renamed", ", m {t}_mood"
    ),
    "enum value renamed and renamed back": Case(
        ("alter type {t}_mood rename value 'calm' to 'quiet'", "alter type {t}_mood rename value 'quiet' to 'calm'"),
        "renamed back",
        ", m {t}_mood",
    ),
    "enum value added, used and renamed": Case(
        (
            "alter type {t}_mood add value 'odd'",
            "insert into {t} (id, m) values (2, array['odd']::{t}_mood[])",
            "alter type {t}_mood rename value 'odd' to 'strange'",
        ),
        "may have had another label",
        ", m {t}_mood[]",
    ),
    "enum value inside a domain's array renamed": Case(
        ("alter type {t}_mood rename value 'calm' to 'quiet'",), "renamed", ", m {t}_humour[]"
    ),
    "enum value inside a domain over a composite renamed": Case(
        ("alter type {t}_mood rename value 'calm' to 'quiet'",), "renamed", ", m {t}_couple"
    ),
    "enum value inside a range renamed": Case(
        ("alter type {t}_mood rename value 'calm' to 'quiet'",), "renamed", ", m {t}_moods"
    ),
    "enum column dropped": Case(("alter table {t} drop m",), columns=", m {t}_mood"),
    "enum column added, then a value renamed": Case(
        (
            "alter table {t} add m {t}_mood",
            "update {t} set m = 'calm'",
            "alter type {t}_mood rename value 'calm' to 'quiet'",
        ),
        "may have had another label",
    ),
    "composite extended": Case(
        ("alter type {t}_pair add attribute c int",), "type {t}_pair was altered", ", c {t}_pair"
    ),
    "composite inside an array": Case(("alter type {t}_pair drop attribute a",), "was altered", ", c {t}_pair[]"),
    "composite inside a composite of a domain's array": Case(
        ("alter type {t}_inner rename attribute x to z",), "type {t}_inner was altered", ", c {t}_couple[]"
    ),
    "another type altered": Case(("alter type {t}_pair add attribute c int",)),
}


class Bench:
    """One table with a publication of its own, its record and its looks."""

    def __init__(self, database: Database, folder: Path, table: str) -> None:
        described = {
            "version": 1,
            "name": "shop",
            "source": {"type": "postgres", "url": database.url, "publication": f"{table}_pub"},
            "tables": [{"match": f"public.{table}"}],
            "destinations": [{"type": "iceberg", "warehouse": "warehouse"}],
        }
        self.pipeline = Pipeline.model_validate(described, context={"folder": folder})
        self.url, self.table, self.state = database.url, TableId("public", table), MemoryStateStore()

    def copied(self) -> None:
        """Keep the record as a copy does: as the catalogue is in its snapshot."""
        with (
            export_snapshot(self.url, timeout=60, waiting=lambda _: None) as snapshot,
            snapshot_connection(self.url, snapshot.name) as connection,
        ):
            (schema,) = discover(connection, self.table.__eq__, "")
            marks = read_marks(connection, [of_postgres(self.pipeline.source).publication], [schema.relation_id])
        self.state.set_marks("lake", self.table, replace(marks[schema.relation_id], position=snapshot.position))
        self.state.set_table_status("lake", self.table, TableStatus(State.READY, datetime.now(UTC)))

    def why(self, *, starting: bool = False) -> str:
        with connect(self.url) as connection:
            schemas = discover(connection, self.table.__eq__, "")
            session = PostgresSession(connection, of_postgres(self.pipeline.source))
            look = TableWatch(self.pipeline, self.state).look(session, schemas, None if starting else {})
        return look.copy_again.get(self.table, "")


def test_what_the_catalogue_shows_and_no_change_tells(any_postgres: Database, tmp_path: Path) -> None:
    differing = []
    for number, (name, case) in enumerate(CASES.items()):
        words = {"t": f"t{number}", "p": f"t{number}_pub"}

        def run(statements: tuple[str, ...], words: dict[str, str] = words) -> None:
            any_postgres.execute(*(statement.format(**words) for statement in statements))

        run((*TYPES, TABLE.format(t=words["t"], columns=case.columns.format(**words)), *case.made, ROW))
        bench = Bench(any_postgres, tmp_path, words["t"])
        bench.copied()
        before = bench.why()
        run(case.done)
        found, again = bench.why(), bench.why()
        bench.copied()
        expected = case.why.format(**words)
        if before or found != again or bool(found) != bool(expected) or expected not in found or bench.why():
            differing.append((name, before, found, again, bench.why()))
    assert not differing


def test_a_value_that_was_seen_when_it_was_added_may_be_renamed_later(postgres: Database, tmp_path: Path) -> None:
    postgres.execute("create type mood as enum ('calm')", "create table t (id int primary key, m mood)")
    bench = Bench(postgres, tmp_path, "t")
    bench.copied()
    postgres.execute("alter type mood add value 'odd'", "insert into t values (1, 'odd')")
    assert bench.why() == ""
    postgres.execute("alter type mood rename value 'odd' to 'strange'")
    assert "'odd' of enum mood was renamed to 'strange'" in bench.why()


def published(marks: TableMarks) -> tuple[PublishedBy, ...]:
    return CatalogueMarks.from_marks(marks).published


def test_an_older_look_says_nothing(postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that was taken before a copy began may be compared after it."""
    postgres.execute("create table t (id int primary key)", "create publication t_pub for table t")
    bench = Bench(postgres, tmp_path, "t")
    bench.copied()
    with connect(postgres.url) as connection:
        session = PostgresSession(connection, of_postgres(bench.pipeline.source))
        schemas = discover(connection, bench.table.__eq__, "")
        read, overtaken = session.marks, []

        def copied_meanwhile(wanted: Sequence[TableSchema]) -> dict[TableId, TableMarks]:
            found = read(wanted)
            postgres.execute("alter publication t_pub set (publish = 'insert')")
            bench.copied()
            overtaken.append(published(found[bench.table]) != published(bench.state.marks("lake")[bench.table]))
            return found

        monkeypatch.setattr(session, "marks", copied_meanwhile)
        assert not TableWatch(bench.pipeline, bench.state).look(session, schemas, {}).copy_again
        assert overtaken == [True]


@pytest.mark.parametrize("starting", [True, False])
def test_a_table_without_a_record_is_copied(postgres: Database, tmp_path: Path, starting: bool) -> None:
    postgres.execute("create table t (id int primary key)")
    bench = Bench(postgres, tmp_path, "t")
    assert bench.why(starting=starting) == (NOT_RECORDED if starting else ""), "unknown tables are being copied"
    bench.copied()
    assert bench.why(starting=starting) == ""
    bench.state.set_marks("lake", bench.table, None)
    assert bench.why(starting=starting) == NOT_RECORDED


def test_a_copy_from_a_future_that_was_lost_is_made_again(tmp_path: Path) -> None:
    """The server is put back to its disk's image and goes on past the copy's position, and nobody has written to
    published tables, so the stream is the same in both histories."""
    wal = "select pg_logical_emit_message(false, 'noise', repeat('x', 1 << 20))"  # moves on, and takes no transaction
    with PostgresServer() as server:
        database = Database("own", server.url())
        database.execute(
            "create table t (id int primary key)", "insert into t values (1)", "create publication t_pub for all tables"
        )
        bench = Bench(database, tmp_path, "t")
        bench.copied()
        image = ServerImage(server)
        assert bench.why() == "", "a restart is nothing"
        database.execute(*["alter table t set unlogged", "alter table t set logged"] * 3)
        bench.copied()
        before = database.flush_position()
        image.put_back()
        assert bench.why() == "", "the server is still behind the copy: the log's end says so"
        database.execute(wal)
        assert database.flush_position() > before
        assert bench.why() == bench.why(starting=True) == PUT_BACK
        bench.copied()
        assert bench.why() == ""


def test_marks_are_read_without_waiting_for_anybody(any_postgres: Database, tmp_path: Path) -> None:
    any_postgres.execute(
        "create table t (id int primary key) partition by hash (id)",
        "create table t_0 partition of t for values with (modulus 1, remainder 0)",
        "create publication t_pub for table t",
    )
    relation = any_postgres.value("select 't'::regclass::oid::int8")
    with any_postgres.connect() as other, other.transaction(), connect(any_postgres.url) as connection:
        other.execute("lock table t, t_0 in access exclusive mode")
        connection.execute("set statement_timeout = '10s'")
        assert published(read_marks(connection, ["t_pub"], [relation])[relation])[0].publication == "t_pub"

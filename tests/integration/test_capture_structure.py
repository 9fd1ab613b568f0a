"""Captured versions: what the catalogue adds to a message, what the DDL trigger proves, and who can write messages."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr

from capturing import CaptureBench, rows
from databases import Database
from penstock.changelog.log import ChangeLog
from penstock.config.load import load
from penstock.config.sources import PostgresSource
from penstock.errors import SourceMisconfigured
from penstock.fold.evolution import follow
from penstock.model.table import TableSchema
from penstock.model.type_map import WIDEST
from penstock.runtime.capture.preparation import prepare_source
from penstock.runtime.capture.publisher import Publisher
from penstock.source.factory import source_of
from penstock.source.postgres.check_ddl_trigger import check_ddl_trigger
from penstock.source.postgres.connect import connect
from penstock.source.postgres.ddl_trigger import TRIGGER, install, install_statements, read_secret, remove, state
from penstock.source.postgres.discover import discover
from penstock.source.postgres.session import PostgresSession
from penstock.source.postgres.slot import drop_slot
from pipeline_files import of_postgres
from running import PipelineFactory


@pytest.fixture
def bench(any_postgres: Database, tmp_path: Path) -> CaptureBench:
    return CaptureBench(any_postgres, ChangeLog(str(tmp_path / "log")))


def versions(bench: CaptureBench) -> list[TableSchema]:
    """Of table t, in stream order, each as often as it comes anew."""
    found: list[TableSchema] = []
    for row in rows(bench.log, "t"):
        if not found or found[-1] != row["schema"]:
            found.append(row["schema"])
    return found


def described(schema: TableSchema) -> list[tuple[int, str]]:
    return [(column.number, column.name) for column in schema.columns]


def now(bench: CaptureBench) -> TableSchema:
    with connect(bench.database.url) as connection:
        (schema,) = discover(connection, lambda table: table.name == "t", "none")
    return schema


def test_a_catalogue_in_time_tells_numbers_and_what_old_rows_show(bench: CaptureBench) -> None:
    bench.prepare("create table t (id int primary key, a text)")
    with bench.capturing() as capture:
        bench.database.execute("insert into t values (1, 'x')")
        capture.drain()
        before = now(bench)
        bench.database.execute("alter table t rename a to b", "alter table t add c text default 'was'")
        bench.database.execute("insert into t values (2, 'y', 'z')")
        capture.drain()
        bench.database.execute("alter table t add d text default md5(random()::text)", "insert into t values (3)")
        capture.drain()
    first, second, third = versions(bench)
    assert first == before
    assert (described(second), second.columns[2].filled) == ([(1, "id"), (2, "b"), (3, "c")], "was")
    assert (second.guessed, second.storage == first.storage, third.storage == first.storage) == (False, True, False)
    assert "written again" in follow(second, [third], WIDEST).resync


def test_a_catalogue_that_has_moved_on_is_not_believed(bench: CaptureBench) -> None:
    bench.prepare("create table t (id int primary key, a text, b text)")
    base = now(bench)
    bench.database.execute(
        "insert into t values (1, 'x', 'y')",
        "alter table t drop b; alter table t add b text",  # the same names, another column
        "insert into t values (2, 'x', 'y')",
        "alter table t rename a to c",
        "insert into t values (3, 'x', 'y')",
    )
    bench.capture_all()
    first, last = versions(bench)[0], versions(bench)[-1]
    assert (described(first), first.guessed) == ([(0, "id"), (0, "a"), (0, "b")], True)
    assert (described(last), last.guessed, last.exact) == ([(1, "id"), (2, "c"), (4, "b")], False, False)
    assert "which column is which" in follow(base, [first], WIDEST).resync
    assert "which column is which" in follow(base, [last], WIDEST).resync


def test_what_a_transaction_altered_itself_is_taken_with_care(bench: CaptureBench) -> None:
    bench.prepare("create table t (id int primary key, a text)")
    with bench.capturing() as capture:
        bench.database.execute("insert into t values (0, '')")
        capture.drain()
        bench.database.execute(
            "begin; insert into t values (1, 'x'); alter table t add b text; insert into t values (2, 'x', 'y'); commit"
        )
        capture.drain()
        base = versions(bench)[0]
        found = follow(base, versions(bench), WIDEST)
        assert (found.resync, found.changes) == ("", ("column b added (text)",))
        bench.database.execute(
            "begin; insert into t values (3, 'x'); alter table t drop b; alter table t add b text; "
            "insert into t values (4, 'x', 'y'); commit"
        )
        capture.drain()
    assert "which column is which" in follow(base, versions(bench), WIDEST).resync


def test_with_the_trigger_what_the_catalogue_confirms_is_certain(bench: CaptureBench) -> None:
    """Alterations one after the other, each captured before the next: also columns dropped and added again."""
    bench.prepare("create table t (id int primary key, a text, n int)")
    with connect(bench.database.url) as connection:
        assert state(connection) == "absent"
        install(connection)
        install(connection)
        assert state(connection) == "trusted"
    base = now(bench)
    steps = (
        ("alter table t drop a; alter table t add a text", "insert into t values (1, 1, 'x')"),
        ("begin; alter table t drop n; alter table t add n int; insert into t values (2, 'x', 1); commit",),
        ("alter table t add c text default 'was'", "insert into t values (3, 'x', 1, 'z')"),
        ("alter table t rename id to key; alter table t replica identity full; update t set n = 7",),
        ("alter table t alter n type bigint", "insert into t values (5, 'x', 1, 'z')"),
    )
    with bench.capturing() as capture:
        for statements in steps:
            bench.database.execute(*statements)
            capture.drain()
    told = versions(bench)
    assert [described(one) for one in told[:4]] == [
        [(1, "id"), (3, "n"), (4, "a")],
        [(1, "id"), (4, "a"), (5, "n")],
        [(1, "id"), (4, "a"), (5, "n"), (6, "c")],
        [(1, "key"), (4, "a"), (5, "n"), (6, "c")],
    ]
    assert [(one.exact, one.guessed) for one in told] == [(True, False)] * 5
    assert follow(base, told[:2], WIDEST).resync == ""
    assert "older rows show 'was'" in follow(told[1], [told[2]], WIDEST).resync
    assert (told[3].key, told[3].identity) == (("key",), "full")
    assert "written again" in follow(told[3], [told[4]], WIDEST).resync


def test_a_trigger_that_is_removed_is_believed_no_more(bench: CaptureBench) -> None:
    bench.prepare("create table t (id int primary key, a text)")
    with connect(bench.database.url) as connection, bench.capturing() as capture:
        install(connection)
        bench.database.execute("alter table t drop a; alter table t add a text", "insert into t values (1, 'x')")
        capture.drain()
        remove(connection)
        assert state(connection) == "absent"
        bench.database.execute("alter table t drop a; alter table t add a text", "insert into t values (2, 'x')")
        capture.drain()
    first, last = versions(bench)
    assert (described(first), first.exact) == ([(1, "id"), (3, "a")], True)
    assert (described(last), last.exact) == ([(1, "id"), (4, "a")], False)
    assert "which column is which" in follow(first, [last], WIDEST).resync
    assert bench.database.value("select count(*) from pg_namespace where nspname = 'penstock'") == 0


FORGED = (
    "12",
    "[]",
    '{"relation": 5}',
    '{"columns": 1, "stamps": 2, "key": 3}',
    '{"relation": "x", "columns": {}, "stamps": [], "key": []}',
    '{"unknown": "none"}',
    "no json",
    "0" * 64 + "{}",
)


def test_nobody_else_can_speak_for_the_trigger(bench: CaptureBench) -> None:
    """Neither with messages of their own nor with the trigger's, and nothing in a message ends capture."""
    bench.prepare("create table t (id int primary key, a text, b text)")
    role = f"nobody_{bench.database.name}"
    base = now(bench)
    with connect(bench.database.url) as connection:
        install(connection)
        secret = read_secret(connection)
        assert secret is not None
        assert len(secret) == 32
        connection.execute(f"create role {role}".encode())
        connection.execute(f"set role {role}".encode())
        for reading in ("select * from penstock.secret", "refresh materialized view penstock.secret"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(reading.encode())
        for content in FORGED:
            connection.execute("select pg_logical_emit_message(true, 'penstock', %s::text)", (content,))
            connection.execute("select pg_logical_emit_message(false, 'penstock', %s::text)", (content,))
        connection.execute("select pg_logical_emit_message(true, 'penstock', %s::bytea)", (b"\xff\x00" * 100,))
        connection.execute("select pg_logical_emit_message(true, 'penstock', repeat('x', 20000000))")
        connection.execute("select pg_logical_emit_message(true, repeat('p', 100000), 'x')")
        connection.execute("select pg_logical_emit_message(true, '', '')")
        connection.execute("reset role")
        with bench.capturing() as capture:
            bench.database.execute("insert into t values (1, 'x', 'y')")
            capture.drain()
            forged = _forged(bench, base)
            connection.execute(f"set role {role}".encode())
            connection.execute("begin")
            connection.execute("select pg_logical_emit_message(true, 'penstock', %s::text)", (forged,))
            connection.execute("commit")
            connection.execute("reset role")
            bench.database.execute("alter table t replica identity full", "insert into t values (2, 'x', 'y')")
            capture.drain()
            (report,) = capture.events("ignored")
            assert report["trusted"] is True
        connection.execute(f"drop role {role}".encode())
    assert [described(one) for one in versions(bench)] == [[(1, "id"), (2, "a"), (3, "b")]] * 2


def _forged(bench: CaptureBench, base: TableSchema) -> str:
    """What the trigger would say of t with two columns exchanged, without its signature."""
    told = {
        "xid": 0,
        "relation": base.relation_id,
        "storage": base.storage,
        "stamps": ["1:1", "2:1", "3:1"],
        "columns": [[1, "id", 23, -1], [3, "a", 25, -1], [2, "b", 25, -1]],
        "key": ["id"],
        "plain": True,
    }
    return "0" * 64 + json.dumps(told)


def test_a_role_that_cannot_read_the_secret_does_not_trust_the_trigger(bench: CaptureBench) -> None:
    role = f"reader_{bench.database.name}"
    bench.prepare("create table t (id int primary key, a text)")
    with connect(bench.database.url) as connection:
        install(connection)
        connection.execute(f"create role {role}".encode())
        try:
            connection.execute(f"set role {role}".encode())
            assert (state(connection), read_secret(connection)) == ("unreadable", None)
            connection.execute("reset role")
            for statement in install_statements(role):
                connection.execute(statement.encode())
            connection.execute(f"set role {role}".encode())
            assert state(connection) == "trusted"
            assert read_secret(connection) is not None
            connection.execute("reset role")
            connection.execute(f"alter event trigger {TRIGGER} disable".encode())
            assert state(connection) == "disabled"
            connection.execute("drop materialized view penstock.secret")
            connection.execute("create table penstock.secret as select 'mine'::bytea as key")
            connection.execute(f"alter event trigger {TRIGGER} enable".encode())
            assert (state(connection), read_secret(connection)) == ("outdated", None)
            connection.execute("drop table penstock.secret")
        finally:
            connection.execute(f"reset role; drop owned by {role}; drop role {role}".encode())


def test_the_trigger_of_an_older_version_is_no_trigger(bench: CaptureBench) -> None:
    """It signs nothing: check says what to do, and init brings it up to date."""
    bench.prepare("create table t (id int primary key, a text)")
    bench.database.execute(
        "create schema penstock",
        "create function penstock.tell_structure() returns event_trigger language plpgsql as "
        "$$ begin perform pg_logical_emit_message(true, 'penstock', '{}'); end $$",
        "create event trigger penstock_ddl on ddl_command_end execute function penstock.tell_structure()",
    )
    with connect(bench.database.url) as connection:
        assert state(connection) == "outdated"
        (finding,) = check_ddl_trigger(connection)
        assert "penstock source ddl-trigger install" in finding.fix
        bench.database.execute("alter table t drop a; alter table t add a text", "insert into t values (1, 'x')")
        bench.capture_all()
        assert not versions(bench)[-1].exact
        install(connection)
        assert (state(connection), list(check_ddl_trigger(connection))) == ("trusted", [])
        remove(connection)


def test_the_trigger_never_fails_a_command(bench: CaptureBench) -> None:
    """Whoever alters tables needs no rights for it, and temporary or partitioned tables are told like others."""
    bench.prepare("create table t (id int primary key)")
    with connect(bench.database.url) as connection:
        install(connection)
    role = f"nobody_{bench.database.name}"
    try:
        bench.database.execute(f"create role {role}", f"grant create on schema public to {role}")
        bench.database.execute(f"set role {role}; create table mine (id int); alter table mine add a text")
        bench.database.execute(
            f"set role {role}; create temp table pg_class (oid oid); create temp table secret (key bytea); "
            "alter table mine add b text"
        )
        bench.database.execute(
            "create temp table s (id int); alter table s add a text",
            "create table p (id int, at date) partition by range (at); create table p1 partition of p default; "
            "alter table p add b text default 'x'",
            "create table like_t (like t including all)",
            "insert into t values (1)",
        )
        bench.capture_all()
    finally:
        bench.database.execute(f"drop owned by {role}", f"drop role {role}")
    assert len(rows(bench.log, "t")) == 1


def test_the_trigger_is_printed_installed_and_removed(pipeline: PipelineFactory, postgres: Database) -> None:
    file = pipeline()
    printed = file.command("source", "ddl-trigger", "install", "FILE", "--sql").stdout
    assert "CREATE EVENT TRIGGER penstock_ddl" in printed
    assert 'GRANT SELECT ON penstock.secret TO "postgres"' in printed
    postgres.execute(printed)
    with connect(postgres.url) as connection:
        assert state(connection) == "trusted"
    done = file.command("source", "ddl-trigger", "install", "FILE")
    assert (done.returncode, "ddl-trigger remove" in done.stdout) == (0, True), done.stderr
    assert "removed event trigger" in file.command("source", "ddl-trigger", "remove", "FILE").stdout
    assert "there is no event trigger" in file.command("source", "ddl-trigger", "remove", "FILE").stdout


def test_a_role_without_the_right_is_told_what_to_do(postgres: Database) -> None:
    postgres.execute("create role weak login")
    try:
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute("set role weak")
            with pytest.raises(SourceMisconfigured) as refused:
                install(connection)
        assert "ddl-trigger install FILE --sql" in refused.value.solution
    finally:
        postgres.execute("drop role weak")


@pytest.mark.parametrize("may", [True, False])
def test_run_installs_the_trigger_by_itself_where_it_may(postgres: Database, tmp_path: Path, may: bool) -> None:
    role = f"runner_{postgres.name}"
    postgres.execute("create table t (id int primary key)", f"create role {role} login replication superuser")
    url = postgres.url.replace("postgres@", f"{role}@")
    text = f"""
version: 1
name: shop
source: {{type: postgres, url: "{url}", ddl_trigger: auto}}
destinations: [{{type: iceberg, warehouse: "{tmp_path}/lake"}}]
tables: [{{match: public.t}}]
"""
    (tmp_path / "shop.yaml").write_text(text)
    pipeline = load(tmp_path / "shop.yaml")
    try:
        if not may:
            postgres.execute(
                f"alter role {role} nosuperuser",
                f"grant create on database {postgres.name} to {role}",
                f"alter table t owner to {role}",
            )
        with connect(url) as connection:
            session = PostgresSession(connection, of_postgres(pipeline.source))
            prepare_source(session, pipeline, ChangeLog(str(tmp_path / "log")), Publisher(pipeline, None))
            assert state(connection) == ("trusted" if may else "absent")
            if may:
                connection.execute(f"alter event trigger {TRIGGER} disable".encode())
                prepare_source(session, pipeline, ChangeLog(str(tmp_path / "log")), Publisher(pipeline, None))
                assert state(connection) == "disabled"  # somebody wanted that
            drop_slot(connection, of_postgres(pipeline.source).slot)
    finally:
        postgres.execute(f"reassign owned by {role} to postgres; drop owned by {role}; drop role {role}")


def test_a_run_installs_the_trigger_where_the_file_says_so(bench: CaptureBench) -> None:
    """`ddl_trigger: auto`: if the role may. Otherwise, and where somebody has disabled it, nothing is changed."""
    url = bench.database.url
    with connect(url) as connection:
        for way, expected in (("manual", "absent"), ("auto", "trusted"), ("auto", "trusted")):
            section = PostgresSource(type="postgres", url=SecretStr(url), ddl_trigger=way)  # type: ignore[arg-type]
            with source_of(section).connect() as session:
                session.install()
            assert state(connection) == expected
        connection.execute(f"alter event trigger {TRIGGER} disable".encode())
        with source_of(section).connect() as session:
            session.install()
        assert state(connection) == "disabled", "an operator's choice stands"
        remove(connection)

"""Column numbers in captured versions: from the catalogue while it is in time, guessed when not, certain by trigger."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from capturing import CaptureBench, rows
from databases import Database
from penstock.changelog.log import ChangeLog
from penstock.errors import SourceMisconfigured
from penstock.fold.evolution import follow
from penstock.model.table import UNSURE, TableSchema
from penstock.source.postgres.connect import connect
from penstock.source.postgres.ddl_trigger import install, is_installed, remove
from penstock.source.postgres.discover import discover
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
    assert "written anew" in follow(second, [third]).resync


def test_a_catalogue_that_has_moved_on_is_not_believed(bench: CaptureBench) -> None:
    bench.prepare("create table t (id int primary key, a text, b text)")
    bench.database.execute(
        "insert into t values (1, 'x', 'y')",
        "alter table t drop b; alter table t add b text",  # the same names, another column
        "insert into t values (2, 'x', 'y')",
        "alter table t rename a to c",
        "insert into t values (3, 'x', 'y')",
    )
    bench.capture_all()
    first, last = versions(bench)[0], versions(bench)[-1]
    assert (described(first), first.guessed, first.storage) == ([(0, "id"), (0, "a"), (0, "b")], True, 0)
    assert (described(last), last.guessed) == ([(1, "id"), (2, "c"), (4, "b")], False)


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
        found = follow(base, versions(bench))
        assert (found.resync, found.changes, found.guessed) == ("", ("column b added (text)",), True)
        bench.database.execute(
            "begin; insert into t values (3, 'x'); alter table t drop b; alter table t add b text; "
            "insert into t values (4, 'x', 'y'); commit"
        )
        capture.drain()
    assert versions(bench)[-1].storage == UNSURE
    assert "several times within one transaction" in follow(base, versions(bench)).resync


def test_with_the_trigger_every_version_is_certain(bench: CaptureBench) -> None:
    """Everything happens before anybody reads: by then the catalogue knows only the end of it."""
    bench.prepare("create table t (id int primary key, a text, n int)")
    with connect(bench.database.url) as connection:
        assert not is_installed(connection)
        install(connection)
        install(connection)
        assert is_installed(connection)
    base = now(bench)
    bench.database.execute(
        "insert into t values (1, 'x', 1)",
        "begin; alter table t rename a to b; insert into t values (2, 'x', 1); alter table t drop b; "
        "alter table t add b text; insert into t values (3, 1, 'y'); commit",
        "alter table t add c text default 'was'",
        "insert into t values (4, 1, 'y', 'z')",
        "alter table t alter n type bigint",
        "insert into t values (5, 1, 'y', 'z')",
        "alter table t alter n type bigint using n + 1",
        "insert into t values (6, 1, 'y', 'z')",
        "alter table t rename id to key; alter table t replica identity full; update t set n = 7",
    )
    bench.capture_all()
    first, *told = versions(bench)
    assert described(first) == [(0, "id"), (0, "a"), (0, "n")]  # from before the first message
    assert [described(one) for one in told[:4]] == [
        [(1, "id"), (2, "b"), (3, "n")],
        [(1, "id"), (3, "n"), (4, "b")],
        [(1, "id"), (3, "n"), (4, "b"), (5, "c")],
        [(1, "id"), (3, "n"), (4, "b"), (5, "c")],
    ]
    assert not any(one.guessed for one in told)
    assert [one.columns[-1].filled for one in told[2:4]] == ["was", None]  # written anew, every row has it
    assert follow(base, [first, *told[:2]]).resync == ""
    assert "older rows show 'was'" in follow(told[1], [told[2]]).resync
    assert follow(told[2], [told[3]]).resync == ""  # no USING: Iceberg's own promotion
    assert "written anew" in follow(told[3], [told[4]]).resync
    assert (told[-1].key, told[-1].identity) == (("key",), "full")


def test_a_trigger_that_is_removed_is_believed_no_more(bench: CaptureBench) -> None:
    bench.prepare("create table t (id int primary key, a text)")
    with connect(bench.database.url) as connection:
        install(connection)
        bench.database.execute("alter table t rename a to b", "insert into t values (1, 'x')")
        remove(connection)
        assert not is_installed(connection)
    bench.database.execute("alter table t drop b; alter table t add b text", "insert into t values (2, 'x')")
    bench.capture_all()
    first, last = versions(bench)
    assert (described(first), first.guessed) == ([(1, "id"), (2, "b")], False)
    assert (described(last), last.guessed) == ([(1, "id"), (3, "b")], False)
    assert bench.database.value("select count(*) from pg_namespace where nspname = 'penstock'") == 0


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


def test_init_installs_prints_and_removes(pipeline: PipelineFactory, postgres: Database) -> None:
    file = pipeline()
    assert "CREATE EVENT TRIGGER penstock_ddl" in file.command("init", "FILE", "--sql").stdout
    done = file.command("init", "FILE")
    assert (done.returncode, "--remove takes it away" in done.stdout) == (0, True), done.stderr
    assert "removed event trigger" in file.command("init", "FILE", "--remove").stdout
    assert "there is no event trigger" in file.command("init", "FILE", "--remove").stdout


def test_a_role_without_the_right_is_told_what_to_do(postgres: Database) -> None:
    postgres.execute("create role weak login")
    try:
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute("set role weak")
            with pytest.raises(SourceMisconfigured) as refused:
                install(connection)
        assert "init FILE --sql" in refused.value.solution
    finally:
        postgres.execute("drop role weak")

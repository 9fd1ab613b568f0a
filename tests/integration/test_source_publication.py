"""The publication: made, kept in step (on both servers), and never altered when it is somebody else's."""

from __future__ import annotations

import pytest

from databases import Database
from penstock.errors import SourceMisconfigured
from penstock.model.table import TableId
from penstock.source.postgres.connect import connect
from penstock.source.postgres.publication import ensure_publication

A, B, ROOT, ODD = (TableId("public", name) for name in ("a", "b", "root", 'Odd "name"'))


@pytest.fixture
def database(postgres: Database) -> Database:
    return with_tables(postgres)


@pytest.fixture
def any_database(any_postgres: Database) -> Database:
    return with_tables(any_postgres)


def with_tables(database: Database) -> Database:
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE a_child () INHERITS (a)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        'CREATE TABLE "Odd ""name""" (id int PRIMARY KEY)',
        "CREATE TABLE root (k int PRIMARY KEY) PARTITION BY RANGE (k)",
        "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (10)",
    )
    return database


def ensure(database: Database, *tables: TableId, name: str = "penstock_shop", pipeline: str = "shop") -> list[str]:
    with connect(database.url) as connection:
        return ensure_publication(connection, name, tables, pipeline)


def published(database: Database, name: str = "penstock_shop") -> set[str]:
    with connect(database.url) as connection:
        rows = connection.execute("SELECT tablename FROM pg_publication_tables WHERE pubname = %s", (name,)).fetchall()
    return {row[0] for row in rows}


def test_it_is_made_kept_in_step_and_left_alone_when_it_is(any_database: Database) -> None:
    assert len(ensure(any_database, A, ROOT)) == 2
    assert published(any_database) == {"a", "root"}
    assert ensure(any_database, A, ROOT) == []
    assert ensure(any_database, A, ROOT, B, ODD) == [
        'ALTER PUBLICATION "penstock_shop" ADD TABLE ONLY "public"."Odd ""name""", ONLY "public"."b"'
    ]
    assert published(any_database) == {"a", "b", "root", 'Odd "name"'}
    assert ensure(any_database, B) != []
    assert published(any_database) == {"b"}
    assert any_database.value("SELECT obj_description(oid) FROM pg_publication") == "managed by penstock, pipeline shop"


def test_options_that_somebody_changed_are_set_right(any_database: Database) -> None:
    ensure(any_database, A)
    any_database.execute("ALTER PUBLICATION penstock_shop SET (publish = 'insert', publish_via_partition_root = false)")
    assert len(ensure(any_database, A)) == 1
    assert any_database.value(
        "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate AND pubviaroot FROM pg_publication"
    )


def test_no_table_makes_an_empty_publication(database: Database) -> None:
    ensure(database)
    assert published(database) == set()
    ensure(database, A)
    assert published(database) == {"a"}


@pytest.mark.parametrize(
    ("definition", "tables"),
    [
        ("FOR TABLE a", (A,)),
        ("FOR TABLE a, b", (A,)),
        ("FOR ALL TABLES", (A, B)),
        ("FOR TABLES IN SCHEMA public", (A, B, ODD)),
        ("FOR TABLE root WITH (publish_via_partition_root = true)", (ROOT,)),
    ],
)
def test_anothers_that_has_what_is_needed_is_used_as_it_is(
    database: Database, definition: str, tables: tuple[TableId, ...]
) -> None:
    database.execute(f"CREATE PUBLICATION other {definition}")
    before = published(database, "other")
    assert ensure(database, *tables, name="other") == []
    assert published(database, "other") == before


@pytest.mark.parametrize(
    ("definition", "tables"),
    [
        ("FOR TABLE a", (A, B)),
        ("FOR TABLE a WITH (publish = 'insert, update')", (A,)),
        ("FOR ALL TABLES WITH (publish = 'insert')", (A, B)),
        ("FOR ALL TABLES", (ROOT,)),
        ("FOR TABLE root", (ROOT, A)),
    ],
)
def test_anothers_that_lacks_something_is_refused_with_the_statement_that_helps(
    database: Database, definition: str, tables: tuple[TableId, ...]
) -> None:
    database.execute(f"CREATE PUBLICATION other {definition}")
    with pytest.raises(SourceMisconfigured, match="did not make it") as caught:
        ensure(database, *tables, name="other")
    statement = caught.value.solution.removeprefix("Run: ").partition(" — ")[0]
    database.execute(*statement.split("; "))
    assert ensure(database, *tables, name="other") == []


def test_another_pipelines_is_anothers(database: Database) -> None:
    ensure(database, A)
    with pytest.raises(SourceMisconfigured, match="did not make it"):
        ensure(database, A, B, pipeline="other")
    assert published(database) == {"a"}


def test_a_role_that_may_not_is_told_what_somebody_else_must_run(any_database: Database) -> None:
    role = f"plain_{any_database.name}"
    any_database.execute(f"CREATE ROLE {role} LOGIN")
    with (
        connect(any_database.url.replace("postgres@", f"{role}@")) as connection,
        pytest.raises(SourceMisconfigured, match="may not make or alter") as caught,
    ):
        ensure_publication(connection, "penstock_shop", [A], "shop")
    assert 'CREATE PUBLICATION "penstock_shop" FOR TABLE ONLY "public"."a"' in caught.value.solution

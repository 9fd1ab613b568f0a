"""The publications: made, kept in step (on both servers), never altered when they are somebody else's, never a harm."""

from __future__ import annotations

import psycopg
import pytest

from databases import Database
from penstock.errors import SourceMisconfigured
from penstock.model.table import TableId
from penstock.source.postgres.connect import connect
from penstock.source.postgres.discover import discover
from penstock.source.postgres.publication import inserts_publication
from penstock.source.postgres.publishing import Published, publish

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


def publishing(
    database: Database,
    *tables: TableId,
    name: str = "penstock_shop",
    pipeline: str = "shop",
    role: str = "postgres",
    may_leave: bool = True,
    inserts_read: bool = True,
) -> Published:
    with connect(database.url.replace("postgres@", f"{role}@")) as connection:
        schemas = discover(connection, lambda table: table in tables, name)
        return publish(connection, name, schemas, pipeline, may_leave=may_leave, inserts_read=inserts_read)


def ensure(database: Database, *tables: TableId, name: str = "penstock_shop", pipeline: str = "shop") -> list[str]:
    return [
        statement
        for change in publishing(database, *tables, name=name, pipeline=pipeline).done
        for statement in change.statements
    ]


def published(database: Database, name: str = "penstock_shop") -> set[str]:
    with connect(database.url) as connection:
        rows = connection.execute("SELECT tablename FROM pg_publication_tables WHERE pubname = %s", (name,)).fetchall()
    return {row[0] for row in rows}


def test_they_are_made_kept_in_step_and_left_alone_when_they_are(any_database: Database) -> None:
    assert len(ensure(any_database, A, ROOT)) == 4
    assert published(any_database) == {"a", "root"}
    assert published(any_database, "penstock_shop_inserts") == set()
    assert ensure(any_database, A, ROOT) == []
    assert ensure(any_database, A, ROOT, B, ODD) == [
        'ALTER PUBLICATION "penstock_shop" ADD TABLE ONLY "public"."Odd ""name""", ONLY "public"."b"'
    ]
    assert published(any_database) == {"a", "b", "root", 'Odd "name"'}
    left = publishing(any_database, B, may_leave=False)
    assert (left.done, len(left.staying)) == ((), 1)
    assert published(any_database) == {"a", "b", "root", 'Odd "name"'}
    assert ensure(any_database, B) != []
    assert published(any_database) == {"b"}
    comments = "SELECT array_agg(DISTINCT obj_description(oid)) FROM pg_publication"
    assert any_database.value(comments) == ["managed by penstock, pipeline shop"]


def test_options_that_somebody_changed_are_set_right(any_database: Database) -> None:
    ensure(any_database, A)
    any_database.execute(
        "ALTER PUBLICATION penstock_shop SET (publish = 'insert', publish_via_partition_root = false)",
        "ALTER PUBLICATION penstock_shop_inserts SET (publish = 'insert, update')",
    )
    assert len(ensure(any_database, A)) == 2
    assert any_database.value(
        "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate AND pubviaroot FROM pg_publication"
        " WHERE pubname = 'penstock_shop'"
    )
    assert any_database.value(
        "SELECT pubinsert AND NOT pubupdate AND NOT pubdelete AND pubtruncate FROM pg_publication"
        " WHERE pubname = 'penstock_shop_inserts'"
    )


def test_a_table_without_an_identity_can_still_be_updated(any_database: Database) -> None:
    """In each case the application's UPDATE and DELETE go on, before and after the table's identity changes."""
    bare, parts = TableId("public", "bare"), TableId("public", "parts")
    any_database.execute(
        "CREATE TABLE bare (id int)",
        "CREATE TABLE parts (k int NOT NULL) PARTITION BY RANGE (k)",
        "CREATE UNIQUE INDEX parts_key ON parts (k)",
        "ALTER TABLE parts REPLICA IDENTITY USING INDEX parts_key",
        "CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (0) TO (10)",
    )
    change = ["UPDATE bare SET id = id + 1", "DELETE FROM bare", "UPDATE parts SET k = 2", "UPDATE a SET id = 2"]
    fill = ["INSERT INTO bare VALUES (1)", "INSERT INTO parts VALUES (1)", "INSERT INTO a VALUES (1)"]
    looked = publishing(any_database, A, bare, parts)
    any_database.execute(*fill, *change)
    assert published(any_database, "penstock_shop_inserts") == {"bare", "parts"}
    assert (looked.inserts_only, looked.troubles) == (frozenset({bare, parts}), {})
    any_database.execute(
        "ALTER TABLE bare REPLICA IDENTITY FULL",
        "ALTER TABLE parts_0 REPLICA IDENTITY FULL",
        "ALTER TABLE a DROP CONSTRAINT a_pkey CASCADE",
    )
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="does not have a replica identity"):
        any_database.execute("UPDATE a SET id = 3")
    looked = publishing(any_database, A, bare, parts)
    assert looked.inserts_only == {A}
    assert [change.kind for change in looked.done] == ["move", "move"]
    assert published(any_database) == {"bare", "parts"}
    any_database.execute("UPDATE a SET id = 3", "UPDATE parts SET k = 3")


def test_no_table_makes_empty_publications(database: Database) -> None:
    ensure(database)
    assert published(database) == set()
    ensure(database, A)
    assert published(database) == {"a"}


def test_no_table_goes_into_a_publication_that_capture_does_not_read(any_database: Database) -> None:
    """Before the slot can see the second publication, a table without an identity waits, and hurts nobody."""
    any_database.execute("CREATE TABLE bare (id int)", "CREATE PUBLICATION penstock_shop FOR TABLE a, bare")
    any_database.execute("COMMENT ON PUBLICATION penstock_shop IS 'managed by penstock, pipeline shop'")
    bare = TableId("public", "bare")
    looked = publishing(any_database, A, bare, inserts_read=False)
    assert published(any_database) == {"a"}
    assert published(any_database, "penstock_shop_inserts") == set()
    assert "is younger than what the slot reads next" in looked.troubles[bare].what
    assert publishing(any_database, A, bare).troubles == {}
    assert published(any_database, "penstock_shop_inserts") == {"bare"}


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
    looked = publishing(database, *tables, name="other")
    assert (looked.done, looked.troubles) == ((), {})
    assert published(database, "other") == before


@pytest.mark.parametrize(
    ("definition", "tables", "troubled"),
    [
        ("FOR TABLE a", (A, B), {B}),
        ("FOR TABLE a, b_child", (A, B), {B}),
        ("FOR TABLE a WITH (publish = 'insert, update')", (A,), {A}),
        ("FOR ALL TABLES WITH (publish = 'insert')", (A, B), {A, B}),
        ("FOR ALL TABLES", (ROOT, A), {ROOT}),
        ("FOR TABLE root", (ROOT, A), {ROOT, A}),
        ("FOR TABLE a", (A, TableId("public", "b_child")), {TableId("public", "b_child")}),
    ],
)
def test_what_anothers_lacks_is_the_trouble_of_those_tables_with_the_statement_that_helps(
    database: Database, definition: str, tables: tuple[TableId, ...], troubled: set[TableId]
) -> None:
    """`b_child` has no key of its own."""
    database.execute("CREATE TABLE b_child () INHERITS (b)", f"CREATE PUBLICATION other {definition}")
    looked = publishing(database, *tables, name="other")
    assert looked.done == ()
    assert looked.troubles.keys() == troubled
    assert all("did not make and never alters" in trouble.what for trouble in looked.troubles.values())
    for trouble in looked.troubles.values():
        statements = trouble.solution.removeprefix("Run: ").partition(" — ")[0]
        database.execute(*statements.split("; "))
    assert publishing(database, *tables, name="other").troubles == {}


def test_another_pipelines_is_anothers(database: Database) -> None:
    ensure(database, A)
    assert publishing(database, A, B, pipeline="other").troubles.keys() == {B}
    assert published(database) == {"a"}


def test_a_role_that_may_not_is_told_what_somebody_else_must_run(any_database: Database) -> None:
    """No publication at all stops the pipeline; one that the role cannot alter is trouble of new tables alone."""
    role = f"plain_{any_database.name}"
    any_database.execute(f"CREATE ROLE {role} LOGIN")
    with pytest.raises(SourceMisconfigured, match="lacks CREATE on database") as caught:
        publishing(any_database, A, role=role)
    made = caught.value.solution.partition(" run: ")[2]
    assert 'CREATE PUBLICATION "penstock_shop" FOR TABLE ONLY "public"."a"' in made
    any_database.execute(*made.split("; "))
    assert publishing(any_database, A, role=role).troubles == {}
    looked = publishing(any_database, A, B, role=role)
    assert looked.done == ()
    assert looked.troubles.keys() == {B}
    assert "does not own publication penstock_shop" in looked.troubles[B].what
    any_database.execute(looked.troubles[B].solution.partition(" run: ")[2].partition(";")[0])
    assert publishing(any_database, A, B, role=role).troubles == {}


def test_one_table_that_cannot_be_added_holds_up_no_other(any_database: Database) -> None:
    """Another's table, and one that somebody has locked."""
    role = f"owner_{any_database.name}"
    any_database.execute(
        f"CREATE ROLE {role} LOGIN",
        f"GRANT CREATE ON DATABASE {any_database.name} TO {role}",
        f"ALTER TABLE a OWNER TO {role}",
        "CREATE TABLE locked (id int PRIMARY KEY)",
        f"ALTER TABLE locked OWNER TO {role}",
    )
    locked = TableId("public", "locked")
    with any_database.connect() as other:
        other.execute("BEGIN")
        other.execute("LOCK TABLE locked IN ACCESS EXCLUSIVE MODE")
        looked = publishing(any_database, A, B, locked, role=role)
    assert published(any_database) == {"a"}
    assert "does not own public.b" in looked.troubles[B].what
    assert "somebody holds a lock on it" in looked.troubles[locked].what
    assert publishing(any_database, A, B, locked, role=role).troubles.keys() == {B}


def test_a_role_that_is_read_only_by_default_is_not_a_replica(any_database: Database) -> None:
    role = f"calm_{any_database.name}"
    any_database.execute(
        f"CREATE ROLE {role} LOGIN SUPERUSER", f"ALTER ROLE {role} SET default_transaction_read_only = on"
    )
    assert publishing(any_database, A, role=role).troubles == {}
    assert published(any_database) == {"a"}


def test_a_root_that_stays_hides_its_partitions(database: Database) -> None:
    """A rule that now takes each partition by itself, while nobody lets the root leave."""
    ensure(database, ROOT)
    leaf = TableId("public", "leaf")
    with connect(database.url) as connection:
        schemas = discover(connection, lambda table: table in (ROOT, leaf), "penstock_shop", lambda _: True)
        assert [schema.table for schema in schemas] == [leaf]
        looked = publish(connection, "penstock_shop", schemas, "shop")
        assert "publishes it as part of public.root" in looked.troubles[leaf].what
        connection.execute(looked.troubles[leaf].solution.removeprefix("Run: ").partition(";")[0].encode())
        assert publish(connection, "penstock_shop", schemas, "shop").troubles == {}


def test_an_unlogged_partition_is_its_tables_trouble_until_it_is_logged(any_database: Database) -> None:
    ensure(any_database, ROOT, A)
    any_database.execute("ALTER TABLE leaf SET UNLOGGED")
    [(table, trouble)] = publishing(any_database, ROOT, A).troubles.items()
    assert (table, "sends none: public.leaf" in trouble.what) == (ROOT, True), "no other table's trouble"
    any_database.execute(trouble.solution.removeprefix("Run: ").partition(";")[0])
    assert publishing(any_database, ROOT, A).troubles == {}


def test_the_second_publications_name_is_never_the_firsts() -> None:
    assert inserts_publication("penstock_shop") == "penstock_shop_inserts"
    long, other = "ü" * 31, "ü" * 30 + "xx"
    names = {inserts_publication(long), inserts_publication(other), long, other}
    assert len(names) == 4
    assert all(len(name.encode()) <= 63 for name in names)

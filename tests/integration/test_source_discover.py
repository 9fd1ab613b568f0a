"""What the catalogue says of tables: which are tables, their columns, key and replica identity."""

from __future__ import annotations

import pytest

from databases import Database
from penstock.model.table import ColumnType, TableId, TableSchema
from penstock.source.postgres.column_types import UNKNOWN_TYPE, column_types
from penstock.source.postgres.connect import connect
from penstock.source.postgres.discover import describe, discover


def found(database: Database, publication: str = "") -> dict[str, TableSchema]:
    with connect(database.url) as connection:
        return {str(schema.table): schema for schema in discover(connection, lambda _: True, publication)}


def test_only_permanent_tables_and_roots_are_tables(postgres: Database) -> None:
    postgres.execute(
        "CREATE TABLE plain (id int PRIMARY KEY)",
        'CREATE SCHEMA "Odd. schema"',
        'CREATE TABLE "Odd. schema"."say ""hi"" größe" (id int PRIMARY KEY)',
        "CREATE TABLE root (k int PRIMARY KEY) PARTITION BY RANGE (k)",
        "CREATE TABLE part PARTITION OF root FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (k)",
        "CREATE TABLE leaf PARTITION OF part FOR VALUES FROM (0) TO (5)",
        "CREATE TABLE child () INHERITS (plain)",
        "CREATE VIEW a_view AS SELECT 1",
        "CREATE MATERIALIZED VIEW a_materialized_view AS SELECT 1",
        "CREATE UNLOGGED TABLE unlogged (id int)",
        "CREATE TEMPORARY TABLE temporary (id int)",
    )
    assert set(found(postgres)) == {'Odd. schema.say "hi" größe', "public.plain", "public.root", "public.child"}


def test_wanted_decides(postgres: Database) -> None:
    postgres.execute("CREATE TABLE a (id int)", "CREATE TABLE b (id int)")
    with connect(postgres.url) as connection:
        schemas = discover(connection, lambda table: table.name == "b", "")
    assert [schema.table for schema in schemas] == [TableId("public", "b")]


def test_domains_are_followed_to_their_base(any_postgres: Database) -> None:
    any_postgres.execute(
        "CREATE DOMAIN money_like AS numeric(10, 2)",
        "CREATE DOMAIN price AS money_like NOT NULL",
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE DOMAIN moods AS mood[]",
        "CREATE TABLE t (id bigint NOT NULL, p price, n varchar(5), ms moods, m mood, free numeric)",
        "ALTER TABLE t ADD COLUMN gone int",
        "ALTER TABLE t DROP COLUMN gone",
    )
    columns = found(any_postgres)["public.t"].columns
    assert [(c.name, c.type.name, c.nullable) for c in columns] == [
        ("id", "int8", False),
        ("p", "numeric", True),
        ("n", "varchar", True),
        ("ms", "_mood", True),
        ("m", "mood", True),
        ("free", "numeric", True),
    ]
    assert columns[1].type == ColumnType(1700, "numeric", ((10 << 16) | 2) + 4)
    assert columns[2].type.modifier == 9
    assert columns[5].type.modifier == -1
    with connect(any_postgres.url) as connection:
        price = any_postgres.value("SELECT 'price'::regtype::oid::int")
        types = column_types(connection, [(price, -1), (1043, 9), (999_999_999, 7)])
    assert types[price, -1] == columns[1].type
    assert types[1043, 9] == columns[2].type
    assert types[999_999_999, 7] == ColumnType(999_999_999, UNKNOWN_TYPE, 7)


def test_types_are_told_with_what_they_are_made_of(any_postgres: Database) -> None:
    any_postgres.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE DOMAIN price AS numeric(10, 2)",
        "CREATE TYPE part AS (gone int, cost price, tags varchar(5)[])",
        "ALTER TYPE part DROP ATTRIBUTE gone",
        "CREATE DOMAIN parts AS part[]",
        "CREATE TYPE hours AS RANGE (subtype = timestamp)",
        "CREATE TABLE t (moods mood[], parts parts, prices price[], boxes box[], "
        "h hours, hs int4multirange, v oidvector)",
    )
    schema = found(any_postgres)["public.t"]
    types = {column.name: column.type for column in schema.columns}
    mood, cost = types["moods"].element, ColumnType(1700, "numeric", ((10 << 16) | 2) + 4)
    assert mood is not None
    assert (types["moods"].kind, mood.name, mood.kind) == ("array", "mood", "enum")
    assert types["prices"].element == cost
    part = types["parts"].element
    assert part is not None
    assert (types["parts"].kind, part.name, part.kind) == ("array", "part", "composite")
    assert part.fields[0] == ("cost", cost)
    assert part.fields[1][1].element == ColumnType(1043, "varchar", 9)
    assert types["boxes"].delimiter == ";"
    assert [types[name].kind for name in ("h", "hs", "v")] == ["range", "multirange", "base"]
    assert TableSchema.from_json(schema.to_json()) == schema


@pytest.mark.parametrize(
    ("statements", "key", "identity"),
    [
        (["CREATE TABLE t (id int, b int, PRIMARY KEY (b, id))"], ("b", "id"), "key"),
        (["CREATE TABLE t (id int PRIMARY KEY) ", "ALTER TABLE t REPLICA IDENTITY FULL"], ("id",), "full"),
        (["CREATE TABLE t (id int PRIMARY KEY) ", "ALTER TABLE t REPLICA IDENTITY NOTHING"], ("id",), "nothing"),
        (["CREATE TABLE t (id int)"], (), "nothing"),
        (["CREATE TABLE t (id int)", "ALTER TABLE t REPLICA IDENTITY FULL"], (), "full"),
        (["CREATE TABLE t (id int PRIMARY KEY DEFERRABLE)"], (), "nothing"),
        (["CREATE TABLE t (id int NOT NULL UNIQUE)"], (), "nothing"),
        (
            [
                "CREATE TABLE t (id int PRIMARY KEY, u int NOT NULL, b int)",
                "CREATE UNIQUE INDEX i ON t (u) INCLUDE (b)",
                "ALTER TABLE t REPLICA IDENTITY USING INDEX i",
            ],
            ("u",),
            "key",
        ),
        (
            [
                "CREATE TABLE t (id int PRIMARY KEY, u int NOT NULL)",
                "CREATE UNIQUE INDEX i ON t (u)",
                "ALTER TABLE t REPLICA IDENTITY USING INDEX i",
                "DROP INDEX i",
            ],
            (),
            "nothing",
        ),
    ],
)
def test_key_and_identity(postgres: Database, statements: list[str], key: tuple[str, ...], identity: str) -> None:
    postgres.execute(*statements)
    schema = found(postgres)["public.t"]
    assert (schema.key, schema.identity) == (key, identity)
    with connect(postgres.url) as connection:
        facts = describe(connection, schema.relation_id)
    assert facts is not None
    assert facts.schema([column.name for column in schema.columns]) == schema


def test_columns_are_those_that_are_published(any_postgres: Database) -> None:
    any_postgres.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text, twice int GENERATED ALWAYS AS (id * 2) STORED)",
        "CREATE TABLE u (id int PRIMARY KEY, a text)",
        "CREATE PUBLICATION listed FOR TABLE t (id, b)",
        "CREATE PUBLICATION whole FOR TABLE t, u",
    )

    def columns(publication: str, table: str) -> list[str]:
        return [column.name for column in found(any_postgres, publication)[table].columns]

    assert columns("listed", "public.t") == ["id", "b"]
    assert columns("listed", "public.u") == ["id", "a"]
    assert columns("whole", "public.t") == ["id", "a", "b"]
    assert columns("missing", "public.t") == ["id", "a", "b"]


def test_generated_columns_that_are_published_are_columns(postgres: Database) -> None:
    postgres.execute(
        "CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)",
        "CREATE PUBLICATION p FOR TABLE t WITH (publish_generated_columns = stored)",
    )
    assert [column.name for column in found(postgres, "p")["public.t"].columns] == ["id", "twice"]


def test_a_key_that_is_not_published_is_no_key(postgres: Database) -> None:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, a text)", "CREATE PUBLICATION p FOR TABLE t (a)")
    assert found(postgres, "p")["public.t"].key == ()


def test_a_relation_that_is_gone_has_no_description(postgres: Database) -> None:
    with connect(postgres.url) as connection:
        assert describe(connection, 999_999_999) is None

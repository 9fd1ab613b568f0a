"""Postgres is the oracle for every type: at least twenty values of each, with its extremes, alone, in arrays and in
composites, inserted before the slot and after it; what the copy and the stream make of them is compared with SELECT.

oracle_rules.py is the written rule for each type: which values are exact, and which are rescued.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

import oracle
from copying import PUBLICATION, changes_of, held_snapshot, prepared, streamed
from databases import Database
from penstock.decode.choices import chosen, fitted
from penstock.decode.postgres.types.registry import TABLE, codec, served
from penstock.decode.rescue import RESCUED, RESCUED_TYPE
from penstock.destinations.iceberg.type_map import ICEBERG_TYPES
from penstock.fold.clone import fold_clone
from penstock.model.table import TableId, TableSchema
from penstock.source.postgres.column_types import column_types
from penstock.source.postgres.connect import connect
from type_tables import columns_of, create, insert, types_of
from type_values import MOST


def in_lake(schema: TableSchema) -> TableSchema:
    return fitted(schema, ICEBERG_TYPES)


@pytest.mark.parametrize("table", ["alone", "lists", "rows", "lists_of_rows"])
def test_both_roads_give_what_select_gives(any_postgres: Database, table: str) -> None:
    types = types_of(any_postgres)
    tables = {table: columns_of(types, table)}
    slot = f"values_{any_postgres.name}"
    any_postgres.execute(
        *create(types, tables),
        f"create publication {PUBLICATION} for all tables",
        *insert(tables, 0),
        f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')",
    )
    with held_snapshot(any_postgres) as snapshot:
        any_postgres.execute(*insert(tables, 1000))
        copy = prepared(any_postgres, snapshot, TableId("public", table), carried=in_lake)
        copied = copy.read()
        net = fold_clone([changes_of(streamed(any_postgres, slot), copy.source.schema)], position=0)
    assert net.rescued is not None
    net.upserts.validate(full=True)
    net.rescued.validate(full=True)
    copied.validate(full=True)
    streamed_rows = net.upserts.append_column(pa.field(RESCUED, RESCUED_TYPE), net.rescued)
    assert copied.schema == streamed_rows.schema
    lake = pa.concat_tables([copied, streamed_rows])
    with any_postgres.connect() as connection:
        difference = oracle.compare(connection, f"public.{table}", lake)
    assert not difference, str(difference)
    assert lake.num_rows == 2 * (MOST + 1)
    assert any(count.column.startswith("numeric") for count in net.rescues) == (table in ("alone", "lists"))


def test_the_oracle_sees_what_is_wrong_inside(postgres: Database) -> None:
    postgres.execute(
        "create extension hstore",
        "create type pair as (a int, b timestamp)",
        "create table t (id int primary key, n numeric, l int[], p pair, h hstore)",
        "insert into t values (1, 'NaN', '{1,null}', row(1, '2024-01-01'), 'a=>null')",
        f"create publication {PUBLICATION} for all tables",
    )
    with held_snapshot(postgres) as snapshot:
        (row,) = (rows := prepared(postgres, snapshot, TableId("public", "t"), carried=in_lake).read()).to_pylist()

    def wrong(**changes: object) -> str:
        lake = pa.Table.from_pylist([{**row, **changes}], rows.schema)
        with postgres.connect() as connection:
            return str(oracle.compare(connection, "public.t", lake))

    assert wrong() == "public.t"
    assert "column n" in wrong(_rescued=[("n", "Infinity")])
    assert "column n" in wrong(_rescued=None)
    assert "column l" in wrong(_rescued=[("n", "NaN"), ("l", "{1,NULL}")], l=None)
    assert "column l" in wrong(l=[1])
    assert "column p" in wrong(p={**row["p"], "a": 2})
    assert "column h" in wrong(h=[("a", "")])


def test_every_type_of_the_server_has_a_line_in_the_table(any_postgres: Database) -> None:
    """Pseudo-types cannot be columns; arrays, composites, domains and ranges are told by their kind."""
    with connect(any_postgres.url) as connection:
        rows = connection.execute(
            "select oid::int8, typname::text, typtype::text from pg_type where typtype <> 'p'"
            " and not (typtype = 'c' and exists (select from pg_attribute a join pg_type p on p.oid = a.atttypid"
            " where a.attrelid = typrelid and a.attnum > 0 and p.typtype = 'p'))"
        ).fetchall()
        types = column_types(connection, [(oid, -1) for oid, _, _ in rows])
    assert len(rows) > 400
    listed = {name: oid for line in TABLE for name, oid in line.types.items()}
    for oid, name, kind in rows:
        found = types[oid, -1]
        codec(found)
        if found.kind in ("base", "range", "multirange") and kind != "d":
            assert listed[name] == oid, f"{name} is in no line of the table"
            assert served(found) is not None


def test_a_choice_is_the_same_on_both_roads(postgres: Database) -> None:
    slot = f"choices_{postgres.name}"
    values = "(1, 'infinity', 1.5, '{1,NaN}', '{{1,2}}', 'NaN'), (2, null, null, null, null, null)"
    postgres.execute(
        "create table t (id int primary key, at timestamp, n numeric(10,2), ns numeric[], l int[], k numeric)",
        f"create publication {PUBLICATION} for all tables",
        f"insert into t values {values}",
        f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')",
    )
    choices = (("at", "text"), ("pg:numeric", "text"), ("l", "text"), ("k", "decimal(5,1)"))
    with held_snapshot(postgres) as snapshot:
        postgres.execute("insert into t select id + 10, at, n, ns, l, k from t")
        copy = prepared(
            postgres, snapshot, TableId("public", "t"), carried=lambda schema: chosen(schema, choices, ICEBERG_TYPES)
        )
        copied = copy.read().sort_by("id")
        net = fold_clone([changes_of(streamed(postgres, slot), copy.source.schema)], position=0)
    first = {"at": "infinity", "n": "1.50", "ns": ["1", "NaN"], "l": "{{1,2}}", "k": None}
    assert copied.to_pylist() == [
        {"id": 1, **first, RESCUED: [("k", "NaN")]},
        {"id": 2, **dict.fromkeys(first), RESCUED: None},
    ]
    assert net.rescued is not None
    assert dict(zip(net.upserts["id"].to_pylist(), net.rescued.to_pylist(), strict=True)) == {
        11: [("k", "NaN")],
        12: None,
    }
    assert net.upserts.sort_by("id").drop_columns(["id"]) == copied.drop_columns(["id", RESCUED])

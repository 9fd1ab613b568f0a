"""Rows read again by key: the key's values, as Arrow has them, find their rows in Postgres, whatever their type."""

from __future__ import annotations

import pytest

from copying import PUBLICATION, copying
from databases import Database
from penstock.model.table import TableId
from penstock.source.postgres.copy_keys import KEYS_A_QUERY, key_conditions
from penstock.source.postgres.copy_read import read_range

TABLE = TableId("public", "keyed")
KEYS = {
    "int2": ["-32768", "0", "32767"],
    "int8": ["-9223372036854775808", "9223372036854775807"],
    "text": ["", " ", "a'b\"c\\", "NULL", "żółć 🚰", "tab\t\n"],
    "varchar(20)": ["x", "X"],
    "char(8)": ["ab", "  x"],
    "uuid": ["00000000-0000-0000-0000-000000000001", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "date": ["0001-01-01", "9999-12-31", "12345-06-07"],
    "time": ["00:00:00", "23:59:59.999999"],
    "timestamp": ["0001-01-01 00:00:00", "2024-02-29 12:00:00.000001", "9999-12-31 23:59:59.999999"],
    "timestamptz": ["1969-12-31 23:59:59.999999+00", "2024-02-29 12:00:00+05:45"],
    "numeric(12,4)": ["-99999999.9999", "0", "0.0001"],
    "numeric": ["1.50", "1e19", "-0.000000000000000001"],
    "bytea": ["\\x", "\\x00ff5c27"],
    "bool": ["true", "false"],
    "float4": ["0.1", "NaN", "-Infinity", "3.4028235e38"],
    "float8": ["0.1", "NaN", "Infinity", "5e-324"],
    "inet": ["10.0.0.1/8", "::1"],
    "mood": ["so so", "good"],
}


@pytest.mark.parametrize("type_name", KEYS)
def test_a_key_of_any_type_finds_its_row(postgres: Database, type_name: str) -> None:
    with postgres.connect() as connection:
        connection.execute("create type mood as enum ('so so', 'good')")
        connection.execute(f"create table keyed (id {type_name}, part int, n int, primary key (id, part))".encode())
        for number, value in enumerate(KEYS[type_name]):
            connection.execute(f"insert into keyed values (%s::{type_name}, 1, %s)".encode(), (value, number))
        connection.execute(f"create publication {PUBLICATION} for table keyed".encode())
    with copying(postgres, TABLE) as copy:
        rows = copy.read()
        assert rows.num_rows == len(KEYS[type_name])
        for key in (["id", "part"], ["id"]):
            conditions = key_conditions(key, rows.select(key))
            (relation,) = copy.ranges
            found = list(read_range(copy.source, relation, statement_timeout=60, conditions=conditions))
            assert sorted(n for batch in found for n in batch["n"].to_pylist()) == list(range(rows.num_rows))


def test_many_keys_are_found_by_the_index(postgres: Database) -> None:
    rows = 3 * KEYS_A_QUERY
    postgres.execute(
        "create table keyed (id int primary key, n text)",
        f"insert into keyed select g, repeat('x', 500) from generate_series(1, {10 * rows}) g",
        "vacuum analyze keyed",
        f"create publication {PUBLICATION} for table keyed",
    )
    with copying(postgres, TABLE) as copy:
        wanted = copy.read().select(["id"]).slice(rows, rows - 7)
        conditions = key_conditions(["id"], wanted)
        assert len(conditions) == 3
        (relation,) = copy.ranges
        found = read_range(copy.source, relation, statement_timeout=60, conditions=conditions)
        assert sorted(i for batch in found for i in batch["id"].to_pylist()) == sorted(wanted["id"].to_pylist())
    for condition in conditions:
        plan = postgres.value(f"explain (format json) select * from only keyed where {condition}")
        assert "Seq Scan" not in str(plan)

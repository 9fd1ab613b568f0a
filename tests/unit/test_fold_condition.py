"""`where`: what it means, and what it says about mistakes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.fold.condition import BadCondition, parse
from pgoutput_messages import BOOL, DATE, INT8, JSONB, TEXT, TIMESTAMPTZ, numeric, table_schema

SCHEMA = table_schema(
    {
        "id": INT8,
        "country": TEXT,
        "active": BOOL,
        "price": numeric(10, 2),
        "day": DATE,
        "at": TIMESTAMPTZ,
        "doc": JSONB,
        "Odd Name": TEXT,
    }
)
ROWS = pa.table(
    {
        "id": [1, 2, 3, 4],
        "country": ["DE", "XX", None, "it's"],
        "active": [True, False, None, True],
        "price": pa.array(["1.00", "2.50", "10.00", None]).cast(pa.decimal128(10, 2)),
        "day": pa.array(["2020-01-01", "2021-01-01", None, "2022-01-01"]).cast(pa.date32()),
        "at": pa.array(["2020-01-01T00:00:00Z"] * 4).cast(pa.timestamp("us", "UTC")),
        "doc": ["{}", None, "[]", "1"],
        "Odd Name": ["a", "b", "c", "d"],
    }
)


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("country <> 'XX'", [1, 4]),
        ("country = 'it''s'", [4]),
        ("NOT country = 'DE'", [2, 4]),
        ("country IS NULL", [3]),
        ("country is not null and id > 1", [2, 4]),
        ("id IN (1, 3) or id = 4", [1, 3, 4]),
        ("country not in ('DE', 'XX')", [4]),
        ("active", [1, 4]),
        ("not active", [2]),
        ("active = false", [2]),
        ("price >= 2.5", [2, 3]),
        ("price between 1 and 2.5", [1, 2]),
        ("day < '2021-06-01'", [1, 2]),
        ("at < '2020-01-01 01:00+02'", []),
        ("at <= '2020-01-01'", [1, 2, 3, 4]),
        ("country LIKE 'D%'", [1]),
        ("doc is null", [2]),
        ("\"Odd Name\" = 'b' OR (COUNTRY = 'DE' AND NOT (id = 2))", [1, 2]),
        ("id = -1 or id = 2 and country = 'XX'", [2]),
    ],
)
def test_rows_for_which_it_is_true(where: str, ids: list[int]) -> None:
    condition = parse(where)
    condition.check(SCHEMA)
    assert ROWS.filter(condition.holds(ROWS))["id"].to_pylist() == ids


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("", "at character 1: a column is due, not its end"),
        ("country", "country .* cannot be tested with holds"),
        ("country <> ", "at character 12: a value .* is due, not its end"),
        ("country = DE", "at character 11: a value"),
        ("country ~ 'x'", "at character 9: '~' is not understood; allowed are comparisons"),
        ("id = 1 id = 2", "at character 8: AND, OR or the end is due, not 'id'"),
        ("(id = 1", "at character 8: \\) is due"),
        ("lower(country) = 'de'", "at character 6"),
        ("id not 3", "IN, LIKE or BETWEEN is due"),
        ("land = 'DE'", "has no column land; it has id, country"),
        ("id = 'one'", "'one' is no int8"),
        ("doc = '{}'", "doc .jsonb. cannot be tested with ="),
        ("id like '1%'", "cannot be tested with like"),
        ("active = 1", "'1' is no bool|cannot"),
    ],
)
def test_a_mistake_is_told_with_its_place(where: str, said: str) -> None:
    with pytest.raises(BadCondition, match=said):
        parse(where).check(SCHEMA)

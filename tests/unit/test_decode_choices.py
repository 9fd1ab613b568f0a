"""What a user chooses for columns and types, in a schema."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.decode.choices import chosen, parse_key
from penstock.decode.schema import arrow_schema
from penstock.destinations.iceberg.type_map import ICEBERG_TYPES
from penstock.errors import ColumnNotCarried
from penstock.model.table import ColumnType, TableSchema
from penstock.model.type_map import WIDEST
from pgoutput_messages import INT4, INT8, TEXT, TIMESTAMPTZ, numeric, table_schema

FREE = ColumnType(1700, "numeric")
NUMBERS = ColumnType(1231, "_numeric", kind="array", element=FREE)
PART = ColumnType(50_000, "part", kind="composite", fields=(("cost", FREE), ("at", TIMESTAMPTZ)))
SCHEMA = table_schema(
    {"id": INT8, "amount": FREE, "price": numeric(10, 2), "costs": NUMBERS, "part": PART, "at": TIMESTAMPTZ}
)


def types(schema: TableSchema) -> dict[str, str]:
    return {field.name: str(field.type) for field in arrow_schema(schema)}


DEFAULT = types(chosen(SCHEMA, (), ICEBERG_TYPES))


def test_nothing_chosen_is_nothing_changed() -> None:
    assert chosen(SCHEMA, (), WIDEST) is SCHEMA
    assert DEFAULT["amount"] == "decimal128(38, 18)"
    assert DEFAULT["costs"] == "list<element: decimal128(38, 18)>"
    assert DEFAULT["part"] == "struct<cost: decimal128(38, 18), at: timestamp[us, tz=UTC]>"


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ({"amount": "decimal(20,4)"}, {"amount": "decimal128(20, 4)"}),
        ({"price": "decimal(20,4)"}, {"price": "decimal128(20, 4)"}),
        ({"costs": "decimal(20,4)"}, {"costs": "list<element: decimal128(20, 4)>"}),
        ({"costs": "text", "part": "text"}, {"costs": "string", "part": "string"}),
        ({"missing": "text"}, {}),
        (
            {"pg:numeric": "decimal(20,4)"},
            {
                "amount": "decimal128(20, 4)",
                "costs": "list<element: decimal128(20, 4)>",
                "part": "struct<cost: decimal128(20, 4), at: timestamp[us, tz=UTC]>",
            },
        ),
        (
            {"pg:numeric": "text", "amount": "decimal(9,0)"},
            {
                "amount": "decimal128(9, 0)",
                "price": "string",
                "costs": "list<element: string>",
                "part": "struct<cost: string, at: timestamp[us, tz=UTC]>",
            },
        ),
        ({"pg:numeric[]": "text"}, {"costs": "string"}),
        ({"pg:part": "text"}, {"part": "string"}),
        (
            {"pg:timestamptz": "text"},
            {"part": "struct<cost: decimal128(38, 18), at: string>", "at": "string"},
        ),
    ],
)
def test_choices(choices: dict[str, str], expected: dict[str, str]) -> None:
    made = chosen(SCHEMA, tuple(choices.items()), ICEBERG_TYPES)
    assert types(made) == DEFAULT | expected
    assert TableSchema.from_json(made.to_json()) == made


def test_types_have_more_than_one_name() -> None:
    assert parse_key("pg: Double  Precision", "text") == "pg:float8"
    assert parse_key("pg:integer []", "text") == "pg:int4[]"
    assert parse_key("decimal", "text") == "decimal"


def test_a_key_of_lists_is_text() -> None:
    array = ColumnType(1007, "_int4", kind="array", element=INT4)
    schema = chosen(table_schema({"id": array, "v": array}), (), WIDEST)
    assert arrow_schema(schema).types == [pa.string(), pa.list_(pa.int32())]


def test_decimals_are_for_numbers() -> None:
    schema = chosen(table_schema({"id": INT8, "v": TEXT}), (("v", "decimal(5,2)"),), WIDEST)
    with pytest.raises(ColumnNotCarried, match=r'public\.things: column "v" .* is for numeric, not for text'):
        arrow_schema(schema)


def test_the_name_of_what_is_rescued_is_taken() -> None:
    schema = table_schema({"id": INT8, "_rescued": TEXT})
    with pytest.raises(ColumnNotCarried, match=r"public\.things: its column _rescued"):
        arrow_schema(schema)
    assert arrow_schema(replace(schema, columns=schema.columns[:1])).names == ["id"]

"""Canonical text as SQL: its form tells columns apart. Run on both sides by tests/integration/test_control_proof.py."""

from __future__ import annotations

from pyspark.sql.types import DateType, DoubleType, IntegerType, StringType

from penstock.control.verify.canonical import spark_row, spark_text
from penstock.model.table import Column, ColumnType
from penstock.source.postgres.canonical import column_sql, column_text

ID = Column("id", ColumnType(23, "int4"))
WORDS = Column('a "b"', ColumnType(25, "text"))
PLACE = Column("place", ColumnType(600, "point"))


def test_plain_types_are_cast_and_others_go_through_their_output_function() -> None:
    assert column_text(ID) == '"id"::pg_catalog.text'
    assert "format('%s', \"place\")" in column_text(PLACE)
    assert "IS DISTINCT FROM NULL" in column_text(PLACE), "a row of nulls is no null"


def test_the_separator_is_doubled_where_a_text_may_hold_it() -> None:
    assert "replace(" not in column_sql(ID).part
    assert "replace(" in column_sql(WORDS).part
    assert "replace(" not in spark_row([("n", IntegerType()), ("d", DateType())])
    assert "replace(" in spark_row([("t", StringType())])


def test_a_column_that_the_lake_does_not_have_is_null() -> None:
    assert spark_row([None, ("n", IntegerType())]).startswith("concat('\\u001f-', ")


def test_a_cell_that_did_not_fit_counts_by_its_text() -> None:
    text = spark_text("it's", DateType(), rescued=True)
    assert text.endswith("try_element_at(`_rescued`, 'it\\'s'))")
    assert "_rescued" not in spark_text("it's", DateType())


def test_floating_point_numbers_are_their_bits_and_null_stays_null() -> None:
    text = spark_text("f", DoubleType())
    assert "doubleToLongBits" in text
    assert "CASE WHEN `f` IS NOT NULL" in text

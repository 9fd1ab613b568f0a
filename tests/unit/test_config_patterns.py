"""Table patterns: what each stands for, and what is no pattern."""

from __future__ import annotations

import pytest

from penstock.config.patterns import BadPattern, matches, names_one_table
from penstock.model.table import TableId


@pytest.mark.parametrize(
    ("pattern", "schema", "name", "expected"),
    [
        ("public.orders", "public", "orders", True),
        ("public.orders", "public", "Orders", False),
        ("public.orders", "sales", "orders", False),
        ("public.*", "public", "anything at all", True),
        ("public.*", "public2", "orders", False),
        ("public.tmp_%", "public", "tmp_1", True),
        ("public.tmp_%", "public", "tmpx1", False),
        ("public.tmp_%", "public", "tmp_", True),
        ("public.%_old", "public", "orders_old", True),
        ("public.a%z", "public", "a.middle.z", True),
        ("%.orders", "public", "orders", True),
        ("%.orders", "sales", "orders", True),
        ("%.orders", "sales", "orders2", False),
        ("*.*", "x", "y", True),
        ('"odd.schema"."per%cent"', "odd.schema", "per%cent", True),
        ('"odd.schema"."per%cent"', "odd.schema", "per and cent", False),
        ('public."say ""hi"""', "public", 'say "hi"', True),
        ("public.größe", "public", "größe", True),
        ("public.a+b", "public", "aab", False),
        ("public.%", "public", "two\nlines", True),
    ],
)
def test_a_pattern_stands_for_these_tables(pattern: str, schema: str, name: str, expected: bool) -> None:
    assert matches(pattern, TableId(schema, name)) is expected


@pytest.mark.parametrize("pattern", ["orders", "", ".", "public.", ".orders", "a.b.c", "public.tmp*", '"public.orders'])
def test_anything_else_is_no_pattern(pattern: str) -> None:
    with pytest.raises(BadPattern, match=r"schema\.table"):
        matches(pattern, TableId("public", "orders"))


def test_only_a_pattern_without_wildcards_names_one_table() -> None:
    assert names_one_table("public.orders")
    assert names_one_table('public."100%"')
    assert not names_one_table("public.*")
    assert not names_one_table("%.orders")

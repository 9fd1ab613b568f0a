"""The first rows of a table under a rule that is not saved, from a real Postgres: as they would arrive."""

from __future__ import annotations

import hashlib

import pytest

from databases import Database
from penstock.config.load import load
from penstock.control.preview import preview
from penstock.errors import UsageError
from running import PipelineFactory


def hashed(text: str) -> str:
    return hashlib.sha256(b"salt" + text.encode()).hexdigest()


def test_rows_are_shown_as_a_rule_would_have_them(postgres: Database, pipeline: PipelineFactory) -> None:
    postgres.execute(
        "CREATE TABLE people (id int PRIMARY KEY, name text, email text, tags text[], born date, score numeric)",
        "INSERT INTO people VALUES (1, 'Ada', 'ada@x', '{a,b}', '1815-12-10', 1.50), "
        "(2, 'Grace', NULL, NULL, 'infinity', 'NaN'), (3, repeat('x', 300), 'z@x', '{}', '1906-12-09', 2)",
        "CREATE TABLE parts (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
        "CREATE TABLE parts_a PARTITION OF parts FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')",
        "INSERT INTO parts VALUES (1, '2026-05-04')",
    )
    file = load(pipeline(mask_salt="salt").path)
    rule = {
        "match": "public.people",
        "mode": "history",
        "target": "crm.people",
        "columns": {"name": {"rename": "who"}, "email": "mask", "tags": "drop"},
        "set": {"region": "eu"},
        "where": "id < 3",
    }
    shown = preview(file, "public.people", rule)
    assert shown.columns == ("id", "who", "email", "born", "score", "region")
    assert shown.left_out == 1
    assert [row[:3] for row in shown.rows] == [[1, "Ada", hashed("ada@x")], [2, "Grace", None]]
    assert shown.rows[0][3:] == ["1815-12-10", "1.500000000000000000", "eu"]
    assert shown.rows[1][3] is None, "what fits no column is rescued"
    assert preview(file, "public.people", {}).rows[2][1] == "x" * 200 + "…"
    assert preview(file, "public.parts", {}).rows == [[1, "2026-05-04"]]
    assert "ada@x" not in str(preview(file, "public.people", {"columns": {"email": "mask"}}).as_json())
    for bad, what in (
        ({"columns": {"none": "drop"}}, "which it does not have"),
        ({"columns": {"tags": "mask"}}, "cannot be masked"),
        ({"where": "name ="}, "where"),
        ({"columns": {"name": "hide"}}, "allowed are keep"),
    ):
        with pytest.raises(UsageError, match=what):
            preview(file, "public.people", bad)
    with pytest.raises(UsageError, match="the source has no table"):
        preview(file, "public.nobody", {})
    with pytest.raises(UsageError, match="mask_salt"):
        preview(load(pipeline().path), "public.people", {"columns": {"email": "mask"}})

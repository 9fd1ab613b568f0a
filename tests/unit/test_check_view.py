"""What `penstock check` found, as lines, as JSON and as statements."""

from __future__ import annotations

import pytest

from penstock.control.check.view import Found, as_json, as_lines, as_sql, is_statement, verdict
from penstock.model.table import TableId
from penstock.source.finding import Finding

NOTE = Found("", Finding("note", "publication p is missing; `penstock run` makes it", 'CREATE PUBLICATION "p"'))
WARNING = Found("", Finding("warning", "idle", 'ALTER TABLE "t" REPLICA IDENTITY FULL', TableId("public", "t")))
ERROR = Found("source eu", Finding("error", "wal_level", "ALTER SYSTEM SET wal_level = 'logical'; then restart it"))
ODD = Found("", Finding("error", "no key", 'ALTER TABLE "a; b" ADD PRIMARY KEY ("x"); SELECT pg_reload_conf()'))


def test_errors_come_first_and_everything_is_counted() -> None:
    found = [NOTE, WARNING, ERROR]
    lines = [line.plain for line in as_lines(found)]
    assert [line.split()[0] for line in lines if not line.startswith("     ")] == ["ERROR", "WARNING", "note"]
    assert lines[0] == "  ERROR    source eu: wal_level"
    assert verdict(found) == "1 thing must be fixed; 1 warning and 1 note"
    assert verdict([NOTE, NOTE]) == "ready to run, with 2 notes"
    assert verdict([]) == "ready to run"


def test_findings_as_json() -> None:
    told = as_json("shop.yaml", "shop", [], [NOTE, WARNING, ERROR])
    assert (told["ready"], told["errors"], told["warnings"], told["notes"]) == (False, 1, 1, 1)
    assert [one["level"] for one in told["findings"]] == ["error", "warning", "note"]
    assert told["findings"][1]["table"] == "public.t"
    assert told["findings"][0]["source"] == "source eu"


def test_statements_for_psql() -> None:
    assert list(as_sql([NOTE, WARNING, ERROR, ODD, ODD])) == [
        "-- error: source eu: wal_level",
        "ALTER SYSTEM SET wal_level = 'logical';",
        "-- then restart it",
        "-- error: no key",
        'ALTER TABLE "a; b" ADD PRIMARY KEY ("x");',
        "SELECT pg_reload_conf();",
        "-- error: no key",
        "-- warning: idle",
        '-- ALTER TABLE "t" REPLICA IDENTITY FULL;',
        "-- note: publication p is missing; `penstock run` makes it",
        '-- CREATE PUBLICATION "p";',
    ]


@pytest.mark.parametrize(
    "prose",
    [
        "Add a key",
        'ALTER TABLE "t" ADD PRIMARY KEY (…) with the columns that identify a row',
        "SELECT pg_drop_replication_slot('mine')",
        "or ALTER TABLE x SET LOGGED",
    ],
)
def test_what_is_no_statement_or_removes_something_is_left_to_the_operator(prose: str) -> None:
    assert not is_statement(prose)
    assert list(as_sql([Found("", Finding("error", "what", prose))])) == []

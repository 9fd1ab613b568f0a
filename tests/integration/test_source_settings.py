"""A role with settings of its own, every one of which would break a session that relied on the defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from capturing import CaptureBench, first_values
from copying import PUBLICATION, copying
from databases import Database
from penstock.changelog.log import ChangeLog
from penstock.model.table import TableId
from penstock.source.postgres import slot as slots
from penstock.source.postgres.check import check_source
from penstock.source.postgres.connect import connect
from penstock.source.postgres.discover import discover
from penstock.source.postgres.publishing import publish
from penstock.source.postgres.slot import flush_position

HOSTILE = {
    "quote_all_identifiers": "on",
    "client_min_messages": "debug5",
    "search_path": "hostile, pg_catalog",
    "lock_timeout": "'1ms'",
    "statement_timeout": "'200ms'",
    "idle_session_timeout": "'200ms'",
    "idle_in_transaction_session_timeout": "'200ms'",
    "default_transaction_isolation": "'serializable'",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "row_security": "off",
    "standard_conforming_strings": "off",
    "backslash_quote": "off",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "xmloption": "document",
    "xmlbinary": "hex",
    "session_replication_role": "replica",
    "default_text_search_config": "'pg_catalog.simple'",
    "DateStyle": "'German, DMY'",
    "IntervalStyle": "'iso_8601'",
    "TimeZone": "'Asia/Tokyo'",
    "extra_float_digits": "-5",
    "bytea_output": "'escape'",
    "client_encoding": "'LATIN1'",
    **dict.fromkeys((f"enable_{scan}scan" for scan in ("tid", "seq", "index", "indexonly", "bitmap")), "off"),
    **dict.fromkeys((f"enable_{join}" for join in ("hashjoin", "mergejoin", "nestloop", "sort", "material")), "off"),
}
T, ODD = TableId("public", "t"), TableId("public", "Odd \\ 'name")
VALUES = "1, 1.5::float8, '2026-01-02 03:04:05+00'::timestamptz, '1 day'::interval, '\\x00ff'::bytea, 'gru\u00df'"


class Names:
    publication, slot, pipeline = PUBLICATION, "hostile", "shop"
    create_slot = True
    keeps_changes = True


@pytest.fixture
def hostile(any_postgres: Database) -> Database:
    """The test's database, as the role sees it."""
    role = f"hostile_{any_postgres.name}"
    limited = dict(HOSTILE)
    if any_postgres.value("select count(*) from pg_settings where name = 'transaction_timeout'"):
        limited["transaction_timeout"] = "'200ms'"
    any_postgres.execute(
        "create schema hostile",
        "create function hostile.pg_is_in_recovery() returns bool language sql as 'select true'",
        "create function hostile.set_config(text, text, bool) returns text language sql as 'select null::text'",
        f"create role {role} login superuser",
        *(f"alter role {role} set {name} = {value}" for name, value in limited.items()),
        "create table t (id int primary key, f float8, at timestamptz, span interval, raw bytea, note text)",
        f"insert into t values ({VALUES})",
        f'create table "{ODD.name}" (id int primary key, "Other \\ name" text)',
        f'insert into "{ODD.name}" values (1, null)',
    )
    return Database(any_postgres.name, any_postgres.url.replace("postgres@", f"{role}@"))


def test_a_role_with_hostile_settings_copies_and_streams(
    any_postgres: Database, hostile: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "_TELL_EVERY_SECONDS", 0.1)
    with connect(hostile.url) as connection:
        schemas = [schema for schema in discover(connection, lambda _: True, PUBLICATION) if schema.table in (T, ODD)]
        assert publish(connection, PUBLICATION, schemas, "shop").done
        assert [one.what for one in check_source(connection, Names(), lambda _: True) if one.level == "error"] == []
        assert connection.execute("select %s::text[]", ([None, "null"],)).fetchall()[0][0] == [None, "null"]
        assert flush_position(connection) > 0
    for table in (T, ODD):
        with copying(any_postgres, table) as plain:
            expected = plain.read().to_pylist()
        with copying(hostile, table) as copy:
            assert copy.read().to_pylist() == expected
            assert len(expected) == 1

    bench = CaptureBench(hostile, ChangeLog(str(tmp_path / "log")))
    any_postgres.execute("create publication capture_test for all tables")
    with connect(hostile.url) as connection:
        slots.create_slot(connection, hostile.url, bench.slot)
    any_postgres.execute("insert into t (id) values (7)", "create table later (id int primary key)")
    with bench.capturing() as capture:
        capture.drain(any_postgres.flush_position())
        any_postgres.execute("insert into later values (8)")
        capture.drain(any_postgres.flush_position())
    assert first_values(bench.log) == ["7", "8"]

"""Capture from a real Postgres: the position rule, whole transactions, resume, parts, idle, settings, schemas."""

from __future__ import annotations

import json
import threading
from base64 import b64decode
from pathlib import Path
from typing import Any

import psycopg
import pytest

from capturing import CaptureBench, first_values, rows
from databases import Database
from penstock.changelog.log import ChangeLog
from penstock.model.feed import Feed
from penstock.model.source_events import WantedEvents, is_source_event
from penstock.render.events import in_stream_order, render_changes
from penstock.source.postgres import stream as stream_module
from penstock.source.postgres.connect import connect
from penstock.source.postgres.pgoutput import read_begin
from penstock.source.postgres.resume import ServerStream
from penstock.source.postgres.slot import create_slot
from penstock.source.postgres.stream import ReplicationStream
from penstock.source.sink import Origin
from running import await_condition


@pytest.fixture
def bench(any_postgres: Database, tmp_path: Path) -> CaptureBench:
    return CaptureBench(any_postgres, ChangeLog(str(tmp_path / "log")))


RACES = 2


def numbers(*ranges: range) -> list[str]:
    return [str(number) for numbers in ranges for number in numbers]


def test_everything_after_the_slot_arrives_once_with_its_schema(bench: CaptureBench) -> None:
    bench.prepare(
        "create table a (id int primary key, price numeric(10, 2) not null, note text)",
        "create domain cents as numeric(12, 2)",
        "create table b (x text, y int, z cents, primary key (y, x))",
    )
    bench.database.execute(
        "insert into a select n, n, 'note' from generate_series(1, 100) n",
        "begin; insert into b values ('k', 1, 5); update a set note = 'new' where id = 7;"
        "delete from a where id = 8; commit",
        "begin; insert into a values (1000, 1); rollback",
        "update a set id = 5000 where id = 9",
    )
    bench.capture_all()
    assert first_values(bench.log, "a") == numbers(range(1, 101))
    found = rows(bench.log)
    assert [row["op"] for row in found[100:]] == list(b"IUDU")
    assert [(row["table"], row["ordinal"]) for row in found[100:103]] == [("b", 0), ("a", 1), ("a", 2)]
    assert len({row["commit_position"] for row in found}) == 3
    schema = found[0]["schema"]
    assert [(c.name, c.type.name, c.nullable) for c in schema.columns] == [
        ("id", "int4", False),
        ("price", "numeric", False),
        ("note", "text", True),
    ]
    other = found[100]["schema"]
    assert (other.key, other.columns[2].type.name) == (("y", "x"), "numeric")
    moved = sum(item.slice.moved_keys for name in bench.log.segments() for item in bench.log.slices(name))
    assert moved == 1
    header = bench.log.header(bench.log.segments()[0])
    with bench.database.connect() as connection:
        system = connection.execute("select system_identifier::text, 1 from pg_control_system()").fetchone()
    stream = ServerStream.from_origin(Origin(header.origin))
    assert system == (stream.system_id, stream.timeline)


def test_a_transaction_is_kept_if_and_only_if_it_commits_at_or_after_the_consistent_point(bench: CaptureBench) -> None:
    """Tried until a commit record stands exactly where the slot begins; another slot tells where it stands.

    T0 holds the slot's making up, and T1 begins meanwhile; when T0 ends the slot waits for T1, and T2 writes; when T1
    ends the slot becomes consistent, and T2 commits at once, or right after with nothing written between.
    """
    url, observer = bench.database.url, f"observer_{bench.database.name}"
    bench.database.execute(
        "create table t (id int primary key)",
        "create publication capture_test for all tables",
        f"select pg_create_logical_replication_slot('{observer}', 'pgoutput')",
    )
    for attempt in range(300):
        with (
            psycopg.connect(url) as t0,
            psycopg.connect(url) as t1,
            psycopg.connect(url) as t2,
            connect(url) as looking,
        ):
            t0.execute("select pg_current_xact_id()")
            points: list[int] = []
            making = threading.Thread(target=lambda p=points: p.append(create_slot(looking, url, bench.slot)))
            making.start()
            _await_blocked(bench, t0.info.backend_pid)
            t1.execute("select pg_current_xact_id()")
            t0.rollback()
            _await_blocked(bench, t1.info.backend_pid)
            t2.execute("insert into t values (%s)", (attempt,))
            t1.rollback()
            if attempt < RACES:
                t2.commit()  # before, at or after the consistent point
            making.join()
            t2.commit()
        (point,) = points
        commit_position = _only_commit(bench, observer)
        if attempt < RACES or commit_position == point:
            bench.log = ChangeLog(f"{Path(bench.log.folder).parent}/log{attempt}")
            bench.capture_all()
            assert [row["commit_position"] for row in rows(bench.log)] == (
                [commit_position] if commit_position >= point else []
            )
            assert bench.log.start() == point
        if attempt >= RACES and commit_position == point:
            return
        bench.drop_slot()
    raise AssertionError("no transaction ever committed at the consistent point")


def _only_commit(bench: CaptureBench, observer: str) -> int:
    """Where the one transaction commits that another slot has not told of yet."""
    with bench.database.connect() as connection:
        found = connection.execute(
            "select data from pg_logical_slot_get_binary_changes(%s, null, null, 'proto_version', '1',"
            " 'publication_names', 'capture_test') where get_byte(data, 0) = ascii('B')",
            (observer,),
        ).fetchall()
    begins = [read_begin(data) for (data,) in found]
    (begin,) = begins
    return begin.commit_lsn


def _await_blocked(bench: CaptureBench, by: int) -> None:
    """Until the slot's making waits for that session."""
    with bench.database.connect() as connection:

        def waits() -> bool:
            found = connection.execute(
                "select 1 from pg_stat_activity where backend_type = 'walsender' and %s = any (pg_blocking_pids(pid))",
                (by,),
            )
            return found.fetchone() is not None

        await_condition(waits, f"the slot to wait for {by}", 30, every=0.005)


def test_it_resumes_where_the_log_ends(bench: CaptureBench) -> None:
    bench.prepare("create table t (id int primary key)")
    for start in (0, 10, 20):
        bench.database.execute(f"insert into t select generate_series({start}, {start + 9})")
        bench.capture_all()
    assert first_values(bench.log) == numbers(range(30))
    assert bench.confirmed() == bench.log.end()


def test_what_is_sent_again_is_skipped_but_its_relations_are_kept(
    bench: CaptureBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.prepare("create table t (id int primary key)", "create table u (id int primary key)")
    bench.database.execute("insert into t values (1)", "insert into u values (1)", "truncate t")
    with monkeypatch.context() as patch:
        patch.setattr(ReplicationStream, "tell", lambda self, position, *, reply=False: None)
        with bench.capturing() as capture:
            capture.await_condition(lambda: len(rows(bench.log)) == 3, "three changes")
    end = bench.log.end()
    assert end is not None
    confirmed = bench.confirmed()
    assert confirmed < end
    bench.database.execute("insert into t values (2)", "insert into u values (2)")
    sent: list[str] = []
    begin = stream_module.ReplicationStream.start

    def from_the_slot(self: ReplicationStream, connection: Any, slot: str, publication: str, position: int) -> None:
        sent.append(f"{position:x}")
        begin(self, connection, slot, publication, 0)

    monkeypatch.setattr(ReplicationStream, "start", from_the_slot)
    bench.capture_all()
    assert sent == [f"{confirmed:x}"]
    assert [(row["table"], chr(row["op"])) for row in rows(bench.log)] == [
        ("t", "I"),
        ("u", "I"),
        ("t", "T"),
        ("t", "I"),
        ("u", "I"),
    ]
    assert first_values(bench.log) == ["1", "1", "2", "2"]


def test_a_large_transaction_becomes_parts_and_its_neighbours_do_not(bench: CaptureBench) -> None:
    bench.prepare("create table t (id int primary key, note text)", "create table u (id int primary key)")
    bench.database.execute(
        "insert into t select n, 'before' from generate_series(1, 50) n",
        "begin; insert into t select n, repeat('x', 100) from generate_series(51, 3000) n;"
        "insert into u values (1); commit",
        "insert into t select n, 'after' from generate_series(3001, 3050) n",
    )
    bench.capture_all(segment_bytes=20_000)
    assert first_values(bench.log, "t") == numbers(range(1, 3051))
    assert first_values(bench.log, "u") == ["1"]
    with_parts = [name for name in bench.log.segments() if bench.log.header(name).parts]
    assert len(with_parts) == 1
    header = bench.log.header(with_parts[0])
    assert len(header.parts) > 10
    assert (
        len({item.first_commit for item in header.all_slices} | {item.last_commit for item in header.all_slices}) == 1
    )
    huge = [row for row in rows(bench.log) if row["commit_position"] == header.slices[0].first_commit]
    assert [row["ordinal"] for row in huge] == list(range(2951))
    assert bench.log.remove_garbage() == []


def test_many_small_transactions_become_few_segments(bench: CaptureBench) -> None:
    bench.prepare("create table t (id int primary key)")
    with bench.database.connect() as connection:
        for number in range(500):
            connection.execute("insert into t values (%s)", (number,))
    bench.capture_all(segment_age=0.5)
    assert first_values(bench.log) == numbers(range(500))
    assert len(bench.log.segments()) < 10


def test_an_idle_source_moves_the_log_and_the_slot(bench: CaptureBench) -> None:
    bench.prepare("create table t (id int primary key)")
    bench.database.execute("alter publication capture_test rename to everything")
    bench.database.execute("create publication capture_test for table t", "create table busy (id int, note text)")
    with bench.capturing() as capture:
        capture.await_event("started")
        for _ in range(5):
            bench.database.execute("insert into busy select n, repeat('x', 100) from generate_series(1, 1000) n")
            capture.drain()
            target = bench.log.end() or 0
            capture.await_condition(lambda at=target: bench.confirmed() >= at, "the slot to follow")
        assert len(bench.log.segments()) == 1, "successive idle positions take each other's place"
        assert rows(bench.log) == []
        bench.database.execute("insert into t values (1)")
        capture.drain()
    assert first_values(bench.log) == ["1"]


def test_the_bytes_do_not_depend_on_the_roles_settings(bench: CaptureBench) -> None:
    role = f"abroad_{bench.database.name}"
    bench.prepare(
        "create table t (id int primary key, d date, ts timestamptz, i interval, f float8, b bytea)",
        f"create role {role} superuser login",
        f"alter role {role} set datestyle = 'German'",
        f"alter role {role} set timezone = 'Asia/Tokyo'",
        f"alter role {role} set intervalstyle = 'iso_8601'",
        f"alter role {role} set extra_float_digits = 0",
        f"alter role {role} set bytea_output = 'escape'",
        f"alter role {role} set client_encoding = 'LATIN1'",
    )
    bench.database.execute(
        "insert into t values (1, '2026-02-01', '2026-02-01 12:00+00', '1 day 2 hours', 0.1::float8 + 0.2,"
        " decode('6101', 'hex'))"
    )
    bench.capture_all(url=bench.database.url.replace("postgres@", f"{role}@"))
    bench.database.execute(f"drop role {role}")
    message = rows(bench.log)[0]["data"]
    for text in (b"2026-02-01", b"2026-02-01 12:00:00+00", b"1 day 02:00:00", b"0.30000000000000004", b"\\x6101"):
        assert text in message


def test_a_truncate_stands_under_each_table(bench: CaptureBench) -> None:
    bench.prepare("create table p (id int primary key)", "create table c (id int primary key, p int references p)")
    bench.database.execute("insert into p values (1)", "insert into c values (1, 1)", "truncate p cascade")
    bench.capture_all()
    truncates = [(row["table"], row["ordinal"]) for row in rows(bench.log) if row["op"] == ord("T")]
    assert sorted(table for table, _ in truncates) == ["c", "p"]
    assert len({ordinal for _, ordinal in truncates}) == 2


def test_a_structure_that_changes_amid_a_transaction_gives_two_versions(bench: CaptureBench) -> None:
    bench.prepare("create table t (id int primary key)")
    bench.database.execute(
        "begin; insert into t values (1); alter table t add column n int default 5; insert into t values (2, 6);commit",
        "alter table t drop column n; alter table t replica identity full; insert into t values (3);"
        "update t set id = 4 where id = 3",
    )
    bench.capture_all()
    found = rows(bench.log)
    assert first_values(bench.log) == ["1", "2", "3"]
    assert [len(row["schema"].columns) for row in found] == [1, 2, 1, 1]
    assert [row["schema"].identity for row in found] == ["key", "key", "full", "full"]
    assert [row["schema"].key for row in found] == [("id",)] * 4


def test_a_table_that_is_gone_by_the_time_it_is_read_still_has_a_schema(bench: CaptureBench) -> None:
    bench.prepare("create type mood as enum ('ok')", "create table t (id int primary key, m mood)")
    bench.database.execute("insert into t values (1, 'ok')", "drop table t", "drop type mood")
    bench.capture_all()
    (row,) = rows(bench.log)
    assert [(c.name, c.type.name) for c in row["schema"].columns] == [("id", "int4"), ("m", "mood")]
    assert row["schema"].key == ("id",)


def test_giant_rows_go_through(bench: CaptureBench) -> None:
    bench.prepare("create table t (id int primary key, note text)")
    bench.database.execute(
        "begin; insert into t values (1, 'small'), (2, repeat('x', 6000000)), (3, 'small'), (4, repeat('y', 5000000));"
        "commit",
        "insert into t values (5, repeat('z', 7000000))",
    )
    bench.capture_all()
    assert first_values(bench.log) == numbers(range(1, 6))
    assert [len(row["data"]) > 4_000_000 for row in rows(bench.log)] == [False, True, False, True, True]


def test_partitions_come_under_their_root(bench: CaptureBench) -> None:
    bench.prepare("create table t (id int primary key) partition by range (id)")
    bench.database.execute(
        "alter publication capture_test set (publish_via_partition_root = true)",
        "create table t1 partition of t for values from (0) to (10)",
        "create table t2 partition of t for values from (10) to (20)",
        "insert into t values (1), (11)",
        "update t set id = 12 where id = 1",
    )
    bench.capture_all()
    assert {row["table"] for row in rows(bench.log)} == {"t"}
    assert [chr(row["op"]) for row in rows(bench.log)] == ["I", "I", "D", "I"]


def test_events_of_the_source_are_kept_as_asked_through_restarts_and_changed_minds(bench: CaptureBench) -> None:
    """Transactions, structures and messages; what was sent before somebody asked for it is no gap."""
    bench.prepare("create table a (id int primary key)", "create table b (id int primary key)")
    execute = bench.database.execute
    execute("insert into a values (1)", "select pg_logical_emit_message(true, 'app.x', 'not asked for')")
    bench.capture_all()
    wanted = WantedEvents(transactions=True, schema_changes=True, messages=("app.%",))
    bench.settings["wanted"] = wanted
    execute(
        "begin; insert into b values (1); select pg_logical_emit_message(true, 'app.x', 'one');"
        "insert into a values (2); commit",
        "select pg_logical_emit_message(true, 'app.y', '\\x00ff'::bytea)",
        "select pg_logical_emit_message(false, 'app.x', 'in no transaction')",
        "select pg_logical_emit_message(true, 'penstock', repeat('0', 64) || '{}')",
        "select pg_logical_emit_message(true, 'other', 'x')",
    )
    bench.capture_all()
    bench.capture_all()  # structures are known from the log
    execute("alter table a add note text", "insert into a values (3, 'n')", "insert into b values (2)")
    bench.capture_all(segment_bytes=1)  # every transaction is in parts
    found = source_events(bench)
    assert [one["op"] for one in found] == [
        *("begin", "relation", "message", "commit"),
        *("begin", "message", "commit"),
        *("begin", "ddl", "relation", "commit", "begin", "commit"),
    ]
    messages = [one["message"] for one in found if one["op"] == "message"]
    assert [(one["prefix"], b64decode(one["content"])) for one in messages] == [
        ("app.x", b"one"),
        ("app.y", b"\x00\xff"),
    ]
    commits = [one for one in found if one["op"] == "commit"]
    assert [{table["table"]: table["changes"] for table in one["tables"]} for one in commits] == [
        {"a": 1, "b": 1}, {}, {"a": 1}, {"b": 1},
    ]  # fmt: skip
    assert all(one["end_position"] > one["place"][:16] for one in commits)
    (ddl,) = [one for one in found if one["op"] == "ddl"]
    assert ddl["changes"] == ["column note added (text)"]
    bench.settings.clear()  # nobody asks any more: the log's last transaction is a message's
    execute("select pg_logical_emit_message(true, 'app.x', 'again')")
    bench.capture_all(wanted=wanted)
    execute("insert into b values (3)")
    bench.capture_all()
    assert [one["op"] for one in source_events(bench)[-3:]] == ["begin", "message", "commit"]
    assert first_values(bench.log, "b") == numbers(range(1, 4))


def source_events(bench: CaptureBench) -> list[dict[str, Any]]:
    """Events of the source in the order of the log, as streams write them."""
    found = []
    for name in bench.log.segments():
        pieces = [
            render_changes(one, Feed.clone(one.schema.table), "shop")
            for one in bench.log.read(name)
            if is_source_event(one.schema.table)
        ]
        found += [json.loads(value) for value in in_stream_order(pieces).values.to_pylist()] if pieces else []
    return found

"""The slot on both servers: made, waited for, seen, busy, lost and dropped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import pq
from pydantic import SecretStr

from databases import Database
from penstock.config.sources import PostgresSource
from penstock.demo.server import PostgresServer
from penstock.errors import SlotBusy, SourceMisconfigured
from penstock.source.postgres import slot as slots
from penstock.source.postgres.connect import connect, replication_connection
from penstock.source.postgres.session import PostgresSession
from penstock.source.postgres.slot import create_slot, drop_slot, flush_position, lsn_text, slot_state


@contextmanager
def reading(url: str, name: str, publication: str = "p") -> Iterator[int]:
    """Somebody reads the slot; gives the process id of the server's side."""
    pgconn = replication_connection(url, application_name="somebody")
    options = f"(proto_version '1', publication_names '{publication}')"
    pgconn.send_query(f"START_REPLICATION SLOT {name} LOGICAL 0/0 {options}".encode())
    result = pgconn.get_result()
    assert result is not None
    assert result.status == pq.ExecStatus.COPY_BOTH, result.get_error_message()
    try:
        yield pgconn.backend_pid
    finally:
        pgconn.finish()


def test_a_slot_from_its_making_to_its_end(any_postgres: Database) -> None:
    name = f"s_{any_postgres.name}"
    with connect(any_postgres.url) as connection:
        assert slot_state(connection, name) is None
        before = flush_position(connection)
        point = create_slot(connection, any_postgres.url, name)
        state = slot_state(connection, name)
        assert state is not None
        assert state.confirmed_flush_lsn == point
        assert before <= point <= flush_position(connection)
        assert (state.plugin, state.database) == ("pgoutput", any_postgres.name)
        assert (state.active_pid, state.invalidation, state.wal_status) == (None, None, "reserved")
        retained = state.retained_bytes
        connection.execute("SELECT pg_logical_emit_message(true, 'test', repeat('x', 100000))")
        state = slot_state(connection, name)
        assert state is not None
        assert state.retained_bytes >= retained + 100_000
        drop_slot(connection, name)
        assert slot_state(connection, name) is None
        drop_slot(connection, name)


def test_a_slot_is_moved_to_where_an_empty_log_is_to_begin(any_postgres: Database) -> None:
    """Once: later it stands where the log ends. Nobody can read what it has let go of, or what is not written yet."""
    name = f"s_{any_postgres.name}"
    any_postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    url = SecretStr(any_postgres.url)

    def session(**keys: object) -> PostgresSession:
        section = PostgresSource.model_validate({"type": "postgres", "url": url, "slot": name, **keys})
        return PostgresSession(connect(any_postgres.url), section)

    with session(create_slot=False) as known, pytest.raises(SourceMisconfigured, match="create_slot is false"):
        known.retain(None)
    with connect(any_postgres.url) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))  # an operator's
        connection.execute("INSERT INTO t VALUES (1)")
        start = flush_position(connection)
        connection.execute("INSERT INTO t VALUES (2)")
        with session(create_slot=False) as known:
            assert not known.retain(None).made
        for wrong in ("0/1", lsn_text(start + 2**40)):
            with session(start_lsn=wrong) as known, pytest.raises(SourceMisconfigured, match=r"source\.start_lsn is"):
                known.retain(None)
        with session(start_lsn=lsn_text(start)) as known:
            assert known.retain(None).position == start
            assert known.retain(None).position == start
        state = slot_state(connection, name)
        assert state is not None
        assert state.confirmed_flush_lsn == start
        changes = "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
        rows = connection.execute(changes + " 'publication_names', 'p')", (name,)).fetchall()
        assert [row[0][-1:] for row in rows if row[0][:1] == b"I"] == [b"2"]
        with session(start_lsn="0/1") as known:
            assert known.retain(start).position == start, "a log that has begun goes on at its end"
        drop_slot(connection, name)
        with session(start_lsn="0/1") as known, pytest.raises(SourceMisconfigured, match="needs one that is there"):
            known.retain(None)


def test_a_transaction_from_before_is_waited_for_and_named(
    any_postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "_TELL_EVERY_SECONDS", 0.1)
    name = f"s_{any_postgres.name}"
    told: list[str] = []
    with connect(any_postgres.url) as connection, psycopg.connect(any_postgres.url) as slow:
        slow.execute("SELECT pg_current_xact_id()")

        def waiting(who: str) -> None:
            told.append(who)
            if f"pid {slow.info.backend_pid} " in who:
                slow.rollback()

        create_slot(connection, any_postgres.url, name, waiting)
        assert slot_state(connection, name) is not None
    assert any("postgres" in who and "since" in who for who in told)


def test_an_interrupted_making_leaves_no_slot(any_postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "_TELL_EVERY_SECONDS", 0.1)
    name = f"s_{any_postgres.name}"

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with connect(any_postgres.url) as connection, psycopg.connect(any_postgres.url) as slow:
        slow.execute("SELECT pg_current_xact_id()")
        with pytest.raises(KeyboardInterrupt):
            create_slot(connection, any_postgres.url, name, interrupt)
        for _ in range(100):
            if slot_state(connection, name) is None:
                break
            connection.execute("SELECT pg_sleep(0.05)")
        assert slot_state(connection, name) is None


def test_a_slot_that_is_read_is_active_and_not_dropped(any_postgres: Database) -> None:
    name = f"s_{any_postgres.name}"
    any_postgres.execute("CREATE PUBLICATION p")
    with connect(any_postgres.url) as connection:
        create_slot(connection, any_postgres.url, name)
        with reading(any_postgres.url, name) as pid:
            state = slot_state(connection, name)
            assert state is not None
            assert state.active_pid == pid
            with pytest.raises(SlotBusy, match=f"slot {name} is in use"):
                drop_slot(connection, name)


def test_a_name_that_is_taken(any_postgres: Database) -> None:
    name = f"s_{any_postgres.name}"
    with connect(any_postgres.url) as connection:
        create_slot(connection, any_postgres.url, name)
        with pytest.raises(SourceMisconfigured, match=r"already exists.*source\.slot"):
            create_slot(connection, any_postgres.url, name)


def test_no_free_slot_and_a_lost_one() -> None:
    settings = {"max_replication_slots": "1", "max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB"}
    with PostgresServer(settings=settings) as server, connect(server.url()) as connection:
        create_slot(connection, server.url(), "only")
        with pytest.raises(SourceMisconfigured, match="max_replication_slots"):
            create_slot(connection, server.url(), "second")
        for _ in range(3):
            connection.execute("SELECT pg_logical_emit_message(false, 'test', 'x')")
            connection.execute("SELECT pg_switch_wal()")
        connection.execute("CHECKPOINT")
        state = slot_state(connection, "only")
        assert state is not None
        assert state.wal_status == "lost"
        assert state.invalidation in ("wal_removed", "the WAL it needs was removed")


def test_a_server_that_writes_no_logical_wal() -> None:
    with PostgresServer(settings={"wal_level": "replica"}) as server, connect(server.url()) as connection:
        with pytest.raises(SourceMisconfigured, match=r"wal_level.*ALTER SYSTEM SET wal_level = 'logical'"):
            create_slot(connection, server.url(), "s")
        assert (
            lsn_text(flush_position(connection))
            == connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()[0][0]
        )

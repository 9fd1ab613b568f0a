"""The exported snapshot on real servers: what it sees, what holds it up, and what is left when it goes."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from copying import OUR_SLOTS, PUBLICATION, await_zero, changes_of, copying, held_snapshot, nobody, streamed
from databases import Database, fresh_database
from penstock.demo.server import PostgresServer
from penstock.errors import SnapshotBlocked, SourceMisconfigured, SourceUnreachable
from penstock.fold.clone import fold_clone
from penstock.model.table import TableId
from penstock.source.postgres.connect import connect
from penstock.source.postgres.slot import flush_position
from penstock.source.postgres.snapshot import Blocker, export_snapshot, snapshot_connection

OUR_BACKENDS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'penstock copy' AND datname = '{}'"


@pytest.fixture(scope="module")
def preparing_server() -> Iterator[PostgresServer]:
    with PostgresServer(settings={"max_prepared_transactions": "4", "max_replication_slots": "2"}) as server:
        yield server


@pytest.fixture
def preparing(preparing_server: PostgresServer) -> Iterator[Database]:
    with fresh_database(preparing_server) as database:
        yield database


def test_a_snapshot_sees_what_was_before_its_position(any_postgres: Database) -> None:
    any_postgres.execute("CREATE TABLE t (id int)", "INSERT INTO t VALUES (1)")
    with connect(any_postgres.url) as connection:
        before = flush_position(connection)
        with export_snapshot(any_postgres.url, timeout=30, waiting=nobody) as snapshot:
            any_postgres.execute("INSERT INTO t VALUES (2)")
            assert before <= snapshot.position <= flush_position(connection)
            with snapshot_connection(any_postgres.url, snapshot.name) as inside:
                assert inside.execute("SELECT id FROM t").fetchall() == [(1,)]
                with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                    inside.execute("DELETE FROM t")
                inside.execute("ROLLBACK")
            assert snapshot.alive()
            assert any_postgres.value(OUR_SLOTS) == 1
    await_zero(any_postgres, OUR_SLOTS)
    with (
        pytest.raises(SourceUnreachable, match=r"cannot be used: .*snapshot.* under a new snapshot"),
        snapshot_connection(any_postgres.url, snapshot.name),
    ):
        pass


def test_copy_and_stream_meet_at_the_position(postgres: Database) -> None:
    """Transactions that commit around the snapshot are in the copy or in the stream, and never in both."""
    slot = f"meet_{postgres.name}"
    postgres.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES",
        f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')",
        "INSERT INTO t SELECT generate_series(1, 5)",
    )
    with postgres.connect() as early:
        early.execute("BEGIN")
        early.execute("INSERT INTO t VALUES (11)")
        with copying(postgres, TableId("public", "t"), waiting=lambda blockers: early.commit()) as copy:
            postgres.execute("INSERT INTO t SELECT generate_series(21, 25)")
            copied = copy.read()["id"].to_pylist()
            stream = changes_of(streamed(postgres, slot), copy.source.schema)
    after = fold_clone([stream], position=copy.snapshot.position).upserts["id"].to_pylist()
    assert sorted(copied) == [*range(1, 6), 11]
    assert sorted(after) == [*range(21, 26)]
    assert len(stream.batch) == 11


def test_an_open_transaction_is_waited_for_and_named(any_postgres: Database) -> None:
    any_postgres.execute("CREATE TABLE t (id int)")
    told: list[list[Blocker]] = []
    with any_postgres.connect() as blocking:
        blocking.execute("BEGIN")
        blocking.execute(f"INSERT INTO t SELECT 1 WHERE '{'x' * 200}' <> ''".encode())

        def waiting(blockers: list[Blocker]) -> None:
            told.append(blockers)
            if len(told) == 2:
                blocking.execute("COMMIT")

        with (
            export_snapshot(any_postgres.url, timeout=30, waiting=waiting) as snapshot,
            snapshot_connection(any_postgres.url, snapshot.name) as inside,
        ):
            assert inside.execute("SELECT id FROM t").fetchall() == [(1,)]
        (blocker,) = told[1]
        assert (blocker.what, blocker.pid, blocker.name) == ("transaction", blocking.info.backend_pid, "")
        assert blocker.age_seconds >= 1
        assert blocker.query.startswith("INSERT INTO t SELECT 1 WHERE 'xxx")
        assert len(blocker.query) == 81


def test_a_wait_that_is_too_long_is_given_up(any_postgres: Database) -> None:
    any_postgres.execute("CREATE TABLE t (id int)")
    with any_postgres.connect() as blocking:
        blocking.execute("BEGIN")
        blocking.execute("INSERT INTO t VALUES (1)")
        pid = blocking.info.backend_pid
        with pytest.raises(SnapshotBlocked) as caught:
            export_snapshot(any_postgres.url, timeout=0.5, waiting=nobody)
        assert f"within 0.5 s: it waits for pid {pid} (transaction of" in caught.value.what
        assert "INSERT INTO t VALUES (1)" in caught.value.what
        assert f"SELECT pg_terminate_backend({pid})" in caught.value.solution
        assert caught.value.retry == "backoff"
        await_zero(any_postgres, OUR_SLOTS)
        await_zero(any_postgres, OUR_BACKENDS.format(any_postgres.name))


def test_a_prepared_transaction_is_named(preparing: Database) -> None:
    preparing.execute("CREATE TABLE t (id int)")
    with preparing.connect() as connection:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO t VALUES (1)")
        connection.execute("PREPARE TRANSACTION 'two o''clock'")
        told: list[list[Blocker]] = []
        with pytest.raises(SnapshotBlocked, match="prepared transaction two o'clock") as caught:
            export_snapshot(preparing.url, timeout=0.3, waiting=told.append)
        assert "ROLLBACK PREPARED 'two o''clock'" in caught.value.solution
        ((blocker,),) = told
        assert (blocker.what, blocker.pid, blocker.name) == ("prepared", None, "two o'clock")
        connection.execute("COMMIT PREPARED 'two o''clock'")
    with held_snapshot(preparing) as snapshot:
        assert snapshot.alive()


def test_whoever_waits_may_give_up(postgres: Database) -> None:
    postgres.execute("CREATE TABLE t (id int)")

    def give_up(blockers: list[Blocker]) -> None:
        raise KeyboardInterrupt

    with postgres.connect() as blocking:
        blocking.execute("BEGIN")
        blocking.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(KeyboardInterrupt):
            export_snapshot(postgres.url, timeout=30, waiting=give_up)
        await_zero(postgres, OUR_SLOTS)


def test_a_snapshot_dies_with_its_connection(postgres: Database) -> None:
    with held_snapshot(postgres) as snapshot:
        assert snapshot.alive()
        postgres.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE temporary")
        with postgres.connect() as connection:
            for _ in range(200):
                if not snapshot.alive():
                    break
                connection.execute("SELECT pg_sleep(0.05)")
        assert not snapshot.alive()
    assert not snapshot.alive()


def test_no_slot_is_free(preparing: Database) -> None:
    with (
        held_snapshot(preparing),
        held_snapshot(preparing),
        pytest.raises(SourceMisconfigured, match="all replication slots are in use") as caught,
    ):
        export_snapshot(preparing.url, timeout=5, waiting=nobody)
    assert "raise max_replication_slots" in caught.value.solution


def test_nobody_there() -> None:
    with pytest.raises(SourceUnreachable) as caught:
        export_snapshot("postgresql://app:secret@127.0.0.1:1/shop", timeout=5, waiting=nobody)
    assert "127.0.0.1:1/shop" in caught.value.what
    assert "secret" not in str(caught.value)

"""Findings, and that they keep their promise: the statement that a finding gives is run, and the finding is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from copying import held_snapshot
from databases import Database
from penstock.demo.server import PostgresServer
from penstock.errors import SourceUnreachable
from penstock.model.table import TableId
from penstock.source.postgres import check as source_check
from penstock.source.postgres.check import Finding, check_source
from penstock.source.postgres.connect import connect, replication_connection
from penstock.source.postgres.discover import discover
from penstock.source.postgres.publishing import publish
from penstock.source.postgres.slot import create_slot, drop_slot, slot_state


@dataclass(frozen=True)
class Names:
    publication: str
    slot: str
    pipeline: str = "shop"
    create_slot: bool = True
    keeps_changes: bool = True


def names(database: Database, publication: str = "penstock_shop") -> Names:
    return Names(publication, f"penstock_{database.name}")


def check(
    database: Database,
    publication: str = "penstock_shop",
    wanted: Callable[[TableId], bool] = lambda _: True,
    url: str | None = None,
) -> list[Finding]:
    with connect(url or database.url) as connection:
        return check_source(connection, names(database, publication), wanted)


def findings_about(findings: list[Finding], words: str) -> list[Finding]:
    return [finding for finding in findings if words in finding.what]


def bring_up(database: Database, publication: str = "penstock_shop") -> None:
    """As `run` would: publication first, then slot."""
    with connect(database.url) as connection:
        publish(connection, publication, discover(connection, lambda _: True, publication), "shop")
        create_slot(connection, database.url, names(database).slot)


def test_a_new_pipeline_has_notes_only(any_postgres: Database) -> None:
    any_postgres.execute("CREATE TABLE t (id int PRIMARY KEY)")
    findings = check(any_postgres)
    assert {finding.level for finding in findings} == {"note"}
    assert findings_about(findings, "publication penstock_shop is missing; `penstock run` makes it")
    assert findings_about(findings, f"slot penstock_{any_postgres.name} is missing")


def test_a_pipeline_in_order_has_none(any_postgres: Database) -> None:
    any_postgres.execute("CREATE TABLE t (id int PRIMARY KEY)")
    bring_up(any_postgres)
    any_postgres.execute("INSERT INTO t VALUES (1)")
    assert check(any_postgres) == []


INDEXED = ["CREATE TABLE t (id int NOT NULL)", "CREATE UNIQUE INDEX i ON t (id)"]


@pytest.mark.parametrize(
    ("statements", "level", "what"),
    [
        (
            INDEXED,
            "warning",
            "table public.t has no key: only its inserts are published, and an UPDATE or DELETE makes it Errored",
        ),
        (
            [*INDEXED, "CREATE PUBLICATION p FOR TABLE t"],
            "error",
            "table public.t has no key, and publication p has it: while it is published like that, Postgres itself",
        ),
        (
            [*INDEXED, "ALTER TABLE t REPLICA IDENTITY FULL"],
            "note",
            "table public.t has no key and REPLICA IDENTITY FULL: it is followed by its whole row",
        ),
        (["CREATE TABLE t (id int PRIMARY KEY DEFERRABLE)"], "warning", "table public.t has no key"),
        (
            [
                "CREATE TABLE t (id int PRIMARY KEY, u int NOT NULL)",
                "CREATE UNIQUE INDEX i ON t (u)",
                "ALTER TABLE t REPLICA IDENTITY USING INDEX i",
                "DROP INDEX i",
            ],
            "warning",
            "table public.t has no key",
        ),
        (
            ["CREATE TABLE t (id int PRIMARY KEY)", "ALTER TABLE t REPLICA IDENTITY NOTHING"],
            "warning",
            "table public.t has REPLICA IDENTITY NOTHING",
        ),
        (
            [
                "CREATE TABLE t (k int PRIMARY KEY) PARTITION BY RANGE (k)",
                "CREATE TABLE leaf PARTITION OF t FOR VALUES FROM (0) TO (10)",
                "ALTER TABLE t REPLICA IDENTITY FULL",
            ],
            "warning",
            "1 partition(s) of public.t have another replica identity",
        ),
        (
            [
                "CREATE TABLE t (k int NOT NULL) PARTITION BY RANGE (k)",
                "CREATE TABLE leaf PARTITION OF t FOR VALUES FROM (0) TO (10)",
                "CREATE UNIQUE INDEX i ON t (k)",
                "ALTER TABLE t REPLICA IDENTITY USING INDEX i",
            ],
            "warning",
            "1 partition(s) of public.t have another replica identity",
        ),
        (["CREATE UNLOGGED TABLE t (id int PRIMARY KEY)"], "warning", "table public.t is unlogged"),
        (
            [
                "CREATE TABLE t (id int PRIMARY KEY, a text)",
                "CREATE PUBLICATION p FOR TABLE t (a)",
            ],
            "error",
            "table public.t is published without its key column id",
        ),
        (
            ["CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t WITH (publish = 'insert')"],
            "error",
            "publication p does not publish update, delete, truncate",
        ),
        (
            [
                "CREATE TABLE t (id int PRIMARY KEY)",
                'CREATE TABLE "U" (id int PRIMARY KEY)',
                "CREATE PUBLICATION p FOR TABLE t",
            ],
            "error",
            "publication p lacks public.U",
        ),
        (
            [
                "CREATE TABLE t (k int PRIMARY KEY) PARTITION BY RANGE (k)",
                "CREATE PUBLICATION p FOR TABLE t",
            ],
            "error",
            "publication p does not publish partitioned tables as one",
        ),
    ],
)
def test_the_fix_fixes(postgres: Database, statements: list[str], level: str, what: str) -> None:
    postgres.execute(*statements)
    publication = "p" if any("PUBLICATION p" in statement for statement in statements) else "penstock_shop"
    [finding] = findings_about(check(postgres, publication), what)
    assert finding.level == level
    postgres.execute(*finding.fix.split("; "))
    after = check(postgres, publication)
    assert {finding.level for finding in after} <= {"note"}, after


def test_postgres_refuses_what_the_finding_says_it_refuses(postgres: Database) -> None:
    """Guards the wording: a table without a replica identity that is published with updates takes inserts only."""
    postgres.execute("CREATE TABLE t (id int)", "CREATE PUBLICATION penstock_shop FOR ALL TABLES")
    bring_up(postgres)
    postgres.execute("INSERT INTO t VALUES (1)")
    [finding] = findings_about(check(postgres), "has no key")
    assert "Postgres itself refuses UPDATE and DELETE" in finding.what
    assert finding.table == TableId("public", "t")
    with pytest.raises(Exception, match="does not have a replica identity"):
        postgres.execute("DELETE FROM t")
    postgres.execute(finding.fix.partition("if there are none: ")[2], "DELETE FROM t")
    assert check(postgres) == []


def test_rows_from_before_are_told_of_until_the_table_is_followed(any_postgres: Database) -> None:
    any_postgres.execute(
        "CREATE TABLE empty (id int PRIMARY KEY)",
        "CREATE TABLE full_one (id int PRIMARY KEY)",
        "INSERT INTO full_one VALUES (1)",
        "CREATE TABLE root (k int PRIMARY KEY) PARTITION BY RANGE (k)",
        "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (10)",
        "INSERT INTO root VALUES (1)",
    )
    told = findings_about(check(any_postgres), "copies them first")
    assert [str(finding.table) for finding in told] == ["public.full_one", "public.root"]
    assert {finding.level for finding in told} == {"note"}
    role = f"blind_{any_postgres.name}"
    any_postgres.execute(f"CREATE ROLE {role} LOGIN")
    blind = check(any_postgres, url=any_postgres.url.replace("postgres@", f"{role}@"))
    assert [str(finding.table) for finding in findings_about(blind, "copies them first")] == [
        "public.full_one",
        "public.root",
    ]
    bring_up(any_postgres)
    assert not findings_about(check(any_postgres), "copies them first")


def test_a_row_filter_is_told_of(postgres: Database) -> None:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t WHERE (id > 5)")
    [finding] = findings_about(check(postgres, "p"), "row filter")
    assert finding.level == "note"
    assert "id > 5" in finding.fix


def test_no_table_matches(postgres: Database) -> None:
    postgres.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    [finding] = findings_about(check(postgres, wanted=lambda _: False), "no table matches")
    assert finding.level == "error"
    assert "public.orders" in finding.fix


def test_rights(any_postgres: Database) -> None:
    role = f"plain_{any_postgres.name}"
    any_postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", f"CREATE ROLE {role} LOGIN")
    url = any_postgres.url.replace("postgres@", f"{role}@")
    [replication] = findings_about(check(any_postgres, url=url), f"role {role} may not replicate")
    assert replication.level == "error"
    any_postgres.execute(replication.fix)
    assert not findings_about(check(any_postgres, url=url), "may not replicate")
    [create] = findings_about(check(any_postgres, url=url), "cannot be made here: the role lacks CREATE on database")
    assert create.level == "error"
    any_postgres.execute(f"GRANT CREATE ON DATABASE {any_postgres.name} TO {role}")
    [owner] = findings_about(check(any_postgres, url=url), "cannot be made here: the role does not own public.t")
    any_postgres.execute(*owner.fix.split("; "))
    assert not findings_about(check(any_postgres, url=url), "publication")
    any_postgres.execute("CREATE TABLE u (id int PRIMARY KEY)")
    [foreign] = findings_about(check(any_postgres, url=url), "lacks public.u, and the role does not own publication")
    assert (foreign.level, foreign.table) == ("error", TableId("public", "u")), "of that table, not of the source"


def test_rights_that_a_copy_needs(any_postgres: Database) -> None:
    """On the table, on each leaf of a partitioned one, and without row-level security."""
    role = f"reader_{any_postgres.name}"
    any_postgres.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10)",
        "CREATE SCHEMA apart",
        "CREATE SCHEMA closed",
        "CREATE TABLE closed.u (id int PRIMARY KEY)",
        "INSERT INTO closed.u VALUES (1)",
        "CREATE TABLE apart.parted_2 PARTITION OF parted FOR VALUES FROM (10) TO (20)",
        f"GRANT SELECT ON parted TO {role}",
        "CREATE TABLE secured (id int PRIMARY KEY)",
        "ALTER TABLE secured ENABLE ROW LEVEL SECURITY",
        f"GRANT SELECT ON secured TO {role}",
    )
    url = any_postgres.url.replace("postgres@", f"{role}@")
    [unread] = findings_about(check(any_postgres, url=url), "can neither copy nor verify it")
    assert unread.level == "error"
    assert "table closed.u, public.parted, public.t (partitions apart.parted_2, public.parted_1)" in unread.what
    assert unread.fix.count("GRANT") == 2, "one for all schemas, one for all tables"
    [secured] = findings_about(check(any_postgres, url=url), "row-level security")
    for finding in (unread, secured):
        any_postgres.execute(*finding.fix.split("; "))
    found = check(any_postgres, url=url)
    assert not findings_about(found, "can neither copy nor verify")
    assert not findings_about(found, "row-level security")
    bring_up(any_postgres)
    any_postgres.execute(f"REVOKE SELECT ON t FROM {role}")
    [late] = findings_about(check(any_postgres, url=url), "can neither copy nor verify it")
    assert (late.level, late.table) == ("warning", TableId("public", "t"))


def test_a_copy_needs_a_slot_and_a_sender_of_its_own() -> None:
    with server_of_its_own(max_replication_slots="1", max_wal_senders="1") as database:
        database.execute("CREATE PUBLICATION penstock_shop FOR TABLE t")
        for kind, setting in (("slot", "max_replication_slots = 5"), ("WAL sender", "max_wal_senders = 5")):
            [finding] = findings_about(check(database), f"no {kind} is left for copies (1 in all)")
            assert finding.level == "error"
            assert setting in finding.fix
        bring_up(database)
        with ExitStack() as sessions:
            enter_when_a_sender_is_free(sessions, lambda: reading(database, "penstock capture"))
            found = findings_about(check(database), "is left for copies")
            assert [finding.level for finding in found] == ["warning", "warning"]
    with server_of_its_own(max_replication_slots="2", max_wal_senders="2") as database:
        database.execute("CREATE PUBLICATION penstock_shop FOR TABLE t")
        assert not findings_about(check(database), "is left for copies")
        bring_up(database)
        with ExitStack() as sessions:
            enter_when_a_sender_is_free(sessions, lambda: reading(database, "penstock capture"))
            enter_when_a_sender_is_free(sessions, lambda: held_snapshot(database))
            assert not findings_about(check(database), "is left for copies"), "a copy that runs is not in its own way"


def test_the_documented_role_can_do_it_all(any_postgres: Database) -> None:
    """The statements of docs/source-postgres.md."""
    owner, role = f"owner_{any_postgres.name}", f"app_{any_postgres.name}"
    any_postgres.execute(
        f"CREATE ROLE {owner}",
        "CREATE TABLE t (id int PRIMARY KEY)",
        f"ALTER TABLE t OWNER TO {owner}",
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"GRANT CREATE ON DATABASE {any_postgres.name} TO {role}",
        f"GRANT {owner} TO {role}",
    )
    as_role = Database(any_postgres.name, any_postgres.url.replace("postgres@", f"{role}@"))
    assert {finding.level for finding in check(as_role)} == {"note"}
    bring_up(as_role)
    assert check(as_role) == []
    any_postgres.execute("CREATE TABLE u (id int PRIMARY KEY)", f"ALTER TABLE u OWNER TO {owner}")
    with connect(as_role.url) as connection:
        publish(connection, "penstock_shop", discover(connection, lambda _: True, "penstock_shop"), "shop")
    assert check(as_role) == []


@pytest.mark.parametrize(("limit", "major", "level"), [("OLDEST_MAJOR", 99, "error"), ("NEWEST_MAJOR", 13, "warning")])
def test_versions(postgres: Database, monkeypatch: pytest.MonkeyPatch, limit: str, major: int, level: str) -> None:
    monkeypatch.setattr(source_check, limit, major)
    assert findings_about(check(postgres), "the server is Postgres 18")[0].level == level


def test_a_connection_to_another_machine_that_is_not_encrypted(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not findings_about(check(postgres), "not encrypted")
    monkeypatch.setattr(source_check, "_LOCAL_HOSTS", ())
    assert findings_about(check(postgres), "the connection is not encrypted")[0].level == "warning"


def test_a_managed_publication_out_of_step_is_a_note(postgres: Database) -> None:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)")
    bring_up(postgres)
    postgres.execute("CREATE TABLE u (id int PRIMARY KEY)")
    [finding] = check(postgres)
    assert finding.level == "note"
    assert "ADD TABLE" in finding.fix


def test_a_slot_older_than_its_publication(any_postgres: Database) -> None:
    """Before 18 such a slot cannot be read at all; since, it leaves changes out."""
    any_postgres.execute("CREATE TABLE t (id int PRIMARY KEY)")
    slot = names(any_postgres).slot
    with connect(any_postgres.url) as connection:
        old = connection.info.server_version < 180000
        create_slot(connection, any_postgres.url, slot)
        [alone] = findings_about(check(any_postgres), "its publication is not")
        assert alone.level == ("error" if old else "warning")
        assert "`penstock reset`" in alone.fix, "to drop the slot alone would end in a gap"
        any_postgres.execute("INSERT INTO t VALUES (1)")
        publish(connection, "penstock_shop", discover(connection, lambda _: True, "penstock_shop"), "shop")
        any_postgres.execute("INSERT INTO t VALUES (2)")
        before = slot_state(connection, slot)
        [finding] = check(any_postgres)
        after = slot_state(connection, slot)
        assert before is not None
        assert after is not None
        assert before.confirmed_flush_lsn == after.confirmed_flush_lsn
        assert f"slot {slot} is older than publication penstock_shop" in finding.what
        assert finding.level == ("error" if old else "warning")
        drop_slot(connection, slot)
        create_slot(connection, any_postgres.url, slot)
    assert check(any_postgres) == []


def test_a_publication_that_was_altered_is_not_taken_for_a_younger_one(any_postgres: Database) -> None:
    any_postgres.execute("CREATE TABLE t (id int PRIMARY KEY)")
    bring_up(any_postgres)
    any_postgres.execute(
        "INSERT INTO t VALUES (1)",
        "ALTER PUBLICATION penstock_shop SET (publish = 'insert, update, delete, truncate')",
        "INSERT INTO t VALUES (2)",
    )
    assert check(any_postgres) == []


def test_slots_that_cannot_be_used(postgres: Database) -> None:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)")
    slot = names(postgres).slot
    postgres.execute(f"SELECT pg_create_physical_replication_slot('{slot}')")
    assert findings_about(check(postgres), f"slot {slot} is physical")[0].level == "error"
    postgres.execute(
        f"SELECT pg_drop_replication_slot('{slot}')",
        f"SELECT pg_create_logical_replication_slot('{slot}', 'test_decoding')",
    )
    [finding] = findings_about(check(postgres), f"slot {slot} decodes with test_decoding")
    postgres.execute(finding.fix.partition(", or ")[2])
    elsewhere = postgres.url.replace(f"/{postgres.name}", "/postgres")
    with connect(elsewhere) as connection:
        create_slot(connection, elsewhere, slot)
        assert findings_about(check(postgres), f"slot {slot} belongs to database postgres")[0].level == "error"
        drop_slot(connection, slot)


@contextmanager
def reading(database: Database, application_name: str) -> Iterator[int]:
    pgconn = replication_connection(database.url, application_name=application_name)
    options = "(proto_version '1', publication_names 'penstock_shop')"
    pgconn.send_query(f"START_REPLICATION SLOT {names(database).slot} LOGICAL 0/0 {options}".encode())
    assert pgconn.get_result() is not None
    try:
        yield pgconn.backend_pid
    finally:
        pgconn.finish()


def enter_when_a_sender_is_free(sessions: ExitStack, make: Callable[[], AbstractContextManager[object]]) -> None:
    """Enter a session that needs a WAL sender. A sender that has ended still counts until its process is gone."""
    deadline = time.monotonic() + 30
    while True:
        try:
            sessions.enter_context(make())
            return
        except SourceUnreachable as error:
            if "max_wal_senders" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@pytest.mark.parametrize(("application", "level"), [("penstock", "note"), ("debezium", "warning")])
def test_a_slot_that_is_being_read(postgres: Database, application: str, level: str) -> None:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)")
    bring_up(postgres)
    with reading(postgres, application) as pid:
        [finding] = check(postgres)
    assert finding.level == level
    assert f"is being read by process {pid} ({application} from 127.0.0.1)" in finding.what


@contextmanager
def server_of_its_own(**settings: str) -> Iterator[Database]:
    with PostgresServer(settings=settings) as server:
        database = Database("postgres", server.url())
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        yield database


def test_wal_level() -> None:
    with server_of_its_own(wal_level="replica") as database:
        [finding] = findings_about(check(database), "wal_level is replica, not logical")
    assert finding.level == "error"
    assert finding.fix == "ALTER SYSTEM SET wal_level = 'logical'; then restart the server"


def test_slots_and_senders_that_are_all_taken_and_a_slot_that_is_lost() -> None:
    with server_of_its_own(
        max_replication_slots="1", max_wal_senders="1", max_slot_wal_keep_size="1MB", min_wal_size="32MB"
    ) as database:
        database.execute("CREATE PUBLICATION penstock_shop FOR TABLE t")
        other = Database("other", database.url)
        bring_up(database)
        [finding] = findings_about(check(other), "all 1 replication slots are taken")
        assert "max_replication_slots = 5" in finding.fix
        assert "SELECT pg_drop_replication_slot('penstock_postgres')" in finding.fix
        with ExitStack() as sessions:
            enter_when_a_sender_is_free(sessions, lambda: reading(database, "somebody"))
            [finding] = findings_about(check(other), "all 1 WAL senders are busy")
            assert "max_wal_senders = 5" in finding.fix
        [limit] = findings_about(check(other), "max_slot_wal_keep_size is 1MB")
        assert limit.level == "note"
        for _ in range(3):
            database.execute("SELECT pg_logical_emit_message(true, 'test', 'x')", "SELECT pg_switch_wal()")
        database.execute("CHECKPOINT")
        [lost] = findings_about(check(database), "the server gave slot penstock_postgres up")
        assert lost.level == "error"


def test_row_filters_and_large_values(postgres: Database) -> None:
    """What Postgres does not send of a row that an UPDATE brings into the filter."""
    postgres.execute(
        "create table narrow (k int primary key, n int)",
        "create table wide (k int primary key, big text)",
        "create publication p for table narrow where (k > 5), table wide where (k > 5)"
        " with (publish_via_partition_root = true)",
    )

    def warned() -> list[str]:
        with connect(postgres.url) as connection:
            found = check_source(connection, Names("p", "s", "shop"), lambda _: True)
        return [str(one.table) for one in found if one.level == "warning" and "row filter" in one.what]

    assert warned() == ["public.wide"]
    postgres.execute("alter table wide replica identity full")
    assert warned() == []


def test_generated_columns_that_are_not_sent(any_postgres: Database) -> None:
    any_postgres.execute(
        "create table made (id int primary key, a int, twice int generated always as (a * 2) stored)",
        "create publication p for table made with (publish_via_partition_root = true)",
    )

    def left_out() -> list[Finding]:
        with connect(any_postgres.url) as connection:
            found = check_source(connection, Names("p", "s", "shop"), lambda _: True)
        return [one for one in found if "generated columns" in one.what]

    (found,) = left_out()
    assert found.level == "note"
    assert "twice" in found.what
    if found.fix.startswith("ALTER"):
        any_postgres.execute(found.fix.partition(";")[0])
        assert left_out() == []
    else:
        assert "from 18 on" in found.fix


@pytest.mark.parametrize(
    ("definition", "modes", "expected"),
    [
        ("id int primary key", ("clone", "append", "history"), []),
        ("id int primary key", ("events",), ["note"]),
        ("id int", ("clone",), ["error"]),
        ("id int", ("append",), ["error"]),
        ("id int", ("history",), ["error", "error"]),
        ("id int", ("events",), ["note", "error"]),
    ],
)
def test_what_a_mode_needs_of_the_replica_identity(
    postgres: Database, definition: str, modes: tuple[str, ...], expected: list[str]
) -> None:
    postgres.execute(f"create table t ({definition})", "create publication p for table t")
    with connect(postgres.url) as connection:
        found = check_source(connection, Names("p", "s", "shop"), lambda _: True, None, lambda _: modes)
        assert [one.level for one in found if one.table is not None and "slot" not in one.what] == expected
        connection.execute("alter table t replica identity full")
        found = check_source(connection, Names("p", "s", "shop"), lambda _: True, None, lambda _: modes)
        errors = [one for one in found if one.table is not None and one.level == "error"]
        assert bool(errors) == ("primary" not in definition and modes in (("history",), ("append",))), errors

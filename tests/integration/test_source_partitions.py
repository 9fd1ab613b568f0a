"""What happens to whole partitions, told by comparing two looks at a real server's catalogue, and what is done then."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from capturing import PUBLICATION, CaptureBench
from databases import Database
from penstock.changelog.log import ChangeLog
from penstock.changelog.writer import SegmentWriter
from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.model.table import TableId
from penstock.model.table_state import State, TableStatus
from penstock.runtime.watch.source_partitions import CAME_AND_WENT, LINKS_UNKNOWN
from penstock.runtime.watch.table_watch import TableWatch
from penstock.source.postgres.check import check_source
from penstock.source.postgres.connect import connect
from penstock.source.postgres.discover import discover
from penstock.source.postgres.partitions import read_partitions
from penstock.source.postgres.publishing import publish
from penstock.source.postgres.session import PostgresSession
from penstock.source.postgres.table_marks import read_marks
from penstock.source.postgres.write_counters import read_counters
from penstock.state.memory import MemoryStateStore
from pipeline_files import of_postgres
from running import await_condition

EVENTS = TableId("public", "events")
TABLES = (
    "create table events (id int, k int, body text, primary key (k, id)) partition by range (k)",
    "create table e0 partition of events for values from (0) to (10)",
    "create table e1 partition of events for values from (10) to (20)",
    "create table e3 partition of events for values from (40) to (50) partition by range (k)",
    "create table e30 partition of e3 for values from (40) to (50)",
    "insert into events values (1, 41, 'deep')",
    "insert into events select g, g % 20, 'x' from generate_series(1, 100) g",
)
LOOSE = "create table loose (id int, k int not null, body text, primary key (k, id))"
ATTACH = "alter table events attach partition loose for values from (20) to (30)"


@dataclass
class Bench:
    database: Database
    pipeline: Pipeline
    state: MemoryStateStore
    why: dict[TableId, str] = field(default_factory=dict)

    def ready(self, table: TableId = EVENTS) -> None:
        self.state.set_table_status("lake", table, TableStatus(State.READY, datetime.now(UTC)))

    def copied(self) -> None:
        """As a copy leaves it: with a record of the catalogue as it is."""
        with connect(self.database.url) as connection:
            for schema in discover(connection, self.wanted, "", self.pipeline.each_partition):
                marks = read_marks(connection, [], [schema.relation_id])[schema.relation_id]
                self.state.set_marks("lake", schema.table, marks)
                counters = read_counters(connection, [schema.relation_id])[schema.relation_id]
                looked = read_partitions(connection, [schema.relation_id]).get(schema.relation_id)
                looked = None if looked is None else looked.counted_from(counters)
                self.state.set_partitions("lake", schema.table, looked)
                self.ready(schema.table)

    def look(self) -> list[TableId]:
        """As a run does it, again and again; gives the tables that have to be copied again."""
        with connect(self.database.url) as connection:
            schemas = discover(connection, self.wanted, "", self.pipeline.each_partition)
            session = PostgresSession(connection, of_postgres(self.pipeline.source))
            self.why = dict(TableWatch(self.pipeline, self.state).look(session, schemas, {}).copy_again)
        return list(self.why)

    def wanted(self, table: TableId) -> bool:
        return self.pipeline.rule_for(table) is not None

    def remarks(self) -> list[tuple[str, str]]:
        return [(one.relation.name, one.kind) for one in self.state.partitions("lake")[EVENTS].remarks]


def bench_of(database: Database, folder: Path, **rule: Any) -> Bench:
    """With a log that is ahead of everything and has no change in it."""
    bench = bench_without_log(database, folder, **rule)
    with SegmentWriter(ChangeLog(bench.pipeline.log_uri)) as writer:
        writer.begin(1, "1")
        writer.advance(2**62)
    return bench


def bench_without_log(database: Database, folder: Path, **rule: Any) -> Bench:
    settings = {
        "version": 1,
        "name": "shop",
        "source": {"type": "postgres", "url": database.url},
        "tables": [{"match": "public.*", **rule}],
        "destinations": [{"type": "iceberg", "warehouse": "warehouse"}],
    }
    (folder / "shop.yaml").write_text(yaml.safe_dump(settings))
    database.execute(*TABLES)
    return Bench(database, load(folder / "shop.yaml"), MemoryStateStore())


HAPPENED: dict[str, tuple[list[str], list[tuple[str, str]], bool]] = {
    # what is done at the source · what is remarked · whether the table is copied anew
    "nothing": ([], [], False),
    "rows alone": (["insert into events values (1, 5, 'new'); delete from events where id % 2 = 0"], [], False),
    "a row moves to another partition": (["update events set k = k + 10 where k < 10 and id % 2 = 0"], [], False),
    "created in place, and filled": (
        ["create table e2 partition of events for values from (20) to (30)", "insert into events values (1, 25, 'x')"],
        [],
        False,
    ),
    "created in place and filled, in one transaction": (
        [
            "begin; create table e2 partition of events for values from (20) to (30);"
            "insert into events values (1, 25, 'x'); commit"
        ],
        [],
        False,
    ),
    "created in place, then altered": (
        ["create table e2 partition of events for values from (20) to (30)", "alter table events add column extra int"],
        [],
        False,
    ),
    "attached, empty": ([LOOSE, ATTACH], [], False),
    "attached with rows": ([LOOSE, "insert into loose values (1, 21, 'x')", ATTACH], [("loose", "missing")], True),
    "made, filled and attached in one transaction": (
        [f"begin; {LOOSE}; insert into loose values (1, 21, 'x'); {ATTACH}; commit"],
        [("loose", "missing")],
        True,
    ),
    "attached as a tree of its own": (
        [
            "create table sub (like events including all) partition by range (k)",
            "create table sub1 partition of sub for values from (20) to (25)",
            "insert into sub values (1, 21, 'x')",
            "alter table events attach partition sub for values from (20) to (30)",
        ],
        [("sub1", "missing")],
        True,
    ),
    "detached": (["alter table events detach partition e0"], [("e0", "kept")], False),
    "dropped": (["drop table e0"], [("e0", "kept")], False),
    "detached and attached again between two looks": (
        [
            "alter table events detach partition e0",
            "insert into e0 values (1000, 5, 'never sent')",
            "alter table events attach partition e0 for values from (0) to (10)",
        ],
        [("e0", "replaced")],
        True,
    ),
    "detached, emptied and attached again between two looks": (
        [
            "alter table events detach partition e0",
            "delete from e0",
            "alter table events attach partition e0 for values from (0) to (10)",
        ],
        [("e0", "replaced")],
        True,
    ),
    "a part of a tree detached, emptied and attached again": (
        [
            "alter table events detach partition e3",
            "truncate e3",
            "alter table events attach partition e3 for values from (40) to (50)",
        ],
        [("e30", "replaced")],
        True,
    ),
    "dropped and created again under its name": (
        ["drop table e0", "create table e0 partition of events for values from (0) to (10)"],
        [("e0", "replaced")],
        True,
    ),
    "swapped for another of its name": (
        [
            "begin; alter table events detach partition e0; alter table e0 rename to e0_old;"
            "create table e0 partition of events for values from (0) to (10);"
            "insert into events select * from e0_old where id % 2 = 0; commit"
        ],
        [("e0", "replaced")],
        True,
    ),
    "created, filled and truncated before it was looked at": (
        [
            "create table e2 partition of events for values from (20) to (30)",
            "insert into events values (1, 25, 'x')",
            "truncate e2",
        ],
        [("e2", "stale")],
        True,
    ),
    "truncated": (["truncate e0"], [("e0", "stale")], True),
    "truncated and filled again": (
        ["begin; truncate e0; insert into events values (1, 5, 'new'); commit", "analyze events"],
        [("e0", "stale")],
        True,
    ),
    "truncated, filled, then altered": (
        ["truncate e0", "insert into events values (1, 5, 'x')", "alter table e0 set (fillfactor = 50)"],
        [("e0", "stale")],
        True,
    ),
    "rewritten": (["vacuum full e0", "cluster e1 using e1_pkey", "vacuum freeze e0"], [], False),
    "dropped and truncated": (["drop table e0", "truncate e1"], [("e0", "kept"), ("e1", "stale")], True),
}


@pytest.mark.parametrize("case", HAPPENED)
def test_what_happened_to_partitions(any_postgres: Database, tmp_path: Path, case: str) -> None:
    statements, remarks, copied_again = HAPPENED[case]
    bench = bench_of(any_postgres, tmp_path)
    bench.copied()
    any_postgres.execute(*statements)
    expected = [EVENTS] if copied_again else []
    assert bench.look() == expected
    assert bench.remarks() == remarks
    assert bench.look() == expected, "until it is copied"
    assert bench.remarks() == remarks, "what was found is said once"
    bench.copied()
    assert bench.look() == []
    assert bench.remarks() == []


@pytest.mark.parametrize(
    "statements",
    [
        (
            "insert into e0 values (1000, 5, 'unsent')",
            "alter table events attach partition e0 for values from (0) to (10)",
        ),
        ("delete from e0", "alter table events attach partition e0 for values from (0) to (10)"),
        ("drop table e0", "create table e0 partition of events for values from (0) to (10)"),
    ],
)
def test_a_partition_that_was_gone_at_a_look_comes_back(
    postgres: Database, tmp_path: Path, statements: tuple[str, str]
) -> None:
    """Its rows are no longer kept for their own sake, and what happened to them meanwhile was not sent."""
    bench = bench_of(postgres, tmp_path)
    bench.copied()
    postgres.execute("alter table events detach partition e0")
    assert bench.look() == []
    assert bench.remarks() == [("e0", "kept")]
    postgres.execute(*statements)
    assert bench.look() == [EVENTS]
    assert bench.remarks() == [("e0", "replaced")]


ALL = ["e0", "e1", "e30"]
WHOLE: dict[str, tuple[list[str], list[str]]] = {
    # what is done at the source · partitions that count as truncated by themselves
    "the whole table": (["truncate events"], []),
    "the whole table, with others": (["create table other (id int)", "truncate events, other"], []),
    "and filled again later": (["truncate events", "insert into events values (1, 5, 'new'), (1, 15, 'new')"], []),
    "a partition first, then the whole table": (["truncate e0", "truncate events"], []),
    "the whole table, then vacuumed": (["truncate events", "vacuum (freeze, analyze) events"], []),
    "the whole table, then rewritten": (["truncate events", "vacuum full events"], ALL),
    "the whole table, then a partition": (
        ["truncate events", "insert into events values (1, 5, 'x')", "truncate e0"],
        ["e0"],
    ),
    "the whole table, a row and a partition, in one transaction": (
        ["begin; truncate events; insert into events values (1, 5, 'x'); truncate e0; commit"],
        ALL,
    ),
    "a part of the tree": (["truncate e3"], ["e30"]),
    "in a savepoint": (["begin; savepoint s; truncate events; commit"], ALL),
    "in a savepoint that was rolled back": (
        ["begin; savepoint s; truncate events; rollback to s; truncate e0; commit"],
        ["e0"],
    ),
    "each partition by itself, in one transaction": (["begin; truncate e0, e1, e30; commit"], ALL),
    "with a partition that is new": (
        [
            "create table e2 partition of events for values from (20) to (30)",
            "insert into events values (1, 25, 'x')",
            "truncate events",
        ],
        [],
    ),
    "by a cascade": (
        [
            "create table parents as select id from generate_series(1, 100) id",
            "alter table parents add primary key (id)",
            "alter table events add foreign key (id) references parents",
            "truncate parents cascade",
        ],
        [],
    ),
}


def test_a_truncate_of_the_whole_table_is_told_by_what_was_captured(any_postgres: Database, tmp_path: Path) -> None:
    bench = bench_without_log(any_postgres, tmp_path)
    capture = CaptureBench(any_postgres, ChangeLog(bench.pipeline.log_uri))
    capture.prepare()
    any_postgres.execute(f"alter publication {PUBLICATION} set (publish_via_partition_root = true)")
    found: dict[str, list[str]] = {}
    with capture.capturing() as capturing:
        for case, (statements, _) in WHOLE.items():
            any_postgres.execute("truncate events")
            any_postgres.execute("insert into events select g, g % 20, 'x' from generate_series(1, 100) g")
            any_postgres.execute("insert into events values (1, 41, 'deep')")
            bench.copied()
            any_postgres.execute(*statements)
            capturing.drain()
            bench.look()
            found[case] = [name for name, kind in bench.remarks() if kind == "stale"]
    capture.drop_slot()
    assert found == {case: stale for case, (_, stale) in WHOLE.items()}


def test_a_partition_that_somebody_has_locked_is_looked_at_later(postgres: Database, tmp_path: Path) -> None:
    bench = bench_of(postgres, tmp_path)
    bench.copied()
    postgres.execute("truncate e0", "insert into events values (1, 5, 'x')")
    with connect(postgres.url) as connection, postgres.connect() as other:
        schemas = discover(connection, bench.wanted, "", bench.pipeline.each_partition)
        session = PostgresSession(connection, of_postgres(bench.pipeline.source))
        with other.transaction():
            other.execute("lock table e0 in access exclusive mode")
            assert not TableWatch(bench.pipeline, bench.state).look(session, schemas, {}).copy_again
            assert bench.remarks() == []
    assert bench.look() == [EVENTS]


def test_rows_go_with_their_partition_where_the_file_says_so(postgres: Database, tmp_path: Path) -> None:
    bench = bench_of(postgres, tmp_path, on_partition_drop="delete")
    bench.copied()
    postgres.execute("drop table e0")
    assert bench.look() == [EVENTS]
    assert bench.remarks() == [], "nothing is kept that would stand in the way of a copy"


PASSING = (
    "create table e2 partition of events for values from (20) to (30)",
    "insert into events values (1, 25, 'x')",
    "drop table e2",
)
SEEN_OR_UNDONE: dict[str, list[str]] = {
    "made and seen": [PASSING[0], "LOOK"],
    "made, seen, and made again for another table": [
        "create table other (k int) partition by range (k)",
        "create table o1 partition of other for values from (0) to (10)",
        "create index on other (k)",
        "LOOK",
        "drop table o1",
        "LOOK",
        "create table o2 partition of other for values from (10) to (20)",
        "LOOK",
    ],
    "rolled back": [f"begin; {PASSING[0]}; {PASSING[1]}; rollback", "LOOK", f"begin; {PASSING[0]}; rollback", "LOOK"],
    "detached without waiting": [
        "create table other (k int) partition by range (k)",
        "create table o1 partition of other for values from (0) to (10)",
        "LOOK",
        "alter table other detach partition o1 concurrently",
        "LOOK",
    ],
}


@pytest.mark.parametrize("case", ["one by one", "in one transaction", "after others were seen"])
def test_a_partition_that_no_look_saw_takes_its_rows_with_it(any_postgres: Database, tmp_path: Path, case: str) -> None:
    bench = bench_of(any_postgres, tmp_path, on_partition_drop="delete")
    bench.copied()
    if case == "after others were seen":
        for seen in ("rolled back", "made, seen, and made again for another table"):
            run_and_look(bench, SEEN_OR_UNDONE[seen])
    any_postgres.execute(*(["; ".join(["begin", *PASSING, "commit"])] if case == "in one transaction" else PASSING))
    await_condition(lambda: bench.look() == [EVENTS], "the server to have counted", 10)  # it does when a session ends
    assert CAME_AND_WENT in bench.why[EVENTS]
    bench.copied()
    assert bench.look() == []


@pytest.mark.parametrize("case", SEEN_OR_UNDONE)
def test_a_partition_that_was_seen_or_never_there_has_nothing_copied(
    any_postgres: Database, tmp_path: Path, case: str
) -> None:
    bench = bench_of(any_postgres, tmp_path, on_partition_drop="delete")
    bench.copied()
    run_and_look(bench, SEEN_OR_UNDONE[case])


def run_and_look(bench: Bench, statements: list[str]) -> None:
    for statement in statements:
        if statement == "LOOK":
            assert bench.look() == [], bench.why
        else:
            bench.database.execute(statement)


def test_counters_that_were_reset_tell_nothing(postgres: Database, tmp_path: Path) -> None:
    bench = bench_of(postgres, tmp_path, on_partition_drop="delete")
    bench.copied()
    postgres.execute("select pg_stat_reset()")
    assert bench.look() == [EVENTS]
    assert LINKS_UNKNOWN in bench.why[EVENTS]


def test_partitions_that_are_kept_need_no_counters(postgres: Database, tmp_path: Path) -> None:
    bench = bench_of(postgres, tmp_path)
    bench.copied()
    postgres.execute(*PASSING, "select pg_stat_reset()")
    assert bench.look() == []
    assert bench.state.partitions("lake")[EVENTS].links is None


@pytest.mark.parametrize(
    ("mode", "statement", "remarks", "copied_again"),
    [
        ("append", "truncate e0", [], False),
        ("append", "drop table e0", [], False),
        ("append", f"{LOOSE}; insert into loose values (1, 21, 'x'); {ATTACH}", [("loose", "missing")], True),
        ("history", "truncate e0", [("e0", "stale")], True),
        ("history", "drop table e0; truncate e1", [("e0", "kept"), ("e1", "stale")], True),
    ],
)
def test_modes_that_keep_their_past(
    postgres: Database, tmp_path: Path, mode: str, statement: str, remarks: list[tuple[str, str]], copied_again: bool
) -> None:
    """Append ignores removals; a copy of either takes nothing away."""
    bench = bench_of(postgres, tmp_path, mode=mode)
    bench.copied()
    postgres.execute(statement)
    assert bench.look() == ([EVENTS] if copied_again else [])
    assert bench.remarks() == remarks


@pytest.mark.parametrize("state", [State.INIT, State.DATA_SYNC, State.ERRORED])
def test_a_table_that_is_not_ready_is_compared_later(postgres: Database, tmp_path: Path, state: State) -> None:
    bench = bench_of(postgres, tmp_path)
    bench.copied()
    bench.state.set_table_status("lake", EVENTS, TableStatus(State.ERRORED, datetime.now(UTC)))
    if state is not State.ERRORED:
        for step in (State.INIT, State.DATA_SYNC)[: 1 + (state is State.DATA_SYNC)]:
            bench.state.set_table_status("lake", EVENTS, TableStatus(step, datetime.now(UTC)))
    postgres.execute("truncate e0")
    assert bench.look() == []
    bench.state = bench.state if state is not State.DATA_SYNC else _ready_again(bench.state)
    if state is not State.DATA_SYNC:
        bench.ready()
    assert bench.look() == [EVENTS]


def _ready_again(state: MemoryStateStore) -> MemoryStateStore:
    for step in (State.FINISHED_COPY, State.SYNC_WAIT, State.CATCHUP, State.SYNC_DONE, State.READY):
        state.set_table_status("lake", EVENTS, TableStatus(step, datetime.now(UTC)))
    return state


def test_only_tables_with_partitions_are_looked_at(postgres: Database, tmp_path: Path) -> None:
    bench = bench_of(postgres, tmp_path)
    postgres.execute("create table plain (id int primary key)")
    bench.copied()
    assert bench.look() == []
    assert list(bench.state.partitions("lake")) == [EVENTS]
    with connect(postgres.url) as connection:
        assert read_partitions(connection, []) == {}


def test_each_partition_as_a_table_of_its_own(any_postgres: Database, tmp_path: Path) -> None:
    bench = bench_of(any_postgres, tmp_path, partitions="each", exclude=["public.e1", "public.e3%"])
    any_postgres.execute(
        "create table plain (id int primary key)",
        "create table deep (id int primary key) partition by hash (id)",
        "create table deep_0 partition of deep for values with (modulus 1, remainder 0) partition by hash (id)",
        "create table deep_0_0 partition of deep_0 for values with (modulus 1, remainder 0)",
    )
    with connect(any_postgres.url) as connection:
        found = discover(connection, bench.wanted, "", bench.pipeline.each_partition)
        assert [str(schema.table) for schema in found] == ["public.deep_0_0", "public.e0", "public.plain"]
        assert found[1].key == ("k", "id")
        publish(connection, "p", found, "shop")
        rows = connection.execute("select tablename from pg_publication_tables where pubname = 'p' order by 1")
        assert [name for (name,) in rows] == ["deep_0_0", "e0", "plain"]
        by_root = discover(connection, bench.wanted, "", lambda table: table.name != "events")
        assert "public.e0" not in [str(schema.table) for schema in by_root], "its root has it already"


def test_check_says_what_is_not_seen(postgres: Database, tmp_path: Path) -> None:
    bench = bench_of(postgres, tmp_path)
    postgres.execute(
        "create table days (id int, k int, primary key (k, id)) partition by range (k)",
        "create unlogged table days_0 partition of days for values from (0) to (10)",
    )
    with connect(postgres.url) as connection:
        findings = check_source(
            connection, of_postgres(bench.pipeline.source), bench.wanted, bench.pipeline.each_partition
        )
        said = {(one.level, str(one.table), one.what.partition(":")[0]) for one in findings}
        assert ("note", "public.events", "table public.events is partitioned") in said
        assert ("warning", "public.days", "partition public.days_0 of public.days is unlogged") in said


def test_check_finds_rules_that_take_no_partition(postgres: Database, tmp_path: Path) -> None:
    bench = bench_of(postgres, tmp_path, match="public.events", partitions="each")
    postgres.execute("create publication penstock_shop for all tables with (publish_via_partition_root = true)")
    with connect(postgres.url) as connection:
        findings = check_source(
            connection, of_postgres(bench.pipeline.source), bench.wanted, bench.pipeline.each_partition
        )
        (found,) = [one for one in findings if one.table == EVENTS]
        assert "matches none of its partitions" in found.what
        assert "public.e0" in found.fix
        each = check_source(
            connection, of_postgres(bench.pipeline.source), lambda table: table.name == "e0", lambda _: True
        )
        (error,) = [one for one in each if one.level == "error" and one.table is not None]
        assert "publishes it as part of public.events" in error.what
        connection.execute(error.fix.encode())
        again = check_source(
            connection, of_postgres(bench.pipeline.source), lambda table: table.name == "e0", lambda _: True
        )
        assert not [one for one in again if one.level == "error" and one.table is not None]

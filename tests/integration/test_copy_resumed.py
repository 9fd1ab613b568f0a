"""A copy that breaks off and goes on under other snapshots: the real source and log, the in-memory twin of the lake.

Without Spark and in one process, so that it can be broken off anywhere, many times, within seconds. What kills do to a
whole pipeline is in tests/faults/test_copy_kills.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TypeVar

import pytest

from capturing import PUBLICATION, CaptureBench
from databases import Database
from penstock.changelog.log import ChangeLog
from penstock.config.load import load
from penstock.config.model import BatchConfig
from penstock.destinations.contract import InProcessRunner
from penstock.destinations.memory import MemoryDestination
from penstock.model.feed import Feed
from penstock.model.position import Position
from penstock.model.table import TableId
from penstock.runtime.apply.loop import ApplyLoop
from penstock.runtime.copy import copier as copier_module
from penstock.runtime.copy.copier import Copier
from penstock.runtime.copy.copying_table import CopyingTable
from penstock.runtime.copy.progress_view import Unseen
from penstock.runtime.copy.task import CopyTask, RereadTask
from penstock.source.postgres.connect import connect
from penstock.source.postgres.discover import discover
from penstock.state.memory import MemoryStateStore
from running import make_pipeline

Task = TypeVar("Task")
Result = TypeVar("Result")
DOCS = TableId("public", "docs")
SECONDS = 60.0


class BrokenOff(BaseException):
    """Stands for a kill: nothing that comes after it is recorded."""


def break_off() -> None:
    raise BrokenOff


@dataclass
class Breaking:
    """Runs tasks in this process; `happens` before the range of that number is read. Remembers what was read."""

    at: int | None = None
    happens: Callable[[], None] = break_off
    ranges: list[int] = field(default_factory=list)
    reread: list[int] = field(default_factory=list)  # keys each time
    slots: int = 1

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        for task in tasks:
            if isinstance(task, CopyTask):
                if len(self.ranges) == self.at:
                    self.happens()
                    self.at = None
                self.ranges.append(task.range.number)
            if isinstance(task, RereadTask):
                self.reread.append(task.keys.num_rows)
        return [function(task) for task in tasks]


@dataclass
class Resuming:
    """One table, its log, and a copy of it that outlives its copiers."""

    bench: CaptureBench
    folder: Path
    lake: MemoryDestination = field(default_factory=lambda: MemoryDestination("lake"))
    state: MemoryStateStore = field(default_factory=MemoryStateStore)
    settings: dict[str, str] = field(default_factory=dict)  # of the copy

    @property
    def database(self) -> Database:
        return self.bench.database

    def copy(self, break_at: int | None = None) -> Breaking:
        """Goes on with the copy until it is handed over, or until it breaks off."""
        runner = Breaking(break_at)
        failure = self._run(runner)
        assert isinstance(failure, BrokenOff if break_at is not None else type(None)), failure
        return runner

    def copy_through(self, happens: Callable[[], None], at: int) -> Breaking:
        """A whole copy, in the middle of which something happens."""
        runner = Breaking(at, happens)
        failure = self._run(runner)
        assert failure is None, failure
        assert runner.at is None, "the copy was over before"
        return runner

    def _run(self, runner: Breaking) -> BaseException | None:
        """What the copier failed with, if the table was not handed over."""
        settings = {"range_bytes": "64KiB", "max_connections": 1, **self.settings}
        source = {"type": "postgres", "url": self.database.url, "publication": PUBLICATION}
        pipeline = load(make_pipeline(self.folder, self.database, copy=settings, source=source).path)
        with connect(self.database.url) as connection:
            (schema,) = discover(connection, lambda table: table == DOCS, PUBLICATION)
        record = self.state.copy_of("lake", DOCS)
        self.lake.ensure_table(DOCS, schema, pipeline.name, None)
        joined = Event()

        def noted(copied: CopyingTable, position: Position) -> None:
            joined.set()

        copier = Copier(pipeline, self.lake, runner, self.bench.log, self.state, noted, Unseen())
        copier.add(Feed.clone(DOCS), schema, record)
        copier.start()
        for _ in range(int(SECONDS / 0.05)):
            if joined.wait(0.05) or copier.failure is not None:
                break
        copier.stop()
        assert copier.failure is not None or joined.is_set(), self.state.table_status("lake")
        return copier.failure

    def follow(self) -> None:
        """Applies what the log has after the copy."""
        name = load(self.folder / "pipeline.yaml").name
        loop = ApplyLoop(name, self.lake, InProcessRunner(), self.bench.log, BatchConfig(), self.state)
        with connect(self.database.url) as connection:
            (schema,) = discover(connection, lambda table: table == DOCS, PUBLICATION)
        position, start = self.lake.position(DOCS, name), self.bench.log.start()
        assert position is not None
        assert start is not None
        loop.track(Feed.clone(DOCS), schema, position, start)
        loop.begin(start)
        while loop.step(now=True):
            pass
        loop.close()

    def assert_equal(self) -> None:
        """The lake's table is the source's."""
        columns = list(self.lake.rows(DOCS).column_names)
        with self.database.connect() as connection:
            rows = connection.execute(f"select {', '.join(columns)} from docs".encode()).fetchall()
        found = [tuple(row.values()) for row in self.lake.rows(DOCS).to_pylist()]
        assert sorted(map(str, found)) == sorted(map(str, rows))


@pytest.fixture
def resuming(postgres: Database, tmp_path: Path) -> Resuming:
    return Resuming(CaptureBench(postgres, ChangeLog(str(tmp_path / "log"))), tmp_path)


TABLES = {
    "one integer": ("id int primary key", "", "{g}"),
    "text and date": ("id int, a text, b date, primary key (a, b)", "", "{g}, 'k''' || {g}, date '2020-01-01' + {g}"),
    "partitioned": ("id int primary key", "partition by hash (id)", "{g}"),
}


@pytest.mark.parametrize("kind", TABLES)
def test_rows_that_hid_between_two_snapshots_are_read_again(resuming: Resuming, kind: str) -> None:
    """Updated rows move into room that was read before they came; their large cells are never sent."""
    key, partitions, values = TABLES[kind]
    leaves = [
        f"create table docs_{n} partition of docs for values with (modulus 2, remainder {n})"
        for n in (range(2) if partitions else ())
    ]
    resuming.bench.prepare(
        f"create table docs ({key}, n int, body text) {partitions}",
        *leaves,
        "alter table docs alter body set storage external",
        f"insert into docs select {values.format(g='g')}, g, repeat(md5(g::text), 100) from generate_series(1, 3000) g",
        "delete from docs where n % 2 = 0 and n < 1500",
        "vacuum docs",
    )
    database = resuming.database
    database.execute(f"alter publication {PUBLICATION} set (publish_via_partition_root = true)")
    with resuming.bench.capturing() as capture:
        first = resuming.copy(break_at=6)
        assert len(first.ranges) == 6
        database.execute("update docs set n = -n where n > 2500")
        second = resuming.copy(break_at=5)
        database.execute("update docs set n = n + 100000 where n % 3 = 0 and n > 0")
        if kind != "text and date":
            database.execute("update docs set id = id + 50000 where n % 50 = 1")
        capture.drain()
        last = resuming.copy()
        resuming.assert_equal()
    assert set(first.ranges).isdisjoint(second.ranges), "a finished range was read again"
    assert set(first.ranges + second.ranges).isdisjoint(last.ranges)
    assert first.ranges + second.ranges + last.ranges == sorted(first.ranges + second.ranges + last.ranges)
    assert last.reread, "nothing hid: the test shows nothing"
    assert sum(last.reread) < 1500


def test_rows_are_read_again_while_everything_goes_on(resuming: Resuming) -> None:
    """Changes go on while single rows are read again; what the copy ends with is the table at its position."""
    resuming.bench.prepare(
        "create table docs (id int primary key, n int, body text)",
        "alter table docs alter body set storage external",
        "insert into docs select g, g, repeat(md5(g::text), 100) from generate_series(1, 2000) g",
        "delete from docs where id % 2 = 0 and id < 1000",
        "vacuum docs",
    )
    database, original = resuming.database, resuming.lake.plan_catchup
    moves = iter(range(4))

    def while_catching_up(*arguments: object) -> object:
        """Just before each step of the replay: key changes, updates without the large cell, deletes."""
        number = next(moves, None)
        if number is not None:
            database.execute(
                f"update docs set id = id + 10000 where id % 40 = {number} and id < 10000",
                f"update docs set n = n + 1 where id % 7 = {number % 7}",
                f"delete from docs where id % 41 = {number}",
                f"insert into docs select 20000 + {number}, 0, repeat('z', 5000)",
            )
        return original(*arguments)  # type: ignore[arg-type]

    with resuming.bench.capturing() as capture:
        resuming.copy(break_at=4)
        database.execute("update docs set n = -n where id > 1500")
        capture.drain()
        resuming.lake.plan_catchup = while_catching_up  # type: ignore[method-assign, assignment]
        last = resuming.copy()
        assert next(moves, None) is None, "it was over before everything had happened"
        capture.drain()
        resuming.follow()
        resuming.assert_equal()
    assert last.reread


def test_a_table_without_a_key_starts_from_zero_and_says_so(resuming: Resuming) -> None:
    resuming.bench.prepare(
        "create table docs (n int, body text)",
        "insert into docs select g, repeat('x', 1000) from generate_series(1, 1000) g",
    )
    with resuming.bench.capturing():
        first = resuming.copy(break_at=3)
        broken = resuming.copy(break_at=2)
        note = resuming.state.copy_progress("lake")[DOCS].note
        assert note.startswith("started from zero: it has no key")
        last = resuming.copy()
        resuming.assert_equal()
    assert (first.ranges[0], broken.ranges[0], last.ranges[0]) == (0, 0, 0)
    assert last.reread == []


def test_a_table_without_a_key_is_read_from_one_snapshot_and_followed_by_its_whole_row(resuming: Resuming) -> None:
    """Also past `snapshot_for`. Rows change, duplicates among them, before the copy, while it is made, between two
    tries of it and behind it."""
    resuming.settings["snapshot_for"] = "1ms"
    resuming.bench.prepare(
        "create table docs (n int, body text)",
        "alter table docs replica identity full",
        "alter table docs alter column body set storage external",
        "insert into docs select g % 40, repeat('x', 1000 + g % 3) from generate_series(1, 1000) g",
    )

    def disturb(seed: int) -> None:
        some = f"ctid in (select ctid from docs order by md5(ctid::text || {seed}) limit 60)"
        resuming.database.execute(
            f"update docs set n = (n + 1) % 40 where {some}",
            f"delete from docs where {some}",
            f"insert into docs select * from docs where {some}",
            f"begin; delete from docs where {some}; rollback",
            f"update docs set body = repeat('y', 3000) where {some}",
            f"update docs set n = -n where length(body) = 3000 and {some}",
        )

    with resuming.bench.capturing() as capture:
        disturb(1)
        resuming.copy(break_at=3)
        disturb(2)
        copied = resuming.copy_through(lambda: disturb(3), at=4)
        disturb(4)
        capture.drain()
        resuming.follow()
        resuming.assert_equal()
    assert copied.ranges == sorted(copied.ranges), "every range once"
    assert len(copied.ranges) > 8
    assert not [event for event in resuming.state.events() if event.kind in ("errored", "resync")]


SIMPLE = (
    "create table docs (id int primary key, n int)",
    "insert into docs select g, g from generate_series(1, 20000) g",
)


@pytest.mark.parametrize(
    ("planted", "why"),
    [
        ("cos\nsystem\n(S'false'\ntR.", "is no JSON"),
        ('{"record": "part of a copy in memory", "version": 99}', "version 99; this penstock reads version 1"),
    ],
)
def test_a_record_that_cannot_be_read_makes_the_copy_start_from_zero(
    resuming: Resuming, planted: str, why: str
) -> None:
    """Such as somebody planted, or another penstock left."""
    resuming.bench.prepare(*SIMPLE)
    with resuming.bench.capturing():
        resuming.copy(break_at=3)
        record = resuming.state.copy_of("lake", DOCS)
        assert record is not None
        assert resuming.state.finish_range("lake", DOCS, record.copy, 1, 5, planted, 3)
        resuming.copy(break_at=2)
        note = resuming.state.copy_progress("lake")[DOCS].note
        assert note.startswith("started from zero: what an earlier run recorded of its copy cannot be read")
        assert why in note
        last = resuming.copy()
        resuming.assert_equal()
    assert last.ranges[0] == 2, "a copy that can be read goes on"


def test_the_connections_end_in_the_middle_of_a_copy(resuming: Resuming, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copier_module, "FIRST_RETRY_SECONDS", 0.1)
    resuming.bench.prepare(*SIMPLE)
    database = resuming.database

    def cut_off() -> None:
        ours = "application_name = 'penstock copy' and datname = current_database()"
        assert database.value(f"select count(pg_terminate_backend(pid)) from pg_stat_activity where {ours}") > 0
        database.execute("update docs set n = -n where id % 3 = 0", "delete from docs where id % 7 = 0")

    with resuming.bench.capturing():
        copied = resuming.copy_through(cut_off, at=5)
        resuming.follow()
        resuming.assert_equal()
    assert copied.ranges[:5] == list(range(5))
    assert set(copied.ranges[:5]).isdisjoint(copied.ranges[6:]), "finished ranges are not read again"
    assert [event.kind for event in resuming.state.events()] == ["errored"], "it was tried again, once"


REWRITES = (
    "vacuum full docs",
    "cluster docs using docs_pkey",
    "truncate docs",
    "alter table docs alter n type int using n + 1",
)


@pytest.mark.parametrize("rewrite", REWRITES)
def test_a_rewrite_in_the_middle_of_a_copy(resuming: Resuming, rewrite: str) -> None:
    resuming.bench.prepare(*SIMPLE)
    database = resuming.database
    with resuming.bench.capturing():
        copied = resuming.copy_through(lambda: database.execute(rewrite, "insert into docs values (0, 0)"), at=5)
        resuming.follow()
        resuming.assert_equal()
    assert copied.ranges.count(0) == 2, "all ranges are void"
    assert [event.kind for event in resuming.state.events()] == ["copy starts again"]

"""A pipeline whose change log, scratch and Iceberg warehouse are in an object store, and what happens to the store.

The catalog is Iceberg's JDBC one on SQLite, and in the full sizes Nessie. Readers know nothing of penstock: pyiceberg
asks the same catalog and the same store. Requests go through a proxy that counts them and lets some of them fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog

import oracle
from databases import Database, fresh_database
from faulty_proxy import FaultyProxy, faulty_proxy
from object_store import BUCKET, object_store
from penstock.demo.server import PostgresServer
from penstock.destinations.registry import store_packages
from penstock.runtime.spark import jars
from rest_catalogs import nessie, store_properties
from running import PipelineFile, Running, await_condition, make_pipeline

TABLES = ("public.orders", "public.order_items")
SECRET = "very-secret-key-of-the-store"
ROWS = 200
MAINTENANCE = {"expire_every": 4, "keep_snapshots": 3, "keep_for": "1s", "compact_files": 4, "advance_idle_every": "1m"}
POINTS = (
    "capture.segment_written",
    "capture.segment_sealed",
    "apply.files_written",
    "apply.before_commit",
    "apply.staged",
    "apply.after_commit",
    "apply.batch_committed",
    "maintain.compaction_written",
    "maintain.compaction_committed",
    "maintain.before_expiry",
    "maintain.after_expiry",
    "leaving.listed",
    "log.segment_removed",
)
MOST_REQUESTS = 60  # of a batch of one row in each of two tables, seconds of log and upkeep with it


@dataclass
class Remote:
    """A pipeline in the store, the catalog that its readers ask, and a run of it when there is one."""

    database: Database
    file: PipelineFile
    proxy: FaultyProxy
    opened: Callable[[], Catalog]
    run: Running | None = None
    turns: int = 0
    seen: list[str] = field(default_factory=list)

    def streaming(self) -> Running:
        if self.run is None or self.run.process.poll() is not None:
            self.run = Running(self.file)
            self.run.await_streaming()
        return self.run

    def change(self) -> None:
        """A transaction that touches both tables: new rows, changed ones, and one that goes."""
        self.turns += 1
        number, fresh = self.turns, ROWS + self.turns
        with self.database.connect() as connection, connection.transaction():
            for table in TABLES:
                connection.execute(f"insert into {table} values ({fresh}, 'new {number}')".encode())
                connection.execute(f"update {table} set note = 'n{number}' where id % 40 = {number % 40}".encode())
            connection.execute(f"delete from {TABLES[0]} where id = {number}".encode())

    def assert_equal(self) -> None:
        self.streaming().drain()
        catalog = self.opened()
        try:
            with self.database.connect() as connection:
                found = [
                    oracle.compare(connection, table, catalog.load_table(tuple(table.split("."))).scan().to_arrow())
                    for table in TABLES
                ]
        finally:
            catalog.close()
        wrong = [str(difference) for difference in found if difference]
        assert not wrong, "\n".join(wrong)

    def provoke(self, failpoint: str) -> None:
        """Traffic until a process has died at the failpoint, and then as long again as it takes to be equal."""
        run = self.streaming()
        self.file.arm(failpoint)

        def fired() -> bool:
            self.change()
            return self.file.fired()

        await_condition(fired, f"{failpoint} to be reached:\n{run.tail()}", 120, every=0.3)
        self.assert_equal()

    def told(self) -> str:
        """All that the run has written, and the command lines of its processes, which every user may read."""
        assert self.run is not None
        lines = []
        for process in self.run.members():
            with suppress(psutil.NoSuchProcess):
                lines += process.cmdline()
        logs = [path.read_text(errors="replace") for path in self.file.folder.rglob("*.log")]
        return "\n".join([*lines, *logs, self.run.text()])


@contextmanager
def _remote(
    database: Database,
    folder: Path,
    store: Mapping[str, str],
    catalog: Mapping[str, str],
    opened: Callable[[], Catalog],
) -> Iterator[Remote]:
    root = f"s3://{BUCKET}/{folder.name}"
    with faulty_proxy(store["AWS_ENDPOINT_URL"]) as proxy:
        lake: dict[str, Any] = {"name": "lake", "type": "iceberg", "warehouse": f"{root}/warehouse"}
        file = make_pipeline(
            folder,
            database,
            destinations=[{**lake, "catalog": dict(catalog), "maintenance": MAINTENANCE}],
            log={"uri": f"{root}/log", "segment_age": "300ms", "idle_every": "1m"},
        )
        file.environment = {**store, "AWS_ENDPOINT_URL": proxy.address, "AWS_SECRET_ACCESS_KEY": SECRET}
        remote = Remote(database, file, proxy, opened)
        for table in TABLES:
            database.execute(
                f"create table {table} (id int primary key, note text)",
                f"insert into {table} select g, 'first' from generate_series(0, {ROWS}) g",
            )
        try:
            remote.assert_equal()
            yield remote
        finally:
            if remote.run is not None:
                remote.run.clean_up()


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    jars.fetch(stores=store_packages())
    with object_store() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield environment


@pytest.fixture(
    scope="module", params=["jdbc", pytest.param("nessie", marks=[pytest.mark.full, pytest.mark.timeout(1800)])]
)
def remote(
    request: pytest.FixtureRequest,
    embedded_server: PostgresServer,
    store: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Remote]:
    folder = tmp_path_factory.mktemp("remote")
    with ExitStack() as stack:
        database = stack.enter_context(fresh_database(embedded_server))
        if request.param == "nessie":
            address = stack.enter_context(nessie(f"s3://{BUCKET}/{folder.name}/warehouse", store)) + "/iceberg"
            catalog = {"type": "rest", "uri": address, "warehouse": "wh", "token": SECRET}

            def opened() -> Catalog:
                return RestCatalog("lake", uri=address, warehouse="wh", **store_properties(store))
        else:
            uri = f"sqlite:{folder}/catalog.db"
            catalog = {"type": "jdbc", "uri": f"jdbc:{uri}", "jdbc.schema-version": "V1", "jdbc.password": SECRET}

            def opened() -> Catalog:
                return SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", **store_properties(store))

        yield stack.enter_context(_remote(database, folder, store, catalog, opened))


def test_a_small_batch_takes_few_requests_and_lists_nothing(remote: Remote) -> None:
    remote.change()
    remote.assert_equal()
    before = len(remote.proxy.requests)
    remote.change()
    remote.streaming().drain()
    asked = remote.proxy.requests[before:]
    assert 0 < len(asked) <= MOST_REQUESTS, asked
    assert not [path for method, path in asked if "warehouse" in path and "list-type" in path]


def test_no_credential_is_shown(remote: Remote) -> None:
    remote.change()
    remote.assert_equal()
    told = remote.told()
    assert "penstock.runtime.capture.process" in told
    assert SECRET not in told


def test_some_requests_fail(remote: Remote, full: bool) -> None:
    remote.proxy.share = 0.05
    try:
        for _ in range(60 if full else 4):
            remote.change()
            remote.streaming().drain()
    finally:
        remote.proxy.share = 0.0
    remote.assert_equal()
    assert remote.proxy.failed


def test_the_store_is_away_for_a_while(remote: Remote, full: bool) -> None:
    run, before = remote.streaming(), remote.proxy.refused
    remote.proxy.away = True
    try:
        for _ in range(5):
            remote.change()
        asked = 40 if full else 3
        await_condition(lambda: remote.proxy.refused >= before + asked, "clients that ask in vain", 120)
    finally:
        remote.proxy.away = False
    remote.assert_equal()
    assert run.process.poll() is None, "the run has outlived it"


@pytest.mark.full
@pytest.mark.parametrize("failpoint", POINTS)
def test_killed_at(remote: Remote, failpoint: str) -> None:
    remote.provoke(failpoint)


def test_what_is_in_the_store_is_all_that_there_is(remote: Remote) -> None:
    """The log and the warehouse are nowhere else: only the key index and what belongs to the run is on the disk."""
    remote.streaming().stop()
    left = {path.suffix for path in remote.file.home.rglob("*") if path.is_file()}
    assert not left & {".parquet", ".arrow", ".avro"}, left
    assert any((remote.file.home / "index").iterdir())

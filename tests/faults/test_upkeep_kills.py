"""SIGKILL while a table is kept compact: during a merge that runs beside batches, during an expiry, during a sweep.

One pipeline lives through all kills, under traffic that ends rows of the very files that are merged. After each the
table equals its source, and the next updates and deletes find their rows. What killed writers left is there until the
folder is swept, and gone then, though sweeps are killed too. `make test-full` has every point, and several rounds.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from databases import Database
from lake import Lake
from penstock.destinations.lake.deferred_deletes import DeferredDeletes
from penstock.failpoints import FAILPOINTS
from running import PipelineFactory, PipelineFile, Running, await_condition

TABLE = "public.large"
FIRE_SECONDS = 60.0
KEEPING = {"expire_every": 8, "keep_snapshots": 2, "keep_for": "100ms", "compact_files": 4, "advance_idle_every": "1h"}
MERGE_POINTS = tuple(name for name in FAILPOINTS if name.startswith("merge.") and name != "merge.writing")
SWEEP_POINTS = tuple(
    (name, 2 if name == "sweep.file_removed" else 1) for name in FAILPOINTS if name.startswith("sweep.")
)
LEAVING_POINTS = tuple(name for name in FAILPOINTS if name.startswith("leaving."))
ROUNDS_IN_FULL = 3
SWEEPING = {"sweep_every": "500ms", "sweep_age": "500ms"}


@dataclass
class Kept:
    """A pipeline with one table of large rows, each transaction of which makes a file that is worth a merge."""

    database: Database
    file: PipelineFile
    lake: Lake
    run: Running = field(init=False)
    turn: int = 0

    def __post_init__(self) -> None:
        self.database.execute(
            "create table large (id bigint generated always as identity primary key, n int, note text)"
        )
        self.start()

    @property
    def folder(self) -> Path:
        return self.file.warehouse / "public" / "large"

    def start(self) -> None:
        self.run = Running(self.file)
        self.run.await_streaming()

    def change(self) -> None:
        """Rows come, and some of those that came before change or go."""
        self.turn += 1
        self.database.execute(
            "insert into large (n, note) select g, (select string_agg(md5((g * 100 + part)::text), '') "
            f"from generate_series(1, 16) part) from generate_series({self.turn * 1000}, {self.turn * 1000 + 1199}) g",
            f"update large set n = -n where id % 53 = {self.turn % 53}",
            f"delete from large where id % 97 = {self.turn % 97}",
        )

    def provoke(self, name: str, nth: int = 1, send: signal.Signals = signal.SIGKILL) -> None:
        """Traffic until a process of the run is there."""
        self.file.arm(name, nth, send)
        for _ in range(int(FIRE_SECONDS / 0.2)):
            self.change()
            try:
                await_condition(self.file.fired, name, 0.2)
            except AssertionError:
                continue
            return
        raise AssertionError(f"{name} was never reached:\n{self.run.tail()}")

    def killed_at(self, name: str, nth: int = 1) -> None:
        self.provoke(name, nth)
        self.run.await_killed()

    def assert_lives_through_a_lost_executor(self) -> None:
        """The merge fails, batches go on, and the next merge succeeds."""
        self.provoke("merge.writing")
        self.provoke("merge.committed", send=signal.SIGCONT)
        self.run.drain()
        self.lake.assert_equals_in_pyiceberg(self.database, [TABLE])

    def killed_while_it_writes(self) -> None:
        """The merge is stopped in the middle of its file, batches go on, and then the driver dies."""
        self.provoke("merge.writing", send=signal.SIGSTOP)
        stopped = [one for one in self.run.members() if one.status() == psutil.STATUS_STOPPED]
        assert [one.pid for one in stopped] != [self.run.process.pid], "the executor's process writes, not the driver"
        self.change()
        self.run.drain()
        self.run.process.kill()
        for one in stopped:
            one.resume()
        self.run.await_killed()

    def killed_in_its_commit(self) -> None:
        """The new metadata file is there, the catalog does not name it yet: somebody else is writing to the catalog."""
        self.provoke("merge.committing", send=signal.SIGSTOP)
        before = self.names("metadata")
        with sqlite3.connect(self.file.warehouse / "catalog.db", isolation_level=None) as catalog:
            catalog.execute("begin immediate")
            self.run.process.send_signal(signal.SIGCONT)
            await_condition(
                lambda: any(name.endswith(".metadata.json") for name in self.names("metadata") - before),
                "a new metadata file",
                FIRE_SECONDS,
            )
            self.run.process.kill()
            self.run.await_killed()
            catalog.execute("rollback")
        catalog.close()

    def killed_while_it_expires(self) -> None:
        """Snapshots are gone from the metadata, and their files are all there: Java wants to read the list of one, to
        know them, and cannot."""
        self.provoke("maintain.before_expiry", send=signal.SIGSTOP)
        with self.table() as table:
            oldest = table.metadata.snapshots[0]
        manifests = Path(oldest.manifest_list)
        manifests.rename(manifests.with_suffix(".kept"))
        os.mkfifo(manifests)
        self.run.process.send_signal(signal.SIGCONT)

        def expired() -> bool:
            self.change()  # this expiry may still have kept the oldest one: then the next takes it
            with self.table() as table:
                return table.metadata.snapshot_by_id(oldest.snapshot_id) is None

        await_condition(expired, "the oldest snapshot's expiry", FIRE_SECONDS, every=0.2)
        self.run.process.kill()
        self.run.await_killed()
        manifests.unlink()
        manifests.with_suffix(".kept").rename(manifests)
        assert manifests.name in self.unknown()

    @contextmanager
    def table(self) -> Iterator[Table]:
        catalog = SqlCatalog("lake", uri=f"sqlite:///{self.file.warehouse}/catalog.db", warehouse="unused")
        try:
            yield catalog.load_table(TABLE)
        finally:
            catalog.close()

    def names(self, folder: str) -> set[str]:
        return {path.name for path in (self.folder / folder).iterdir()}

    def unknown(self) -> set[str]:
        """Files in the table's folder that the metadata does not name, not even as removed by a snapshot: those go when
        it expires; nor are they noted as leaving soon."""
        found = self.names("data") | self.names("metadata")
        (lists,) = self.file.home.rglob("large.leaving")
        found -= {location.rpartition("/")[2] for location in DeferredDeletes(lists).locations()}
        with self.table() as table:
            known = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
            for snapshot in table.metadata.snapshots:
                known.add(snapshot.manifest_list)
                for manifest in snapshot.manifests(table.io):
                    known.add(manifest.manifest_path)
                    entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
                    known |= {entry.data_file.file_path for entry in entries}
        return found - {path.rpartition("/")[2] for path in known}

    def assert_goes_on(self) -> None:
        """After a restart: with what happened meanwhile and with what happens now."""
        self.change()
        self.start()
        self.change()
        self.run.drain()
        self.lake.assert_equals_in_pyiceberg(self.database, [TABLE])

    def killed_while_it_sweeps(self, name: str, nth: int) -> None:
        """At its start, when a sweep is due."""
        left = self.unknown()
        self.file.arm(name, nth)
        self.run = Running(self.file)
        self.run.await_killed()
        assert left & self.unknown(), "it was killed before its end"


def test_killed_merges_expiries_and_sweeps(
    pipeline: PipelineFactory, postgres: Database, lake: Lake, full: bool
) -> None:
    file = pipeline()
    (destination,) = file.settings["destinations"]
    destination["maintenance"] = dict(KEEPING)
    file.write()
    kept = Kept(postgres, file, lake)
    try:
        kept.assert_lives_through_a_lost_executor()
        for _ in range(ROUNDS_IN_FULL if full else 1):
            for kill in _kills(kept, full=full):
                kill()
                kept.assert_goes_on()
        kept.killed_while_it_expires()
        left = kept.unknown()
        assert {name for name in left if name.endswith(".parquet")}, "killed merges leave files"
        assert {name for name in left if name.startswith("snap-")}, "and so does a killed expiry"
        destination["maintenance"] = {**KEEPING, **SWEEPING}
        file.write()
        for name, nth in SWEEP_POINTS if full else SWEEP_POINTS[-1:]:
            kept.killed_while_it_sweeps(name, nth)
        kept.assert_goes_on()
        await_condition(lambda: not kept.unknown(), "nothing that nobody knows", FIRE_SECONDS)
        postgres.execute("update large set n = n + 1 where id % 3 = 0", "delete from large where id % 10 = 1")
        kept.run.drain()
        lake.assert_equals_in_pyiceberg(postgres, [TABLE])
        kept.run.stop()
        assert not kept.unknown()
    finally:
        kept.run.clean_up()


def _kills(kept: Kept, *, full: bool) -> Iterator[Callable[[], None]]:
    yield kept.killed_while_it_writes
    yield kept.killed_in_its_commit
    if full:
        yield from (partial(kept.killed_at, name) for name in MERGE_POINTS)
        yield kept.killed_while_it_expires
        yield from (partial(kept.killed_at, name, 2) for name in LEAVING_POINTS)

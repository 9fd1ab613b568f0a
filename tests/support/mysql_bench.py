"""A pipeline from a MariaDB or MySQL server into tables in memory, in this process: from capture to fold."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, cast

from penstock.changelog.log import ChangeLog
from penstock.config.load import load
from penstock.destinations.contract import InProcessRunner
from penstock.destinations.memory import MemoryDestination
from penstock.errors import RangeVoid
from penstock.model.table import TableId
from penstock.model.table_state import State
from penstock.runtime.apply.loop import ApplyLoop
from penstock.runtime.apply.table_lifecycle import TableLifecycle
from penstock.runtime.apply.target_claims import TargetClaims
from penstock.runtime.capture.preparation import prepare_source
from penstock.runtime.capture.process import run_capture
from penstock.runtime.capture.publisher import Publisher
from penstock.runtime.copy.copier import Copier
from penstock.source.factory import source_of
from penstock.state.memory import MemoryStateStore
from running import await_condition

FILE = """
version: 1
name: shop
source: {{type: mysql, url: "{url}", failover: {failover}}}
destinations: [{{name: lake, type: iceberg, warehouse: "{folder}/lake"}}]
tables: [{{match: {match}}}]
mask_salt: pepper
copy: {{range_bytes: 16384}}
log: {{segment_bytes: {segment_bytes}}}
"""
QUIET = SimpleNamespace(update=lambda *_, **__: None, finish=lambda *_: None, drop=lambda *_: None)


class MysqlBench:
    """`destination` and the log outlive a `stop`, as they do a restart; `start` goes on with them."""

    def __init__(self, folder: Path, url: str, match: str = "shop.*", segment_bytes: int = 1 << 20) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._match, self._segment_bytes = folder, match, segment_bytes
        self.follow(url)
        self.destination, self.state = MemoryDestination("lake"), MemoryStateStore()
        self.log = ChangeLog(self.pipeline.log_uri)
        self.reports: list[dict[str, object]] = []
        self.failure: BaseException | None = None

    def follow(self, url: str, *, failover: int = 0) -> None:
        """Name a server in the pipeline's file, from the next `start` on."""
        file = self._folder / "shop.yaml"
        values = {"folder": self._folder, "match": self._match, "segment_bytes": self._segment_bytes}
        file.write_text(FILE.format(url=url, failover=failover, **values))
        self.pipeline = load(file).destination_views[0]

    def __enter__(self) -> MysqlBench:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        pipeline = self.pipeline
        self._stop = threading.Event()
        with source_of(pipeline.source).connect() as session:
            prepared = prepare_source(session, pipeline, self.log, Publisher(pipeline, None))
        self.troubles = prepared.catalogue.troubles
        self._capture = threading.Thread(target=self._run_capture)
        self._capture.start()
        runner = InProcessRunner()
        self.loop = ApplyLoop(pipeline.key, self.destination, runner, self.log, pipeline.batch, self.state)
        self.copier = Copier(
            pipeline,
            self.destination,
            runner,
            self.log,
            self.state,
            lambda one, at: self.loop.join(one.feed, one.schema, at),
            cast(Any, QUIET),
        )
        start = prepared.retained.position
        self.tables = TableLifecycle(pipeline, self.loop, self.copier, self.state, start, TargetClaims())
        for schema in prepared.catalogue.schemas:
            if schema.table not in self.troubles:
                self.tables.admit(schema)
        self.loop.begin(start)
        self.copier.start()

    def _run_capture(self) -> None:
        try:
            run_capture(self.pipeline, self._stop, self.reports.append)
        except BaseException as error:
            self.failure = error
            raise

    def stop(self) -> None:
        self._stop.set()
        self.copier.stop()
        self._capture.join()
        self.loop.close()

    def status(self, table: str, schema: str = "shop") -> Any:
        return self.state.table_status("lake").get(TableId(schema, table))

    def settle(self, *tables: str, schema: str = "shop") -> None:
        """Wait until everything that the source has by now is applied, and these tables are Ready."""
        with source_of(self.pipeline.source).connect() as session:
            head = session.head()

        def level() -> bool:
            if self.failure is not None:
                raise self.failure
            if self.copier.failure is not None:
                raise self.copier.failure
            self.tables.tend()
            self.loop.step(now=True)
            states = [self.status(table, schema) for table in tables]
            errored = [one for one in states if one is not None and one.state is State.ERRORED]
            errored = [one for one in errored if one.code != RangeVoid.code]  # it was altered: its copy starts again
            assert not errored, errored
            ready = all(one is not None and one.state is State.READY for one in states)
            return self.loop.processed >= head and ready and not self.copier.busy

        await_condition(level, "copied and level", 60)

    def await_errored(self, table: str) -> Any:
        def errored() -> bool:
            self.tables.tend()
            self.loop.step(now=True)
            found = self.status(table)
            return found is not None and found.state is State.ERRORED

        await_condition(errored, f"{table} Errored", 60)
        return self.status(table)

    def rows(self, table: str) -> list[dict[str, Any]]:
        return list(self.destination.rows(TableId("shop", table)).to_pylist())

"""A second kind of source runs through capture, log, copy, decode and fold into a destination by its contract alone."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from penstock.changelog.log import ChangeLog
from penstock.config.load import load
from penstock.destinations.contract import InProcessRunner
from penstock.destinations.memory import MemoryDestination
from penstock.model.table_state import State
from penstock.runtime.apply.loop import ApplyLoop
from penstock.runtime.apply.table_lifecycle import TableLifecycle
from penstock.runtime.apply.target_claims import TargetClaims
from penstock.runtime.capture.preparation import prepare_source
from penstock.runtime.capture.process import run_capture
from penstock.runtime.capture.publisher import Publisher
from penstock.runtime.copy.copier import Copier
from penstock.source.factory import register, source_of
from penstock.state.memory import MemoryStateStore
from running import await_condition
from tiny_source import NAME, SCHEMA, TinyDatabase, TinySource

FILE = """
version: 1
name: shop
source: {{type: postgres, url: postgresql://nowhere/shop}}
destinations: [{{name: lake, type: iceberg, warehouse: "{folder}/lake"}}]
tables: [{{match: tiny.*}}]
"""
QUIET = SimpleNamespace(update=lambda *_, **__: None, finish=lambda *_: None, drop=lambda *_: None)


def test_a_scripted_source_is_copied_and_followed(tmp_path: Path) -> None:
    database = TinyDatabase()
    register(NAME, lambda _: cast(Any, TinySource(database)))
    (tmp_path / "shop.yaml").write_text(FILE.format(folder=tmp_path))
    loaded = load(tmp_path / "shop.yaml")
    section = SimpleNamespace(type=NAME, name="shop", sid=None, keeps_changes=True)
    pipeline = loaded.model_copy(update={"only_source": section}).destination_views[0]
    for number in range(20):
        database.put(number, f"before {number}")

    log, state, stop = ChangeLog(pipeline.log_uri), MemoryStateStore(), threading.Event()
    with source_of(pipeline.source).connect() as session:
        prepared = prepare_source(session, pipeline, log, Publisher(pipeline, None))
    reports: list[dict[str, object]] = []
    capture = threading.Thread(target=run_capture, args=(pipeline, stop, reports.append))
    capture.start()
    destination, runner = MemoryDestination("lake"), InProcessRunner()
    loop = ApplyLoop(pipeline.key, destination, runner, log, pipeline.batch, state)
    copier = Copier(
        pipeline, destination, runner, log, state, lambda one, at: loop.join(one.feed, one.schema, at), cast(Any, QUIET)
    )
    tables = TableLifecycle(pipeline, loop, copier, state, prepared.retained.position, TargetClaims())
    for schema in prepared.catalogue.schemas:
        tables.admit(schema)
    loop.begin(prepared.retained.position)
    copier.start()
    try:
        database.put(3, "while it was copied")
        database.remove(4)
        database.put(100, "new")

        def ready() -> bool:
            tables.tend()
            loop.step(now=True)
            return loop.processed >= database.head and SCHEMA.table in loop.tables and not copier.busy

        await_condition(ready, "copied and level", 30)
        database.put(5, "afterwards")
        database.remove(6)
        await_condition(ready, "level again", 30)
    finally:
        stop.set()
        copier.stop()
        capture.join()
        loop.close()

    assert state.table_status("lake")[SCHEMA.table].state is State.READY
    found = {row["id"]: row["note"] for row in destination.rows(SCHEMA.table).to_pylist()}
    assert found == database.rows
    assert found[3] == "while it was copied"
    assert reports[0] == {"event": "started", "position": "tiny 1", "reading": [NAME]}

"""An outage is a few lines in the log, however often is tried; and copies that start over wait longer each time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from loop_bench import ORDERS
from penstock.changelog.log import ChangeLog
from penstock.config.destinations import DeadLetterConfig
from penstock.config.model import Pipeline
from penstock.destinations.contract import InProcessRunner
from penstock.destinations.memory import MemoryDestination
from penstock.errors import RangeVoid
from penstock.model.feed import Feed
from penstock.model.table_state import State
from penstock.runtime.capture.supervisor import CaptureSupervisor
from penstock.runtime.copy.copier import LONGEST_VOID_SECONDS, Copier
from penstock.runtime.process.outage import Outage
from penstock.state.memory import MemoryStateStore


def test_an_outage_is_said_when_it_begins_once_a_minute_and_when_it_ends() -> None:
    now = 1000.0
    outage = Outage("destination", "pipeline", lambda: now)
    outage.end()
    with capture_logs() as logs:
        began = outage.note("no answer", "Start it")
        for _ in range(179):
            now += 1
            assert outage.note("no answer") == began
        now += 1
        outage.end()
        outage.end()
    assert [entry["event"] for entry in logs] == ["destination unavailable, retrying"] * 3 + [
        "destination available again"
    ]
    assert (logs[0]["what"], logs[0]["solution"]) == ("no answer", "Start it")
    assert logs[2]["seconds"] == 120
    assert (logs[-1]["seconds"], logs[-1]["tries"]) == (180, 180)
    assert outage.note("again") > began, "the next one is another"


def test_captures_health_says_since_when_it_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    state = MemoryStateStore()
    supervisor = CaptureSupervisor(cast(Pipeline, None), state)
    with capture_logs() as logs:
        for attempt in range(1, 4):
            supervisor._take(f'{{"event": "waiting", "error": "refused", "solution": "s", "attempts": {attempt}}}')
            if attempt == 1:
                first = state.health()["capture"]
        last = state.health()["capture"]
        supervisor._take('{"event": "sealed", "end": "0/1", "bytes": 1}')
    assert (last.state, last.attempts) == ("retrying", 3)
    assert last.since == first.since
    assert state.health()["capture"].state == "ok"
    assert [entry["event"] for entry in logs] == ["capture unavailable, retrying", "capture available again"]


def test_a_copy_that_is_void_again_and_again_waits_longer_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Source:
        url = type("Secret", (), {"get_secret_value": staticmethod(lambda: "postgresql://")})
        type = "postgres"

    class Settings:
        max_connections = 1

    class Lake:
        dlq = DeadLetterConfig()

    pipeline = type("Piped", (), {"copying": Settings, "source": Source, "destination": Lake, "key": "shop"})
    state, nobody = MemoryStateStore(), cast(Any, None)
    log = ChangeLog(str(tmp_path))
    copier = Copier(cast(Any, pipeline), MemoryDestination("lake"), InProcessRunner(), log, state, nobody, nobody)
    copier.add(Feed.clone(ORDERS.table), ORDERS)
    (copying,) = copier._due()
    waits = []
    for _ in range(12):
        copying.given_up = False
        with copier._containing(copying):
            raise RangeVoid("the table was rewritten while it was copied")
        waits.append(round(copying.not_before - time.monotonic()))
        status = state.table_status("lake")[ORDERS.table]
        assert status.state is State.ERRORED
        assert status.tried_again_by_itself
        state.set_table_status("lake", ORDERS.table, type(status)(State.INIT, status.since))
    assert waits == [0, 1, 2, 4, 8, 16, 32, *[int(LONGEST_VOID_SECONDS)] * 5]
    assert status.retry_text == "in 60 s (started over 12 times)"
    assert copier._due() == []

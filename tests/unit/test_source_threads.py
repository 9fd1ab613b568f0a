"""Lanes side by side, without sources: one that fails ends no other, and what may pass is tried again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from penstock.destinations.contract import InProcessRunner
from penstock.destinations.memory import MemoryDestination
from penstock.errors import CheckFailed, EnvironmentMissing, GapError, PenstockError, SourceUnreachable
from penstock.runtime.process.signals import SignalFlag
from penstock.runtime.source_pipeline import SourcePipeline
from penstock.runtime.source_threads import run_sources


class PipelineTwin:
    """Does what a test says when it is prepared and when it streams, and notes how it fared."""

    def __init__(self, prepare: Callable[[], None], stream: Callable[[SignalFlag], None], told: list[str]) -> None:
        self._prepare, self._stream, self._told = prepare, stream, told
        self.outages: list[datetime] = []  # when those began of which it was told

    def prepare(self) -> None:
        self._prepare()

    def start_capture(self) -> None:
        self._told.append("capture started")

    def ended(self, *_: object) -> None:
        self._told.append("closed")

    def stream(self, destination: object, runner: object, stop: SignalFlag) -> None:
        self._stream(stop)

    def tell(
        self,
        component: str,
        health: str,
        error: PenstockError | None = None,
        attempts: int = 0,
        since: datetime | None = None,
    ) -> None:
        self._told.append(health)
        if since is not None:
            self.outages.append(since)


def nothing() -> None:
    """A source that is ready at once."""


def until_stopped(stop: SignalFlag) -> None:
    while not stop.wait(0.01):
        pass


def failing(error: BaseException) -> Callable[..., None]:
    def fail(*_: Any) -> None:
        raise error

    return fail


def run(twins: dict[str, PipelineTwin], stop: SignalFlag | None = None, *, once: bool = False) -> None:
    makers = {name: lambda twin=twin: cast(SourcePipeline, twin) for name, twin in twins.items()}
    run_sources(makers, {"lake": MemoryDestination}, InProcessRunner(), stop or SignalFlag(), once=once)


def test_a_lane_that_fails_ends_no_other_and_is_raised_at_the_end() -> None:
    stop, told = SignalFlag(), list[str]()
    went_on = threading.Event()

    def stream(stop: SignalFlag) -> None:
        while "failed" not in told:
            stop.wait(0.01)
        went_on.set()
        stop.set()

    twins = {
        "eu": PipelineTwin(nothing, failing(GapError("the slot is gone", "Start anew")), told),
        "us": PipelineTwin(nothing, stream, []),
    }
    with pytest.raises(GapError, match="source eu: the slot is gone") as raised:
        run(twins, stop)
    assert went_on.is_set()
    assert raised.value.solution == "Start anew"
    assert told[-2:] == ["closed", "failed"], "and its capture was ended before it was told"


def test_of_several_that_fail_all_are_named() -> None:
    twins = {
        "eu": PipelineTwin(nothing, failing(GapError("gap")), []),
        "us": PipelineTwin(failing(SourceUnreachable("away")), until_stopped, []),
        "asia": PipelineTwin(nothing, lambda stop: None, []),
    }
    with pytest.raises(CheckFailed, match=r"2 of 3 sources failed: eu: gap; us: away"):
        run(twins, once=True)


def test_a_source_that_cannot_be_reached_is_tried_again_but_not_with_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.runtime.process.backoff.Backoff.wait", lambda self, stop: None)
    tries, told, stop = list[int](), list[str](), SignalFlag()

    def prepare() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise SourceUnreachable("away")

    def stream(stop: SignalFlag) -> None:
        stop.set()

    eu = PipelineTwin(prepare, stream, told)
    with capture_logs() as logs:
        run({"eu": eu, "us": PipelineTwin(nothing, until_stopped, [])}, stop)
    assert len(tries) == 3
    assert told == ["retrying", "retrying", "ok", "capture started", "closed", "stopped"]
    assert eu.outages == [eu.outages[0]] * 2, "the outage's beginning, not the last try"
    said = [entry["event"] for entry in logs]
    assert said == ["source unavailable, retrying", "source available again"]
    tries.clear()
    with pytest.raises(SourceUnreachable):
        run({"eu": PipelineTwin(prepare, stream, []), "us": PipelineTwin(nothing, lambda stop: None, [])}, once=True)


def test_a_lane_that_waits_for_its_source_does_not_hold_up_the_end() -> None:
    stop, release = SignalFlag(), threading.Event()

    def end(stop: SignalFlag) -> None:
        stop.set()

    try:
        run(
            {"eu": PipelineTwin(lambda: cast(None, release.wait()), end, []), "us": PipelineTwin(nothing, end, [])},
            stop,
        )
    finally:
        release.set()


def test_what_takes_away_what_all_share_ends_all() -> None:
    twins = {
        "eu": PipelineTwin(nothing, failing(EnvironmentMissing("Java has ended")), []),
        "us": PipelineTwin(nothing, until_stopped, []),
    }
    with pytest.raises(EnvironmentMissing, match="Java has ended"):
        run(twins)


def test_what_all_lanes_fail_of_together_is_told_once() -> None:
    ended = EnvironmentMissing("Spark has ended our application")
    twins = {name: PipelineTwin(nothing, failing(ended), []) for name in ("eu", "us")}
    with pytest.raises(EnvironmentMissing) as raised:
        run(twins)
    assert str(raised.value) == "Spark has ended our application"
    assert raised.value.exit_code == 3

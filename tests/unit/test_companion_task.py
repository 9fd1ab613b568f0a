"""An errand beside several sources, without Spark: it outlasts sources that fail, for it asks the others."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.errors import EnvironmentMissing, GapError, PenstockError, SourceUnreachable
from penstock.runtime import pipeline as runtime_pipeline
from penstock.runtime.pipeline import run


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "version: 1\nname: crm\nsources:\n"
        "  - {name: eu, type: postgres, url: postgresql://app@127.0.0.1:1/eu}\n"
        "  - {name: us, type: postgres, url: postgresql://app@127.0.0.1:1/us}\n"
        "tables: [{match: public.orders}]\ndestinations: [{type: iceberg, warehouse: ./warehouse}]\n"
    )
    unwatched = SimpleNamespace(watching=nullcontext)
    monkeypatch.setattr(runtime_pipeline, "_open_spark", lambda *_: (SimpleNamespace(whole=None), unwatched))
    monkeypatch.setattr(runtime_pipeline, "_open_destinations", lambda *_: {})
    monkeypatch.setattr(runtime_pipeline, "SparkRunner", lambda *_: None)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield load(file)
    for number, handler in handlers.items():
        signal.signal(number, handler)


class Lanes:
    """In the place of run_sources: all sources have failed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: PenstockError) -> None:
        self._error, self.ended = error, threading.Event()
        monkeypatch.setattr(runtime_pipeline, "run_sources", self._run)

    def _run(self, *_: Any, once: bool) -> None:
        self.ended.set()
        raise self._error


def errand_of(pipeline: Pipeline, errand: Any) -> None:
    run(pipeline, progress=None, errand=errand)  # type: ignore[arg-type]


def test_it_is_done_although_all_sources_have_failed(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, done = Lanes(monkeypatch, GapError("the slot is gone")), list[str]()

    def errand(_: object) -> None:
        assert lanes.ended.wait(10)
        done.append("told")

    errand_of(pipeline, errand)
    assert done == ["told"]


def test_what_it_raises_is_raised(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = Lanes(monkeypatch, GapError("the slot is gone"))

    def errand(_: object) -> None:
        assert lanes.ended.wait(10)
        raise SourceUnreachable("away")

    with pytest.raises(SourceUnreachable, match="away"):
        errand_of(pipeline, errand)


def test_it_ends_with_what_all_share(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    Lanes(monkeypatch, EnvironmentMissing("Java has ended"))
    never = threading.Event()
    with pytest.raises(EnvironmentMissing, match="Java has ended"):
        errand_of(pipeline, lambda _: never.wait(10))
    never.set()


def test_without_one_what_failed_is_raised(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    Lanes(monkeypatch, GapError("the slot is gone"))
    with pytest.raises(GapError):
        errand_of(pipeline, None)

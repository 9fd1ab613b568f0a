"""Capture alone, between a MariaDB or MySQL server and a list in memory: what it seals, place by place."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.errors import PenstockError
from penstock.model.table import TableId, TableSchema
from penstock.source.contract import SegmentSettings
from penstock.source.factory import source_of
from penstock.source.sink import CapturedSlice, LastCommit, Origin
from running import await_condition

FILE = """
version: 1
name: shop
source: {{type: mysql, url: "{url}", failover: {failover}}}
destinations: [{{type: iceberg, warehouse: lake}}]
tables: [{{match: {match}}}]
"""


@dataclass
class ListSink:
    """A SegmentSink that keeps everything; it outlives captures, as a log does."""

    end: int | None = None
    origin: Origin | None = None
    last_commit: LastCommit | None = None
    slices: list[CapturedSlice] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    _parts: list[CapturedSlice] = field(default_factory=list)
    _begun: Origin | None = None

    def structure_of(self, relation_id: int) -> TableSchema | None:
        return None

    def begin(self, position: int, origin: Origin) -> None:
        assert self.end in (None, position)
        self.end, self._begun, self._parts = position, origin, []

    def append(self, end: int, slices: Sequence[CapturedSlice], state: str | None = None) -> None:
        self.slices += [*self._parts, *slices]
        self._parts = []
        self.advance(end, state)

    def advance(self, end: int, state: str | None = None) -> None:
        assert self.end is not None
        assert self._begun is not None
        assert end >= self.end
        self.end = end
        self.ends.append(end)
        begun = self._begun
        self.origin = Origin(begun.stream, begun.state if state is None else state)

    def write_part(self, commit_position: int, slices: Sequence[CapturedSlice]) -> None:
        self._parts += slices

    def of(self, name: str) -> pa.Table:
        """Return the raw changes of a table of the database `shop`."""
        found = [one.batch for one in self.slices if one.schema.table == TableId("shop", name)]
        return pa.Table.from_batches(found) if found else pa.table({})

    def rows(self) -> list[tuple[Any, ...]]:
        """Return every change with its place and bytes, in the order of commits."""
        found = []
        for one in self.slices:
            columns = one.batch.to_pydict()
            found += [(str(one.schema.table), *row) for row in zip(*columns.values(), strict=True)]
        return sorted(found, key=lambda row: row[1:3])


def pipeline_of(folder: Path, url: str, *, match: str = "shop.*", failover: int = 0) -> Pipeline:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "shop.yaml").write_text(FILE.format(url=url, match=match, failover=failover))
    return load(folder / "shop.yaml").destination_views[0]


@dataclass
class Captured:
    """What a capture said, and what ended it."""

    reports: list[dict[str, object]] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)


@contextmanager
def capturing(pipeline: Pipeline, sink: ListSink, *, segment_bytes: int = 1 << 20) -> Iterator[Captured]:
    """Capture while inside. Raises what ended it."""
    stop, captured = threading.Event(), Captured()
    reports, failures = captured.reports, captured.failures
    settings = SegmentSettings(segment_bytes=segment_bytes, segment_age=0.05, idle_every=0.1, patient=False)

    def run() -> None:
        try:
            source_of(pipeline.source).capture(pipeline, settings, sink, stop, reports.append)
        except (PenstockError, AssertionError) as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        await_condition(lambda: bool(reports) or bool(failures), "capture to begin", 30)
        yield captured
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]


def capture_all(pipeline: Pipeline, sink: ListSink, *, segment_bytes: int = 1 << 20, seconds: float = 60) -> None:
    """Capture everything that the server has by now."""
    with source_of(pipeline.source).connect() as session:
        head = session.head()
    with capturing(pipeline, sink, segment_bytes=segment_bytes) as captured:
        await_condition(
            lambda: (sink.end or 0) >= head or bool(captured.failures), f"capture to reach {head:x}", seconds
        )

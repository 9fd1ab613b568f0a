"""Figures of a run that no state store keeps: batches, commits, what came from the source. For `/metrics`.

The run counts in memory and writes everything into a small file in its home every two seconds (`writing`), where a
server in any process reads it (`read`). Losing it loses nothing. docs/metrics.md has the list.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

FILE_NAME = "metrics.json"
WRITE_EVERY = 2.0
STALE_SECONDS = 60.0  # a file that is older is of a run that has ended
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
SIZES = (1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6, 1e7)
BYTES = (1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9)
LOG = structlog.get_logger("pipeline")
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Metric:
    """A counter, or with buckets a histogram."""

    name: str
    help: str
    buckets: tuple[float, ...] = ()


@dataclass(frozen=True)
class Measured:
    """One sample as it is written down. `suffix` is of a histogram's parts."""

    name: str
    suffix: str
    labels: Mapping[str, str]
    value: float


SOURCE_CHANGES = Metric("penstock_source_changes_total", "Row changes that came from the source, by table.")
SOURCE_BYTES = Metric("penstock_source_bytes_total", "Bytes of those changes in the change log.")
RECONNECTS = Metric("penstock_source_reconnects_total", "How often capture had to connect again.")
INVALIDATIONS = Metric("penstock_slot_invalidations_total", "Gaps: changes that the source no longer has.")
SCHEMA_CHANGES = Metric("penstock_schema_changes_total", "New versions of tables' structures.")
BATCH_CHANGES = Metric("penstock_batch_changes", "Row changes of a batch.", SIZES)
BATCH_BYTES = Metric("penstock_batch_bytes", "Bytes of a batch in the change log.", BYTES)
BATCH_SECONDS = Metric("penstock_batch_seconds", "Time that a batch took, by stage: write, commit, all.", SECONDS)
COMMIT_SECONDS = Metric("penstock_commit_seconds", "Time of one table's commit at the destination.", SECONDS)
END_TO_END = Metric(
    "penstock_end_to_end_seconds", "From the commit at the source of a batch's newest change to its arrival.", SECONDS
)
METRICS = (
    SOURCE_CHANGES,
    SOURCE_BYTES,
    RECONNECTS,
    INVALIDATIONS,
    SCHEMA_CHANGES,
    BATCH_CHANGES,
    BATCH_BYTES,
    BATCH_SECONDS,
    COMMIT_SECONDS,
    END_TO_END,
)


class Meter:
    """Counts for one process. Safe from several threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._counts: dict[tuple[Metric, Labels], float] = {}
        self._spreads: dict[tuple[Metric, Labels], list[float]] = {}  # by bucket, then beyond, then the sum

    def count(self, metric: Metric, number: float = 1.0, /, **labels: str) -> None:
        key = metric, tuple(sorted(labels.items()))
        with self._guard:
            self._counts[key] = self._counts.get(key, 0.0) + number

    def observe(self, metric: Metric, value: float, /, **labels: str) -> None:
        key = metric, tuple(sorted(labels.items()))
        with self._guard:
            spread = self._spreads.setdefault(key, [0.0] * (len(metric.buckets) + 2))
            place = next((number for number, most in enumerate(metric.buckets) if value <= most), len(metric.buckets))
            spread[place] += 1
            spread[-1] += value

    def batch(
        self, source: str, destination: str, *, changes: int, bytes: int, seconds: float, newest: float | None
    ) -> None:
        """Note a batch that has arrived. `newest` is when the source committed its newest change (seconds, epoch)."""
        labels = {"source": source, "destination": destination}
        self.observe(BATCH_CHANGES, changes, **labels)
        self.observe(BATCH_BYTES, bytes, **labels)
        self.observe(BATCH_SECONDS, seconds, stage="all", **labels)
        if newest is not None:
            self.observe(END_TO_END, max(0.0, time.time() - newest), **labels)

    def samples(self) -> list[Measured]:
        """Return everything that was counted so far."""
        with self._guard:
            counts = dict(self._counts)
            spreads = {key: list(spread) for key, spread in self._spreads.items()}
        found = [Measured(metric.name, "", dict(labels), value) for (metric, labels), value in counts.items()]
        for (metric, labels), spread in spreads.items():
            total = 0.0
            for most, number in zip((*metric.buckets, None), spread[:-1], strict=True):
                total += number
                bound = "+Inf" if most is None else f"{most:g}"
                found.append(Measured(metric.name, "_bucket", {**dict(labels), "le": bound}, total))
            found.append(Measured(metric.name, "_sum", dict(labels), spread[-1]))
            found.append(Measured(metric.name, "_count", dict(labels), total))
        return found


METER = Meter()


@contextmanager
def timing(metric: Metric, /, **labels: str) -> Iterator[None]:
    """Observe how long the block takes."""
    began = time.monotonic()
    yield
    METER.observe(metric, time.monotonic() - began, **labels)


@contextmanager
def writing(home: Path) -> Iterator[None]:
    """Write the figures into a pipeline's home while the block lasts."""
    ended = threading.Event()

    def work() -> None:
        told = False
        while not ended.wait(WRITE_EVERY):
            try:
                write(home, METER.samples())
            except OSError as error:
                if not told:
                    LOG.warning("metrics not written", what=str(error))
                told = True

    thread = threading.Thread(target=work, name="meter", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        (home / FILE_NAME).unlink(missing_ok=True)


def write(home: Path, samples: list[Measured]) -> None:
    fresh = home / f"{FILE_NAME}.new"
    fresh.write_text(json.dumps([[one.name, one.suffix, dict(one.labels), one.value] for one in samples]))
    fresh.replace(home / FILE_NAME)


def read(home: Path) -> list[Measured]:
    """Return what the run of a pipeline has counted; nothing when none is up."""
    file = home / FILE_NAME
    try:
        if time.time() - file.stat().st_mtime > STALE_SECONDS:
            return []
        written = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return []
    known = {metric.name for metric in METRICS}
    return [Measured(name, suffix, labels, value) for name, suffix, labels, value in written if name in known]

"""Look at a pipeline every few seconds, as `penstock status` does, and remember the last hour for charts.

One thread per pipeline: a source that does not answer delays no other pipeline's figures. Routes and pages answer from
the last look, so that many clients cost no more than one.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import structlog

from penstock.config.model import Pipeline
from penstock.control.status.gather import Observer, together
from penstock.control.status.report import Status
from penstock.errors import PenstockError
from penstock.runtime import meter

LOOK_EVERY = 2.0
KEPT_SAMPLES = 1800  # an hour
STALE_SECONDS = 60.0
LOG = structlog.get_logger("server")


@dataclass(frozen=True)
class Sample:
    """Figures of one look. What was unknown is None."""

    at: float
    lag_seconds: float | None
    rate: float
    wal_bytes: int | None
    log_bytes: int | None
    memory_bytes: int | None
    batch_seconds: float | None = None
    destinations: Mapping[str, tuple[float | None, float]] = field(default_factory=dict)  # lag and rate


class Observatory:
    """Looks at one pipeline. `close` ends its thread and its connections."""

    def __init__(self, pipeline: Pipeline, every: float = LOOK_EVERY) -> None:
        self._pipeline, self._every = pipeline, every
        self._observers = [Observer(view) for view in pipeline.source_views]
        self._latest: Status | None = None
        self._blind_because = ""
        self._samples: deque[Sample] = deque(maxlen=KEPT_SAMPLES)
        self._batches = 0.0, 0.0
        self._looking = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"observe {pipeline.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=15)
        with self._looking:
            for observer in self._observers:
                observer.close()

    def status(self) -> Status:
        """Return the last look; the first one is taken now."""
        return self._latest or self.look()

    @property
    def is_stale(self) -> bool:
        """Whether the last look is so old that nobody knows how the pipeline fares."""
        latest = self._latest
        return latest is not None and (datetime.now(UTC) - latest.at).total_seconds() > STALE_SECONDS

    @property
    def blind_because(self) -> str:
        """Why the pipeline cannot be looked at; "" as long as it can."""
        return self._blind_because or ("a look at it takes very long" if self.is_stale else "")

    def look(self) -> Status:
        """Look now, and remember it."""
        with self._looking:
            found = [observer.look() for observer in self._observers]
            status = together(self._pipeline, found) if self._pipeline.is_scoped else found[0]
            self._latest = status
        self._samples.append(replace(_sample(status), batch_seconds=self._batch_seconds()))
        return status

    def _batch_seconds(self) -> float | None:
        """Return how long batches took on average since the last look; None when there were none."""
        found = [one for one in meter.read(self._pipeline.home) if one.name == meter.BATCH_SECONDS.name]
        found = [one for one in found if one.labels.get("stage") == "all"]
        total = sum(one.value for one in found if one.suffix == "_sum")
        number = sum(one.value for one in found if one.suffix == "_count")
        before, self._batches = self._batches, (total, number)
        return (total - before[0]) / (number - before[1]) if number > before[1] else None

    def samples(self, seconds: float = 3600.0) -> list[Sample]:
        since = time.time() - seconds
        return [one for one in list(self._samples) if one.at >= since]

    def _work(self) -> None:
        while not self._ended.is_set():
            try:
                self.look()
                self._blind_because = ""
            except Exception as error:  # noqa: BLE001 - whatever it is, the next look may go well
                what = error.what if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
                if what != self._blind_because:  # said once, not every two seconds
                    LOG.warning("pipeline not observed", pipeline=self._pipeline.name, what=what)
                self._blind_because = what
            self._ended.wait(self._every)


def wal_kept(details: Mapping[str, object]) -> int | None:
    """Return how many bytes the server keeps for the slot."""
    slot = details.get("slot")
    kept = slot.get("retained_bytes") if isinstance(slot, dict) else None
    return kept if isinstance(kept, int) else None


def _sample(status: Status) -> Sample:
    sources = [one.source for one in status.source_views] or [status.source]
    logs = [one.log for one in status.source_views] or [status.log]
    lags = [one.lag_seconds for one in status.destinations if one.lag_seconds is not None]
    kept = [bytes_ for one in sources if (bytes_ := wal_kept(one.details)) is not None]
    held = [one.bytes for one in logs if one.bytes is not None]
    rates: dict[str, float] = {}
    for table in status.tables:
        name = table.destination if table.table.source is None else f"{table.table.source}:{table.destination}"
        rates[name] = rates.get(name, 0.0) + table.rate
    return Sample(
        at=status.at.timestamp(),
        lag_seconds=max(lags, default=None),
        rate=sum(rates.values()),
        wal_bytes=sum(kept) if kept else None,
        log_bytes=sum(held) if held else None,
        memory_bytes=None if status.pid is None else memory_of(status.pid),
        destinations={one.full_name: (one.lag_seconds, rates.get(one.full_name, 0.0)) for one in status.destinations},
    )


def memory_of(pid: int) -> int | None:
    """Return the resident bytes of a process and everything that it started; None where the system does not say."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = entry.read_text()
        except OSError:
            continue  # it has ended
        after = text.rpartition(")")[2].split()
        parents[int(entry.parent.name)] = int(after[1])
    if pid not in parents:
        return None
    family, grown = {pid}, True
    while grown:
        more = {child for child, parent in parents.items() if parent in family} - family
        family |= more
        grown = bool(more)
    pages = 0
    for member in family:
        try:
            pages += int(Path(f"/proc/{member}/statm").read_text().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")

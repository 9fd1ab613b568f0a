"""A worker's memory over many batches: it reaches a plateau, for what is kept of them is bounded."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from penstock.changelog.log import HEADER_BYTES_IN_TASKS, ChangeLog
from worker_bench import Worker, resident

FULL = 10_000


def test_a_task_keeps_few_headers_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of segments that are long gone, too: a worker never hears of their removal."""
    monkeypatch.setattr("penstock.changelog.log.HEADER_BYTES_IN_TASKS", 8 << 10)
    worker = Worker(tmp_path)
    worker.apply_batches(30)
    worker.close()
    log: ChangeLog = pickle.loads(pickle.dumps(ChangeLog(worker.log)))
    assert 0 < log._header_bytes <= 8 << 10
    assert len(log._headers) < 30


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_a_worker_stops_growing(tmp_path: Path) -> None:
    """RSS over 10,000 batches. What is kept of the log is full after some 900 of them; from 2,000 on it stays."""
    worker = Worker(tmp_path)
    worker.apply_batches(2_000)
    early = resident()
    worker.apply_batches(FULL - 2_000)
    worker.close()
    grown = resident() - early
    log: ChangeLog = pickle.loads(pickle.dumps(ChangeLog(worker.log)))
    assert log._header_bytes <= HEADER_BYTES_IN_TASKS
    assert grown < 8 << 20, f"{grown >> 10} KiB more after {FULL} batches than after 2000"

"""Two drivers that know nothing of each other commit to one Delta table, on a disk and in a store, and are killed.

Version N+1 is made by one of them, so the rows are those that the position says, whoever made which version.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

import delta_racer
from destination_rows import ORDERS, SOURCE, START, Row, net, ordered, write
from object_store import BUCKET, object_store
from penstock.destinations.delta import log_files
from penstock.destinations.delta.destination import DeltaDestination
from penstock.destinations.delta.log import TableLog
from penstock.destinations.delta.open_table import position_of
from penstock.destinations.delta.reading import read_table
from penstock.destinations.lake.warehouse import table_folder
from penstock.errors import DestinationUnreachable, StaleBase

SUPPORT = Path(delta_racer.__file__).parent


@dataclass(frozen=True)
class Warehouse:
    location: str
    environment: Mapping[str, str]

    @property
    def table(self) -> str:
        return table_folder(delta_racer.config_of(self.location), ORDERS.table)

    def rows(self) -> list[Row]:
        """What our own reader sees, which must be what delta-rs sees."""
        found = read_table(self.table)
        theirs = DeltaTable(self.table, storage_options=dict(self.environment))
        read = QueryBuilder().register("t", theirs).execute("select * from t").read_all()
        ours = ordered(ORDERS, found.scan(list(found.types), None).to_pylist())
        assert ordered(ORDERS, pa.table(read).to_pylist()) == ours
        return ours

    def drive(self, index: Path, batches: int) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(SUPPORT), *sys.path])
        with index.with_suffix(".log").open("ab") as said:
            return subprocess.Popen(
                [sys.executable, str(SUPPORT / "delta_racer.py"), self.location, str(index), str(batches)],
                env={**os.environ, **self.environment, "PYTHONPATH": path},
                stdout=said,
                stderr=said,
            )


@pytest.fixture(scope="module")
def store() -> Iterator[Mapping[str, str]]:
    with object_store() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield environment


@pytest.fixture(params=["disk", "s3"])
def warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Warehouse:
    if request.param == "disk":
        return Warehouse(str(tmp_path / "warehouse"), {})
    return Warehouse(f"s3://{BUCKET}/{tmp_path.name}", request.getfixturevalue("store"))


def test_two_drivers_and_their_deaths_leave_what_the_position_says(
    warehouse: Warehouse, tmp_path: Path, full: bool
) -> None:
    batches, deaths = (400, 5) if full else (16, 1) if warehouse.environment else (40, 2)
    chance = random.Random(3)
    table = TableLog(warehouse.table)
    running = {name: warehouse.drive(tmp_path / name, batches) for name in ("one", "two")}
    killed, refused = Counter[str](), 0
    try:
        while any(process.poll() is None for process in running.values()):
            for name, process in running.items():
                if killed.total() < deaths and table.exists and process.poll() is None:
                    table.refresh()
                    position = position_of(table.state, SOURCE) or START
                    if position - START >= batches * (killed.total() + 1) // (deaths + 2):
                        process.kill()
                        process.wait()
                        killed[name] += 1
                        running[name] = warehouse.drive(tmp_path / name, batches)
                        break
                try:
                    process.wait(chance.uniform(0.01, 0.1))
                except subprocess.TimeoutExpired:
                    continue
        for name, process in running.items():
            said = (tmp_path / f"{name}.log").read_text()
            assert process.returncode == 0, said
            refused += said.count("refused")
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    assert killed.total() == deaths
    assert refused, "the two never met"
    table.refresh()
    assert position_of(table.state, SOURCE) == START + batches
    assert warehouse.rows() == ordered(ORDERS, delta_racer.expected(batches))
    assert "_last_checkpoint" in log_files.log_files(warehouse.table).names()


def test_a_commit_whose_answer_was_lost_is_known_for_ours(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may have made what it reports as failed; and a request that was sent twice is refused the second time."""
    driver = DeltaDestination(delta_racer.config_of(warehouse.location), index=tmp_path / "index")
    driver.open()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    kind = type(log_files.log_files(warehouse.table))
    create = kind.create
    for batch, error in enumerate((OSError("no answer"), FileExistsError("sent twice"))):

        def lost(files: log_files.LogFiles, name: str, content: bytes, error: OSError = error) -> None:
            create(files, name, content)
            raise error

        plan = driver.plan(ORDERS.table, SOURCE)
        parts = write(plan, net(ORDERS, delta_racer.changed(batch), delta_racer.ended(batch)))
        with monkeypatch.context() as patch:
            patch.setattr(kind, "create", lost)
            driver.commit(plan, parts, truncated=False, position=START + batch + 1)
    plan = driver.plan(ORDERS.table, SOURCE)

    def refused(files: log_files.LogFiles, name: str, content: bytes) -> None:
        raise OSError("nobody answers")

    parts = write(plan, net(ORDERS, delta_racer.changed(2), delta_racer.ended(2)))
    with monkeypatch.context() as patch:
        patch.setattr(kind, "create", refused)
        with pytest.raises(DestinationUnreachable, match="nobody answers"):
            driver.commit(plan, parts, truncated=False, position=START + 3)
    stale = driver.plan(ORDERS.table, SOURCE)
    driver.commit(plan, parts, truncated=False, position=START + 3)
    with pytest.raises(StaleBase):
        driver.commit(stale, parts, truncated=False, position=START + 3)
    assert warehouse.rows() == ordered(ORDERS, delta_racer.expected(3))
    driver.drop_table(ORDERS.table, SOURCE)
    assert driver.position(ORDERS.table, SOURCE) is None
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    assert warehouse.rows() == []
    driver.close()

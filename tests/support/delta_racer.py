"""A driver of a Delta table that another one drives too, as a process: `python delta_racer.py WAREHOUSE INDEX BATCHES`.

Both wait for each other at the start: on a busy machine the first would be through before the second has begun.
Batch N is always the same rows, so the position says all that the table must hold, whoever committed which batch.
"""

from __future__ import annotations

import sys
from pathlib import Path

from destination_rows import ORDERS, SOURCE, START, Row, net, write
from penstock.config.delta_destination import DeltaDestination as Config
from penstock.config.destinations import Maintenance
from penstock.destinations.contract import InProcessRunner
from penstock.destinations.delta.destination import DeltaDestination
from penstock.errors import FileUnreadable, StaleBase
from running import await_condition

WIDTH, STEP = 30, 7
RACERS = 2


def config_of(warehouse: str) -> Config:
    maintenance = Maintenance(compact_files=4, expire_every=10, keep_snapshots=3, keep_for=0)
    return Config(type="delta", warehouse=warehouse, maintenance=maintenance)


def changed(batch: int) -> list[Row]:
    first = batch * STEP
    return [{"id": n, "amount": batch, "note": f"{batch}"} for n in range(first, first + WIDTH)]


def ended(batch: int) -> list[Row]:
    return [{"id": batch * STEP // 2}] if batch else []  # never one that the batch changes


def expected(batches: int) -> list[Row]:
    """The rows after so many batches."""
    rows: dict[object, Row] = {}
    for batch in range(batches):
        rows |= {row["id"]: row for row in changed(batch)}
        for row in ended(batch):
            rows.pop(row["id"], None)
    return list(rows.values())


def drive(warehouse: str, index: Path, batches: int) -> None:
    destination = DeltaDestination(config_of(warehouse), index=index)
    destination.open()
    destination.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    index.with_suffix(".ready").touch()
    await_condition(lambda: len(list(index.parent.glob("*.ready"))) == RACERS, "the other driver", 120)
    while (position := destination.position(ORDERS.table, SOURCE) or START) < START + batches:
        parts = []
        try:
            plan = destination.plan(ORDERS.table, SOURCE)
            batch = plan.position - START
            if batch < batches:
                parts = write(plan, net(ORDERS, changed(batch), ended(batch)))
                destination.commit(plan, parts, truncated=False, position=plan.position + 1)
                parts = []
            destination.maintain(ORDERS.table, SOURCE, InProcessRunner())
        except (StaleBase, FileUnreadable) as error:
            found = destination.diagnose(ORDERS.table, SOURCE, error) if isinstance(error, FileUnreadable) else error
            if not isinstance(found, StaleBase):
                raise found from error
            sys.stdout.write(f"refused at {position}\n")
            destination.discard(parts)
    destination.close()


if __name__ == "__main__":
    drive(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))

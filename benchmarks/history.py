"""History: 10,000 changes a batch on a table with 1 million and with 10 million versions that have ended, in one run.

    python benchmarks/history.py [--few 1000000] [--many 10000000] [--opened 100000] [--changes 10000] [--batches 10]

Two tables with the same open versions and FEW and MANY ended ones take turns, batch by batch, so that a busy machine
slows both. The ratio of the medians: a batch must cost what it touches, not what has ended.
"""

from __future__ import annotations

import os
import statistics
import time

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness import Result, parser, report, say
from local_lake import local_lake
from penstock.decode.schema import arrow_schema
from penstock.destinations.contract import InProcessRunner
from penstock.destinations.iceberg.destination import IcebergDestination
from penstock.fold.keys import encode_keys
from penstock.fold.layout import Layout
from penstock.fold.net_effect import NetEffect, Steps
from penstock.model.feed import Period
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from targets import HISTORY_BY_ENDED
from watch import Watch

COLUMNS = (
    Column("id", ColumnType(20, "int8"), number=1),
    Column("a", ColumnType(23, "int4"), number=2),
    Column("b", ColumnType(701, "float8"), number=3),
    Column("note", ColumnType(25, "text"), number=4),
)
LAYOUT = Layout(period=Period())
FILLING = 1_000_000  # versions that one batch of the preparation ends


class History:
    """A table of versions, written and committed in this process."""

    def __init__(self, destination: IcebergDestination, name: str) -> None:
        self.destination, self.target = destination, TableId("public", name)
        self.schema = TableSchema(self.target, 1, COLUMNS, ("id",))
        self.position, self.value = 1, 0
        destination.ensure_table(self.target, self.schema, "bench", 1, layout=LAYOUT)

    def apply(self, keys: npt.NDArray[np.int64], versions: int = 1) -> float:
        """Every key gets that many versions; gives the seconds that it took."""
        times = np.arange(self.value, self.value + versions)
        self.value += versions
        columns = [
            pa.array(np.repeat(keys, versions)),
            pa.array(np.tile(times, len(keys)).astype(np.int32)),
            pa.array(np.random.rand(len(keys) * versions)),
            pa.array([f"text-{key}" for key in keys.tolist()]).take(
                pa.array(np.repeat(np.arange(len(keys)), versions))
            ),
        ]
        upserts = pa.table(columns, schema=arrow_schema(self.schema))
        touched = encode_keys([pa.array(keys)])
        numbers = np.arange(len(keys) * versions)
        moments = np.tile((times + 1) * 1_000_000, len(keys))
        steps = Steps(np.repeat(np.arange(len(keys)), versions), moments, numbers)
        began = time.perf_counter()
        plan = self.destination.plan(self.target, "bench")
        effect = NetEffect(False, upserts, None, touched, (), len(numbers), int(moments.max()), steps=steps)
        self.position += 1
        part = plan.write(effect)
        moment = int(moments.max())
        self.destination.commit(plan, [part], truncated=False, position=self.position, moment=moment)
        return time.perf_counter() - began

    def fill(self, opened: int, ended: int) -> None:
        keys = np.arange(opened)
        self.apply(keys)
        while ended > 0:
            versions = max(1, min(ended, FILLING) // opened)
            self.apply(keys, versions)
            ended -= versions * opened
            self.destination.maintain(self.target, "bench", InProcessRunner())


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--few", type=int, default=1_000_000, help="versions that have ended")
    arguments.add_argument("--many", type=int, default=10_000_000, help="the same, of the other table")
    arguments.add_argument("--opened", type=int, default=100_000, help="versions that have not")
    arguments.add_argument("--changes", type=int, default=10_000, help="of a batch")
    arguments.add_argument("--batches", type=int, default=10)
    options = arguments.parse_args()
    took: dict[int, list[float]] = {options.few: [], options.many: []}
    with local_lake() as (spark, destination):
        tables = {options.few: History(destination, "few"), options.many: History(destination, "many")}
        for ended, table in tables.items():
            table.fill(options.opened, ended)
            held = spark.sql(f"SELECT count(*) FROM lake.public.{table.target.name} WHERE valid_to < '9999-01-01'")
            say(f"{table.target}: {options.opened:,} open versions, {held.collect()[0][0]:,} ended ones")
        chooser = np.random.default_rng(1)
        with Watch(os.getpid()) as watch:
            for batch in range(options.batches + 1):
                keys = np.sort(chooser.choice(options.opened, options.changes, replace=False))
                for ended, table in tables.items():
                    seconds = table.apply(keys)
                    destination.maintain(table.target, "bench", InProcessRunner())
                    if batch:  # the first is Java's warm-up
                        took[ended].append(seconds)
    medians = {ended: statistics.median(times) for ended, times in took.items()}
    few, many = medians[options.few], medians[options.many]
    report(
        "history",
        f"{options.changes:,} changes of a history table, median of {options.batches}",
        ("what", "seconds"),
        [(f"{ended:,} ended versions", seconds) for ended, seconds in medians.items()],
        options=options,
        results=[
            Result(
                f"batch into history, {options.many:,} ended versions against {options.few:,}",
                f"{many:.3f} s",
                f"{few:.3f} s",
                many / few,
                "× the smaller's time",
                HISTORY_BY_ENDED,
            )
        ],
        processes={"this process": watch.roles},
        seconds=took,
    )


if __name__ == "__main__":
    main()

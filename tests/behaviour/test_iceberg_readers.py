"""A reader that knows nothing of penstock (pyiceberg) scans a table again and again while batches, structures, copies,
merges, expiry and sweeps are committed to it: whatever it sees is a state that was committed, whole.

Row 0 says which state it is; all other rows must be that state's.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from destination_rows import ORDERS, SOURCE, START, TYPES, Lake, Row, apply, iceberg_config, iceberg_lake, net, write
from penstock.decode.schema import arrow_schema
from penstock.destinations.contract import InProcessRunner, TableDestination
from penstock.destinations.lake import compaction_tasks, orphan_sweep
from penstock.model.table import Column, TableId, TableSchema

STATES = 45
KEYS = 40


def version(columns: str) -> TableSchema:
    """`columns` as in "1 id int8, 4 note text"."""
    described = [column.split() for column in columns.split(", ")]
    kept = tuple(Column(name, TYPES[type], number=int(number)) for number, name, type in described)
    return TableSchema(TableId("public", "life"), 1, kept, ("id",))


VERSIONS = (
    version("1 id int8, 2 state int4, 3 note text"),
    version("1 id int8, 2 state int4, 3 note text, 4 more text"),
    version("1 id int8, 2 state int4, 3 remark text, 4 more text"),
    version("1 id int8, 2 state int8, 3 remark text, 4 more text"),
)


@dataclass
class Life:
    """What the table must be, state by state, as rows sorted by their key."""

    states: dict[int, list[Row]] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)  # by key, under the columns' numbers

    def next(self, number: int, schema: TableSchema, upserts: dict[int, Row], deleted: set[int]) -> None:
        self.rows = {key: row for key, row in self.rows.items() if key not in deleted} | upserts
        self.states[number] = sorted((named(schema, row) for row in self.rows.values()), key=lambda row: int(row["id"]))


def named(schema: TableSchema, row: Row) -> Row:
    return {column.name: row.get(str(column.number)) for column in schema.columns}


def numbered(key: int, state: int, chance: random.Random, *, more: bool) -> Row:
    row: Row = {"1": key, "2": state, "3": f"{chance.random()}"}
    return {**row, "4": f"more {state}"} if more else row


@contextmanager
def reading(lake: Lake, life: Life) -> Iterator[list[int]]:
    """Gives the states that the readers have seen, each of them checked."""
    seen: list[int] = []
    ended = threading.Event()

    def scan() -> None:
        uri = f"sqlite:///{lake.warehouse}/catalog.db"
        with closing(SqlCatalog("lake", uri=uri, warehouse=str(lake.warehouse))) as catalog:
            while not ended.is_set():
                table = catalog.load_table(("public", "life"))
                if table.current_snapshot() is None:
                    continue
                found = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: int(row["id"]))
                assert found[0]["id"] == 0
                state = int(found[0]["state"])
                assert found == life.states[state], state
                seen.append(state)

    with ThreadPoolExecutor(2) as readers:
        scans = [readers.submit(scan) for _ in range(2)]
        try:
            yield seen
        finally:
            ended.set()
        for done in scans:
            done.result()


def copy(driver: TableDestination, schema: TableSchema, life: Life, position: int) -> None:
    rows = [named(schema, row) for row in life.rows.values()]
    plan = driver.plan_copy(schema.table, SOURCE, schema)
    parts = [
        plan.write_rows([pa.Table.from_pylist(half, schema=arrow_schema(schema))]) for half in (rows[::2], rows[1::2])
    ]
    driver.commit_copy(schema.table, SOURCE, parts, position)


def test_a_reader_sees_committed_states_only(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction_tasks, "WORTH_A_JOB", 4000)  # so that some merges are made at once, and some beside
    monkeypatch.setattr(orphan_sweep, "AT_ONCE", 2)
    config = iceberg_config(
        tmp_path, compact_files=3, expire_every=7, keep_snapshots=2, keep_for=30, sweep_every=0, sweep_age=30
    )
    lake = iceberg_lake(spark, tmp_path, config)
    chance, life = random.Random(3), Life()
    driver = lake.driver()
    driver.ensure_table(VERSIONS[0].table, VERSIONS[0], SOURCE, START)
    merged = 0
    with reading(lake, life) as seen:
        for number in range(STATES):
            at = number * len(VERSIONS) // STATES
            schema, more = VERSIONS[at], at > 0
            keys = {0, *chance.sample(range(1, KEYS), 9)}
            deleted = set(chance.sample(range(1, KEYS), 3)) - keys
            upserts = {key: numbered(key, number, chance, more=more) for key in sorted(keys)}
            life.next(number, schema, upserts, deleted)
            if number % 15 == 14:
                copy(driver, schema, life, START + 1 + number)
            else:
                plan = driver.plan(schema.table, SOURCE, schema)
                gone = [{"id": key} for key in sorted(deleted)]
                effect = net(schema, [named(schema, row) for row in upserts.values()], gone, truncated=number == 20)
                if number == 20:
                    life.rows = upserts
                    life.next(number, schema, {}, set())
                driver.commit(plan, write(plan, effect), truncated=number == 20, position=START + 1 + number)
            merged += driver.maintain(schema.table, SOURCE, InProcessRunner()).merged_files
        last = len(seen)
        driver.close()
    assert merged > 10
    assert last > 3
    assert len(set(seen)) > 3, "the reader is to see the table while it changes"


NAMED_BLOCK = re.compile(r"^```python\n# (read_with_\w+)\.py\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGE = Path(__file__).parents[2] / "docs" / "readers.md"


@pytest.mark.parametrize("reader", ["pyiceberg", "duckdb", "polars", pytest.param("spark", marks=pytest.mark.full)])
def test_the_programs_of_the_readers_page_work_as_they_are(iceberg: Lake, tmp_path: Path, reader: str) -> None:
    """Over a table with a file of rows, some of which a delete file ends."""
    driver = iceberg.driver()
    driver.ensure_table(ORDERS.table, ORDERS, SOURCE, START)
    rows: list[Row] = [{"id": number, "amount": number, "note": ""} for number in range(1, 21)]
    apply(driver, ORDERS, START + 1, net(ORDERS, rows))
    apply(driver, ORDERS, START + 2, net(ORDERS, [{"id": 15, "amount": 7000, "note": ""}], [{"id": 20}, {"id": 1}]))
    driver.close()
    program = dict(NAMED_BLOCK.findall(PAGE.read_text()))[f"read_with_{reader}"]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    if reader == "duckdb":
        assert re.search(r"\b18\b.*\b7174\b", done.stdout), done.stdout
    else:
        assert "7000" in done.stdout
        assert not re.search(r"\b(?:15|20)\b *│ *(?:15|20)\b", done.stdout), done.stdout

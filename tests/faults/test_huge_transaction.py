"""One transaction far larger than memory should hold: capture stays small, and the table equals its source. So it does
when the driver is killed while such a one is shared out over tasks, and no scratch stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from databases import Database
from lake import Lake
from penstock.runtime.apply.batch_planner import MOST_HELD_BYTES
from running import PipelineFactory, running

LIMIT_MIB = 300
ROWS, ROWS_IN_FULL = 200_000, 2_000_000


def _peak_mib(pid: int) -> float:
    """The kernel's own record of the most memory that the process ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (peak,) = [line for line in lines if line.startswith("VmHWM:")]
    return int(peak.split()[1]) / 1024


def test_capture_stays_small(pipeline: PipelineFactory, postgres: Database, lake: Lake, full: bool) -> None:
    rows = ROWS_IN_FULL if full else ROWS
    postgres.execute(
        "create table huge (id bigint primary key, a text, b text, amount numeric(12,2), at timestamptz)",
        "create table small (id int primary key, note text)",
    )
    file = pipeline(log={"segment_bytes": "16MiB"})
    with running(file) as run:
        capture = run.capture()
        postgres.execute("insert into small values (1, 'before')")
        with postgres.connect() as connection, connection.transaction():
            connection.execute(
                "insert into huge select g, md5(g::text), repeat(md5(g::text), 3), g / 100.0, "
                "timestamptz '2020-01-01' + g * interval '1 second' from generate_series(1, %s) g",
                (rows,),
            )
            connection.execute("update huge set amount = amount + 1 where id %% 10 = 0", ())
            connection.execute("delete from huge where id %% 7 = 0", ())
            connection.execute("insert into small values (2, 'inside')")
        postgres.execute("insert into small values (3, 'after')")
        run.drain(seconds=600)
        assert run.capture().pid == capture.pid, "capture did not live through it"
        peak = _peak_mib(capture.pid)
        assert peak < LIMIT_MIB, f"capture's peak was {peak:.0f} MiB"
        lake.assert_equals(postgres, ["public.huge", "public.small"])
    print(f"capture's peak memory for {rows:,} rows: {peak:.0f} MiB")  # noqa: T201


@pytest.mark.full  # in CI without Spark: tests/unit/test_apply_key_split.py
def test_killed_while_it_is_shared_out(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    """And again when it is written. Its rows are large and few: it takes the bytes, not the time, of a huge one."""
    size = 100_000
    rows = MOST_HELD_BYTES // size + 200
    postgres.execute("create table wide (id bigint primary key, n int, body text)")
    file = pipeline()
    scratch = file.log / "scratch"
    with running(file) as run:
        run.drain()  # it is copied, and part of the batches
        file.arm("share.written")
        with postgres.connect() as connection, connection.transaction():
            connection.execute(
                "insert into wide select g, 0, repeat(md5(g::text), %s) from generate_series(1, %s) g",
                (size // 32, rows),
            )
            connection.execute("update wide set n = 1 where id %% 10 = 0", ())
            connection.execute("delete from wide where id %% 7 = 0", ())
        run.await_killed()
    left = [path for path in scratch.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in left) > MOST_HELD_BYTES
    file.arm("apply.files_written")
    with running(file) as run:
        run.await_killed()
    assert not list(scratch.iterdir())
    with running(file) as run:
        run.drain(seconds=600)
        assert not list(scratch.iterdir())
        found = lake.sql("select id, n, md5(body) from lake.public.wide order by id")
        with postgres.connect() as connection:
            wanted = connection.execute("select id, n, md5(body) from wide order by id").fetchall()
        assert [tuple(row) for row in found] == wanted

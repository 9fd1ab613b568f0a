"""One transaction far larger than memory should hold: capture stays small, and the table equals its source."""

from __future__ import annotations

from pathlib import Path

from databases import Database
from lake import Lake
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

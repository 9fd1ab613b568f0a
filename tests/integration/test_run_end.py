"""`penstock run` with an end of its own: what the destinations have when it has ended, and how the next run goes on."""

from __future__ import annotations

from pathlib import Path

import duckdb

from databases import Database
from penstock.model.position import position_text
from running import PipelineFile, make_pipeline


def rows(pipeline: PipelineFile, name: str) -> list[int]:
    with duckdb.connect(str(pipeline.folder / f"{name}.duckdb"), read_only=True) as database:
        return [row[0] for row in database.sql("select id from public.people order by id").fetchall()]


def test_every_way_to_end_a_run_stops_both_destinations_at_the_same_transaction(
    postgres: Database, tmp_path: Path
) -> None:
    postgres.execute("create table people (id int primary key)", "insert into people values (1), (2)")
    names = ("first", "second")
    pipeline = make_pipeline(
        tmp_path,
        postgres,
        destinations=[{"name": name, "type": "duckdb", "path": str(tmp_path / f"{name}.duckdb")} for name in names],
    )

    def run(*options: str) -> str:
        done = pipeline.command("run", "FILE", *options)
        assert done.returncode == 0, done.stderr[-4000:]
        found = {name: rows(pipeline, name) for name in names}
        assert found["first"] == found["second"]
        held[:] = found["first"]
        return done.stderr

    held: list[int] = []
    run("--snapshot-only")
    assert held == [1, 2]

    postgres.execute("insert into people values (10), (11)")
    position = postgres.flush_position()
    postgres.execute("insert into people values (20), (21), (22)", "insert into people values (30)")
    run("--until", position_text(position))
    assert held == [1, 2, 10, 11]
    run("--max-changes", "1")
    assert held == [1, 2, 10, 11, 20, 21, 22], "the whole transaction, and no other"
    postgres.execute("delete from people where id > 20", "insert into people values (40)")
    assert "no change for a while, the run ends" in run("--idle", "2s")
    assert held == [1, 2, 10, 11, 20, 40]

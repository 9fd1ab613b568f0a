"""`state: memory`: a run that works as any other, and leaves no state behind."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import python_destinations
from databases import Database
from running import make_pipeline


def test_a_run_with_its_state_in_memory_leaves_none_behind(postgres: Database, tmp_path: Path) -> None:
    shutil.copy(python_destinations.__file__, tmp_path / "mine.py")
    kept = tmp_path / "ledger.db"
    mine = {"name": "lake", "type": "python", "class": "mine:Ledger", "config": {"path": str(kept)}}
    file = make_pipeline(tmp_path, postgres, state="memory", destinations=[mine | {"snapshot": True}])
    postgres.execute("create table t (id int primary key)", "insert into t select generate_series(1, 20)")
    file.run_once()
    with sqlite3.connect(kept) as connection:
        assert connection.execute("select count(*) from events").fetchall() == [(20,)]
    again = file.command("run", "FILE", "--once")
    assert again.returncode == 1
    assert "events may be missing" in again.stderr, "of a stream that goes on, nobody knows what was left out"
    assert not list(tmp_path.rglob("state.db*"))
    refused = file.command("pause", "FILE")
    assert refused.returncode == 2
    assert "in its run's memory" in refused.stderr
    standby = file.command("run", "FILE", "--standby")
    assert standby.returncode == 2
    assert "--standby needs the pipeline's state in Postgres" in standby.stderr

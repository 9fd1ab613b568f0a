"""`penstock state export`, `import` and `reset`: what goes to another store, what does not, and what is refused."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import select

from penstock.cli import main as cli
from penstock.config.load import load
from penstock.model.table_state import State
from penstock.state.lock import PipelineLock
from penstock.state.sql import SqlStateStore, find_store, open_store
from penstock.state.sql_tables import METADATA, STORE_FORMAT
from pipeline_files import pipeline_file
from server_bench import BAD, ITEMS, ORDERS, fill

OWN_TABLES = [table for table in METADATA.sorted_tables if table is not STORE_FORMAT]


def rows_of(store: SqlStateStore) -> dict[str, list[Any]]:
    with store.transaction() as connection:
        return {table.name: [tuple(row) for row in connection.execute(select(table))] for table in OWN_TABLES}


def moved(folder: Path, file: Path, place: str) -> Path:
    """The pipeline file, with its state elsewhere."""
    document = yaml.safe_load(file.read_text()) | {"state": place}
    elsewhere = folder / "elsewhere.yaml"
    elsewhere.write_text(yaml.safe_dump(document))
    return elsewhere


def test_a_state_goes_to_another_store_without_copies_under_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, output = pipeline_file(tmp_path), tmp_path / "state.json"
    assert cli.main(["state", "export", str(file)]) == 2, "there is none yet"
    store = open_store(load(file).state_url)
    fill(store)
    store.add_request("lake", ORDERS, "resync")
    store.set_pause("lake", ORDERS)
    before = rows_of(store)
    store.close()
    assert cli.main(["state", "export", str(file), "--output", str(output)]) == 0
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    elsewhere = moved(tmp_path, file, "other.db")
    assert cli.main(["state", "import", str(elsewhere), str(output)]) == 0
    other = find_store(load(elsewhere).state_url)
    assert other is not None
    after = rows_of(other)
    assert other.table_status("lake")[ORDERS].state is State.READY
    assert other.table_status("lake")[BAD].reason == "a value does not fit"
    assert other.table_status("lake")[ITEMS].state is State.INIT, "its copy begins again"
    other.close()
    same = {"penstock_table_progress", "penstock_processed", "penstock_events", "penstock_schema", "penstock_request"}
    same |= {"penstock_dead_letter", "penstock_pause"}
    assert all(after[name] == before[name] and before[name] for name in same)
    assert [name for name in ("penstock_copy", "penstock_copy_range", "penstock_health") if after[name]] == []
    assert cli.main(["state", "import", str(elsewhere), str(output)]) == 2
    assert "has a state already" in capsys.readouterr().err
    assert cli.main(["state", "import", str(elsewhere), str(output), "--yes"]) == 0


def test_what_is_no_state_of_the_pipeline_is_refused_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = pipeline_file(tmp_path)
    store = open_store(load(file).state_url)
    fill(store)
    before = rows_of(store)
    assert cli.main(["state", "export", str(file)]) == 0
    exported = json.loads(capsys.readouterr().out)
    status = exported["tables"]["penstock_table_status"]
    wrong: list[Any] = [
        [],
        {},
        {**exported, "pipeline": "another"},
        {**exported, "format": 1},
        {**exported, "tables": {"penstock_unknown": []}},
        {**exported, "tables": {"penstock_table_status": [{"source": ""}]}},
        {**exported, "tables": {"penstock_table_status": [{**status[0], "since": "yesterday"}]}},
        {**exported, "tables": {"penstock_table_status": [status[0], status[0]]}},
    ]
    for document in wrong:
        (tmp_path / "wrong.json").write_text(json.dumps(document))
        assert cli.main(["state", "import", str(file), str(tmp_path / "wrong.json"), "--yes"]) != 0, document
        assert "Traceback" not in capsys.readouterr().err
    (tmp_path / "wrong.json").write_text("{no json")
    assert cli.main(["state", "import", str(file), str(tmp_path / "wrong.json")]) == 2
    assert rows_of(store) == before
    with PipelineLock(load(file).home / "lock"):
        for command in (["export", str(file)], ["reset", str(file), "--yes"]):
            assert cli.main(["state", *command]) == 1, "a run is up"
    assert cli.main(["state", "reset", str(file)]) == 2
    assert "3 tables are copied again" in capsys.readouterr().err
    assert rows_of(store) == before
    assert cli.main(["state", "reset", str(file), "--yes"]) == 0
    assert not any(rows_of(store).values())
    store.close()


def test_bytes_survive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = pipeline_file(tmp_path)
    store = open_store(load(file).state_url)
    fill(store)
    letters = [one.letter for one in store.letters("lake")]
    store.close()
    assert cli.main(["state", "export", str(file)]) == 0
    (tmp_path / "state.json").write_text(capsys.readouterr().out)
    assert cli.main(["state", "import", str(file), str(tmp_path / "state.json"), "--yes"]) == 0
    again = open_store(load(file).state_url)
    assert [one.letter for one in again.letters("lake")] == letters
    again.close()

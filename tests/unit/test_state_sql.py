"""What only the SQL store does: files, formats, readers beside a writer, errors."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.errors import ConfigError, StateError
from penstock.model.table import TableId
from penstock.model.table_state import State, TableStatus
from penstock.state.sql import find_store, open_store

ORDERS = TableId("public", "orders")
READY = TableStatus(State.READY, datetime(2026, 1, 1, tzinfo=UTC))


def test_state_outlives_the_process_that_wrote_it(tmp_path: Path) -> None:
    store = open_store(tmp_path / "state.db")
    store.set_table_status("lake", ORDERS, READY)
    store.close()
    again = open_store(tmp_path / "state.db")
    assert again.table_status("lake") == {ORDERS: READY}
    again.close()


def test_a_reader_sees_what_a_writer_commits_while_it_writes(tmp_path: Path) -> None:
    writer = open_store(tmp_path / "state.db")
    reader = find_store(tmp_path / "state.db")
    assert reader is not None
    writer.set_processed("lake", 1)
    assert reader.processed("lake") == 1
    with writer._engine.begin() as connection:
        connection.exec_driver_sql("update penstock_processed set position = '0000000000000002'")
        assert reader.processed("lake") == 1
    assert reader.processed("lake") == 2
    reader.close()
    writer.close()


def test_looking_for_a_store_creates_nothing(tmp_path: Path) -> None:
    assert find_store(tmp_path / "state.db") is None
    assert list(tmp_path.iterdir()) == []


def test_a_database_without_our_tables_is_no_store(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "state.db").close()
    (tmp_path / "state.db").touch()
    assert find_store(tmp_path / "state.db") is None


def test_another_format_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path / "state.db")
    with store._engine.begin() as connection:
        connection.exec_driver_sql("update penstock_format set version = 99")
    store.close()
    with pytest.raises(StateError, match=r"format 99; this penstock knows format 1"):
        open_store(tmp_path / "state.db")


def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"this is not a database" * 100)
    with pytest.raises(StateError, match=r"not a database.*move it away"):
        open_store(tmp_path / "state.db")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match=rf"{tmp_path}/file"):
        open_store(tmp_path / "file" / "state.db")


def test_an_unreachable_database_is_named_without_its_password() -> None:
    with pytest.raises(StateError) as caught:
        open_store("postgresql://app:hunter2@127.0.0.1:1/state")
    assert "127.0.0.1:1/state" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_an_unknown_url_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="state:"):
        open_store("carrier-pigeon://coop")

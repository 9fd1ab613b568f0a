"""What only the SQL store does: files, formats, readers beside a writer, errors."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.errors import ConfigError, StateError
from penstock.model.table import TableId
from penstock.model.table_state import State, TableStatus
from penstock.state.sql import SqlStateStore, find_store, open_store
from penstock.state.sql_tables import COPIES, COPY_NOTES, COPY_RANGES, REQUESTS

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
    with pytest.raises(StateError, match=r"format 99; this penstock reads and writes format 3"):
        open_store(tmp_path / "state.db")


@pytest.mark.parametrize("look", [open_store, find_store])
def test_a_store_of_format_1_is_refused_with_the_way_out(
    tmp_path: Path, look: Callable[[Path], SqlStateStore | None]
) -> None:
    with sqlite3.connect(tmp_path / "state.db") as connection:
        connection.execute("create table penstock_format (version integer primary key)")
        connection.execute("insert into penstock_format values (1)")
    connection.close()
    with pytest.raises(StateError, match=r"format 1; this penstock reads and writes format 3") as caught:
        look(tmp_path / "state.db")
    assert "move the store away" in caught.value.solution
    assert "\n" not in str(caught.value)


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


def without_later_tables(path: Path) -> None:
    """A store as the penstock before the initial copy left it."""
    store = open_store(path)
    store.set_table_status("lake", ORDERS, READY)
    with store._engine.begin() as connection:
        for later in (COPIES, COPY_RANGES, COPY_NOTES, REQUESTS):
            later.drop(connection)
    store.close()


@pytest.mark.parametrize("look", [open_store, find_store])
def test_a_store_of_an_earlier_penstock_is_upgraded_in_place(
    tmp_path: Path, look: Callable[[Path], SqlStateStore | None]
) -> None:
    without_later_tables(tmp_path / "state.db")
    store = look(tmp_path / "state.db")
    assert store is not None
    assert store.table_status("lake") == {ORDERS: READY}
    assert store.copy_progress("lake") == {}
    store.begin_copy("lake", ORDERS, "c", "f", [("range", 1)])
    assert store.copy_of("lake", ORDERS) is not None
    store.add_request("lake", ORDERS, "resync")
    assert len(store.requests()) == 1
    store.close()


def test_a_store_of_another_format_is_not_touched(tmp_path: Path) -> None:
    without_later_tables(tmp_path / "state.db")
    with sqlite3.connect(tmp_path / "state.db") as connection:
        connection.execute("update penstock_format set version = 99")
    connection.close()
    for look in (open_store, find_store):
        with pytest.raises(StateError, match="format 99"):
            look(tmp_path / "state.db")
    connection = sqlite3.connect(tmp_path / "state.db")
    names = {name for (name,) in connection.execute("select name from sqlite_master")}
    connection.close()
    assert REQUESTS.name not in names


ASKS = """
import sys
from pathlib import Path
from penstock.model.table import TableId
from penstock.state.sql import open_store
store = open_store(Path(sys.argv[1]))
for number in range(25):
    store.add_request("lake", TableId(sys.argv[2], str(number)), "resync")
store.close()
"""


def test_other_processes_may_ask_while_one_writes(tmp_path: Path) -> None:
    """All of them open it at once, too: whoever comes first makes the tables."""
    path = tmp_path / "state.db"
    asking = [
        subprocess.Popen([sys.executable, "-c", ASKS, str(path), who], stderr=subprocess.PIPE, text=True)
        for who in ("a", "b", "c")
    ]
    store = open_store(path)
    written = 0
    while any(process.poll() is None for process in asking):
        store.set_table_status("lake", ORDERS, READY)
        store.set_processed("lake", written)
        written += 1
    errors = [process.communicate()[1] for process in asking]
    assert errors == ["", "", ""]
    requests = store.requests()
    for who in ("a", "b", "c"):
        assert [one.table.name for one in requests if one.table.schema == who] == [str(n) for n in range(25)]
    assert len({one.id for one in requests}) == 75
    store.close()

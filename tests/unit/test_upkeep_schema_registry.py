"""The schema registry kept from the log, rebuilt from it, and shown to people."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from penstock.changelog.log import ChangeLog
from penstock.changelog.writer import SegmentWriter
from penstock.config.load import load
from penstock.control.schemas.versions import look, parsed
from penstock.control.schemas.view import as_json, as_text
from penstock.decode.choices import chosen
from penstock.errors import UsageError
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.model.type_map import WIDEST
from penstock.runtime.upkeep.schema_registry import SchemaRegistry
from penstock.state.memory import MemoryStateStore
from penstock.state.sql import open_store
from raw_rows import raw_slice

ORDERS = TableSchema(
    TableId("public", "orders"), 5, (Column("id", ColumnType(20, "int8"), False, 1),), ("id",), storage=1, stamp=1
)
WIDER = replace(ORDERS, columns=(*ORDERS.columns, Column("note", ColumnType(25, "text"), True, 2)), stamp=2)
RENAMED = replace(WIDER, columns=(ORDERS.columns[0], replace(WIDER.columns[1], name="text")), stamp=3, guessed=True)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ChangeLog]:
    """Three versions, two of them in one segment."""
    log = ChangeLog(str(tmp_path / "log"))
    with SegmentWriter(log) as writer:
        writer.begin(100, "1")
        writer.append(200, [raw_slice(ORDERS, [110, 120]), raw_slice(WIDER, [130])])
        writer.append(300, [raw_slice(WIDER, [210]), raw_slice(RENAMED, [210, 220])])
        yield log


def positions(state: MemoryStateStore) -> list[tuple[int, str]]:
    return [(one.position, one.schema.columns[-1].name) for one in state.schema_versions()]


def test_versions_come_from_the_log_each_once(log: ChangeLog) -> None:
    state = MemoryStateStore()
    registry = SchemaRegistry(log, state)
    registry.look()
    registry.look()
    SchemaRegistry(log, state).look()  # another start
    assert positions(state) == [(110, "id"), (130, "note"), (210, "text")]


def test_a_lost_registry_is_rebuilt_from_the_log(log: ChangeLog) -> None:
    state = MemoryStateStore()
    SchemaRegistry(log, state).look()
    again = MemoryStateStore()
    SchemaRegistry(log, again).look()
    assert positions(again) == positions(state)


def test_a_copied_table_is_known_before_it_ever_changes(log: ChangeLog) -> None:
    state = MemoryStateStore()
    registry = SchemaRegistry(log, state)
    registry.held(ORDERS, 105)
    registry.look()
    registry.held(WIDER, 140)  # older than what the log has told
    assert positions(state) == [(105, "id"), (130, "note"), (210, "text")]


def test_what_a_user_chose_is_no_version_of_the_source(log: ChangeLog) -> None:
    state = MemoryStateStore()
    registry = SchemaRegistry(log, state)
    registry.held(chosen(ORDERS, (("id", "text"),), WIDEST), 105)
    registry.look()
    registry.held(chosen(RENAMED, (("pg:text", "text"),), WIDEST), 220)
    assert positions(state) == [(105, "id"), (130, "note"), (210, "text")]
    assert [one.schema.columns[0].type for one in state.schema_versions()] == [ColumnType(20, "int8")] * 3


def test_people_see_what_changed_and_what_held_where(log: ChangeLog, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "{version: 1, name: shop, source: {type: postgres, url: 'postgresql://h/d'}, tables: [{match: public.*}], "
        "destinations: [{type: iceberg, warehouse: ./warehouse}], state: ./state.db}"
    )
    pipeline = load(file)
    assert look(pipeline).versions == []
    store = open_store(tmp_path / "state.db")
    SchemaRegistry(log, store).look()
    store.close()
    found = as_json(look(pipeline))["versions"]
    assert [one["changes"] for one in found] == [None, ["column note added (text)"], ["column note renamed to text"]]
    assert [one["guessed"] for one in found] == [False, False, True]
    assert found[1]["fingerprint"] == WIDER.structure
    held = as_json(look(pipeline, "public.orders", at="0/D1"))["versions"]
    assert [(one["version"], one["position"]) for one in held] == [(2, "0/82")]
    console = Console(width=10_000, record=True, file=io.StringIO())
    console.print(as_text(look(pipeline, "public.orders"), with_columns=True))
    text = console.export_text()
    assert "column note renamed to text (guessed)" in text
    assert "public.orders version 3" in text
    assert max(map(len, text.splitlines())) < 300, "as wide as it needs, where the output is no terminal"
    with pytest.raises(UsageError, match=r"no table public\.order\."):
        look(pipeline, "public.order")


def test_positions_are_read_as_postgres_and_penstock_write_them() -> None:
    assert parsed("1/A") == (1 << 32) + 10
    assert parsed(f"{255:016x}") == 255
    with pytest.raises(UsageError, match="no position"):
        parsed("yesterday")

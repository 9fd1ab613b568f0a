"""`verify` of several sources, without Spark: whose tables are compared, which rows of them, and what one in trouble
does to the others."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import types as spark_types

from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.control.verify.pin_client import Asking, pin_tables
from penstock.control.verify.sides import LakeColumn, LakeSide, widened
from penstock.control.verify.verification import Beside, Verified, Verifying, shares_of, verify, verify_each
from penstock.errors import NoAnswer, SourceUnreachable, UsageError
from penstock.model.feed import Sid
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.model.table_state import State, TableStatus
from penstock.source.factory import source_of
from penstock.source.postgres.comparison import SourceSide
from penstock.state.memory import MemoryStateStore
from penstock.state.sql import SqlStateStore, open_store
from penstock.state.store import Health

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
MEASURES = TableSchema(
    TableId("public", "measures"),
    1,
    (
        Column("id", ColumnType(23, "int4")),
        Column("r", ColumnType(700, "float4")),
        Column("s", ColumnType(700, "float4")),
    ),
    ("id",),
)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """Two sources that nobody can reach, with a shared table, tables of their own, and one that keeps a history."""
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "version: 1\nname: crm\nsources:\n"
        "  - {name: eu, type: postgres, url: postgresql://app@127.0.0.1:1/eu}\n"
        "  - {name: us, type: postgres, url: postgresql://app@127.0.0.1:1/us, sid: america}\n"
        "tables:\n"
        "  - {match: public.orders, target: all.orders}\n"
        "  - {match: public.past, mode: history}\n"
        '  - {match: public.own, target: "{source}.own"}\n'
        "destinations: [{type: iceberg, warehouse: ./warehouse}]\n"
    )
    return load(file)


@pytest.fixture
def store(pipeline: Pipeline) -> Any:
    store = open_store(pipeline.state_url)
    for name in ("eu", "us"):
        for table in ("orders", "own", "past"):
            status = TableStatus(State.READY, NOON)
            store.of_source(name).set_table_status("lake", TableId("public", table), status)
    yield store
    store.close()


def wish(*names: str, told: list[str] | None = None) -> Verifying:
    return Verifying(names, repair=False, timeout=5, shown=20, tell=([] if told is None else told).append)


def chosen(pipeline: Pipeline, store: SqlStateStore, *names: str) -> dict[str, list[str]]:
    shares = shares_of(pipeline, store, wish(*names))
    return {share.source_view.source.name: [str(feed.name) for feed in share.feeds] for share in shares}


def test_without_names_every_source_is_compared_and_what_is_left_out_is_told(
    pipeline: Pipeline, store: SqlStateStore
) -> None:
    told = list[str]()
    eu, us = shares_of(pipeline, store, wish(told=told))
    assert [str(feed.name) for feed in eu.feeds] == ["public.orders", "public.own"]
    assert [feed.sid for feed in us.feeds] == [Sid("sid", "america", "crm"), None]
    assert str(us.named(TableId("public", "orders"))) == "us:public.orders"
    assert [line.partition(",")[0] for line in told] == ["left out: eu:public.past", "left out: us:public.past"]


def test_a_table_or_all_of_a_source_can_be_named(pipeline: Pipeline, store: SqlStateStore) -> None:
    assert chosen(pipeline, store, "us:public.own") == {"us": ["public.own"]}
    assert chosen(pipeline, store, "us:") == {"us": ["public.orders", "public.own"]}
    assert chosen(pipeline, store, "us:public.own", "us:", "eu:public.orders") == {
        "eu": ["public.orders"],
        "us": ["public.own", "public.orders"],
    }


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("asia:", "has no source asia"),
        ("public.orders", "has no table public.orders"),
        ("us:public.past", "us:public.past is in mode history"),
    ],
)
def test_other_names_are_refused(pipeline: Pipeline, store: SqlStateStore, name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        chosen(pipeline, store, "us:", name)


def test_a_source_that_cannot_be_reached_is_told_for_its_tables_and_ends_nothing(
    pipeline: Pipeline, store: SqlStateStore
) -> None:
    told = list[str]()
    asked = wish(told=told)
    beside = Beside(store, lambda: True)
    found = verify_each(shares_of(pipeline, store, asked), asked, beside, cast(Any, None))
    assert [str(one.table) for one in found] == [f"{s}:public.{t}" for s in ("eu", "us") for t in ("orders", "own")]
    assert all(isinstance(one.error, SourceUnreachable) and not one.equal for one in found)
    assert [line for line in told if line.startswith("source ")] == [
        f"source {name} is left: {error.what}"
        for name, error in zip(("eu", "us"), (_error(found[0]), _error(found[2])), strict=True)
    ]
    assert store.pins() == [], "nothing was asked of the run"


def test_the_only_source_is_raised_as_ever(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "version: 1\nname: shop\nsource: {type: postgres, url: postgresql://app@127.0.0.1:1/eu, sid: 7}\n"
        "tables: [{match: public.orders}]\ndestinations: [{type: iceberg, warehouse: ./warehouse}]\n"
    )
    pipeline = load(file)
    with pytest.raises(UsageError, match="has not run yet"):
        verify(pipeline, wish(), cast(Any, None))
    store = open_store(pipeline.state_url)
    store.set_table_status("lake", TableId("public", "orders"), TableStatus(State.READY, NOON))
    (share,) = shares_of(pipeline, store, wish())
    assert [feed.sid for feed in share.feeds] == [Sid("sid", 7, "shop")]
    with pytest.raises(SourceUnreachable):
        verify_each([share], wish(), Beside(store, lambda: True), cast(Any, None))
    store.close()


def test_a_source_that_the_run_has_given_up_is_not_waited_for(pipeline: Pipeline) -> None:
    store = MemoryStateStore()
    eu, us = pipeline.source_views
    store.of_source("eu").set_health("source", Health("failed", NOON, "the slot is gone", "Start anew"))
    beside = Beside(store, lambda: True)
    failure = beside.failure(eu)
    assert isinstance(failure, NoAnswer)
    assert failure.what.endswith("source eu up: the slot is gone")
    assert beside.failure(us) is None
    assert replace(beside, since=NOON + timedelta(1)).failure(eu) is None, "that was a run before"

    asking = Asking(
        beside.of(eu), "lake", source_of(eu.source), 60, 60, lambda _: None, beside.is_up, lambda: beside.failure(eu)
    )
    with pytest.raises(NoAnswer, match="the slot is gone"), pin_tables(asking, [TableId("public", "orders")]):
        pass
    assert store.pins() == [], "it asks for nothing any more"


@pytest.mark.parametrize(
    ("sid", "said"),
    [
        (None, "FROM lake.all.t VERSION AS OF 5"),
        (Sid("sid", "o'eu", "crm"), "FROM lake.all.t VERSION AS OF 5 WHERE `sid` = 'o\\'eu'"),
        (Sid("of `x`", -7, "crm"), "FROM lake.all.t VERSION AS OF 5 WHERE `of ``x``` = -7"),
    ],
)
def test_the_lake_is_asked_for_the_sources_own_rows(sid: Sid | None, said: str) -> None:
    assert LakeSide(cast(Any, None), MEASURES, "lake.all.t VERSION AS OF 5", {}, rescued=False, sid=sid).tail == said


def test_a_number_that_is_wider_in_the_lake_is_compared_at_that_width() -> None:
    columns = {
        "id": LakeColumn("id", spark_types.LongType()),
        "r": LakeColumn("r", spark_types.DoubleType()),
        "s": LakeColumn("s", spark_types.FloatType()),
    }
    lake = LakeSide(cast(Any, None), MEASURES, "t", columns, rescued=False)
    source = widened(SourceSide(cast(Any, None), MEASURES, None, only=False), lake)
    assert [column.type.name for column in source.schema.columns] == ["int4", "float8", "float4"]


def _error(one: Verified) -> SourceUnreachable:
    assert isinstance(one.error, SourceUnreachable)
    return one.error

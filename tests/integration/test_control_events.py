"""An events table as lines of JSON: in order whatever lies how in its files, a part of it at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lake import Lake
from penstock.control.query import events
from penstock.control.query.arrow_stream import arrow_batches
from penstock.errors import UsageError
from penstock.model.feed import Feed, Mode, Sid
from penstock.model.table import TableId

ORDERS = TableId("public", "orders")
ROWS = 1000


@pytest.fixture
def orders(lake: Lake, tmp_path: Path) -> Lake:
    """Two sources' events, three to a transaction, in files that are in no order."""
    (tmp_path / "warehouse").mkdir()
    lake.sql("create namespace lake.public")
    lake.sql(
        "create table lake.public.orders (sid string, op string, schema string, `table` string, table_id bigint,"
        " commit_position bigint, ordinal bigint, change_position bigint, commit_time timestamp, transaction bigint,"
        " schema_version string, before struct<id: bigint>, before_kind string, after struct<id: bigint, day: date,"
        " tags: map<string, decimal(30, 2)>>, unchanged array<string>, truncate_options array<string>) using iceberg"
    )
    for sid, part in (("eu", 0), ("us", 0), ("eu", 1)):
        lake.sql(
            f"insert into lake.public.orders select '{sid}', 'insert', 'public', 'orders', 7, id div 3, id % 3, 255,"
            " timestamp_micros(id), 9, 'abc', null, null,"
            " named_struct('id', id, 'day', date_from_unix_date(3000000), 'tags',"
            f" map('sum', cast(id as decimal(30, 2)))), null, null from range({ROWS}) where id % 2 = {part}"
            " order by hash(id)"
        )
    return lake


def printed(lake: Lake, sid: str, **options: Any) -> list[dict[str, Any]]:
    feed = Feed(ORDERS, ORDERS, ORDERS, Mode.EVENTS, Sid("sid", sid, "shop"))
    return [json.loads(line) for line in events.lines(lake.spark, lake.readable, feed, **options)]


def test_in_order_and_a_part_at_a_time(orders: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "ROWS_AT_A_TIME", 100)
    monkeypatch.setattr(events, "FEW", 10)
    found = printed(orders, "eu")
    assert [event["after"]["id"] for event in found] == list(range(ROWS))
    assert found[5] == {
        "sid": "eu",
        "op": "insert",
        "schema": "public",
        "table": "orders",
        "table_id": 7,
        "place": f"{1:016x}/{2:016x}",
        "change_position": f"{255:016x}",
        "transaction": 9,
        "commit_time": "1970-01-01T00:00:00.000005Z",
        "schema_version": "abc",
        "before": None,
        "after": {"id": 5, "day": "10183-09-21", "tags": {"sum": "5.00"}},
    }
    assert [event["after"]["id"] for event in printed(orders, "us")] == list(range(0, ROWS, 2))
    for limit in (10, 400):  # chosen in one pass, and sorted
        after = events.parse_place(found[99]["place"])
        assert printed(orders, "eu", after=after, limit=limit) == found[100 : 100 + limit]
    frame = orders.spark.table("lake.public.orders").repartition(7)
    assert [batch.num_rows <= 50 for batch in arrow_batches(frame, 50)].count(True) >= 30
    missing = Feed(ORDERS, ORDERS, TableId("public", "nowhere"), Mode.EVENTS)
    with pytest.raises(UsageError, match=r"public\.nowhere is not at the destination yet"):
        list(events.lines(orders.spark, orders.readable, missing))

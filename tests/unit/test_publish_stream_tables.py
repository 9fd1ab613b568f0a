"""Which tables a stream has: what the catalogue says, and what operators ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from loop_bench import ORDERS, PEOPLE, schema
from penstock.config.load import load
from penstock.errors import NotPublished
from penstock.model.table_state import GONE, State
from penstock.runtime.publish.stream_tables import StreamTables
from penstock.runtime.watch.catalogue import Catalogue
from pgoutput_messages import INT8, insert, numeric
from publish_bench import PublishBench

PRICES = schema("prices", 3, id=INT8, price=numeric(5, 2))
FILE = """
version: 1
name: shop
source: {type: postgres, url: postgresql://app@db/shop}
tables: [{match: public.*, where: id < 100}]
destinations: [{name: stream, type: files, path: ./changes}]
"""


@pytest.fixture
def bench(tmp_path: Path) -> PublishBench:
    return PublishBench(tmp_path / "log")


@pytest.fixture
def tables(tmp_path: Path, bench: PublishBench, monkeypatch: pytest.MonkeyPatch) -> StreamTables:
    monkeypatch.setattr("penstock.runtime.publish.stream_tables.REQUESTS_EVERY", 0.0)
    file = tmp_path / "pipeline.yaml"
    file.write_text(FILE)
    return StreamTables(load(file).strictly(), bench.loop, bench.state)


def states(bench: PublishBench) -> dict[str, State]:
    return {name.name: status.state for name, status in bench.state.table_status("stream").items()}


def look(tables: StreamTables, catalogue: Catalogue) -> None:
    tables.looked(catalogue)
    assert not tables.is_settled
    tables.tend()
    assert tables.is_settled


def test_tables_of_the_catalogue_are_published_as_their_rule_says(bench: PublishBench, tables: StreamTables) -> None:
    look(tables, Catalogue([ORDERS]))
    look(tables, Catalogue([ORDERS, PEOPLE]))
    assert states(bench) == {"orders": State.READY, "people": State.READY}
    bench.seal(200, (ORDERS, 110, insert("1", "a")), (ORDERS, 120, insert("100", "beyond `where`")))
    bench.drain()
    assert bench.ids() == [1]


def test_a_table_that_is_not_captured_is_errored_until_it_is(bench: PublishBench, tables: StreamTables) -> None:
    trouble = NotPublished("table public.orders is not in the publication", "Add it")
    look(tables, Catalogue([ORDERS, PEOPLE]))
    look(tables, Catalogue([ORDERS, PEOPLE], {ORDERS.table: trouble}))
    assert states(bench) == {"orders": State.ERRORED, "people": State.READY}
    bench.seal(200, (PEOPLE, 110, insert("1", "Ann", "x")))
    bench.drain()
    bench.state.add_request("stream", ORDERS.table, "retry")
    tables.tend()
    assert states(bench)["orders"] is State.ERRORED, "trying again does not help while it is not captured"
    look(tables, Catalogue([ORDERS, PEOPLE]))
    assert states(bench)["orders"] is State.READY
    assert "may be missing" in bench.state.events()[-1].message
    bench.seal(300, (ORDERS, 210, insert("2", "b")))
    bench.drain()
    assert (bench.ids(table="people"), bench.ids(table="orders")) == ([1], [2])


def test_a_table_that_is_gone_is_shown_and_holds_nothing_up(bench: PublishBench, tables: StreamTables) -> None:
    look(tables, Catalogue([ORDERS, PEOPLE]))
    look(tables, Catalogue([PEOPLE]))
    assert GONE in bench.state.table_status("stream")[ORDERS.table].reason
    assert tables.followed == 1
    bench.seal(200, (PEOPLE, 110, insert("1", "Ann", "x")))
    bench.drain()
    assert bench.loop.is_level
    look(tables, Catalogue([ORDERS, PEOPLE]))
    assert states(bench)["orders"] is State.READY


def test_what_operators_ask_for(bench: PublishBench, tables: StreamTables) -> None:
    look(tables, Catalogue([PRICES]))
    bench.seal(200, (PRICES, 110, insert("1", "NaN")))
    bench.drain()
    assert states(bench) == {"prices": State.ERRORED}
    bench.state.add_request("stream", PRICES.table, "retry")
    bench.state.add_request("other", PRICES.table, "resync")
    tables.tend()
    bench.drain()
    assert states(bench) == {"prices": State.ERRORED}, "its value still does not fit"
    bench.state.add_request("stream", PRICES.table, "resync")
    tables.tend()
    bench.seal(300, (PRICES, 210, insert("2", "2.00")))
    bench.drain()
    assert states(bench) == {"prices": State.READY}
    assert bench.ids() == [2]
    assert [request.destination for request in bench.state.requests()] == ["other"]

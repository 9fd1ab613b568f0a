"""The live view: rates over the last seconds, the same figures on a terminal and in plain lines."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console

from penstock.control.status.report import LogReport, SourceReport, Status, TableReport
from penstock.demo.live import Rates, line, view, watch
from penstock.model.scoped_name import ScopedName
from penstock.model.table import TableId
from penstock.model.table_state import State

ORDERS, ITEMS = (ScopedName(None, TableId("public", name)) for name in ("orders", "items"))


def report(table: ScopedName, changes: int) -> TableReport:
    return TableReport(
        destination="lake",
        table=table,
        target=table.name,
        state=State.READY,
        since=None,
        position=1,
        lag_bytes=2048,
        lag_seconds=0.5,
        changes=changes,
        rate=0.0,
        newest=None,
    )


def status(orders: int, items: int) -> Status:
    return Status(
        pipeline="shop",
        file="shop.yaml",
        at=datetime.now(UTC),
        pid=1,
        source=SourceReport("db:5432/shop"),
        log=LogReport("log"),
        tables=[report(ITEMS, items), report(ORDERS, orders)],
        destinations=[],
        deliveries=[],
        components={},
        events=[],
        has_run=True,
        problem=None,
    )


def test_rates_are_of_the_last_seconds() -> None:
    rates = Rates()
    assert rates.see(0.0, [report(ORDERS, 1000)])[ORDERS] == 0.0
    assert rates.see(1.0, [report(ORDERS, 1100)])[ORDERS] == pytest.approx(100.0)
    for second in range(2, 12):
        rates.see(float(second), [report(ORDERS, 1100)])
    assert rates.see(12.0, [report(ORDERS, 1100)])[ORDERS] == 0.0


def test_a_table_that_appears_counts_from_nothing() -> None:
    rates = Rates()
    rates.see(0.0, [])
    assert rates.see(2.0, [report(ORDERS, 50)])[ORDERS] == pytest.approx(25.0)


def test_a_line_and_a_view_say_the_same() -> None:
    rate = {ORDERS: 20.0, ITEMS: 10.0}
    assert line(status(1500, 7), rate, "open") == (
        "open: 30/s, lag 0.5 s, 2.0 KiB behind; applied: items 7, orders 1,500"
    )
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(view(status(1500, 7), rate, "open"))
    text = console.export_text()
    assert [row.split() for row in text.splitlines()[2:]] == [
        ["public.items", "Ready", "7", "10/s", "0.5", "s", "2.0", "KiB"],
        ["public.orders", "Ready", "1,500", "20/s", "0.5", "s", "2.0", "KiB"],
        ["all", "1,507", "30/s", "0.5", "s", "2.0", "KiB"],
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_watching_ends_with_the_look_that_is_done(terminal: bool) -> None:
    looks = iter([status(1, 0), status(2, 0), status(3, 0)])
    console = Console(width=100, file=io.StringIO(), force_terminal=terminal)
    last = watch(console, lambda: next(looks), lambda: "open", lambda seen: seen.tables[1].changes == 2, every=0.0)
    assert last.tables[1].changes == 2
    assert next(looks).tables[1].changes == 3

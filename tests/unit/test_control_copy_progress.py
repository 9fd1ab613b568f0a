"""The view of copies: bars on a terminal while something is copied, plain lines elsewhere, honest rates."""

from __future__ import annotations

import io
import re
import sys
import threading

import pytest
from rich.console import Console

from penstock.control.status.copy_progress import CopyView
from penstock.model.scoped_name import ScopedName
from penstock.model.table import TableId
from penstock.runtime.copy.progress_view import CopyFigures

ORDERS, ITEMS = (ScopedName(None, TableId("public", name)) for name in ("orders", "[items]"))
MIB = 1 << 20


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def terminal(file: io.StringIO, width: int = 110) -> Console:
    return Console(file=file, width=width, force_terminal=True, highlight=False)


def shown(view: CopyView, width: int = 110) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(view.bars())
    return console.export_text().splitlines()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def plain(clock: Clock, lines: list[str]) -> CopyView:
    return CopyView(Console(file=io.StringIO()), lines.append, clock)


def test_plain_lines_come_every_few_seconds_for_each_table(plain: CopyView, clock: Clock, lines: list[str]) -> None:
    for second in range(11):
        clock.now = 1000.0 + second
        plain.update("lake", ORDERS, CopyFigures(1000 * second, 20_000, second * MIB, 20 * MIB))
        if second >= 3:
            plain.update("lake", ITEMS, CopyFigures(10, None, 0, 0))
    assert lines == [
        "copying public.orders: 25 %, 5,000 of about 20,000 rows, 1,000 rows/s, 1.0 MiB/s, 15 s left",
        "copying public.[items]: 10 rows, 0 rows/s, 0 B/s",
        "copying public.orders: 50 %, 10,000 of about 20,000 rows, 1,000 rows/s, 1.0 MiB/s, 10 s left",
    ]


def test_a_finished_table_is_said_with_its_figures(plain: CopyView, clock: Clock, lines: list[str]) -> None:
    plain.update("lake", ORDERS, CopyFigures(0, None, 0, 30 * MIB))
    clock.now += 4
    plain.update("lake", ORDERS, CopyFigures(2_000_000, 2_000_000, 30 * MIB, 30 * MIB))
    plain.finish("lake", ORDERS)
    assert lines == ["copied public.orders: 2,000,000 rows, 30 MiB in 4.0 s, 500,000 rows/s"]


def test_an_empty_table_is_finished_without_an_update(plain: CopyView, lines: list[str]) -> None:
    plain.finish("lake", ITEMS)
    assert lines == ["copied public.[items]: 0 rows"]


def test_what_an_earlier_run_copied_counts_for_no_rate(plain: CopyView, clock: Clock, lines: list[str]) -> None:
    plain.update("lake", ORDERS, CopyFigures(1_000_000, 2_000_000, 50 * MIB, 100 * MIB))
    clock.now += 5
    plain.update("lake", ORDERS, CopyFigures(1_100_000, 2_000_000, 55 * MIB, 100 * MIB))
    plain.finish("lake", ORDERS)
    assert lines == [
        "copying public.orders: 55 %, 1,100,000 of about 2,000,000 rows, 20,000 rows/s, 1.0 MiB/s, 45 s left",
        "copied public.orders: 1,100,000 rows, 55 MiB; 100,000 of them in 5.0 s, 20,000 rows/s",
    ]


def test_a_copy_that_begins_again_has_no_negative_rate(plain: CopyView, clock: Clock, lines: list[str]) -> None:
    plain.update("lake", ORDERS, CopyFigures(900, 1000, 9 * MIB, 10 * MIB))
    clock.now += 2
    plain.update("lake", ORDERS, CopyFigures(0, 1000, 0, 10 * MIB))
    clock.now += 4
    plain.update("lake", ORDERS, CopyFigures(400, 1000, 4 * MIB, 10 * MIB))
    assert lines == ["copying public.orders: 40 %, 400 of about 1,000 rows, 100 rows/s, 1.0 MiB/s, 6.0 s left"]


def test_the_rate_falls_while_nothing_comes_and_is_of_the_last_seconds(plain: CopyView, clock: Clock) -> None:
    def rate() -> str:
        (found,) = re.findall(r"rows +(\S+)", shown(plain)[0])
        return str(found)

    for second in range(60):
        clock.now = 1000.0 + second
        plain.update("lake", ORDERS, CopyFigures(100 * min(second, 30), None, second, 100))
    assert rate() == "0/s"
    plain.update("lake", ORDERS, CopyFigures(6000, None, 60, 100))
    assert rate() == "200/s"
    clock.now += 15
    assert rate() == "100/s"


def test_bars_have_a_line_for_each_table_in_any_width(plain: CopyView, clock: Clock) -> None:
    plain.update("lake", ORDERS, CopyFigures(0, None, 0, 100 * MIB))
    plain.update("lake", ITEMS, CopyFigures(7, None, 0, 0))
    clock.now += 2
    plain.update("lake", ORDERS, CopyFigures(123_456, None, 40 * MIB, 100 * MIB))
    orders, items = shown(plain)
    assert orders.split("━")[0].strip() == "public.orders"
    assert re.split(r" {2,}", orders.strip())[-5:] == ["40 %", "123,456 rows", "61,728/s", "20 MiB/s", "3.0 s left"]
    assert items.startswith("public.[items] ")
    assert "7 rows" in items
    assert all(len(line) <= 70 for line in shown(plain, 70))
    assert len(shown(plain, 70)) == 2


def test_bars_are_there_only_while_something_is_copied() -> None:
    out = io.StringIO()
    before = sys.stderr
    with CopyView(terminal(out)) as view:
        assert out.getvalue() == ""
        view.update("lake", ORDERS, CopyFigures(5, 10, 50, 100))
        view.update("lake", ITEMS, CopyFigures(5, 10, 50, 100))
        assert sys.stderr is not before
        sys.stderr.write("a line of the log\n")
        assert "a line of the log" in out.getvalue()
        view.finish("lake", ORDERS)
        assert "copied public.orders: 5 rows" in out.getvalue()
        view.drop("lake", ITEMS)
        assert sys.stderr is before
        assert "copied public.[items]" not in out.getvalue()
        view.update("lake", ITEMS, CopyFigures(5, 10, 50, 100))
        assert sys.stderr is not before
    assert sys.stderr is before
    assert "\x1b[?25h" in out.getvalue()[-20:], "the cursor is there again"


def test_several_threads_may_feed_it_while_bars_are_drawn() -> None:
    out = io.StringIO()
    with CopyView(terminal(out)) as view:

        def copy(number: int) -> None:
            table = ScopedName(None, TableId("public", f"t{number}"))
            for rows in range(200):
                view.update("lake", table, CopyFigures(rows, 200, rows, 200))
            view.finish("lake", table)

        threads = [threading.Thread(target=copy, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)
    for number in range(4):
        assert f"copied public.t{number}: 199 rows" in out.getvalue()


def test_without_a_console_it_prints_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with CopyView() as view:
        view.finish("lake", ORDERS)
    captured = capsys.readouterr()
    assert captured.err == "copied public.orders: 0 rows\n"
    assert captured.out == ""

"""The demo as a user starts it: proves equality, and leaves nothing behind, however it ends."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from databases import Database
from running import PipelineFile, Running

TABLES = ("customers", "order_items", "orders", "payments", "products")


@pytest.fixture(params=["postgres"])
def demo(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    arguments = ("demo", "--seconds", "3", "--source", request.param)
    run = Running(PipelineFile(tmp_path, Database("none", ""), {"name": "none"}), arguments)
    try:
        yield run
    finally:
        run.clean_up()


def assert_nothing_left(demo: Running) -> None:
    demo.assert_nothing_left()
    text = demo.text()
    port = re.search(r"127\.0\.0\.1:(\d+)/(?:postgres|shop)", text)
    folder = re.search(r"the pipeline file, (\S+)/pipeline\.yaml", text)
    assert port is not None, text
    assert folder is not None, text
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(port[1]))) != 0, "its server still listens"
    assert not Path(folder[1]).exists()


@pytest.mark.parametrize("demo", ["postgres", pytest.param("mysql", marks=pytest.mark.full)], indirect=True)
def test_the_demo_proves_that_lake_equals_source(demo: Running) -> None:
    code = demo.process.wait(240)
    text = demo.text()
    assert code == 0, text
    for table in TABLES:
        (row,) = re.findall(
            rf"^ *(?:public|shop)\.{table} +([\d,]+) +([\d,]+) +(\w+) +(\w+) +equal *$", text, re.MULTILINE
        )
        assert row[0] == row[1] != "0"
        assert row[2] == row[3]
    assert "Which countries buy most?" in text
    assert "Lake and source are equal" in text
    assert max(map(len, text.splitlines())) < 200, "lines are padded"
    assert_nothing_left(demo)


def test_ctrl_c_tidies_up(demo: Running) -> None:
    demo.await_text("the shop opens")
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(120) == 130, demo.text()
    assert demo.text().splitlines()[-1] == "penstock: interrupted"
    assert_nothing_left(demo)

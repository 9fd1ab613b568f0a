"""What somebody who means harm sends to the server: odd text, odd sizes, other roles' powers, and what they learn."""

from __future__ import annotations

import gc
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml
from fastapi.testclient import TestClient
from starlette.types import Message, Scope

from penstock.control.check.whole import Checked
from penstock.server import editing
from penstock.server.limits import Slots
from penstock.server.problems import Refused
from penstock.server.routes import rows
from pipeline_files import pipeline_file
from server_bench import ServerBench, server_bench

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerBench]:
    folder = tmp_path_factory.mktemp("server")
    with server_bench(folder, pipeline_file(folder), edit=True, rate=1e6) as made:
        yield made


@pytest.mark.parametrize("cookie", [b'penstock_session="first.1.\xc3\xa9"', rb'penstock_session="first.1.\351"'])
def test_a_cookie_of_any_bytes_is_a_wrong_one(bench: ServerBench, cookie: bytes) -> None:
    assert bench.clients[None].get("/pipelines", headers=[(b"Cookie", cookie)]).status_code == 401


def test_a_page_token_of_any_bytes_is_a_wrong_one(bench: ServerBench) -> None:
    signed = bench.clients[None].post("/signin", data={"token": bench.tokens["operator"]})
    cookie = signed.headers["set-cookie"].partition(";")[0].encode()
    headers: Any = {"Cookie": cookie, "X-Penstock-Page": b"\xe9\xe9"}
    assert bench.clients[None].post("/pipelines/shop/pause", headers=headers).json()["code"] == "PAGE_TOKEN_MISSING"


@pytest.mark.parametrize("host", ["[::1", "127.0.0.1:8080@elsewhere.example", "127.0.0.1.elsewhere.example", ""])
def test_a_host_that_is_none_is_refused_without_tokens(tmp_path: Path, host: str) -> None:
    with server_bench(tmp_path, pipeline_file(tmp_path), no_auth=True) as own:
        assert own.clients[None].get("/pipelines", headers={"Host": host}).json()["code"] == "FOREIGN_HOST"
        for origin in ("http://[", "null", "https://elsewhere.example"):
            headers = {"Host": "127.0.0.1", "Origin": origin}
            assert own.clients[None].post("/pipelines/shop/pause", headers=headers).status_code == 403


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/pipelines/shop/query", b'{"sql": "select \\u0000"}'),
        ("/pipelines/shop/query", b'{"sql": "select \\ud800"}'),
        ("/pipelines/shop/verify", b'{"tables": ["a\\u0000b"]}'),
        ("/pipelines/shop/verify", b'{"tables": ["\\ud800"]}'),
        ("/pipelines/shop/resync", b'{"tables": ["\\ud800"]}'),
        ("/pipelines/shop/resync", b'{"tables": ["a\\u0000b"]}'),
        ("/validate", b'{"a":' * 400 + b"1" + b"}" * 400),
        ("/validate", b'{"a":' * 60_000 + b"1" + b"}" * 60_000),
        ("/validate", b'{"name": "\\ud800\\u0000"}'),
        ("/pipelines", b'{"name": "../shop"}'),
        ("/pipelines", b'{"name": "' + b"x" * 5000 + b'"}'),
    ],
)
def test_odd_text_is_the_clients_mistake(bench: ServerBench, path: str, body: bytes) -> None:
    answer = bench.clients["admin"].post(path, content=body, headers=JSON)
    assert 400 <= answer.status_code < 500, answer.text
    assert set(answer.json()) >= {"code", "message", "solution"}
    assert not [job for job in bench.service.jobs.of("shop") if job.state == "running"], "none is left behind"


def test_a_body_is_read_for_those_who_may_ask_only(bench: ServerBench) -> None:
    """Nobody without a token makes the server hold a megabyte."""
    received, said = 0, []

    async def receive() -> Message:
        nonlocal received
        received += 1
        return {"type": "http.request", "body": b"x" * 1000, "more_body": received < 5000}

    async def send(message: Message) -> None:
        said.append(message.get("status"))

    def asked(*headers: tuple[bytes, bytes]) -> Scope:
        return {"type": "http", "method": "POST", "path": "/validate", "headers": headers, "query_string": b""}

    anyio.run(bench.app, asked(), receive, send)
    assert (said[0], received) == (401, 0)
    anyio.run(bench.app, asked((b"content-length", b"9" * 5000)), receive, send)
    assert (said[2], received) == (413, 0)
    anyio.run(bench.app, asked((b"authorization", f"Bearer {bench.tokens['admin']}".encode())), receive, send)
    assert (said[4], received) == (413, 1049), "for others up to the limit"


def test_wrong_tokens_in_the_form_are_limited_like_others(tmp_path: Path) -> None:
    with server_bench(tmp_path, pipeline_file(tmp_path)) as own:
        tried = [own.clients[None].post("/signin", data={"token": "pst_wrong"}) for _ in range(12)]
        assert [one.status_code for one in tried[:10]] == [401] * 10
        assert tried[-1].status_code == 429
        assert "Wait a few seconds" in tried[-1].text
        assert own.clients[None].post("/signin", data={"token": own.tokens["viewer"]}).status_code == 303


def test_an_operator_learns_nothing_of_the_servers_environment(
    bench: ServerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline file may name variables, classes and hosts: only an admin may have one checked."""
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
    written = yaml.safe_load(bench.service.fleet.get("shop").file.read_text())
    stolen = {**written, "source": {"url": "postgresql://u@${SHOP_PASSWORD}:1/x"}}
    for role in ("viewer", "operator"):
        refused = bench.clients[role].post("/validate", json=stolen)
        assert (refused.status_code, refused.json()["code"]) == (403, "FORBIDDEN")


def test_errors_of_a_document_name_no_file_of_the_server(bench: ServerBench) -> None:
    written = yaml.safe_load(bench.service.fleet.get("shop").file.read_text())
    admin = bench.clients["admin"]
    for answer in (
        admin.post("/validate", json={**written, "nme": 1}),
        admin.patch("/pipelines/shop", json={"nme": 1}),
    ):
        assert answer.json()["message"].startswith("nme is an unknown key")
        assert ".check" not in answer.text


def test_nothing_that_is_shown_may_be_kept_by_a_browser(bench: ServerBench) -> None:
    admin = bench.clients["admin"]
    assert admin.get("/ui").headers["cache-control"] == "no-store"
    assert admin.get("/pipelines").headers["cache-control"] == "no-store"
    assert admin.get("/static/page.js").headers["cache-control"] == "no-cache"
    assert "form-action 'self'" in admin.get("/ui").headers["content-security-policy"]


def test_an_error_is_a_page_for_a_person_and_an_object_for_a_program(bench: ServerBench) -> None:
    shown = bench.clients["viewer"].get("/ui/pipelines/<b>nobody")
    assert (shown.status_code, shown.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "PIPELINE_NOT_FOUND" in shown.text
    assert "There are shop" in shown.text
    assert "<b>nobody" not in shown.text
    assert bench.clients["viewer"].get("/pipelines/nobody").json()["code"] == "PIPELINE_NOT_FOUND"


def test_health_waits_for_nobody(bench: ServerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose threads all wait, or whose pipelines' stores are away, is not restarted for it."""

    def away() -> bool:
        raise AssertionError("asked a state store")

    member = bench.service.fleet.get("shop")
    monkeypatch.setattr(member, "paused", away)
    taken = [bench.service.patient.take() for _ in range(8)]
    assert bench.clients[None].get("/health").status_code == 200
    busy = bench.clients["operator"].get("/pipelines/shop/sources")
    assert (busy.status_code, busy.json()["code"]) == (429, "TOO_MANY_REQUESTS")
    for one in taken:
        one.close()
    assert bench.clients["operator"].get("/pipelines/shop/sources").status_code == 503


def test_a_place_is_given_back_however_it_was_left() -> None:
    places = Slots(1, "clients wait")
    with places.take(), pytest.raises(Refused, match="1 clients wait already"):
        places.take()
    never_read = rows._sent(iter([]), places.take())
    with pytest.raises(Refused):
        places.take()
    del never_read
    gc.collect()
    places.take().close()


def test_a_saved_file_is_whole_private_and_has_a_predecessor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check is of another test: here it finds nothing."""
    monkeypatch.setattr(editing, "check_pipeline", lambda _pipeline: Checked([], []))
    file = pipeline_file(tmp_path)
    file.chmod(0o640)
    before = file.read_text()
    with server_bench(tmp_path, edit=True) as own:
        fleet, admin = own.service.fleet, own.clients["admin"]
        fleet._supervise = True  # as `penstock serve`, whose pipelines are stopped
        fleet._note_wanted("shop", False)
        fleet._note_wanted("second", False)
        other = admin.post("/pipelines", json={**yaml.safe_load(before), "name": "second"})
        assert other.status_code == 201, other.text
        assert stat.S_IMODE((tmp_path / "second.yaml").stat().st_mode) == 0o600, "it may have passwords"
        untouched = fleet.get("second")
        changed = admin.patch("/pipelines/shop", json={"tenant": "acme"})
        assert changed.json()["tenant"] == "acme"
        assert fleet.get("second") is untouched, "an edit of one pipeline touches no other"
        assert yaml.safe_load(file.read_text()) == {**yaml.safe_load(before), "tenant": "acme"}
        assert stat.S_IMODE(file.stat().st_mode) == 0o640
        assert (tmp_path / "shop.yaml.previous").read_text() == before
        assert fleet.get("shop").run.view().status == "stopped"
        assert admin.delete("/pipelines/second").status_code == 204
        assert (tmp_path / "second.yaml.previous").exists()
        fleet.scan()
        assert [member.name for member in fleet.members()] == ["shop"]
        fleet._supervise = False
    assert sorted(one.name for one in tmp_path.iterdir() if one.name.startswith(".")) == []


def test_a_page_of_a_file_that_was_broken_meanwhile_says_so(tmp_path: Path) -> None:
    file = pipeline_file(tmp_path)
    with server_bench(tmp_path, file, edit=True) as own:
        file.write_text("tables: [")
        shown = own.clients["admin"].get("/ui/pipelines/shop/map")
        assert shown.status_code == 422
        assert "cannot be read" in shown.text
        assert own.clients["admin"].patch("/pipelines/shop", json={"tenant": "x"}).json()["code"] == "CONFIG"
        assert own.get("/pipelines/shop")["file_changed"]


def test_a_request_that_fails_tells_a_stranger_nothing(bench: ServerBench) -> None:
    anybody = TestClient(bench.app, raise_server_exceptions=False, follow_redirects=False)
    for path in (
        "/openapi.json",
        "/docs",
        "/metrics",
        "/ui",
        "/pipelines/shop/log",
        "/nowhere",
        "/static/../tokens.py",
    ):
        answer = anybody.get(path)
        assert answer.status_code in (303, 401, 404)
        assert "shop" not in answer.text

"""The server's routes over state stores filled by hand: answers, roles, errors, limits, and no secret anywhere."""

from __future__ import annotations

import json
import re
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli import main as cli
from penstock.config.load import load
from penstock.model.dead_letter import DeadLetter
from penstock.server.limits import RateLimit
from penstock.server.tokens import SESSION_SECONDS, Holder, Role, TokenFile
from penstock.state.sql import open_store
from pipeline_files import pipeline_file
from server_bench import BAD, ORDERS, ServerBench, server_bench

SECRETS = ("hunter2", "salt-of-the-earth", "Bearer of bad news")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerBench]:
    folder = tmp_path_factory.mktemp("server")
    file = pipeline_file(
        folder,
        mask_salt="salt-of-the-earth",
        labels={"team": "sales", "stage": "test"},
        tenant="acme",
        destinations=[
            {"name": "lake", "type": "iceberg", "warehouse": "warehouse", "catalog": {"credential": "hunter2"}},
            {"name": "hook", "type": "http", "url": "https://u:hunter2@h/x", "headers": {"A": "Bearer of bad news"}},
        ],
    )
    with server_bench(folder, file) as made:
        yield made


def operations(bench: ServerBench) -> list[tuple[str, str, dict[str, Any]]]:
    """Every route of the OpenAPI description but the probes: method, path with parameters filled in, description."""
    found = []
    values = {"name": "shop", "table": "public.orders", "db": "public", "number": "1", "job": "none"}
    for path, methods in bench.app.openapi()["paths"].items():
        for method, described in methods.items():
            if path not in ("/health", "/ready"):
                filled = re.sub(r"\{(\w+)\}", lambda one: values[one[1]], path)
                found.append((method.upper(), filled, described))
    assert len(found) > 40
    return found


def test_every_route_asks_for_a_token_and_for_a_role(bench: ServerBench) -> None:
    for method, path, described in operations(bench):
        answer = bench.clients[None].request(method, path, json={})
        assert answer.status_code == 401, (method, path)
        assert answer.json()["code"] == "UNAUTHORIZED"
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        needed = Role(described["x-role"])
        for role in Role:
            if not role.allows(needed):
                refused = bench.clients[role.value].request(method, path, json={})
                assert refused.status_code == 403, (method, path, role)
                assert set(refused.json()) == {"code", "message", "solution"}
        reads = method == "GET"
        assert reads or needed is not Role.VIEWER, f"{method} {path} changes something, and a viewer may"


def test_bad_input_is_refused_in_the_same_shape_everywhere(bench: ServerBench) -> None:
    admin = bench.clients["admin"]
    bodies: list[Any] = [[], "text", {"level": "loud"}, {"up_to_seq": "x"}, {"ids": ["x"]}, {"sql": ""}, {"tables": 5}]
    for method, path, described in operations(bench):
        unknown = path.replace("/shop", "/nobody")
        if unknown != path:
            answer = admin.request(method, unknown, json={"up_to_seq": 1, "sql": "select 1"})
            assert answer.status_code == 404, (method, unknown, answer.text)
            assert answer.json()["code"] == "PIPELINE_NOT_FOUND"
        if "requestBody" in described:
            for body in bodies[:2]:
                answer = admin.request(method, path, json=body)
                assert 400 <= answer.status_code < 500, (method, path, body)
                assert set(answer.json()) == {"code", "message", "solution"}
            assert 400 <= admin.request(method, path, content=b"{no json").status_code < 500
    for body in bodies[2:]:
        paths = {"level": "/log-level", "up_to_seq": "/pipelines/shop/journal/dlq/ack"}
        path = paths.get(next(iter(body)), "/pipelines/shop/query" if "sql" in body else "/pipelines/shop/verify")
        path = "/pipelines/shop/quarantine/replay" if "ids" in body else path
        answer = admin.request("PUT" if path == "/log-level" else "POST", path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_REQUEST"), path
    missing = admin.get("/nowhere")
    assert (missing.status_code, missing.json()["code"]) == (404, "NOT_FOUND")
    assert admin.put("/pipelines").json()["code"] == "METHOD_NOT_ALLOWED"
    assert admin.get("/pipelines?label=:x").json()["code"] == "INVALID_LABEL"
    assert admin.get("/pipelines/shop/schemas/public/none").json()["code"] == "SCHEMA_NOT_FOUND"
    assert admin.get("/pipelines/shop/tables/public.none").json()["code"] == "TABLE_NOT_FOUND"
    assert admin.post("/pipelines/shop/tables/public.none/resync").status_code == 404
    assert admin.post("/pipelines/shop/tables/public.orders/resync?destination=none").status_code == 400
    assert admin.get("/pipelines/shop/events?format=none").status_code == 400


def test_what_is_shown_is_what_the_commands_show(bench: ServerBench, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(bench.service.fleet.get("shop").file)
    for command, path in ((["status", file], "/pipelines/shop/status"), (["tables", file], "/pipelines/shop/tables")):
        assert cli.main([*command, "--json"]) == 0
        said, shown = json.loads(capsys.readouterr().out), bench.get(path)
        by_name = {(one["destination"], one["table"]): one for one in shown["tables"]}
        for table in said["tables"]:
            mine = by_name[table["destination"], table["table"]]
            assert table == {key: mine[key] for key in table}
        assert said["run"] == shown["run"]
    assert cli.main(["dlq", "list", file, "--json"]) == 0
    (letter,) = json.loads(capsys.readouterr().out)["dead_letters"]
    (mine,) = bench.get("/pipelines/shop/journal/dlq")
    assert letter == {key: mine[key] for key in letter}
    assert (mine["seq"], mine["sink_id"], mine["error_kind"]) == (letter["id"], "lake", "refused")
    assert bench.get("/pipelines/shop/journal/dlq/count") == {"count": 1}
    assert bench.get("/pipelines/shop/journal/dlq?error_kind=other") == []
    assert cli.main(["schemas", file, "public.orders", "--json"]) == 0
    for said, shown in zip(
        json.loads(capsys.readouterr().out)["versions"],
        bench.get("/pipelines/shop/schemas/public/orders/versions"),
        strict=True,
    ):
        assert said == {key: shown[key] for key in said}


def test_pipelines_are_shown_with_labels_and_without_secrets(bench: ServerBench) -> None:
    (shop,) = bench.get("/pipelines?label=team:sales&label=stage:test")
    assert bench.get("/pipelines?label=team:sales&label=stage:live") == []
    assert (shop["name"], shop["status"], shop["tenant"]) == ("shop", "stopped", "acme")
    assert shop["spec"]["source"]["url"] == "***"
    assert shop["spec"]["destinations"][0]["catalog"] == {"credential": "***"}
    ops = bench.get("/pipelines/shop")["ops"]
    assert ops["dlq_entries"] == 1
    assert ops["checkpoints"][0] == {"sink_id": "lake", "position": "0/1F4", "age_seconds": None}
    assert bench.get("/pipelines/shop/checkpoints") == ops["checkpoints"]


def test_no_answer_has_a_secret(bench: ServerBench) -> None:
    admin = bench.clients["admin"]
    everything = [admin.get("/openapi.json").text]
    for method, path, _ in operations(bench):
        if method == "GET" and not path.endswith("/events"):
            everything.append(admin.get(path).text)
    everything += [admin.post("/pipelines/shop/wait?timeout=1").text, admin.get("/pipelines/shop/sources").text]
    assert not [secret for secret in SECRETS for text in everything if secret in text]
    assert not [token for token in bench.tokens.values() for text in everything if token in text]


def test_operators_act_through_the_state_store(bench: ServerBench) -> None:
    store = open_store(load(bench.service.fleet.get("shop").file).state_url)
    try:
        asked = bench.post("/pipelines/shop/tables/public.bad/retry")
        assert asked == {"asked": ["public.bad"], "asked_before": [], "in_order": [], "taken_up_by": None}
        assert bench.post("/pipelines/shop/tables/public.orders/retry")["in_order"] == ["public.orders"]
        assert bench.post("/pipelines/shop/resync", {"tables": ["public.o%"]})["asked"] == ["public.orders"]
        assert bench.post("/pipelines/shop/resync", {"all": True})["asked_before"] == ["public.orders"]
        kinds = {(one.kind, one.table) for one in store.requests("lake")}
        assert {("retry", BAD), ("resync", ORDERS)} <= kinds
        assert bench.post("/pipelines/shop/tables/public.orders/drop", role="admin", status=400)
        paused = bench.post("/pipelines/shop/tables/public.orders/pause")
        assert paused["changed"] == ["table public.orders at lake"]
        assert [one["paused"] for one in bench.get("/pipelines/shop/tables/public.orders")["destinations"]] == [False]
        bench.service.fleet.get("shop").observatory.look()  # type: ignore[union-attr]
        assert [one["paused"] for one in bench.get("/pipelines/shop/tables/public.orders")["destinations"]] == [True]
        assert bench.post("/pipelines/shop/pause")["status"] == "stopped"
        assert bench.get("/pipelines/shop/status")["pauses"][0]["what"] == "the pipeline"
        assert [one.destination for one in store.pauses()] == ["", "lake"]
        assert bench.clients["operator"].post("/pipelines/shop/resume").status_code == 200
        assert bench.post("/pipelines/shop/tables/public.orders/resume")["changed"]
        assert store.pauses() == []
        retried = bench.post("/pipelines/shop/journal/dlq/retry", {})
        assert (retried["asked"], retried["rows_of_tables"]) == ([], [1]), "a row of a table comes by a copy"
        of_stream = DeadLetter(
            ORDERS, "0000000000000005/0000000000000001", b"8", b"{}", "refused", "too large", "insert"
        )
        store.keep_letters("hook", [of_stream], most=10)
        assert bench.post("/pipelines/shop/journal/dlq/retry", {})["asked"] == [2]
        assert bench.get("/pipelines/shop/journal/dlq/1", "operator")["value"] == "7b7d"
        assert bench.post("/pipelines/shop/journal/dlq/ack", {"up_to_seq": 0}) == {"acked": 0}
        assert bench.clients["admin"].delete("/pipelines/shop/journal/dlq").json() == {"purged": 2}
        assert bench.get("/pipelines/shop/journal/dlq/count") == {"count": 0}
        assert bench.post("/pipelines/shop/quarantine/replay", {})["decoded"] == []
    finally:
        store.close()


def test_the_log_level_changes_while_it_runs(bench: ServerBench) -> None:
    bench.clients["admin"].put("/log-level", json={"level": "warning"})
    assert bench.get("/log-level") == {"level": "warning"}
    assert bench.clients["admin"].put("/log-level", json={"level": "debug"}).json() == {"level": "debug"}
    assert bench.get("/log-level") == {"level": "debug"}
    assert (load(bench.service.fleet.get("shop").file).home / "log-level").read_text() == "debug\n"
    bench.clients["admin"].put("/log-level", json={"level": "info"})


def test_probes_need_no_token_and_say_little(bench: ServerBench, tmp_path: Path) -> None:
    anybody = bench.clients[None]
    assert anybody.get("/health").json() == {"status": "healthy", "pipelines": 1}
    assert anybody.get("/ready").json() == {"status": "ready", "pipelines": [{"name": "shop", "status": "stopped"}]}
    assert "spec" in bench.get("/ready")["pipelines"][0]
    broken = tmp_path / "broken.yaml"
    broken.write_text("version: 1\nsource: {}\nname: Broken\n")
    with server_bench(tmp_path) as other:
        answer = other.clients[None].get("/health")
        assert (answer.status_code, answer.json()) == (503, {"status": "unhealthy", "failed_pipelines": ["broken"]})
        assert other.get("/pipelines")[0]["error"]["code"] == "CONFIG"
        assert other.clients["viewer"].get("/pipelines/broken/tables").status_code == 422


def test_a_page_signs_in_and_a_cookie_alone_changes_nothing(bench: ServerBench) -> None:
    browser = bench.clients[None]
    assert browser.get("/").headers["location"] == "/signin"
    assert browser.get("/signin").status_code == 200
    assert browser.post("/signin", data={"token": "wrong"}).status_code == 401
    signed = browser.post("/signin", data={"token": bench.tokens["operator"]})
    assert signed.headers["location"] == "/ui"
    said = signed.headers["set-cookie"]
    assert "HttpOnly" in said
    assert "SameSite=strict" in said
    cookie = said.partition("=")[2].partition(";")[0].strip('"')
    headers = {"Cookie": f"penstock_session={cookie}"}
    assert browser.get("/pipelines", headers=headers).status_code == 200
    refused = browser.post("/pipelines/shop/tables/public.bad/retry", headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (403, "PAGE_TOKEN_MISSING")
    page = {**headers, "X-Penstock-Page": bench.service.tokens.page_token(cookie)}
    assert browser.post("/pipelines/shop/tables/public.bad/retry", headers=page).status_code == 200
    assert browser.post("/pipelines/shop/tables/public.orders/drop?yes=true", headers=page).status_code == 403
    forged = {"Cookie": f"penstock_session={cookie[:-1]}{'0' if cookie[-1] != '0' else '1'}"}
    assert browser.get("/pipelines", headers=forged).status_code == 401
    assert {"x-frame-options", "content-security-policy"} <= {name.lower() for name in signed.headers}
    assert not [name for name in signed.headers if name.lower().startswith("access-control")]


def test_requests_have_a_size_and_a_rate(tmp_path: Path) -> None:
    with server_bench(tmp_path, pipeline_file(tmp_path), most_body_bytes=1000, rate=5.0) as bench:
        large = bench.clients["operator"].post("/pipelines/shop/query", json={"sql": "x" * 2000})
        assert (large.status_code, large.json()["code"]) == (413, "TOO_LARGE")
        streamed = bench.clients["operator"].post("/pipelines/shop/query", content=iter([b"x" * 600, b"x" * 600]))
        assert streamed.status_code == 413
        answers = [bench.clients["viewer"].get("/pipelines").status_code for _ in range(20)]
        assert set(answers) == {200, 429}
    now = [0.0]
    limit = RateLimit(1.0, 2.0, lambda: now[0])
    assert [limit.take("a") for _ in range(3)] == [True, True, False]
    assert limit.take("b")
    now[0] = 1.0
    assert [limit.take("a") for _ in range(2)] == [True, False]


def test_wrong_tokens_are_limited_by_themselves(tmp_path: Path) -> None:
    with server_bench(tmp_path, pipeline_file(tmp_path)) as bench:
        wrong = {"Authorization": "Bearer pst_wrong"}
        answers = [bench.clients[None].get("/pipelines", headers=wrong).status_code for _ in range(12)]
        assert answers[:10] == [401] * 10
        assert answers[-1] == 429
        assert bench.clients["viewer"].get("/pipelines").status_code == 200


def test_without_tokens_only_this_machine_is_answered(tmp_path: Path) -> None:
    with server_bench(tmp_path, pipeline_file(tmp_path), no_auth=True) as bench:
        local = {"Host": "127.0.0.1:8080"}
        anybody = bench.clients[None]
        assert anybody.get("/pipelines", headers=local).status_code == 200
        assert anybody.get("/pipelines", headers={"Host": "rebound.example"}).json()["code"] == "FOREIGN_HOST"
        foreign = {**local, "Origin": "https://elsewhere.example"}
        assert anybody.post("/pipelines/shop/pause", headers=foreign).json()["code"] == "FOREIGN_ORIGIN"
        own = {**local, "Origin": "http://127.0.0.1:8080"}
        assert anybody.post("/pipelines/shop/pause", headers=own).status_code == 200


def test_tokens_are_kept_as_hashes_and_shown_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = TokenFile(tmp_path / "penstock-server" / "tokens.json")
    first = tokens.make_first()
    assert first is not None
    assert TokenFile(tokens.path).make_first() is None
    assert stat.S_IMODE(tokens.path.stat().st_mode) == 0o600
    assert first not in tokens.path.read_text()
    assert tokens.holder(first) == Holder("first", Role.ADMIN)
    assert tokens.holder(first + "x") is None
    assert cli.main(["tokens", "add", str(tmp_path), "ci", "--role", "operator"]) == 0
    made = capsys.readouterr().out.strip()
    assert tokens.holder(made) == Holder("ci", Role.OPERATOR), "a server that is up knows it at once"
    session = tokens.session(Holder("ci", Role.OPERATOR), now=1000.0)
    assert tokens.session_holder(session, now=1001.0) == Holder("ci", Role.OPERATOR)
    assert tokens.session_holder(session, now=1001.0 + SESSION_SECONDS) is None
    assert tokens.session_holder(session.replace("ci.", "first."), now=1001.0) is None
    assert cli.main(["tokens", "add", str(tmp_path), "ci"]) == 2
    assert cli.main(["tokens", "add", str(tmp_path), "x", "--role", "king"]) == 2
    assert cli.main(["tokens", "remove", str(tmp_path), "ci"]) == 0
    assert tokens.holder(made) is None
    assert tokens.session_holder(session, now=1001.0) is None
    assert cli.main(["tokens", "list", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("first  admin  ")
    tokens.path.chmod(0o644)
    assert cli.main(["tokens", "list", str(tmp_path)]) == 2
    assert "chmod 600" in capsys.readouterr().err


def test_files_are_changed_only_with_edit_and_only_when_they_check(tmp_path: Path) -> None:
    file = pipeline_file(tmp_path)
    with server_bench(tmp_path, file) as bench:
        assert bench.clients["admin"].patch("/pipelines/shop", json={"tenant": "x"}).json()["code"] == "READ_ONLY"
        assert bench.clients["admin"].post("/pipelines", json={"name": "new"}).json()["code"] == "READ_ONLY"
    (tmp_path / "penstock-server" / "tokens.json").unlink()
    before = file.read_text()
    with server_bench(tmp_path, file, edit=True) as bench:
        admin = bench.clients["admin"]
        assert admin.patch("/pipelines/shop", json={"name": "other"}).json()["code"] == "PIPELINE_NAME_MISMATCH"
        assert admin.patch("/pipelines/shop", json={"tables": []}).json()["code"] == "CONFIG"
        hidden = admin.patch("/pipelines/shop", json={"source": {"url": "***"}})
        assert hidden.json()["code"] == "SECRET_NOT_GIVEN"
        unreachable = admin.patch("/pipelines/shop", json={"tenant": "x"})
        assert (unreachable.status_code, unreachable.json()["code"]) == (503, "SOURCE_UNREACHABLE")
        invalid = admin.post("/validate", json={**yaml.safe_load(before), "nme": 1})
        assert (invalid.status_code, invalid.json()["valid"]) == (400, False)
        assert "nme" in invalid.json()["message"]
    assert file.read_text() == before
    assert not list(tmp_path.glob(".*.check"))


def test_many_clients_read_at_once(bench: ServerBench) -> None:
    """No answer is mixed up with another, and none fails, when threads ask for different things together."""
    failed: list[str] = []

    def ask(path: str, key: str) -> None:
        for _ in range(10):
            answer = bench.clients["viewer"].get(path)
            if answer.status_code != 200 or key not in answer.text:
                failed.append(answer.text)

    wanted = [("/pipelines", "acme"), ("/pipelines/shop/tables", "public.bad"), ("/metrics", "penstock_tables")]
    threads = [threading.Thread(target=ask, args=one) for one in wanted * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed

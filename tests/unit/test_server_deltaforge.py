"""The examples of DeltaForge's API reference (docs/src/apireference.md and dlq.md there), against our server.

Each entry of EXAMPLES is one of its requests with the answer that it shows. Only the base URL, the token and the names
of things are changed; the body of a pipeline is penstock's file, as docs/api.md says. Every key that the example shows
must be in the answer, with a value of the same kind. Left out are `/sensing` and `/drift`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pipeline_files import pipeline_file
from server_bench import ServerBench, server_bench

ANY = object()  # null, or an object whose keys are the source's own
PIPELINE = {"name": "orders-cdc", "status": "running", "spec": {}}
CHECKPOINT = {"sink_id": "kafka-primary", "position": ANY, "age_seconds": ANY}
LETTER = {"seq": 42, "sink_id": "kafka-primary", "error_kind": "serialization"}
SCHEMA = {"database": "shop", "table": "orders", "primary_key": ["id"], "fingerprint": "sha256:a1b2"}
COLUMN = {
    "name": "id",
    "column_type": "bigint(20) unsigned",
    "data_type": "bigint",
    "nullable": False,
    "ordinal_position": 1,
    "default_value": None,
    "extra": ANY,
    "is_primary_key": True,
}
OPS = {"uptime_seconds": ANY, "dlq_entries": 0, "sink_errors": {}, "checkpoints": [CHECKPOINT]}
Request = tuple[str, str, Any, int, Any]  # method, path, body, status, the example's answer
EXAMPLES: tuple[Request, ...] = (
    ("GET", "/health", None, 200, {"status": "healthy", "pipelines": 3}),
    ("GET", "/ready", None, 200, {"status": "ready", "pipelines": [PIPELINE]}),
    ("GET", "/pipelines", None, 200, [PIPELINE]),
    ("GET", "/pipelines?label=env:prod", None, 200, [PIPELINE]),
    ("GET", "/pipelines?label=env:prod&label=team:platform", None, 200, [PIPELINE]),
    ("GET", "/pipelines?label=env", None, 200, [PIPELINE]),
    ("GET", "/pipelines/shop", None, 200, {**PIPELINE, "ops": OPS}),
    ("GET", "/pipelines/unknown", None, 404, {"code": "PIPELINE_NOT_FOUND", "message": "pipeline not found"}),
    ("POST", "/pipelines", {"name": "shop"}, 409, {"code": "PIPELINE_ALREADY_EXISTS", "message": "exists"}),
    ("PATCH", "/pipelines/shop", {"name": "other"}, 400, {"code": "PIPELINE_NAME_MISMATCH", "message": "no"}),
    ("POST", "/pipelines/shop/pause", None, 200, PIPELINE),
    ("POST", "/pipelines/shop/resume", None, 200, PIPELINE),
    ("POST", "/pipelines/shop/stop", None, 200, PIPELINE),
    ("GET", "/pipelines/shop/schemas", None, 200, [{**SCHEMA, "column_count": 5, "registry_version": 2}]),
    ("GET", "/pipelines/shop/schemas/public/orders", None, 200, {**SCHEMA, "columns": [COLUMN]}),
    ("POST", "/pipelines/shop/schemas/reload", None, 200, {"pipeline": "orders-cdc", "tables_reloaded": 1}),
    ("POST", "/pipelines/shop/schemas/public/orders/reload", None, 200, SCHEMA),
    (
        "GET",
        "/pipelines/shop/schemas/public/orders/versions",
        None,
        200,
        [{"version": 1, "fingerprint": "x", "column_count": 5, "registered_at": "2025-01-15T10:30:00Z"}],
    ),
    ("GET", "/pipelines/shop/journal/dlq?limit=50&sink_id=lake&error_kind=refused", None, 200, [LETTER]),
    ("GET", "/pipelines/shop/journal/dlq/count", None, 200, {"count": 42}),
    ("POST", "/pipelines/shop/journal/dlq/ack", {"up_to_seq": 42}, 200, {"acked": 12}),
    ("DELETE", "/pipelines/shop/journal/dlq", None, 200, {"purged": 42}),
    ("GET", "/pipelines/shop/checkpoints", None, 200, [CHECKPOINT]),
    ("GET", "/log-level", None, 200, {"level": "info"}),
    ("POST", "/validate", {"name": "shop"}, 400, {"valid": False, "error": "spec: missing field `tables`"}),
    ("DELETE", "/pipelines/shop", None, 204, None),
    ("DELETE", "/pipelines/shop", None, 404, {"code": "PIPELINE_NOT_FOUND", "message": "pipeline not found"}),
)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerBench]:
    folder = tmp_path_factory.mktemp("server")
    file = pipeline_file(folder, labels={"env": "prod", "team": "platform"}, tenant="acme")
    with server_bench(folder, file, edit=True) as made:
        yield made


@pytest.mark.parametrize("request_", EXAMPLES, ids=lambda one: f"{one[0]} {one[1]}")
def test_an_example_of_deltaforge_is_answered_as_there(bench: ServerBench, request_: Request) -> None:
    method, path, body, status, shown = request_
    answer = bench.clients["admin"].request(method, path, json=body)
    assert answer.status_code == status, answer.text
    if shown is not None:
        require(answer.json(), shown, path)


def require(found: Any, shown: Any, where: str) -> None:
    """Everything that the example shows is there, and of its kind."""
    if isinstance(shown, dict):
        assert isinstance(found, dict), where
        for key, value in shown.items():
            assert key in found, f"{where} has no {key}: {found}"
            require(found[key], value, f"{where}.{key}")
    elif isinstance(shown, list):
        assert isinstance(found, list), where
        assert found, where
        require(found[0], shown[0], f"{where}[0]")
    elif shown is not ANY:
        assert type(found) is type(shown), f"{where}: {found!r} is not like {shown!r}"

"""Schemathesis reads the server's own OpenAPI description and sends what it allows, and what it does not.

No answer may be one of 500: what a source that is away makes of a request is 503, and said by the description. Every
answer has a status and a shape that the description has, and every error is `{code, message, solution}`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import schemathesis
import structlog
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock.server.jobs import Jobs
from pipeline_files import pipeline_file
from server_bench import server_bench

KNOWN = {"name": "shop", "table": "public.orders", "db": "public", "number": 1}  # beside what schemathesis thinks of
LAST = ("DELETE", "/pipelines/{name}")  # for then it is gone
ERROR = {"code", "message", "solution"}
UNAVAILABLE = (503, 504)


def test_nothing_that_a_client_sends_is_answered_by_500(tmp_path: Path, full: bool) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    failed: list[str] = []
    asked = 0
    with server_bench(tmp_path, pipeline_file(tmp_path), rate=1e6, edit=True) as bench:
        bench.service.jobs = Jobs((sys.executable, "-c", "print('[]')"))  # in place of commands that take long
        token = {"Authorization": f"Bearer {bench.tokens['admin']}"}
        described = schemathesis.openapi.from_asgi("/openapi.json", bench.app, headers=token)
        operations = [found.ok() for found in described.get_all_operations() if isinstance(found, Ok)]
        operations.sort(key=lambda one: (one.method.upper(), one.path) == LAST)
        for operation in operations:

            @settings(
                max_examples=300 if full else 6,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy())
            def send(case: schemathesis.Case[Any]) -> None:
                nonlocal asked
                asked += 1
                if asked % 3:  # most requests reach what is there
                    case.path_parameters = {
                        name: KNOWN.get(name, value) for name, value in (case.path_parameters or {}).items()
                    }
                if case.path.endswith("/events"):
                    case.query = {**(case.query or {}), "follow": False}
                answer = case.call(headers=token)
                checks = [content_type_conformance, response_schema_conformance, status_code_conformance]
                if answer.status_code not in UNAVAILABLE:
                    checks.append(not_a_server_error)
                if answer.status_code >= 400 and case.operation.path not in ("/health", "/ready"):
                    assert set(answer.json()) >= ERROR, answer.text
                case.validate_response(answer, checks=checks)

            try:
                send()
            except (AssertionError, BaseExceptionGroup) as error:  # all of them are shown together
                failed.append(f"{operation.method.upper()} {operation.path}: {error}")
    assert not failed, "\n\n".join(failed)
    assert asked > 4 * len(operations) >= 200

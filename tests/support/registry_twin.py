"""A schema registry in the test's own process, with the routes of Confluent's that clients need.

    POST /subjects/{subject}/versions   register, or find, a schema: {"id": …}
    GET  /schemas/ids/{id}              the schema of an id
    GET  /subjects                      names

A schema has one id whatever its subjects, as there. `refuse` makes it answer 409 for a subject. What is no Avro schema
is refused with 422. tests/behaviour/test_schema_registry.py holds it against Apicurio.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import fastavro


class RegistryTwin:
    def __init__(self, login: str = "") -> None:
        self.schemas: dict[str, int] = {}
        self.subjects: dict[str, list[int]] = {}
        self.refuse: set[str] = set()
        self.requests = 0
        self._login = "Basic " + base64.b64encode(login.encode()).decode() if login else ""
        twin = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._answer(*twin.post(unquote(self.path), content, self.headers.get("Authorization", "")))

            def do_GET(self) -> None:
                self._answer(*twin.get(unquote(self.path)))

            def _answer(self, status: int, content: Any) -> None:
                body = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def schema(self, number: int) -> Any:
        return json.loads(next(text for text, one in self.schemas.items() if one == number))

    def post(self, path: str, content: Any, login: str) -> tuple[int, Any]:
        self.requests += 1
        if login != self._login:
            return 401, {"error_code": 40101, "message": "Unauthorized"}
        subject = path.removeprefix("/subjects/").removesuffix("/versions")
        if subject in self.refuse:
            return 409, {"error_code": 409, "message": "Schema being registered is incompatible with an earlier schema"}
        try:
            fastavro.parse_schema(json.loads(content["schema"]))
        except (ValueError, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
            return 422, {"error_code": 42201, "message": f"Invalid schema: {error}"}
        number = self.schemas.setdefault(content["schema"], len(self.schemas) + 1)
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return 200, {"id": number}

    def get(self, path: str) -> tuple[int, Any]:
        if path == "/subjects":
            return 200, sorted(self.subjects)
        number = path.partition("?")[0].removeprefix("/schemas/ids/")
        found = [text for text, one in self.schemas.items() if str(one) == number]
        return (200, {"schema": found[0]}) if found else (404, {"error_code": 40403, "message": "Schema not found"})


@contextmanager
def registry_twin(login: str = "") -> Iterator[RegistryTwin]:
    twin = RegistryTwin(login)
    try:
        yield twin
    finally:
        twin.stop()

"""A webhook receiver that answers as a test wants it to: a real HTTP server, which checks signatures by itself.

What it has taken outlives a `kill`, as a receiver's database does.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "whsec_" + base64.b64encode(b"a key of thirty-two bytes, or so").decode()


@dataclass(frozen=True)
class Request:
    """A request that was answered with 2xx."""

    key: str
    body: bytes
    headers: Mapping[str, str]

    @property
    def events(self) -> list[Any]:
        content = json.loads(self.body)
        return content if isinstance(content, list) else [content]


@dataclass(frozen=True)
class Trouble:
    """What happens to a request: `status`, or 0 for a connection that is closed without an answer. `taken`: the
    receiver has the events, and only the answer is lost."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    after: float = 0.0  # seconds
    taken: bool = False
    text: str = ""


class Webhook:
    """`refuses` says of an event's text with which status it is refused, or 0."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.taken: list[Request] = []
        self.seen: list[tuple[float, str, int]] = []  # when, Idempotency-Key, status
        self.troubles: list[Trouble] = []
        self.always: Trouble | None = None
        self.refuses: Callable[[bytes], int] = lambda event: 0
        self.forged = 0
        self.connections = 0
        self.port = 0
        self._context, self._open = context, set[socket.socket]()
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http{'s' if self._context else ''}://127.0.0.1:{self.port}/events"

    def start(self) -> None:
        """Listen, on the port of before."""
        webhook = self

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, request: Any, client_address: Any) -> None:
                return  # connections that a test cuts

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                with webhook._lock:
                    webhook.connections += 1
                    webhook._open.add(self.connection)

            def finish(self) -> None:
                with webhook._lock:
                    webhook._open.discard(self.connection)
                with suppress(OSError):
                    super().finish()

            def do_POST(self) -> None:
                webhook._answer(self)

            do_PUT = do_POST

            def log_message(self, format: str, *args: Any) -> None:
                return

        server = Server(("127.0.0.1", self.port), Handler)
        if self._context is not None:
            server.socket = self._context.wrap_socket(server.socket, server_side=True)
        self.port = server.server_address[1]
        self._server = server
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True, name="webhook").start()

    def kill(self) -> None:
        """Stop listening, and cut every connection."""
        server, self._server = self._server, None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        with self._lock:
            for one in self._open:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def events(self) -> list[Any]:
        """Every event that a receiver has which remembers Idempotency-Keys, in the order of their arrival."""
        return [event for request in self.distinct() for event in request.events]

    def distinct(self) -> list[Request]:
        with self._lock:
            found: dict[str, Request] = {}
            for request in self.taken:
                known = found.setdefault(request.key, request)
                assert known.body == request.body, f"{request.key} stands for two different requests"
            return list(found.values())

    def repeated(self) -> Counter[str]:
        """How often each key was taken more than once."""
        counted = Counter(request.key for request in self.taken)
        return Counter({key: times - 1 for key, times in counted.items() if times > 1})

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        request = Request(handler.headers["Idempotency-Key"], body, dict(handler.headers.items()))
        if "webhook-signature" in handler.headers and not is_genuine(request):
            self.forged += 1
            return self._reply(handler, request, 401)
        with self._lock:
            trouble = self.troubles.pop(0) if self.troubles else self.always
        if trouble is not None:
            if trouble.taken:
                self._take(request)
            time.sleep(trouble.after)
            if not trouble.status:
                self._note(request, 0)
                handler.close_connection = True
                return None
            if not 200 <= trouble.status < 300:
                return self._reply(handler, request, trouble.status, trouble.headers, trouble.text)
        refused = max((self.refuses(json.dumps(event).encode()) for event in request.events), default=0)
        if refused:
            return self._reply(handler, request, refused, text="one of these is not to my taste")
        self._take(request)
        return self._reply(handler, request, 204)

    def _take(self, request: Request) -> None:
        with self._lock:
            self.taken.append(request)

    def _note(self, request: Request, status: int) -> None:
        with self._lock:
            self.seen.append((time.monotonic(), request.key, status))

    def _reply(
        self,
        handler: BaseHTTPRequestHandler,
        request: Request,
        status: int,
        headers: Mapping[str, str] | None = None,
        text: str = "",
    ) -> None:
        self._note(request, status)
        handler.send_response(status)
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        if status != 204:
            handler.send_header("Content-Length", str(len(text.encode())))
        handler.end_headers()
        if status != 204:
            handler.wfile.write(text.encode())


def is_genuine(request: Request, secret: str = SECRET) -> bool:
    """Check a request as standardwebhooks.com says."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    if abs(time.time() - int(headers["webhook-timestamp"])) > 300 or headers["webhook-id"] != request.key:
        return False
    signed = b".".join([headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), request.body])
    key = base64.b64decode(secret.removeprefix("whsec_"))
    wanted = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return f"v1,{wanted}" in headers["webhook-signature"].split(" ")


@contextmanager
def webhook(context: ssl.SSLContext | None = None) -> Iterator[Webhook]:
    made = Webhook(context)
    try:
        yield made
    finally:
        made.kill()

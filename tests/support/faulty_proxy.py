"""A proxy in front of an HTTP server that counts requests, and can be away, slow, or fail some of them.

A request fails in one of four ways: it is answered with 503 or 500 and never passed on, it is passed on and its answer
is lost, or it takes a second. What has to work over a network works over this.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"})
WAYS = ("refused", "broken", "lost", "slow")
SLOW_SECONDS = 1.0


@dataclass
class FaultyProxy:
    """`address` is what clients use. `share` of the requests fail; while `away`, no connection gets an answer."""

    target: str
    share: float = 0.0
    away: bool = False
    after: Callable[[str, str], bool] | None = None  # loses the answer of requests that it picks
    edit: Callable[[str, bytes], bytes] | None = None  # changes the answer to a path
    requests: list[tuple[str, str]] = field(default_factory=list)
    refused: int = 0  # requests while it was away
    authorizations: set[str] = field(default_factory=set)
    failed: dict[str, int] = field(default_factory=dict)
    address: str = ""
    _chance: random.Random = field(default_factory=lambda: random.Random(19))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def way(self, method: str, path: str) -> str:
        """How this request is to fail; "" for not at all."""
        with self._lock:
            self.requests.append((method, path))
            if self.after is not None and self.after(method, path):
                way = "lost"
            elif self._chance.random() < self.share:
                way = self._chance.choice(WAYS)
            else:
                return ""
            self.failed[way] = self.failed.get(way, 0) + 1
            return way


@contextmanager
def faulty_proxy(target: str) -> Iterator[FaultyProxy]:
    """Give a proxy of the server at this address, until the block ends."""
    proxy = FaultyProxy(target)
    host = urlsplit(target).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def handle_one_request(self) -> None:
            with suppress(OSError):
                super().handle_one_request()
                return
            self.close_connection = True

        def pass_on(self) -> None:
            if proxy.away:
                proxy.refused += 1
                self.close_connection = True
                return
            body = self._body()
            proxy.authorizations.add(self.headers.get("Authorization", ""))
            way = proxy.way(self.command, self.path)
            if way in ("refused", "broken"):
                self._answer(503 if way == "refused" else 500, [], b"")
                return
            if way == "slow":
                time.sleep(SLOW_SECONDS)
            try:
                status, headers, content = self._asked(body)
            except (OSError, HTTPException):
                self.close_connection = True
                return
            if proxy.edit is not None:
                content = proxy.edit(self.path, content)
            if way == "lost" or proxy.away:
                self.close_connection = True
            else:
                self._answer(status, headers, content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on

        def _body(self) -> bytes:
            if self.headers.get("Expect", "").lower() == "100-continue":
                self.send_response_only(100)
                self.end_headers()
            if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def _asked(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            connection = HTTPConnection(host, timeout=60)
            try:
                kept = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
                kept.pop("Expect", None)
                kept["Accept-Encoding"] = "identity"
                kept["Content-Length"] = str(len(body))
                connection.request(self.command, self.path, body, kept)
                answer = connection.getresponse()
                return answer.status, answer.getheaders(), answer.read()
            finally:
                connection.close()

        def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
            self.send_response(status)
            length = next((value for name, value in headers if name.lower() == "content-length"), None)
            for name, value in headers:
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            is_head = self.command == "HEAD"
            if status != 204:
                self.send_header("Content-Length", length if is_head and length else str(len(content)))
            self.end_headers()
            if not is_head:
                self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""Real Redis and NATS servers for tests, from the wheels that ship them, each on a folder of its own.

Redis writes every command to its disk before it answers (`appendfsync always`), so what it has acknowledged survives
SIGKILL. NATS writes its files before it acknowledges.
"""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

BINARIES = Path(sys.executable).parent
START_SECONDS = 20.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Server:
    """A process that serves on a port, with its data in a folder."""

    def __init__(self, folder: Path, arguments: Callable[[int], Sequence[str]]) -> None:
        self.folder, self.port = folder, free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self._arguments = arguments(self.port)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it on the same folder and port as before, and wait until it answers."""
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._arguments, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                text = (self.folder / "server.log").read_text(errors="replace")
                assert self.process.poll() is None, text
                assert time.monotonic() < deadline, text
                time.sleep(0.02)

    def kill(self) -> None:
        """End it by SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def redis_server(*settings: str) -> Iterator[Server]:
    """A Redis server; `settings` are further command line options, as `--requirepass`, `secret`."""
    with tempfile.TemporaryDirectory(prefix="penstock-redis-") as folder:
        durable = ("--appendonly", "yes", "--appendfsync", "always", "--save", "", "--dir", folder)
        program = str(BINARIES / "redis-server")
        server = Server(
            Path(folder), lambda port: [program, "--port", str(port), "--bind", "127.0.0.1", *durable, *settings]
        )
        server.start()
        try:
            yield server
        finally:
            server.kill()


@contextmanager
def nats_server(settings: str = "", *, jetstream: bool = True) -> Iterator[Server]:
    """A NATS server; `settings` is more of its configuration file."""
    with tempfile.TemporaryDirectory(prefix="penstock-nats-") as name:
        folder = Path(name)
        store = f"jetstream {{ store_dir: {json.dumps(name)} }}\n" if jetstream else ""
        (folder / "server.conf").write_text(f"{store}{settings}\n")
        program = str(BINARIES / "nats-server")
        server = Server(folder, lambda port: [program, "-a", "127.0.0.1", "-p", str(port), "-c", f"{name}/server.conf"])
        server.start()
        try:
            yield server
        finally:
            server.kill()


def make_certificates(folder: Path) -> tuple[Path, Path]:
    """Return a certificate for localhost that signs itself, and its key."""
    certificate, key = folder / "server.crt", folder / "server.key"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)],
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return certificate, key


@contextmanager
def tls_in_front(port: int, certificate: Path, key: Path) -> Iterator[int]:
    """A port with TLS that leads to another one without: the Redis of the wheel is built without it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    listener = socket.create_server(("127.0.0.1", 0))

    def forward(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while octets := one.recv(1 << 16):
                other.sendall(octets)
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                plain, _ = listener.accept()
                with suppress(OSError):
                    outer = context.wrap_socket(plain, server_side=True)
                    inner = socket.create_connection(("127.0.0.1", port))
                    for pair in ((outer, inner), (inner, outer)):
                        threading.Thread(target=forward, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()

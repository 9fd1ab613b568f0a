"""Listen: where, with or without TLS, in a thread of its own, so that the main thread can wait for signals."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
import uvicorn
from fastapi import FastAPI

from penstock.errors import UsageError

START_SECONDS = 15.0
STOP_SECONDS = 5
LOG = structlog.get_logger("server")


@dataclass(frozen=True)
class Address:
    """`host:port` to listen on, and the files for TLS, if it is used."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None

    @classmethod
    def parse(cls, text: str, certificate: Path | None = None, key: Path | None = None) -> Address:
        """Read `host:port`, `[::1]:port` or `:port` (all interfaces). UsageError when it is none of them."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise UsageError(f"--listen {text} is no address", "Give host:port, such as 127.0.0.1:8080")
        if (certificate is None) != (key is None):
            raise UsageError("TLS takes a certificate and its key", "Give both --tls-certificate and --tls-key")
        for file in (certificate, key):
            if file is not None and not file.is_file():
                raise UsageError(f"there is no file {file}", "TLS takes a certificate and its key, in PEM files")
        return cls(host.strip("[]") or "0.0.0.0", int(port), certificate, key)

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_secure(self) -> bool:
        return self.certificate is not None

    def require_no_auth_is_safe(self) -> None:
        """UsageError when others than this machine's users could act without a token."""
        if not self.is_loopback:
            raise UsageError(
                f"--no-auth is for loopback only, and {self.host} is not", "Listen on 127.0.0.1, or use tokens"
            )


@contextmanager
def listening(app: FastAPI, address: Address) -> Iterator[str]:
    """Serve while the block lasts, and yield the URL. UsageError when the address cannot be had."""
    opened = _bound(address)
    scheme = "https" if address.is_secure else "http"
    port = opened.getsockname()[1]
    shown = f"[{address.host}]" if ":" in address.host else address.host
    if not address.is_secure and not address.is_loopback:
        LOG.warning("listening without TLS: tokens and rows can be read on the way", listen=f"{shown}:{port}")
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=STOP_SECONDS,
        ssl_certfile=None if address.certificate is None else str(address.certificate),
        ssl_keyfile=None if address.key is None else str(address.key),
    )
    try:
        config.load()
    except (ssl.SSLError, OSError) as error:
        opened.close()
        raise UsageError(
            f"certificate and key cannot be used: {error}", "Give a PEM certificate and its key"
        ) from error
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, name="server", daemon=True)
    thread.start()
    started = threading.Event()
    for _ in range(int(START_SECONDS / 0.02)):
        if server.started or not thread.is_alive():
            break
        started.wait(0.02)
    if not server.started:
        raise UsageError(f"the server did not start on {shown}:{port}", "See what was logged")
    try:
        yield f"{scheme}://{shown}:{port}"
    finally:
        server.should_exit = True
        thread.join(STOP_SECONDS + 10)


def _bound(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((address.host, address.port))
    except OSError as error:
        opened.close()
        raise UsageError(
            f"cannot listen on {address.host}:{address.port}: {error.strerror}", "Choose another port with --listen"
        ) from error
    opened.set_inheritable(False)
    return opened

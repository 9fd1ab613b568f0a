"""A plain connection to a server that stream destinations speak to: a socket, TLS, and errors in the contract's words.

Publishers put the bytes of a protocol together by Arrow kernels, so they need a socket and nothing above it. `Idle`
keeps connections open between the tasks of one process. Shared by `redis/` and `nats/`.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from penstock.errors import ConfigError, DestinationUnreachable

RECEIVED_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Address:
    """Where a server is, and who we are there. Never printed whole: it holds a password."""

    scheme: str
    host: str
    port: int
    user: str = ""
    password: str = ""
    path: str = ""
    ca: str = ""  # a file of certificates; empty: those of the system

    @property
    def text(self) -> str:
        """The address as messages show it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def parse_address(url: str, *, schemes: tuple[str, ...], port: int, ca: str = "") -> Address:
    """Parse a URL. ValueError says what is wrong with it, without repeating it."""
    try:
        parts: SplitResult = urlsplit(url)
        found = parts.port
    except ValueError as error:
        raise ValueError(f"not a URL: {error}") from None
    allowed = " or ".join(f"{scheme}://" for scheme in schemes)
    if parts.scheme not in schemes:
        raise ValueError(f"must begin with {allowed}")
    if not parts.hostname:
        raise ValueError(f"must name a host, as in {schemes[0]}://localhost:{port}")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return Address(parts.scheme, parts.hostname, found or port, user, password, parts.path, ca)


class Channel:
    """A connected socket. What goes wrong is DestinationUnreachable, with the address; the caller closes it then."""

    def __init__(self, address: Address, timeout: float, *, tls: bool) -> None:
        self.address, self._timeout = address, timeout
        try:
            self._socket: socket.socket = socket.create_connection((address.host, address.port), timeout)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise self.lost(error) from error
        if tls:
            self.use_tls()

    def use_tls(self) -> None:
        try:
            context = ssl.create_default_context(cafile=self.address.ca or None)
        except OSError as error:
            self.close()
            what = f"{self.address.ca}: not a file of certificates ({error.strerror or error})"
            raise ConfigError(what, "Set `ca_file` to a file in PEM format") from error
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=self.address.host)
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise DestinationUnreachable(
                f"{self.address.text}: its certificate is not trusted: {error.verify_message}",
                "Set `ca_file` to the file of the authority that signed it, and use the name that the certificate has",
            ) from error
        except OSError as error:
            self.close()
            raise self.lost(error) from error

    def send(self, octets: bytes | memoryview) -> None:
        try:
            self._socket.sendall(octets)
        except OSError as error:
            raise self.lost(error) from error

    def receive(self) -> bytes:
        """Return what has arrived, at least one byte."""
        try:
            octets = self._socket.recv(RECEIVED_AT_ONCE)
        except OSError as error:
            raise self.lost(error) from error
        if not octets:
            raise self.lost(ConnectionError("the server closed the connection"))
        return octets

    def pending(self) -> bytes | None:
        """Return what has arrived unasked, without waiting; None when the server has closed the connection."""
        self._socket.settimeout(0)
        try:
            return self._socket.recv(RECEIVED_AT_ONCE) or None
        except (BlockingIOError, ssl.SSLWantReadError):
            return b""
        except OSError:
            return None
        finally:
            self._socket.settimeout(self._timeout)

    def close(self) -> None:
        self._socket.close()

    def lost(self, error: OSError) -> DestinationUnreachable:
        why = (
            f"no answer within {self._timeout:g} s" if isinstance(error, TimeoutError) else error.strerror or str(error)
        )
        return DestinationUnreachable(
            f"{self.address.text}: {why}", "Check that the server runs and can be reached from every executor"
        )


class Reusable(Protocol):
    """A connection of some protocol, as `Idle` keeps it."""

    def is_alive(self) -> bool: ...

    def close(self) -> None: ...


C = TypeVar("C", bound=Reusable)


class Idle(Generic[C]):
    """Connections of this process that nobody uses at the moment, by what they were made with."""

    def __init__(self, most: int = 8) -> None:
        self._most, self._lock = most, threading.Lock()
        self._kept: list[tuple[object, C]] = []

    def take(self, wanted: object, make: Callable[[], C]) -> C:
        """Return a connection that works, as far as can be seen, or make one."""
        while True:
            with self._lock:
                at = next((n for n, (key, _) in enumerate(self._kept) if key == (os.getpid(), wanted)), None)
                if at is None:
                    break
                _, found = self._kept.pop(at)
            if found.is_alive():
                return found
            found.close()
        return make()

    def give_back(self, wanted: object, connection: C) -> None:
        with self._lock:
            self._kept.append(((os.getpid(), wanted), connection))
            surplus = self._kept.pop(0)[1] if len(self._kept) > self._most else None
        if surplus is not None:
            surplus.close()

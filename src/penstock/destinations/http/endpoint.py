"""Send one signed request to a webhook, over a connection that the process keeps for the next one.

Requests are signed as standardwebhooks.com says (HMAC-SHA256 over id, time and body), or, with a header of one's own,
by the body alone: `sha256=` and hexadecimal digits. What is secret (the key, the values of headers, a password in the
address) is in no message and no `repr`, also when the receiver repeats it in its answer.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import ssl
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import unquote, urlsplit

from penstock.errors import ConfigError

MOST_READ = 1 << 16  # bytes of an answer
MOST_SHOWN = 200  # characters of an answer, in messages
LONGEST_WAIT = 86400.0  # seconds that a receiver may ask for
LEAST_SECRET = 4  # shorter values are everywhere: hiding them would make messages unreadable
STANDARD = "webhook-signature"

_Key = tuple[str, str, int, str, float]
_idle: dict[_Key, list[HTTPConnection]] = {}
_keeping = threading.Lock()
os.register_at_fork(after_in_child=_idle.clear)


class Unanswered(Exception):
    """The request got no answer: nobody knows whether it was taken."""


@dataclass(frozen=True)
class Answer:
    """`retry_after` is in seconds; None where the answer does not say."""

    status: int
    reason: str
    retry_after: float | None


@dataclass(frozen=True)
class Endpoint:
    """Where requests go, and how. Picklable."""

    url: str = field(repr=False)
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    secret: bytes = field(default=b"", repr=False)  # empty: requests are not signed
    signature_header: str = STANDARD
    timeout: float = 30.0
    ca_file: str = ""
    content_type: str = "application/json"

    @property
    def shown(self) -> str:
        """The address without password, path and query: any of these may be secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")

    def send(self, id: str, body: bytes) -> Answer:
        """Send one request, and return the answer. Unanswered without one."""
        while True:
            connection, is_fresh = self._connection()
            try:
                connection.request(self.method, self._target, body, self._headers(id, body))
                response = connection.getresponse()
                said = response.read(MOST_READ)
            except (HTTPException, OSError) as error:
                connection.close()
                if is_fresh or isinstance(error, TimeoutError):
                    raise Unanswered(self._hidden(_reason(error, self.timeout))) from None
                continue  # the receiver had closed a connection that was idle
            self._keep(connection, response)
            shown = " ".join(said.decode("utf-8", "replace").split())
            reason = f"{response.status} {response.reason}" + (f": {shown}" if shown else "")
            retry_after = _retry_after(response.headers.get("Retry-After"))
            return Answer(response.status, self._hidden(reason)[:MOST_SHOWN], retry_after)

    def _headers(self, id: str, body: bytes) -> dict[str, str]:
        made = {"Content-Type": self.content_type, "Idempotency-Key": id, "User-Agent": "penstock"}
        parts = urlsplit(self.url)
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            made["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        return {**made, **dict(self.headers), **self.signature(id, body)}

    def signature(self, id: str, body: bytes) -> dict[str, str]:
        """Return the headers that prove who sent the body. Standard Webhooks has an id even without a signature."""
        moment = str(int(time.time()))
        standard = {"webhook-id": id, "webhook-timestamp": moment}
        if not self.secret:
            return standard
        if self.signature_header.lower() != STANDARD:
            return {self.signature_header: "sha256=" + hmac.new(self.secret, body, hashlib.sha256).hexdigest()}
        mac = hmac.new(self.secret, f"{id}.{moment}.".encode() + body, hashlib.sha256).digest()
        return {**standard, STANDARD: "v1," + base64.b64encode(mac).decode()}

    @property
    def _target(self) -> str:
        parts = urlsplit(self.url)
        return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    @property
    def _key(self) -> _Key:
        parts = urlsplit(self.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return parts.scheme, parts.hostname or "", port, self.ca_file, self.timeout

    def _connection(self) -> tuple[HTTPConnection, bool]:
        """Return a connection, and whether it is a new one."""
        with _keeping:
            kept = _idle.get(self._key)
            if kept:
                return kept.pop(), False
        scheme, host, port, ca_file, timeout = self._key
        if scheme == "http":
            return HTTPConnection(host, port, timeout=timeout), True
        try:
            context = ssl.create_default_context(cafile=ca_file or None)
        except OSError as error:
            raise ConfigError(f"ca_file {ca_file} cannot be read: {error}", "Name a file of PEM certificates") from None
        return HTTPSConnection(host, port, timeout=timeout, context=context), True

    def _keep(self, connection: HTTPConnection, response: HTTPResponse) -> None:
        if response.will_close or not response.isclosed():
            connection.close()
            return
        with _keeping:
            _idle.setdefault(self._key, []).append(connection)

    def _hidden(self, text: str) -> str:
        """Return the text without anything that is secret."""
        parts = urlsplit(self.url)
        values = [unquote(parts.password or ""), parts.password or "", parts.path, parts.query]
        values += [self.secret.decode("utf-8", "replace"), base64.b64encode(self.secret).decode()]
        values += [value for _, value in self.headers]
        values += [word for _, value in self.headers for word in value.split()]
        for value in sorted(set(values), key=len, reverse=True):
            if len(value) >= LEAST_SECRET:
                text = text.replace(value, "***")
        return text


def secret_bytes(secret: str) -> bytes:
    """Return the key of a secret: base64 behind `whsec_`, as Standard Webhooks has it, or the text itself."""
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        raise ValueError("must be base64 behind whsec_") from None


def _retry_after(header: str | None) -> float | None:
    said = (header or "").strip()
    if said.isdigit():
        return min(float(said), LONGEST_WAIT)
    try:
        until = parsedate_to_datetime(said)
    except ValueError:
        return None
    until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
    return min(max(0.0, (until - datetime.now(UTC)).total_seconds()), LONGEST_WAIT)


def _reason(error: BaseException, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    said = error.strerror if isinstance(error, OSError) else ""
    return said or str(error) or type(error).__name__

"""A connection to a NATS server: log in, ask JetStream, and say in one line what the server refuses.

Everything that may pass by itself or by an operator's hand is DestinationUnreachable, and so tried again.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.destinations.connection import Address, Channel, Idle, parse_address
from penstock.destinations.nats.nkey import BadKey, public_text, seed_bytes, sign
from penstock.destinations.nats.protocol import Line, Message, Parser, publish
from penstock.errors import ConfigError, DestinationError, DestinationUnreachable

SCHEMES, PORT = ("nats", "tls"), 4222
NOBODY_LISTENS = 503

STREAM_NOT_FOUND, MESSAGE_NOT_FOUND, WRONG_SEQUENCE = 10059, 10037, 10071
_NO_JETSTREAM = (10039, 10076)
_CREDENTIAL = re.compile(r"-----BEGIN ([A-Z ]+)-----\s+(\S+)\s+-{3,}END")


@dataclass(frozen=True)
class Credentials:
    """Who we are at the server. `jwt` and `seed` come from a credentials file; a seed alone is an nkey."""

    user: str = ""
    password: str = ""
    token: str = ""
    jwt: str = ""
    seed: bytes = b""


def read_credentials(path: str) -> Credentials:
    """Read a credentials file (`.creds`, as nsc writes it), or a file that holds an nkey seed alone."""
    solution = "Set `credentials` to a file as `nsc generate creds` writes it, or to one with an nkey seed (SU…)"
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"{path}: the credentials file cannot be read: {why}", solution) from error
    parts = dict(_CREDENTIAL.findall(text))
    seed = next((content for name, content in parts.items() if "SEED" in name), "" if parts else text.strip())
    jwt = next((content for name, content in parts.items() if "JWT" in name), "")
    try:
        return Credentials(jwt=jwt, seed=seed_bytes(seed))
    except BadKey as error:
        raise ConfigError(f"{path}: it holds no nkey seed: {error}", solution) from None


@dataclass(frozen=True)
class Servers:
    """How to reach one of several servers of a cluster. Picklable, and never printed whole."""

    urls: tuple[str, ...]
    timeout: float = 30.0
    ca: str = ""
    credentials: Credentials = field(default_factory=Credentials, repr=False)

    def __repr__(self) -> str:
        return f"Servers({self.text})"

    @property
    def addresses(self) -> list[Address]:
        return [parse_address(url, schemes=SCHEMES, port=PORT, ca=self.ca) for url in self.urls]

    @property
    def text(self) -> str:
        return ", ".join(address.text for address in self.addresses)

    @contextmanager
    def connected(self) -> Iterator[NatsConnection]:
        """Lend a connection of this process. One with which anything went wrong is closed."""
        connection = _IDLE.take(self, self._connect)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        _IDLE.give_back(self, connection)

    def _connect(self) -> NatsConnection:
        failed: DestinationUnreachable | None = None
        for address in self.addresses:
            try:
                return NatsConnection(address, self.timeout, self.credentials)
            except DestinationUnreachable as error:
                failed = failed or error
        assert failed is not None, "the pipeline file names one server at least"
        raise failed


class ApiError(Exception):
    """What JetStream answers when it refuses a request."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


class NatsConnection:
    """`max_payload` is the largest message that the server takes, headers included."""

    def __init__(self, address: Address, timeout: float, credentials: Credentials) -> None:
        self.address = address
        self._channel = Channel(address, timeout, tls=False)
        self._parser, self._asked = Parser(), 0
        self._inbox = f"_INBOX.{uuid.uuid4().hex}"
        self._answers: dict[str, Message] = {}
        try:
            self.max_payload = self._log_in(credentials)
        except BaseException:
            self.close()
            raise

    def new_reply(self) -> str:
        """Return a subject that an answer can be sent to."""
        self._asked += 1
        return f"{self._inbox}.{self._asked}"

    def send(self, octets: bytes | memoryview) -> None:
        self._channel.send(octets)

    def answer(self, reply: str) -> dict[str, Any]:
        """Return the answer that was sent to `reply`. ApiError when it is a refusal."""
        while reply not in self._answers:
            self._take(self._next())
        message = self._answers.pop(reply)
        if message.status == NOBODY_LISTENS:
            raise ApiError(NOBODY_LISTENS, "nobody listens")
        content: dict[str, Any] = json.loads(message.data)
        if "error" in content:
            error = content["error"]
            raise ApiError(int(error.get("err_code", 0)), str(error.get("description", "")))
        return content

    def ask(self, subject: str, content: object = None) -> dict[str, Any]:
        """Ask JetStream's API, and return its answer."""
        reply = self.new_reply()
        data = b"" if content is None else json.dumps(content).encode()
        self.send(publish(f"$JS.API.{subject}", data, reply=reply))
        return self.answer(reply)

    def refusal(self, error: ApiError, stream: str) -> DestinationError:
        """Return what a refusal means that nothing more particular is known of."""
        if error.code == NOBODY_LISTENS or error.code in _NO_JETSTREAM:
            return DestinationUnreachable(
                f"{self.address.text}: JetStream does not answer: it is not enabled on the server or for the account, "
                "or no stream takes the subject",
                "Enable it (`jetstream {}` in the server's configuration), and check the subjects of the stream",
            )
        return DestinationUnreachable(
            f"{self.address.text}: stream {stream}: {error.text} (code {error.code})",
            "Look at the stream's limits and at the account's: `nats stream info`. It is tried again",
        )

    def is_alive(self) -> bool:
        """Whether the connection works, as far as can be seen; what has arrived meanwhile is dealt with."""
        octets = self._channel.pending()
        if octets is None:
            return False
        self._parser.feed(octets)
        try:
            while (found := self._parser.next()) is not None:
                self._take(found)
        except DestinationError:
            return False
        self._answers.clear()
        return True

    def close(self) -> None:
        self._channel.close()

    def _next(self) -> Message | Line:
        while (found := self._parser.next()) is None:
            self._parser.feed(self._channel.receive())
        return found

    def _take(self, found: Message | Line) -> None:
        if isinstance(found, Message):
            self._answers[found.subject] = found
        elif found.kind == "PING":
            self.send(b"PONG\r\n")
        elif found.kind == "-ERR":
            raise self._error(found.text.strip("' "))

    def _error(self, text: str) -> DestinationUnreachable:
        where, low = self.address.text, text.lower()
        if "permissions violation" in low:
            return DestinationUnreachable(
                f"{where}: {text}",
                "Allow the user to publish to the stream's subjects and $JS.API.STREAM.>, and to subscribe to _INBOX.>",
            )
        if "authorization" in low or "authentication" in low:
            return DestinationUnreachable(
                f"{where}: it refuses the user, the token or the credentials ({text})",
                "Correct user and password in `url`, `token` or `credentials`",
            )
        return DestinationUnreachable(f"{where}: {text}", "See the server's log. It is tried again")

    def _log_in(self, credentials: Credentials) -> int:
        info = self._next()
        if not isinstance(info, Line) or info.kind != "INFO":
            raise DestinationUnreachable(f"{self.address.text}: not a NATS server", "Correct `url`")
        facts = json.loads(info.text)
        if self.address.scheme == "tls" or facts.get("tls_required"):
            if not facts.get("tls_required") and not facts.get("tls_available"):
                raise DestinationUnreachable(f"{self.address.text}: the server has no TLS", "Use nats:// in `url`")
            self._channel.use_tls()
        options: dict[str, object] = {
            "verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1, "echo": False,
            "name": "penstock", "lang": "penstock", "version": "1",
            **self._login(credentials, str(facts.get("nonce", ""))),
        }  # fmt: skip
        self.send(f"CONNECT {json.dumps(options)}\r\nSUB {self._inbox}.* 1\r\nPING\r\n".encode())
        while True:
            found = self._next()
            if isinstance(found, Line) and found.kind == "PONG":
                return int(facts.get("max_payload", 1 << 20))
            self._take(found)

    def _login(self, given: Credentials, nonce: str) -> dict[str, str]:
        address = self.address
        if given.seed:
            signed = base64.urlsafe_b64encode(sign(given.seed, nonce.encode())).decode().rstrip("=")
            return {"sig": signed, **({"jwt": given.jwt} if given.jwt else {"nkey": public_text(given.seed)})}
        if given.token:
            return {"auth_token": given.token}
        user, password = given.user or address.user, given.password or address.password
        if user and not password:
            return {"auth_token": user}  # as NATS' own clients read nats://token@host
        return {"user": user, "pass": password} if user else {}


_IDLE: Idle[NatsConnection] = Idle()

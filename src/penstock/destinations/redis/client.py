"""A connection to a Redis server: log in, ask, and say in one line what the server refuses.

Everything that may pass by itself or by an operator's hand is DestinationUnreachable, and so tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.destinations.connection import Address, Channel, Idle, parse_address
from penstock.destinations.redis.protocol import Incomplete, RedisError, command, read
from penstock.errors import DestinationUnreachable

SCHEMES, PORT = ("redis", "rediss"), 6379

_REFUSALS: Mapping[str, tuple[str, str]] = {
    "NOAUTH": ("it wants a password", "Put user and password into `url`: redis://user:password@host"),
    "WRONGPASS": ("it refuses the user or the password of `url`", "Correct `url`, or the server's users"),
    "NOPERM": (
        "the user of `url` may not do that",
        "Allow it, for the streams and for keys penstock:*: "
        "+xadd +get +mget +set +type +watch +unwatch +multi +exec +info +select",
    ),
    "LOADING": ("it is loading its data", "Wait: it is tried again"),
    "READONLY": ("it is a replica, which cannot be written to", "Name the primary in `url`"),
    "MASTERDOWN": ("it is a replica, and its primary is away", "Name the primary in `url`"),
    "OOM": ("it has reached its maxmemory", "Raise `maxmemory`, trim streams, or set `maxlen` in the pipeline file"),
    "MISCONF": ("it takes no writes, because it cannot save its data", "See the server's log: the disk may be full"),
    "BUSY": ("a script keeps it busy", "Wait, or end the script: SCRIPT KILL"),
    "CLUSTERDOWN": ("the cluster is down", "Repair the cluster: it is tried again"),
    "CROSSSLOT": (
        "streams of one shard are on several nodes of the cluster",
        'Put a hash tag into `stream`, for example "{shop}.${source.schema}.${source.table}"',
    ),
    "MOVED": ("another node of the cluster has the streams", "Name the node that the answer names in `url`"),
    "NOREPLICAS": ("too few replicas are connected (min-replicas-to-write)", "Bring them back: it is tried again"),
}


@dataclass(frozen=True)
class Server:
    """How to reach a server. Picklable, and never printed whole."""

    url: str
    timeout: float = 30.0
    ca: str = ""

    def __repr__(self) -> str:
        return f"Server({self.address.text})"

    @property
    def address(self) -> Address:
        return parse_address(self.url, schemes=SCHEMES, port=PORT, ca=self.ca)

    @contextmanager
    def connected(self) -> Iterator[RedisConnection]:
        """Lend a connection of this process. One with which anything went wrong is closed."""
        connection = _IDLE.take(self, lambda: RedisConnection(self.address, self.timeout))
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        _IDLE.give_back(self, connection)


class RedisConnection:
    def __init__(self, address: Address, timeout: float) -> None:
        self.address = address
        self._channel = Channel(address, timeout, tls=address.scheme == "rediss")
        try:
            self._log_in()
        except BaseException:
            self.close()
            raise

    def ask(self, *commands: bytes) -> list[Any]:
        """Send commands and return their answers. The first that is an error is raised."""
        return self.require(self.send(b"".join(commands), len(commands)))

    def send(self, octets: bytes | memoryview, answers: int) -> list[Any]:
        """Send commands and return their answers, errors among them."""
        self._channel.send(octets)
        return self.answers(bytearray(), answers)

    def send_and_look(self, octets: list[bytes | memoryview], seen: Callable[[bytearray], bool | None]) -> bytearray:
        """Send commands, and return what was answered as soon as `seen` makes something of it."""
        for part in octets:
            self._channel.send(part)
        received = bytearray()
        while seen(received) is None:
            received += self._channel.receive()
        return received

    def answers(self, received: bytearray, count: int) -> list[Any]:
        """Read answers, of which a part has been received."""
        found: list[Any] = []
        at = 0
        while len(found) < count:
            try:
                one, at = read(received, at)
                found.append(one)
            except Incomplete:
                received += self._channel.receive()
        return found

    def require(self, answers: list[Any]) -> list[Any]:
        """Return the answers, unless one is an error."""
        for answer in answers:
            if isinstance(answer, RedisError):
                raise self.refusal(answer)
        return answers

    def refusal(self, error: RedisError) -> DestinationUnreachable:
        what, solution = _REFUSALS.get(error.code, ("it refuses a command", "See the server's message"))
        return DestinationUnreachable(f"{self.address.text}: {what} ({error.text})", solution)

    def is_alive(self) -> bool:
        return self._channel.pending() == b""

    def close(self) -> None:
        self._channel.close()

    def _log_in(self) -> None:
        address = self.address
        if address.password:
            self.ask(command("AUTH", *filter(None, [address.user]), address.password))
        database = address.path.strip("/")
        if database:
            self.ask(command("SELECT", database))


_IDLE: Idle[RedisConnection] = Idle()

"""Hold requests to a size and a rate.

The rate is looked at before anything else, and so is the size that a request says it has. A body is read only when its
sender may ask at all (`BodyLimit`, behind `access.py`): nobody without a token makes the server hold anything.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.server.problems import Refused, answer

MOST_DIGITS = 15  # of a size: what is longer is too large
MOST_CLIENTS = 10_000  # remembered; the one that was away longest is forgotten first


@dataclass
class _Bucket:
    level: float
    at: float


class RateLimit:
    """A token bucket per client: `rate` per second, and `burst` at once."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, client: str) -> bool:
        """Return whether the client may do one more."""
        now = self._clock()
        bucket = self._buckets.pop(client, None) or _Bucket(self._burst, now)
        bucket.level = min(self._burst, bucket.level + (now - bucket.at) * self._rate)
        bucket.at = now
        self._buckets[client] = bucket
        while len(self._buckets) > MOST_CLIENTS:
            self._buckets.popitem(last=False)
        if bucket.level < 1:
            return False
        bucket.level -= 1
        return True


class Slots:
    """So many at once of what takes long and holds a thread meanwhile; 429 for the next one."""

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what = most, what
        self._free = threading.BoundedSemaphore(most)

    def take(self) -> Slot:
        """Take a place. Refused when there is none."""
        if not self._free.acquire(blocking=False):
            raise Refused(429, "TOO_MANY_REQUESTS", f"{self._most} {self._what} already", "Wait for one to end")
        return Slot(self._free.release)


class Slot:
    """A place that was taken. Given back once: at `close`, the end of the block, or when nobody holds it any more."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back: Callable[[], None] | None = give_back

    def close(self) -> None:
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()

    def __enter__(self) -> Slot:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Limits:
    """Middleware: 413 for a request that says it is too large, 429 for a client that is too quick."""

    def __init__(self, app: ASGIApp, most_bytes: int, rate: RateLimit) -> None:
        self._app, self._most_bytes, self._rate = app, most_bytes, rate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        if not self._rate.take(client[0] if client else ""):
            refusal = answer(429, "TOO_MANY_REQUESTS", "too many requests from this address", "Wait a second")
            await refusal(scope, receive, send)
            return
        said = dict(scope["headers"]).get(b"content-length", b"0")
        if not said.isdigit() or len(said) > MOST_DIGITS or int(said) > self._most_bytes:
            await _too_large(self._most_bytes)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class BodyLimit:
    """Middleware: 413 for a body that is too large, whatever its sender said."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self._app, self._most_bytes = app, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        held: list[Message] = []  # a body is read here, up to its limit: nobody else sees one that is too large
        seen, more = 0, True
        while more:
            message = await receive()
            held.append(message)
            seen += len(message.get("body", b""))
            more = message["type"] == "http.request" and message.get("more_body", False)
            if seen > self._most_bytes:
                await _too_large(self._most_bytes)(scope, receive, send)
                return

        async def replayed() -> Message:
            return held.pop(0) if held else await receive()

        await self._app(scope, replayed, send)


def _too_large(most_bytes: int) -> JSONResponse:
    return answer(413, "TOO_LARGE", f"the request is larger than {most_bytes} bytes", "Send less at once")

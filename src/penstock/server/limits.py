"""Hold requests to a size and a rate, before anything else looks at them."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.server.problems import answer

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


class Limits:
    """Middleware: 413 for a body that is too large, 429 for a client that is too quick."""

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
        headers = dict(scope["headers"])
        said = headers.get(b"content-length", b"0")
        too_large = answer(
            413, "TOO_LARGE", f"the request is larger than {self._most_bytes} bytes", "Send less at once"
        )
        if not said.isdigit() or int(said) > self._most_bytes:
            await too_large(scope, receive, send)
            return
        held: list[Message] = []  # a body is read here, up to its limit: nobody else sees one that is too large
        seen, more = 0, True
        while more:
            message = await receive()
            held.append(message)
            seen += len(message.get("body", b""))
            more = message["type"] == "http.request" and message.get("more_body", False)
            if seen > self._most_bytes:
                await too_large(scope, receive, send)
                return

        async def replayed() -> Message:
            return held.pop(0) if held else await receive()

        await self._app(scope, replayed, send)

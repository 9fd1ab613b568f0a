"""What the pipeline file says of a webhook, as the destination needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from penstock.destinations.http.destination import HttpStream
from penstock.destinations.http.endpoint import Endpoint, secret_bytes
from penstock.destinations.http.shard import Pace
from penstock.destinations.key_layout import Ordering


class Secret(Protocol):
    def get_secret_value(self) -> str: ...


class Signature(Protocol):
    @property
    def secret(self) -> Secret: ...

    @property
    def header(self) -> str: ...


class Retry(Protocol):
    @property
    def first(self) -> float: ...

    @property
    def longest(self) -> float: ...


class Envelope(Protocol):
    @property
    def type(self) -> str: ...


class HttpSettings(Protocol):
    """`config.destinations.HttpDestination` has this shape."""

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str: ...

    @property
    def method(self) -> str: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def signature(self) -> Signature | None: ...

    @property
    def ca_file(self) -> str | None: ...

    @property
    def batch(self) -> int: ...

    @property
    def envelope(self) -> Envelope: ...

    @property
    def timeout(self) -> float: ...

    @property
    def retry(self) -> Retry: ...

    @property
    def shards(self) -> int: ...

    @property
    def ordering(self) -> Ordering: ...


def http_stream(settings: HttpSettings) -> HttpStream:
    """Return the stream that a section of the file describes."""
    signed = settings.signature
    endpoint = Endpoint(
        settings.url,
        settings.method,
        tuple(settings.headers.items()),
        timeout=settings.timeout,
        ca_file=settings.ca_file or "",
        content_type=_content_type(settings.envelope.type, settings.batch),
    )
    if signed is not None:
        secret = secret_bytes(signed.secret.get_secret_value())
        endpoint = replace(endpoint, secret=secret, signature_header=signed.header)
    pace = Pace(settings.retry.first, settings.retry.longest)
    return HttpStream(settings.name, endpoint, settings.batch, pace, settings.shards, settings.ordering)


def _content_type(envelope: str, batch: int) -> str:
    if envelope != "cloudevents":
        return "application/json"
    return "application/cloudevents+json" if batch == 1 else "application/cloudevents-batch+json"

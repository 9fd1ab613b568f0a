"""What the pipeline file says of a webhook, as the destination needs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

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

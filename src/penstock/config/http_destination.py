"""The section of the pipeline file that describes a destination of type `http`: a webhook."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, field_validator

from penstock.config.destinations import StreamSection
from penstock.config.section import Section
from penstock.config.units import Duration
from penstock.config.values import Located, Name

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OWN_HEADERS = frozenset(
    (
        "content-length",
        "content-type",
        "host",
        "idempotency-key",
        "transfer-encoding",
        "webhook-id",
        "webhook-timestamp",
    )
)


def _header_name(name: str) -> str:
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError("must be the name of an HTTP header")
    if name.lower() in _OWN_HEADERS:
        raise ValueError(f"must not be {name}: penstock sets it")
    return name


def _request_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        _header_name(name)
        if "${" in value:
            raise ValueError(f"has a template for {name}: a request holds many events, so its headers are the same")
        if not value.isprintable() or not value.isascii():
            raise ValueError(f"has a value of {name} that no HTTP header can have")
    return headers


def _webhook(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or " " in url:
        raise ValueError("must be an http:// or https:// address")
    return url


class WebhookSignature(Section):
    """How requests are signed: as standardwebhooks.com says, or by the body alone in a header of one's own."""

    secret: SecretStr
    header: Annotated[str, AfterValidator(_header_name)] = "webhook-signature"

    @field_validator("secret")
    @classmethod
    def _decodable(cls, secret: SecretStr) -> SecretStr:
        text = secret.get_secret_value()
        try:
            key = base64.b64decode(text.removeprefix("whsec_"), validate=True) if text.startswith("whsec_") else text
        except binascii.Error:
            raise ValueError("must be base64 behind `whsec_`") from None
        if not key:
            raise ValueError("must not be empty")
        return secret


class HttpDestination(StreamSection):
    """A webhook: every event as a part of a request, at least once. `headers` are those of every request."""

    takes_avro: ClassVar[bool] = False
    not_yet: ClassVar[tuple[str, ...]] = tuple(key for key in StreamSection.not_yet if key != "timeout")

    name: Name = "http"
    type: Literal["http"]
    url: Annotated[str, AfterValidator(_webhook), Field(repr=False)]
    method: Literal["POST", "PUT"] = "POST"
    batch: Annotated[int, Field(ge=1, le=10_000)] = 100
    headers: Annotated[dict[str, str], AfterValidator(_request_headers), Field(repr=False)] = Field(
        default_factory=dict
    )
    signature: WebhookSignature | None = None
    ca_file: Located | None = None
    timeout: Annotated[Duration, Field(gt=0)] = 30.0

    @property
    def header_templates(self) -> dict[str, str]:
        return {}  # its headers are those of requests, not of records

    @property
    def where(self) -> str:
        parts = urlsplit(self.url)
        return f"webhook at {parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")

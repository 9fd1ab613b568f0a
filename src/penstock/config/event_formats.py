"""How a stream's section says what its records look like: `envelope`, `encoding`, `key`, `headers`, topics.

Templates are compiled when the file is read (`render/template.py`), so a name that does not exist is refused there.
What a template needs of tables is known only when these are: `penstock check` looks at that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from penstock.config.section import Section, misplaced
from penstock.config.units import Duration
from penstock.render.format import Deletes, Envelope, EnvelopeType, EventFormat, Registry, Schemas, SubjectName, Unwrap
from penstock.render.template import compiled

_OWN_OPTIONS = {"schemas": "debezium", "prefix": "cloudevents", "null_images": "cloudevents", "unwrap": "debezium"}


def _template(text: str) -> str:
    compiled(text)
    return text


def _header_names(headers: dict[str, str]) -> dict[str, str]:
    if "" in headers:
        raise ValueError("has a header without a name")
    return headers


def _registry(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be the http:// or https:// address of a schema registry")
    if parts.password is not None:
        raise ValueError("must not hold a password; give `username` and `password` beside it")
    return url


def _named(value: Any) -> Any:
    """`envelope: debezium` is short for `envelope: {type: debezium}`."""
    return {"type": value} if isinstance(value, str) else value


TemplateText = Annotated[str, Field(min_length=1), AfterValidator(_template)]
HeaderTemplates = Annotated[dict[str, TemplateText], AfterValidator(_header_names)]


class EnvelopeSection(Section):
    """The shape of records. `schemas` and `unwrap` belong to debezium, the rest to cloudevents."""

    type: EnvelopeType = "native"
    schemas: Schemas = "none"
    prefix: Annotated[str, Field(min_length=1)] = "penstock"
    null_images: bool = True
    unwrap: bool = False

    @model_validator(mode="after")
    def _options_of_the_type(self) -> EnvelopeSection:
        for option, owner in _OWN_OPTIONS.items():
            if option in self.model_fields_set and self.type != owner:
                raise misplaced(option, f"belongs to `type: {owner}`")
        return self


class EncodingSection(Section):
    """How records become bytes. All but `type` belongs to avro."""

    type: Literal["json", "avro"] = "json"
    registry: Annotated[str, AfterValidator(_registry)] | None = None
    subject: SubjectName = "topic_name"
    username: str | None = None
    password: SecretStr | None = None
    timeout: Annotated[Duration, Field(gt=0)] = 10.0

    @model_validator(mode="after")
    def _with_a_registry(self) -> EncodingSection:
        if self.type == "avro" and self.registry is None:
            raise misplaced("registry", "is missing: Avro's schemas go into a schema registry")
        if self.type == "json" and self.model_fields_set - {"type"}:
            raise misplaced(sorted(self.model_fields_set - {"type"})[0], "belongs to `type: avro`")
        return self


AnyEnvelope = Annotated[EnvelopeSection, BeforeValidator(_named)]
AnyEncoding = Annotated[EncodingSection, BeforeValidator(_named)]


def event_format(
    envelope: EnvelopeSection,
    encoding: EncodingSection,
    *,
    topic: str | None,
    key: str | None,
    headers: Mapping[str, str],
    deletes: Deletes,
    truncates: Literal["send", "skip"],
    transactions: bool = False,
) -> EventFormat:
    """Return the format that a stream's section describes."""
    unwrap: Unwrap = ""
    if envelope.unwrap:
        unwrap = "row" if deletes == "tombstone" else "row and whether it is deleted"
    return EventFormat(
        Envelope(envelope.type, envelope.schemas, envelope.prefix, envelope.null_images, unwrap),
        _registry_of(encoding),
        None if topic is None else compiled(topic),
        None if key is None else compiled(key),
        tuple((name, compiled(text)) for name, text in headers.items()),
        deletes,
        truncates,
        transactions=transactions,
    )


def _registry_of(encoding: EncodingSection) -> Registry | None:
    if encoding.registry is None:
        return None
    password = "" if encoding.password is None else encoding.password.get_secret_value()
    return Registry(encoding.registry, encoding.subject, encoding.username or "", password, encoding.timeout)

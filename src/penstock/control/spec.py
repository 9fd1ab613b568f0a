"""A pipeline's file as a document that may be shown: what the file says, without its secrets.

The models say themselves what is secret: fields of `SecretStr`, and those that never appear in a `repr`. Text that
looks like a URL with a password is scrubbed wherever it stands.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from pydantic import BaseModel, SecretStr

from penstock.config.model import Pipeline
from penstock.control.text.secrets import scrub

HIDDEN = "***"


def shown_spec(pipeline: Pipeline) -> dict[str, Any]:
    """Return what the file sets, in its own keys. Secrets, URLs and properties of catalogs and clients are `***`."""
    return _section(pipeline.whole)


def _section(section: BaseModel) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        if name not in section.model_fields_set:
            continue
        value = getattr(section, name)
        shown[field.alias or name] = _value(value) if field.repr else _hidden(value)
    return shown


def _hidden(value: Any) -> Any:
    return dict.fromkeys(value, HIDDEN) if isinstance(value, dict) else HIDDEN


def _value(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return HIDDEN
    if isinstance(value, BaseModel):
        return _section(value)
    if isinstance(value, dict):
        return {str(key): _value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_value(inner) for inner in value]
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float):
        return value
    return scrub(str(value))

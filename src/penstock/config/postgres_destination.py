"""The section of the pipeline file that describes a Postgres destination."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, SecretStr, ValidationInfo

from penstock import libpq
from penstock.config.source_url import checked_source_url


def _url(secret: SecretStr, info: ValidationInfo) -> SecretStr:
    folder: Path = (info.context or {}).get("folder", Path.cwd())
    return SecretStr(checked_source_url(secret.get_secret_value(), folder))


PostgresUrl = Annotated[SecretStr, AfterValidator(_url)]
Enums = Literal["text", "enum"]
Deletes = Literal["hard"]


def shown(url: SecretStr) -> str:
    """Return the address as `check` shows it."""
    return f"Postgres at {libpq.endpoint(libpq.parts_of(url.get_secret_value()))}"

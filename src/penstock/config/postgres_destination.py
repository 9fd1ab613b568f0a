"""The section of the pipeline file that describes a Postgres destination."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, SecretStr, ValidationInfo

from penstock import libpq
from penstock.config.destinations import TableSection
from penstock.config.source_url import checked_source_url
from penstock.config.values import Name


def _url(secret: SecretStr, info: ValidationInfo) -> SecretStr:
    folder: Path = (info.context or {}).get("folder", Path.cwd())
    return SecretStr(checked_source_url(secret.get_secret_value(), folder))


class PostgresDestination(TableSection):
    """Tables of a Postgres database. `create: false` fills tables that somebody made, as far as their columns go."""

    name: Name = "postgres"
    type: Literal["postgres"]
    url: Annotated[SecretStr, AfterValidator(_url)]
    create: bool = True
    enums: Literal["text", "enum"] = "text"
    deletes: Literal["hard"] = "hard"

    @property
    def where(self) -> str:
        return f"Postgres at {libpq.endpoint(libpq.parts_of(self.url.get_secret_value()))}"

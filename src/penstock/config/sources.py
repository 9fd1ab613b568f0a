"""The sections of the pipeline file that describe sources, one class for each `type`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from psycopg.conninfo import conninfo_to_dict
from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, SecretStr, ValidationInfo

from penstock.config.section import Identifier, Section, misplaced
from penstock.config.source_url import checked_source_url
from penstock.config.values import Name

SlotName = Annotated[str, Field(pattern=r"^[a-z0-9_]+$", max_length=63)]


def _sid(value: Any) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    if value is not None and not whole and not (isinstance(value, str) and value):
        raise ValueError("must be text or a whole number")
    return value


def _source_url(secret: SecretStr, info: ValidationInfo) -> SecretStr:
    folder: Path = (info.context or {}).get("folder", Path.cwd())
    return SecretStr(checked_source_url(secret.get_secret_value(), folder))


class PostgresSource(Section):
    """Where changes come from.

    Unless the file says otherwise, `publication` and `slot` of the only `source` are `penstock_{pipeline}`, and those
    of each of `sources` are `penstock_{pipeline}_{name}`.
    """

    name: Name = ""
    type: Literal["postgres"]
    url: Annotated[SecretStr, AfterValidator(_source_url)]
    sid: Annotated[str | int | None, BeforeValidator(_sid)] = None
    publication: Identifier = ""
    slot: SlotName = ""
    ddl_trigger: Literal["manual", "auto"] = "manual"

    _pipeline: str = PrivateAttr("")

    @property
    def database(self) -> str:
        """The database's name; as libpq does it, the user's where the URL names none."""
        parts = conninfo_to_dict(self.url.get_secret_value())
        return str(parts.get("dbname") or parts.get("user") or "")

    @property
    def pipeline(self) -> str:
        """The pipeline's name, by which a publication knows who manages it."""
        return self._pipeline


def require_distinct(sources: Sequence[PostgresSource]) -> None:
    """Raise what makes two of the sources one, or leaves one without a name of its own."""
    sids = [source.sid if source.sid is not None else source.name for source in sources]
    if len({type(sid) for sid in sids}) > 1:
        raise misplaced("sources", "must have sids that are all text or all numbers, for they are one column")
    seen: set[tuple[str, object]] = set()
    for number, (source, sid) in enumerate(zip(sources, sids, strict=True)):
        url = source.url.get_secret_value()
        server = tuple(conninfo_to_dict(url).get(key) for key in ("host", "port"))
        own = (
            ("name", source.name, source.name),
            ("sid", sid, sid),
            ("slot", source.slot, (server, source.slot)),
            ("publication", source.publication, (url, source.publication)),
        )
        for key, value, identity in own:
            if value == "":
                raise misplaced(("sources", number, key), "is missing")
            if (key, identity) in seen:
                problem = f"is {value}, and so is another source's; give each its own"
                raise misplaced(("sources", number, key), problem)
            seen.add((key, identity))

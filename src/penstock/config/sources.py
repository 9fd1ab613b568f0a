"""The sections of the pipeline file that describe sources, one class for each `type`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from psycopg.conninfo import conninfo_to_dict
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PrivateAttr,
    SecretStr,
    Tag,
    ValidationInfo,
    model_validator,
)

from penstock.config.mysql_source import MysqlSource
from penstock.config.section import Identifier, Section, misplaced
from penstock.config.source_id import SourceId
from penstock.config.source_url import checked_source_url
from penstock.config.units import Duration
from penstock.config.values import Name
from penstock.model.position import Position, parse_position

SlotName = Annotated[str, Field(pattern=r"^[a-z0-9_]+$", max_length=63)]


def _lsn(value: object) -> object:
    """Read a position as Postgres writes it."""
    if not isinstance(value, str):
        raise ValueError("must be a position as Postgres writes it, in quotes, such as '16/B374D848'")
    return parse_position(value)


Lsn = Annotated[Position, BeforeValidator(_lsn)]


def _source_url(secret: SecretStr, info: ValidationInfo) -> SecretStr:
    folder: Path = (info.context or {}).get("folder", Path.cwd())
    return SecretStr(checked_source_url(secret.get_secret_value(), folder))


class PostgresSource(Section):
    """Where changes come from.

    `start_lsn` is where an empty change log begins; `retries` is how often capture tries again in a row, None: for
    ever. Every `status_every` the server hears what is durable, and one that has said nothing for `keepalive` counts
    as gone. A temporary slot lasts as long as a run's stream, and nothing of that run is left when it ends.

    Unless the file says otherwise, `publication` and `slot` of the only `source` are `penstock_{pipeline}`, and those
    of each of `sources` are `penstock_{pipeline}_{name}`.
    """

    name: Name = ""
    type: Literal["postgres"]
    url: Annotated[SecretStr, AfterValidator(_source_url)]
    sid: SourceId = None
    publication: Identifier = ""
    slot: SlotName = ""
    create_slot: bool = True
    slot_type: Literal["permanent", "temporary"] = "permanent"
    start_lsn: Lsn | None = None
    retries: Annotated[int, Field(ge=0)] | None = None
    status_every: Annotated[Duration, Field(ge=0.1)] = 10.0
    keepalive: Annotated[Duration, Field(ge=1)] = 60.0
    ddl_trigger: Literal["manual", "auto"] = "manual"

    _pipeline: str = PrivateAttr("")

    @property
    def database(self) -> str:
        """The database's name; as libpq does it, the user's where the URL names none."""
        parts = conninfo_to_dict(self.url.get_secret_value())
        return str(parts.get("dbname") or parts.get("user") or "")

    @property
    def events_database(self) -> str:
        """What events name as their database."""
        return self.database

    @property
    def connector(self) -> str:
        """Debezium's word for this kind of source."""
        return "postgresql"

    @property
    def pipeline(self) -> str:
        """The pipeline's name, by which a publication knows who manages it."""
        return self._pipeline

    @property
    def keeps_changes(self) -> bool:
        """Whether the source keeps changes for the pipeline while no run reads them."""
        return self.slot_type == "permanent"

    @model_validator(mode="after")
    def _made_by_every_run(self) -> PostgresSource:
        if self.keeps_changes:
            return self
        if not self.create_slot:
            raise misplaced("create_slot", "cannot be false for a temporary slot, which every run makes for itself")
        if self.start_lsn is not None:
            raise misplaced("start_lsn", "cannot be given for a temporary slot, which begins where it is made")
        return self

    @model_validator(mode="after")
    def _silence_longer_than_status(self) -> PostgresSource:
        if self.keepalive <= self.status_every:
            raise misplaced("keepalive", "must be longer than status_every, after which the server is asked for a word")
        return self

    @property
    def own(self) -> tuple[tuple[str, str, object], ...]:
        """What no two sources may share: a key of the section, its value, and what makes that value the same one."""
        url = self.url.get_secret_value()
        server = tuple(conninfo_to_dict(url).get(key) for key in ("host", "port"))
        return (("slot", self.slot, (server, self.slot)), ("publication", self.publication, (url, self.publication)))


def _type(source: object) -> object:
    """Return the type that a section names. One that names none is read as Postgres', which finds its mistakes."""
    return source.get("type", "postgres") if isinstance(source, dict) else getattr(source, "type", None)


SourceSection = PostgresSource | MysqlSource
AnySource = Annotated[
    Annotated[PostgresSource, Tag("postgres")] | Annotated[MysqlSource, Tag("mysql")], Discriminator(_type)
]


def with_names(source: object, default: str) -> object:
    """Fill in what a section is called after its pipeline, unless the file says it."""
    if not isinstance(source, dict) or source.get("type") != "postgres":
        return source
    return {"publication": default, "slot": default, **source}


def require_distinct(sources: Sequence[SourceSection]) -> None:
    """Raise what makes two of the sources one, or leaves one without a name of its own."""
    sids = [source.sid if source.sid is not None else source.name for source in sources]
    if len({type(sid) for sid in sids}) > 1:
        raise misplaced("sources", "must have sids that are all text or all numbers, for they are one column")
    seen: set[tuple[str, object]] = set()
    for number, (source, sid) in enumerate(zip(sources, sids, strict=True)):
        named: tuple[tuple[str, object, object], ...] = (("name", source.name, source.name), ("sid", sid, sid))
        for key, value, identity in (*named, *source.own):
            if value == "":
                raise misplaced(("sources", number, key), "is missing")
            if (key, identity) in seen:
                problem = f"is {value}, and so is another source's; give each its own"
                raise misplaced(("sources", number, key), problem)
            seen.add((key, identity))

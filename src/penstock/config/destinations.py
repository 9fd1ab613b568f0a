"""The sections of the pipeline file that describe destinations, one class for each `type`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from penstock.config.event_formats import (
    AnyEncoding,
    AnyEnvelope,
    EncodingSection,
    EnvelopeSection,
    HeaderTemplates,
    TemplateText,
    event_format,
)
from penstock.config.processors import AnyProcessor
from penstock.config.rules import TablePattern
from penstock.config.section import Section, misplaced
from penstock.config.source_events import AnyMessages, MessagesSection, require_shape
from penstock.config.units import Duration, Size
from penstock.config.values import Located, Name, Properties
from penstock.model.location import local_path
from penstock.model.position import Position, parse_position
from penstock.model.source_events import WantedEvents
from penstock.render.format import EventFormat


def _plain_path(located: str) -> str:
    """Return a local folder without its `file://`; anything else as it is."""
    path = local_path(located)
    return located.rstrip("/") if path is None else str(path)


def _start(text: str) -> str:
    if text not in ("log", "now", "copy"):
        try:
            parse_position(text)
        except ValueError:
            raise ValueError('must be log, now, copy or a position like "0/16B3748"') from None
    return text


StreamStart = Annotated[str, AfterValidator(_start)]


class Maintenance(Section):
    """How a table is kept small and quick to read, between batches."""

    expire_every: Annotated[int, Field(ge=1)] = 50
    keep_snapshots: Annotated[int, Field(ge=1)] = 50
    time_travel: Duration = 0.0
    keep_for: Duration = 600.0
    compact_files: Annotated[int, Field(ge=2)] = 8
    read_cost: Annotated[float, Field(ge=1.05)] = 1.3
    merge_at_once: Annotated[Size, Field(ge=2**20)] = 64 * 2**20
    pause: Duration = 0.5
    sweep_every: Duration = 86400.0
    sweep_age: Duration = 86400.0
    key_index: Annotated[Size, Field(ge=2**20)] = 50 * 2**30
    advance_idle_every: Duration = 60.0


class DestinationSection(Section):
    """What every destination has."""

    name: Name = ""
    required: bool = True


class DeadLetterConfig(Section):
    """Limits for dead letters: how many are kept, for how long, and what happens when there is no room for another.

    An age of 0 keeps them until an operator removes them.
    """

    max_entries: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    max_age: Duration = 0.0
    overflow: Literal["reject", "block", "drop_oldest"] = "reject"


class TableSection(DestinationSection):
    """What every destination of tables has."""

    type: str
    start: Literal["copy"] = "copy"  # a table is complete with a copy only
    maintenance: Maintenance = Maintenance()
    processors: list[AnyProcessor] = Field(default_factory=list)
    dlq: DeadLetterConfig = DeadLetterConfig()

    @model_validator(mode="after")
    def _goes_on(self) -> TableSection:
        if self.dlq.overflow == "block":
            raise misplaced(("dlq", "overflow"), "is `block`, which is for streams; tables have reject and drop_oldest")
        return self

    @property
    def folder(self) -> Path | None:
        """The folder on this machine that its tables are in; None when they are elsewhere."""
        return None

    @property
    def where(self) -> str:
        """Where its tables are, as `check` shows it."""
        raise NotImplementedError


class IcebergDestination(TableSection):
    """Where tables go. Without `catalog`: a JDBC catalog on SQLite in the warehouse."""

    name: Name = "lake"
    type: Literal["iceberg"]
    warehouse: Located
    catalog: Properties = Field(default_factory=dict)
    consistent_every: Annotated[Duration, Field(ge=1)] | None = None

    @property
    def catalog_type(self) -> str:
        """Which catalog it is, as far as the file says: `jdbc`, `rest`, or another of Iceberg's types."""
        if not self.catalog:
            return "jdbc"
        implementation = self.catalog.get("catalog-impl", "").rpartition(".")[2].lower()
        return self.catalog.get("type") or implementation.removesuffix("catalog")

    @property
    def folder(self) -> Path | None:
        return local_path(self.warehouse)

    @property
    def where(self) -> str:
        return f"warehouse {self.warehouse}"


class RetryConfig(Section):
    """How a destination is tried again that does not answer. `tries: 0`: for ever."""

    first: Duration = 0.1
    longest: Duration = 10.0
    tries: Annotated[int, Field(ge=0)] = 0


class StreamSection(DestinationSection):
    """What every stream has.

    `takes_tombstones`: whether the type has records without a value; `takes_avro`: whether values need not be text;
    `takes_headers`: whether records have headers.

    `tables` are those of the rules' tables that it publishes; None: all. `not_yet` are keys that do nothing for a type:
    anything but their default is refused, not ignored.
    """

    takes_tombstones: ClassVar[bool] = False
    takes_avro: ClassVar[bool] = True
    takes_headers: ClassVar[bool] = True
    not_yet: ClassVar[tuple[str, ...]] = ("timeout",)

    tables: Annotated[list[TablePattern], Field(min_length=1)] | None = None
    envelope: AnyEnvelope = EnvelopeSection()
    encoding: AnyEncoding = EncodingSection()
    key: TemplateText | None = None
    headers: HeaderTemplates = Field(default_factory=dict)
    deletes: Literal["event", "tombstone", "both"] = "event"
    truncates: Literal["send", "skip"] = "send"
    snapshot: bool = False
    shards: Annotated[int, Field(ge=1, le=256)] = 1
    ordering: Literal["key", "table", "source"] = "key"
    timeout: Duration = 30.0
    retry: RetryConfig = RetryConfig()
    dlq: DeadLetterConfig = DeadLetterConfig()
    processors: list[AnyProcessor] = Field(default_factory=list)
    start: StreamStart = "log"
    transactions: bool = False
    schema_changes: bool = False
    messages: AnyMessages = MessagesSection()

    @property
    def wanted_events(self) -> WantedEvents:
        """Which events of the source it publishes beside those of tables."""
        return WantedEvents(self.transactions, self.schema_changes, tuple(self.messages.prefixes))

    @property
    def publishes_rows(self) -> bool:
        """Whether a table begins with the rows that it has."""
        return self.snapshot or self.start == "copy"

    @property
    def first_position(self) -> Position | Literal["log", "now"]:
        """Where a new stream starts: at the beginning of the change log, at its end, or at a position."""
        if self.start == "log":
            return "log"
        return "now" if self.start in ("now", "copy") else parse_position(self.start)

    @property
    def on_driver(self) -> bool:
        """Whether it lives in the driver, and its tasks with it: then it needs no Spark."""
        return False

    @property
    def where(self) -> str:
        """Where its records go, as `check` shows it."""
        raise NotImplementedError

    @property
    def topic_template(self) -> str | None:
        """The template of topics; None: they are named after their tables, as the type sees fit."""
        return None

    @property
    def header_templates(self) -> dict[str, str]:
        """The headers of each record."""
        return self.headers

    @property
    def record_format(self) -> EventFormat:
        """How its records are written."""
        return event_format(
            self.envelope,
            self.encoding,
            topic=self.topic_template,
            key=self.key,
            headers=self.header_templates,
            deletes=self.deletes,
            truncates=self.truncates,
            transactions=self.transactions,
        )

    @property
    def names_tenant(self) -> bool:
        """Whether a template of it names the pipeline's tenant."""
        made = self.record_format
        templates = [made.topic, made.key, *(template for _, template in made.headers)]
        return any("tenant" in template.names for template in templates if template is not None)

    @property
    def has_typed_columns(self) -> bool:
        """Whether its records describe the types of their columns, as the source has them."""
        return self.envelope.type == "debezium" or self.encoding.type != "json"

    @property
    def folder(self) -> Path | None:
        """The local folder that must be writable; None when it needs none."""
        return None

    @model_validator(mode="after")
    def _only_what_works(self) -> StreamSection:
        for key in self.not_yet:
            if getattr(self, key) != type(self).model_fields[key].get_default(call_default_factory=True):
                raise misplaced(key, "means nothing for this type of destination; leave it out")
        if self.encoding.type == "avro" and not self.takes_avro:
            raise misplaced("encoding", "must be `json`: this type of destination holds events as JSON")
        if self.encoding.type == "avro" and self.envelope.type not in ("native", "debezium"):
            raise misplaced("encoding", f"must be `json`: the envelope {self.envelope.type} has no schema in Avro")
        if self.header_templates and not self.takes_headers:
            raise misplaced("headers", "must be left out: records of this type of destination have none")
        if self.deletes != "event" and not self.takes_tombstones:
            raise misplaced("deletes", "must be `event`: this type of destination has no tombstones")
        if self.envelope.unwrap and self.truncates != "skip":
            raise misplaced("truncates", "must be `skip` with `unwrap`: a truncate has no row")
        require_shape(self.wanted_events, self.envelope, self.encoding)
        if self.ordering == "source" and self.shards > 1:
            raise misplaced("shards", "must be 1 with `ordering: source`: all events are in one sequence")
        return self


class RollConfig(Section):
    """When a file is shown to readers: at this size, or when its first event is this old."""

    bytes: Annotated[Size, Field(ge=1)] = 128 * 2**20
    age: Annotated[Duration, Field(gt=0)] = 300.0


class FilesDestination(StreamSection):
    """A stream of files: every event of the tables as a line of JSON or a row of Parquet."""

    takes_avro: ClassVar[bool] = False
    takes_headers: ClassVar[bool] = False

    name: Name = "files"
    type: Literal["files"]
    path: Annotated[Located, AfterValidator(_plain_path)]
    format: Literal["jsonl", "parquet"] = "jsonl"
    compression: Literal["none", "gzip", "zstd"] = "none"
    roll: RollConfig | None = None

    @property
    def where(self) -> str:
        return f"files in {self.path.partition('?')[0]}"

    @property
    def folder(self) -> Path | None:
        path = local_path(self.path)
        return path.parent if path is not None and self._is_one_file else path

    @property
    def _is_one_file(self) -> bool:
        return self.path.endswith(".jsonl")

    @model_validator(mode="after")
    def _fits(self) -> FilesDestination:
        if not self._is_one_file:
            return self
        if local_path(self.path) is None:
            raise misplaced("path", "names one growing file, which must be local; name a folder instead")
        fixed = {"format": "jsonl", "compression": "none", "roll": None, "shards": 1}
        for key, value in fixed.items():
            if getattr(self, key) != value:
                raise misplaced(key, "is for folders of files; `path` names one growing file")
        return self


def _joined(value: object) -> object:
    """Brokers may be a list, or one text as Kafka's own tools take it."""
    return ",".join(map(str, value)) if isinstance(value, list) else value


def _free_to_set(client: dict[str, str]) -> dict[str, str]:
    ours = {"bootstrap.servers": "brokers", "transactional.id": "positions_topic", "enable.idempotence": "exactly_once"}
    for name in client:
        if name in ours:
            raise ValueError(f"{name} is set by penstock; see `{ours[name]}`")
    return client


class KafkaDestination(StreamSection):
    """Topics of a Kafka cluster. `client` are librdkafka's settings; passwords among them are never shown."""

    takes_tombstones: ClassVar[bool] = True
    not_yet: ClassVar[tuple[str, ...]] = tuple(key for key in StreamSection.not_yet if key != "timeout")

    name: Name = "kafka"
    type: Literal["kafka"]
    brokers: Annotated[str, Field(min_length=1), BeforeValidator(_joined)]
    topic: TemplateText = "${source.schema}.${source.table}"
    partitions: Annotated[int, Field(ge=1)] | None = None
    replication: Annotated[int, Field(ge=1, le=32767)] | None = None
    create: bool = True
    exactly_once: bool = True
    positions_topic: Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]+$", max_length=190)] | None = None
    client: Annotated[Properties, AfterValidator(_free_to_set)] = Field(default_factory=dict)

    @property
    def topic_template(self) -> str:
        return self.topic

    @property
    def where(self) -> str:
        return f"Kafka at {self.brokers}"


class StdoutDestination(StreamSection):
    """The standard output of `penstock run`, for trying."""

    takes_avro: ClassVar[bool] = False
    takes_headers: ClassVar[bool] = False

    name: Name = "stdout"
    type: Literal["stdout"]

    @property
    def where(self) -> str:
        return "standard output"


def _server_url(*schemes: str) -> AfterValidator:
    """Check the address of a server, without ever repeating it: it may hold a password."""

    def checked(url: str) -> str:
        try:
            parts = urlsplit(url)
            problem = "" if parts.port != 0 else "must have a port between 1 and 65535"
        except ValueError as error:
            parts, problem = None, f"must be a URL ({error})"
        if parts is not None and (parts.scheme not in schemes or not parts.hostname):
            problem = f"must be like {schemes[0]}://host or {schemes[1]}://host"
        if problem:
            raise ValueError(problem)
        return url

    return AfterValidator(checked)


def _shown(url: str) -> str:
    """Return the address without user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")


class RedisDestination(StreamSection):
    """Streams of a Redis server."""

    not_yet: ClassVar[tuple[str, ...]] = tuple(key for key in StreamSection.not_yet if key != "timeout")

    name: Name = "redis"
    type: Literal["redis"]
    url: Annotated[str, _server_url("redis", "rediss"), Field(repr=False)]
    ca_file: Located | None = None
    stream: TemplateText = "${source.schema}.${source.table}"
    maxlen: Annotated[int, Field(ge=1)] | None = None
    fields: Literal["penstock", "deltaforge"] = "penstock"
    timeout: Annotated[Duration, Field(gt=0)] = 30.0

    @property
    def where(self) -> str:
        return f"Redis at {_shown(self.url)}"

    @property
    def topic_template(self) -> str:
        return self.stream


def _begins_fixed(subject: str) -> str:
    """Require fixed first words: what a stream takes is all that begins with the same words."""
    if not re.match(r"(\$\{source\.name\}|[^\s*>$%.{}])+\.\S", subject):
        raise ValueError("must begin with a fixed word and a dot, like shop.${source.table}")
    return subject


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


class NatsDestination(StreamSection):
    """Streams of NATS JetStream, one per shard. `url` may list several servers of a cluster."""

    not_yet: ClassVar[tuple[str, ...]] = tuple(key for key in StreamSection.not_yet if key != "timeout")

    name: Name = "nats"
    type: Literal["nats"]
    url: Annotated[
        list[Annotated[str, _server_url("nats", "tls")]], BeforeValidator(_listed), Field(min_length=1, repr=False)
    ]
    ca_file: Located | None = None
    credentials: Located | None = None
    user: str | None = None
    password: SecretStr | None = None
    token: SecretStr | None = None
    stream: Annotated[str, Field(pattern=r"^(\$\{source\.name\}|[A-Za-z0-9_-])+$")]
    subject: Annotated[TemplateText, AfterValidator(_begins_fixed)] | None = None
    create: bool = True
    replicas: Annotated[int, Field(ge=1, le=5)] = 1
    timeout: Annotated[Duration, Field(gt=0)] = 30.0

    @property
    def where(self) -> str:
        return f"NATS at {', '.join(map(_shown, self.url))}"

    @property
    def topic_template(self) -> str:
        return self.subject or f"{self.stream.lower()}.${{source.schema}}.${{source.table}}"

    @property
    def login(self) -> tuple[str, str, str]:
        """User, password and token; empty where there is none."""
        password, token = (one.get_secret_value() if one is not None else "" for one in (self.password, self.token))
        return self.user or "", password, token

    @model_validator(mode="after")
    def _one_way_in(self) -> NatsDestination:
        ways = [key for key in ("credentials", "user", "token") if getattr(self, key) is not None]
        if len(ways) > 1:
            raise misplaced(ways[1], f"must not stand beside `{ways[0]}`: there is one way to log in")
        if (self.user is None) != (self.password is None):
            raise misplaced("user", "must stand beside `password`")
        return self

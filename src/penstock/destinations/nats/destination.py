"""`type: nats`: streams of JetStream, exactly once by chains of messages (`publisher.py`).

A shard is a stream: NAME when there is one, NAME_0, NAME_1 … when there are several. What the stream is (source,
shards, history of the change log, start) is in its metadata, beside its configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from penstock.destinations.key_layout import KeyLayout, Ordering
from penstock.destinations.nats.client import (
    STREAM_NOT_FOUND,
    ApiError,
    Credentials,
    NatsConnection,
    Servers,
    read_credentials,
)
from penstock.destinations.nats.publisher import NatsPublisher, last_progress, stream_facts
from penstock.destinations.nats.subjects import Subjects, fixed_prefix, takes
from penstock.destinations.stream_contract import Layout, ShardPlace, StreamId
from penstock.errors import DestinationUnreachable, StreamBroken

FORMAT = "1"
SOURCE_NAME = "${source.name}"


class NatsSettings(Protocol):
    """What the pipeline file says of a NATS destination; `config.destinations.NatsDestination` has this shape."""

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> Sequence[str]: ...

    @property
    def ca_file(self) -> str | None: ...

    @property
    def credentials(self) -> str | None: ...

    @property
    def login(self) -> tuple[str, str, str]:
        """User, password and token; empty where there is none."""

    @property
    def stream(self) -> str: ...

    @property
    def topic_template(self) -> str:
        """The template of subjects."""

    @property
    def create(self) -> bool: ...

    @property
    def replicas(self) -> int: ...

    @property
    def shards(self) -> int: ...

    @property
    def ordering(self) -> Ordering: ...

    @property
    def timeout(self) -> float: ...


class NatsDestination:
    tombstones = False
    holds_rows = False

    def __init__(self, settings: NatsSettings) -> None:
        self._settings = settings
        user, password, token = settings.login
        given = read_credentials(settings.credentials) if settings.credentials else Credentials(user, password, token)
        self._servers = Servers(tuple(settings.url), settings.timeout, settings.ca_file or "", given)

    @property
    def name(self) -> str:
        return self._settings.name

    def ensure(self, stream: StreamId) -> Layout:
        with self._servers.connected() as connection:
            self._require_same_shards(connection, stream.source)
            for shard in range(self._settings.shards):
                self._ensure_shard(connection, stream, shard)
        self.places(stream.source)
        return self._layout()

    def topics(self, source: str, names: Sequence[str]) -> Layout:
        """Return no topics.

        A shard's stream takes every subject below the fixed words of the template, so none is looked up.
        """
        return self._layout()

    def places(self, source: str) -> list[ShardPlace]:
        found = []
        with self._servers.connected() as connection:
            for shard in range(self._settings.shards):
                name = self._stream(source, shard)
                info = self._info(connection, name)
                if info is None or not _metadata(info):
                    return []
                found.append(last_progress(connection, name, stream_facts(connection, name)).at)
        return found

    def publisher(self, source: str, shard: int) -> NatsPublisher:
        return NatsPublisher(self._servers, self._stream(source, shard), self._subjects(source, shard))

    def _layout(self) -> KeyLayout:
        return KeyLayout(self._settings.shards, self._settings.ordering)

    def _stream(self, source: str, shard: int, shards: int | None = None) -> str:
        name = self._settings.stream.replace(SOURCE_NAME, source)
        return name if (shards or self._settings.shards) == 1 else f"{name}_{shard}"

    def _subjects(self, source: str, shard: int) -> Subjects:
        prefix = fixed_prefix(self._settings.topic_template.replace(SOURCE_NAME, source))
        return Subjects(prefix, None if self._settings.shards == 1 else shard)

    def _info(self, connection: NatsConnection, name: str) -> dict[str, Any] | None:
        try:
            return connection.ask(f"STREAM.INFO.{name}")
        except ApiError as error:
            if error.code == STREAM_NOT_FOUND:
                return None
            raise connection.refusal(error, name) from error

    def _require_same_shards(self, connection: NatsConnection, source: str) -> None:
        """Look for the streams of another number of shards: one has another name than several."""
        wanted = self._settings.shards
        info = self._info(connection, self._stream(source, 0, shards=2 if wanted == 1 else 1))
        known = _metadata(info) if info is not None else {}
        if known.get("penstock.source") == source:
            raise self._other_shards(self._stream(source, 0), known["penstock.shards"])

    def _ensure_shard(self, connection: NatsConnection, stream: StreamId, shard: int) -> None:
        name = self._stream(stream.source, shard)
        metadata = {
            "penstock.format": FORMAT,
            "penstock.source": stream.source,
            "penstock.history": stream.history,
            "penstock.shards": str(self._settings.shards),
            "penstock.ordering": self._settings.ordering,
            "penstock.start": stream.start,
        }
        info = self._info(connection, name)
        if info is None:
            self._create(connection, name, self._subjects(stream.source, shard), metadata)
            return
        self._require_usable(name, info, self._subjects(stream.source, shard))
        if _metadata(info):
            self._require_same(name, _metadata(info), metadata)
            return
        if info["state"]["messages"]:
            raise StreamBroken(
                f"stream {name} holds {info['state']['messages']} messages that penstock did not publish",
                "Give the destination another `stream`, or purge that one",
            )
        own = {**metadata, "penstock.start_sequence": str(info["state"]["last_seq"])}
        config = {**info["config"], "metadata": {**info["config"].get("metadata", {}), **own}}
        self._ask(connection, f"STREAM.UPDATE.{name}", config, name)

    def _create(self, connection: NatsConnection, name: str, subjects: Subjects, metadata: dict[str, str]) -> None:
        if not self._settings.create:
            raise DestinationUnreachable(
                f"{connection.address.text}: there is no stream {name}, and `create` is false",
                f"Run: nats stream add {name} --subjects '{subjects.all}' --retention limits --allow-rollup --defaults",
            )
        config = {
            "name": name,
            "subjects": [subjects.all],
            "retention": "limits",
            "storage": "file",
            "num_replicas": self._settings.replicas,
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            "metadata": {**metadata, "penstock.start_sequence": "0"},
        }
        self._ask(connection, f"STREAM.CREATE.{name}", config, name)

    def _ask(self, connection: NatsConnection, subject: str, content: object, name: str) -> None:
        try:
            connection.ask(subject, content)
        except ApiError as error:
            raise connection.refusal(error, name) from error

    def _require_usable(self, name: str, info: Mapping[str, Any], subjects: Subjects) -> None:
        """Refuse a stream whose configuration does not keep what it must."""
        config = info["config"]
        problem = ""
        if config.get("mirror") or config.get("sources"):
            problem = "is filled from other streams"
        elif config.get("retention", "limits") != "limits":
            problem = f"has retention {config['retention']}, which removes the last message, and with it the place"
        elif config.get("no_ack"):
            problem = "acknowledges nothing (no_ack)"
        elif config.get("sealed"):
            problem = "is sealed"
        elif not any(takes(pattern, subjects.all) for pattern in config.get("subjects") or ()):
            taken = ", ".join(config.get("subjects") or ())
            problem = f"takes {taken}, and not {subjects.all}, which `subject` needs"
        if problem:
            raise StreamBroken(
                f"stream {name} {problem}",
                f"Give it retention limits and the subject {subjects.all}, or give the destination another `stream`",
            )

    def _require_same(self, name: str, known: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        elsewhere = "give the destination another `stream` and `subject`"
        if known.get("penstock.format") != FORMAT:
            raise StreamBroken(
                f"stream {name} has format {known.get('penstock.format')}, and this penstock writes format {FORMAT}",
                f"Use the penstock that wrote it, or {elsewhere}",
            )
        if known.get("penstock.source") != wanted["penstock.source"]:
            raise StreamBroken(
                f"stream {name} is the stream of source {known.get('penstock.source')}",
                f"Put {SOURCE_NAME} into `stream` and `subject`, or {elsewhere}",
            )
        if known.get("penstock.shards") != wanted["penstock.shards"]:
            raise self._other_shards(name, known.get("penstock.shards", "?"))
        if known.get("penstock.ordering") != wanted["penstock.ordering"]:
            raise StreamBroken(
                f"stream {name} was made with `ordering: {known.get('penstock.ordering')}`: events would move between "
                "shards and lose their order",
                f"Set `ordering` back, or {elsewhere}",
            )
        if known.get("penstock.history") != wanted["penstock.history"]:
            raise StreamBroken(
                f"stream {name} was published from another change log than the present one: where it ended means "
                "nothing here",
                f"To start a new stream, {elsewhere}, or remove it: nats stream rm {name}",
            )

    def _other_shards(self, name: str, known: str) -> StreamBroken:
        return StreamBroken(
            f"stream {name} has {known} shards, and the file says `shards: {self._settings.shards}`: keys would move "
            "between shards and lose their order",
            f"Set `shards` to {known}, or give the destination another `stream` and `subject`",
        )


def _metadata(info: Mapping[str, Any]) -> dict[str, str]:
    """Return what penstock has noted in a stream's configuration; empty when the stream is not its own."""
    found = info["config"].get("metadata") or {}
    return {name: value for name, value in found.items() if name.startswith("penstock.")}


def make_stream(settings: NatsSettings, places: str) -> NatsDestination:
    """Make the destination that a section of the pipeline file describes; it keeps its places itself."""
    return NatsDestination(settings)

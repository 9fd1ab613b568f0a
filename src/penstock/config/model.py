"""The pipeline file as values: what may be said, what is assumed when it is not, and which table goes where.

load.py builds these from YAML and turns what pydantic finds into a ConfigError; docs/config.md explains every key.
Models are frozen and picklable. Paths are absolute here: relative ones in the file are relative to the file.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr, SecretStr, ValidationInfo, model_validator

from penstock.config.any_destination import AnyDestination
from penstock.config.commit_policy import CommitPolicy, CommitPolicyConfig, policy_of
from penstock.config.destinations import StreamSection, TableSection
from penstock.config.installed_types import with_installed_types
from penstock.config.patterns import PUBLISHED
from penstock.config.processors import AnyProcessor, specs_of
from penstock.config.rules import TableRule
from penstock.config.section import Identifier, Section, misplaced
from penstock.config.source_events import feed_of
from penstock.config.sources import AnySource, SourceSection, require_distinct, with_names
from penstock.config.table_processors import require_fitting
from penstock.config.units import Duration, Size
from penstock.config.values import Located, Name, Properties
from penstock.decode.choices import chosen
from penstock.destinations.registry import type_of
from penstock.errors import UsageError
from penstock.model.feed import Feed, Mode, Sid
from penstock.model.scoped_name import ScopedName
from penstock.model.source_events import WantedEvents, all_wanted, is_source_event
from penstock.model.table import TableId, TableSchema
from penstock.model.type_map import WIDEST, TypeMap


def _spark_names(given: dict[str, str]) -> dict[str, str]:
    """Spark's settings under their full names: the `spark.` before them may be left out."""
    full = {name: name if name.startswith("spark.") else f"spark.{name}" for name in given}
    twice = next((name for name, times in Counter(full.values()).items() if times > 1), None)
    if twice is not None:
        raise ValueError(f"has {twice} twice, once without the `spark.` before it")
    return {full[name]: value for name, value in given.items()}


class LogConfig(Section):
    """The change log. `uri` is `log` in the pipeline's home unless the file says otherwise."""

    uri: Located | None = None
    max_bytes: Size = 32 * 2**30
    max_age: Duration = 7 * 86400.0
    replay: Duration = 0.0
    segment_bytes: Annotated[Size, Field(ge=1)] = 16 * 2**20
    segment_age: Duration = 0.2
    idle_every: Duration = 1.0


class CopyConfig(Section):
    """How the initial copy reads the source: quickly, but gently."""

    max_connections: Annotated[int, Field(ge=1, le=64)] = 4
    max_rows_per_second: Annotated[float, Field(gt=0)] | None = None
    range_bytes: Annotated[Size, Field(ge=8192)] = 32 * 2**20
    statement_timeout: Duration = 600.0
    snapshot_for: Duration = 600.0
    snapshot_timeout: Duration = 300.0
    discover_every: Duration = 10.0


class BatchConfig(Section):
    """How much one batch takes, at most; it never splits a transaction."""

    max_bytes: Annotated[Size, Field(ge=1)] = 256 * 2**20
    max_changes: Annotated[int, Field(ge=1)] = 2_000_000
    max_age: Duration = 0.5

    @property
    def of_streams(self) -> BatchConfig:
        """Return the limits for streams: there, changes wait for company only if the file says so.

        Publishing a few at a time costs little, and the log's segments set the pace.
        """
        return self if "max_age" in self.model_fields_set else self.model_copy(update={"max_age": 0.0})


class ReadyConfig(Section):
    """When the pipeline counts as ready, for probes. Without `max_lag` it is whenever its destinations work."""

    max_lag: Duration | None = None


class Pipeline(Section):
    """One pipeline file. Made by `penstock.config.load.load`.

    The file names one `source` or a list of `sources`. What concerns one source asks the pipeline as that source sees
    it (`of`, `source_views`); with one `source` that is the pipeline itself.
    """

    version: Literal[1]
    name: Name
    only_source: Annotated[AnySource | None, Field(alias="source")] = None
    many_sources: Annotated[list[AnySource], Field(alias="sources")] = Field(default_factory=list)
    sid_column: Identifier = "sid"
    mask_salt: SecretStr | None = None
    tables: list[TableRule] = Field(min_length=1)
    processors: list[AnyProcessor] = Field(default_factory=list)
    destinations: list[AnyDestination] = Field(min_length=1)
    commit_policy: CommitPolicyConfig = CommitPolicyConfig()
    ready: ReadyConfig = ReadyConfig()
    labels: dict[Identifier, Annotated[str, Field(max_length=256)]] = Field(default_factory=dict)
    tenant: Identifier | None = None
    given_home: Annotated[Located | None, Field(alias="home")] = None
    log: LogConfig = LogConfig()
    batch: BatchConfig = BatchConfig()
    copying: Annotated[CopyConfig, Field(alias="copy")] = CopyConfig()
    state: Annotated[Literal["memory"] | Located | None, Field(repr=False)] = None
    spark: Annotated[Properties, AfterValidator(_spark_names)] = Field(default_factory=dict)

    _file: Path = PrivateAttr(Path())
    _source_view: SourceSection | None = PrivateAttr(None)
    _destination_view: AnyDestination | None = PrivateAttr(None)
    _strict: bool = PrivateAttr(False)
    _destination_views: list[Pipeline] | None = PrivateAttr(None)
    _whole: Pipeline | None = PrivateAttr(None)

    @model_validator(mode="before")
    @classmethod
    def _names_by_default(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict):
            return data
        data = with_installed_types(data, (info.context or {}).get("folder", Path.cwd()))
        pipeline = data.get("name")
        filled = dict(data)
        if data.get("tables") == "publication":
            filled["tables"] = [{"match": PUBLISHED}]
        if isinstance(data.get("source"), dict):
            filled["source"] = with_names({"name": pipeline, **data["source"]}, f"penstock_{pipeline}"[:63])
        if isinstance(data.get("sources"), list):
            filled["sources"] = [
                with_names(source, f"penstock_{pipeline}_{source.get('name', '')}")
                if isinstance(source, dict)
                else source
                for source in data["sources"]
            ]
        return filled

    @model_validator(mode="after")
    def _one_or_many_sources(self) -> Pipeline:
        if self.only_source is None and not self.many_sources:
            raise misplaced("source", "is missing, and so is `sources`; name one of them")
        if self.only_source is not None and self.many_sources:
            raise misplaced("sources", "and `source` are mutually exclusive")
        require_distinct(self.many_sources)
        return self

    @model_validator(mode="after")
    def _destinations_that_rules_name(self) -> Pipeline:
        require_destinations(self)
        return self

    @model_validator(mode="after")
    def _tenant_that_streams_name(self) -> Pipeline:
        for destination in self.destinations:
            if self.tenant is None and isinstance(destination, StreamSection) and destination.names_tenant:
                raise misplaced("tenant", f"is missing, and destination {destination.name} names ${{tenant}}")
        return self

    @model_validator(mode="after")
    def _publications_to_follow(self) -> Pipeline:
        lacking = next((source for source in self.sources if source.type != "postgres"), None)
        for number, rule in enumerate(self.tables):
            if lacking is not None and rule.only_published:
                problem = f"is published, and source {lacking.name}, of type {lacking.type}, has no publication"
                raise misplaced(("tables", number, "match"), problem)
        return self

    @model_validator(mode="after")
    def _salt_for_masks(self) -> Pipeline:
        if self.mask_salt is None and any(rule.masks for rule in self.tables):
            raise misplaced(
                "mask_salt", "is missing, and a column is masked; take it from the environment: ${MASK_SALT}"
            )
        return self

    @model_validator(mode="after")
    def _no_state_beside_temporary_slots(self) -> Pipeline:
        if self.state not in (None, "memory") and not self._keeps_changes:
            raise misplaced("state", "and `slot_type: temporary` are mutually exclusive: nothing of such a run is kept")
        return self

    @model_validator(mode="after")
    def _know_the_file(self, info: ValidationInfo) -> Pipeline:
        self._file = (info.context or {}).get("file", Path.cwd() / "pipeline.yaml")
        for source in self.sources:
            source._pipeline = self.name
        return self

    @property
    def sources(self) -> list[SourceSection]:
        """All sources, one or several."""
        return [self.only_source] if self.only_source is not None else self.many_sources

    @property
    def _keeps_changes(self) -> bool:
        return all(source.keeps_changes for source in self.sources)

    @property
    def is_scoped(self) -> bool:
        """Whether names, paths and rows of state tell sources apart: the file has a list of them."""
        return self.only_source is None

    @property
    def scope(self) -> str | None:
        """The name by which this source's rows of state are told from others'; None when it is the only one."""
        return self.source.name if self.is_scoped else None

    @property
    def source(self) -> SourceSection:
        """The only source, or the one whose view of the pipeline this is."""
        if self._source_view is not None:
            return self._source_view
        if self.only_source is None:
            raise UsageError(
                f"pipeline {self.name} has several sources: {', '.join(source.name for source in self.sources)}",
                "Name one of them with --source",
            )
        return self.only_source

    def of(self, source: SourceSection) -> Pipeline:
        """Return the pipeline as one of its sources sees it: as if it were the only one."""
        if self.only_source is source:
            return self
        view = self.model_copy()
        view._source_view, view._destination_views = source, None
        return view

    @property
    def source_views(self) -> list[Pipeline]:
        """The pipeline as each of its sources sees it; of such a view, itself."""
        return [self] if self._source_view is not None else [self.of(source) for source in self.sources]

    def source_view(self, name: str | None) -> Pipeline:
        """Return the pipeline as the source of that name sees it; None: as the only one does."""
        if name is None:
            return self.source_views[0] if len(self.source_views) == 1 else self.of(self.source)
        for source in self.sources:
            if source.name == name:
                return self.of(source)
        names = ", ".join(source.name for source in self.sources)
        raise UsageError(f"pipeline {self.name} has no source {name}", f"It has {names}")

    @property
    def destination(self) -> AnyDestination:
        """The only destination, or the one whose view of the pipeline this is."""
        if self._destination_view is not None:
            return self._destination_view
        if len(self.destinations) > 1:
            names = ", ".join(destination.name for destination in self.destinations)
            raise UsageError(
                f"pipeline {self.name} has several destinations: {names}", "Name one of them with --destination"
            )
        return self.destinations[0]

    def at(self, destination: AnyDestination) -> Pipeline:
        """Return the pipeline as one of its destinations sees it: as if it were the only one."""
        ruled = [rule for rule in (one.at(destination.name) for one in self.tables) if rule is not None]
        if isinstance(destination, StreamSection) and destination.tables is not None:
            ruled = [rule.within(destination.tables) for rule in ruled]
        seen = {"tables": ruled, "destinations": [destination]}
        view = self.model_copy(update=seen)
        view._destination_view, view._destination_views, view._whole = destination, None, self.whole
        return view

    def with_destinations(self, destinations: list[AnyDestination]) -> Pipeline:
        """Return the same with others in the places of its destinations, of the same names."""
        view = self.model_copy(update={"destinations": destinations})
        view._destination_views = None
        return view

    @property
    def lakes(self) -> list[TableSection]:
        """The destinations that hold tables; of a destination's view, itself if it does."""
        found = self.destinations if self._destination_view is None else [self._destination_view]
        return [destination for destination in found if isinstance(destination, TableSection)]

    @property
    def lake(self) -> TableSection:
        """The first destination that holds tables. UsageError when all are streams."""
        if not self.lakes:
            raise UsageError(
                f"pipeline {self.name} has no destination of tables, only streams", "There are no tables to look at"
            )
        return self.lakes[0]

    @property
    def whole(self) -> Pipeline:
        """The pipeline with all of its destinations; itself unless it is a destination's view."""
        return self if self._whole is None else self._whole

    def only(self, name: str | None) -> Pipeline:
        """Return the pipeline as the destination of that name sees it; None: with all of them."""
        return self if name is None else self.destination_view(name)

    @property
    def destination_views(self) -> list[Pipeline]:
        """The pipeline as each of its destinations sees it; of such a view, itself."""
        if self._destination_view is not None:
            return [self]
        if self._destination_views is None:
            self._destination_views = [self.at(destination) for destination in self.destinations]
        return self._destination_views

    def destination_view(self, name: str | None) -> Pipeline:
        """Return the pipeline as the destination of that name sees it; None: as the only one does."""
        if name is None:
            return self.destination_views[0] if len(self.destination_views) == 1 else self.at(self.destination)
        for view in self.destination_views:
            if view.destination.name == name:
                return view
        names = ", ".join(destination.name for destination in self.destinations)
        raise UsageError(f"pipeline {self.name} has no destination {name}", f"It has {names}")

    @property
    def policy(self) -> CommitPolicy:
        """Which destinations must have what the source wrote before it counts as delivered."""
        return policy_of(self.commit_policy, [(one.name, one.required) for one in self.whole.destinations])

    @property
    def key(self) -> str:
        """By this name the destination's tables keep the source's position."""
        return f"{self.name}.{self.source.name}" if self.is_scoped else self.name

    @property
    def sid(self) -> Sid | None:
        """What the rows of this source carry: its `sid`, or its name when there may be others."""
        value = self.source.sid if self.source.sid is not None else self.source.name if self.is_scoped else None
        return None if value is None else Sid(self.sid_column, value, self.name)

    @property
    def file(self) -> Path:
        """The absolute path it was loaded from."""
        return self._file

    @property
    def home(self) -> Path:
        """The folder of state, log, index and lock: `home`, else beside the first local warehouse or the file."""
        if self.given_home is not None:
            return Path(self.given_home)
        everywhere = self.whole.destinations
        warehouses = [one.folder for one in everywhere if isinstance(one, TableSection)]
        beside = next((path.parent for path in warehouses if path is not None), self.file.parent)
        return beside / f"penstock-{self.name}"

    @property
    def log_uri(self) -> str:
        uri = self.log.uri or str(self.home / "log")
        return f"{uri.rstrip('/')}/{self.source.name}" if self.is_scoped else uri

    @property
    def places_uri(self) -> str:
        """A folder beside the log, which all executors reach: for streams whose destination keeps no places."""
        return f"{(self.log.uri or str(self.home / 'log')).rstrip('/')}/_streams"

    @property
    def state_url(self) -> str:
        """A path (SQLite), an SQLAlchemy URL, or `memory`."""
        if not self._keeps_changes:
            return "memory"
        return self.state or str(self.home / "state.db")

    def rule_for(self, table: TableId) -> TableRule | None:
        """Return the first rule that matches the table and does not exclude it; None: the table is not wanted."""
        if is_source_event(table):
            return None
        return next((rule for rule in self.tables if rule.covers(table)), None)

    def wants(self, table: TableId) -> bool:
        return self.rule_for(table) is not None

    def by_publication(self, table: TableId) -> bool:
        """Whether the table is wanted only while the source's publication has it."""
        rule = self.rule_for(table)
        return rule is not None and rule.only_published

    def modes(self, table: TableId) -> tuple[Mode, ...]:
        """Return the modes that a source table is wanted in."""
        return tuple(feed.mode for feed in self.feeds(table))

    def each_partition(self, table: TableId) -> bool:
        """Whether a partition of that name is a table of its own, and a partitioned table of that name none."""
        rule = self.rule_for(table)
        return rule is not None and rule.partitions == "each"

    def drops_partitions(self, table: TableId) -> bool:
        """Whether rows of a partition that is detached or dropped are to go from the destination too."""
        rule = self.rule_for(table)
        return rule is not None and rule.on_partition_drop == "delete"

    def feeds(self, table: TableId) -> tuple[Feed, ...]:
        """Return the feeds of a source table, one for each of its modes; none when the table is not wanted.

        A pipeline that is not one destination's view gives those of all destinations.
        """
        if self._destination_view is None:
            return tuple(dict.fromkeys(feed for view in self.destination_views for feed in view.feeds(table)))
        if is_source_event(table):
            return self._source_feeds(self._destination_view, table)
        rule = self.rule_for(table)
        salt = self.mask_salt.get_secret_value() if self.mask_salt is not None else ""
        if rule is None:
            return ()
        feeds = rule.feeds(table, self.source.name, self.sid, salt, type_map=self.type_map, strict=self._strict)
        specs = specs_of(self._processors(rule), table, str(self.file.parent))
        return tuple(replace(feed, processors=specs) for feed in feeds) if specs else feeds

    def _source_feeds(self, destination: AnyDestination, table: TableId) -> tuple[Feed, ...]:
        """Return the feed of events of the source that are no table's, if the destination wants them."""
        if not isinstance(destination, StreamSection):
            return ()
        feed = feed_of(table, destination.wanted_events, destination.messages.specs(str(self.file.parent)))
        return () if feed is None else (feed,)

    @property
    def wanted_events(self) -> WantedEvents:
        """Which events of the source any destination wants beside those of tables."""
        streams = [one for one in self.whole.destinations if isinstance(one, StreamSection)]
        return all_wanted(one.wanted_events for one in streams)

    def _processors(self, rule: TableRule) -> list[AnyProcessor]:
        """Return the processors of a table's events on their way to the destination whose view this is.

        The order is: the file's, the rule's, the destination's own.
        """
        destination = self._destination_view
        own = [] if destination is None else destination.processors
        return [*self.processors, *rule.processors, *own]

    def strictly(self) -> Pipeline:
        """Return the same, but a value that fits no column is not rescued: its table becomes Errored."""
        strict = self.model_copy()
        strict._strict, strict._destination_views = True, None
        return strict

    @property
    def type_map(self) -> TypeMap:
        """What the columns of the destination whose view this is can be; the widest where there are several."""
        views = self.destination_views
        return type_of(views[0].destination).type_map if len(views) == 1 else WIDEST

    def carried(self, schema: TableSchema) -> TableSchema:
        """Return a table of the source with what the file chooses for its columns, as the destination holds them."""
        rule = self.rule_for(schema.table)
        return schema if rule is None else chosen(schema, rule.choices, self.type_map)

    def feed(self, name: TableId) -> Feed | None:
        """Return the feed of that name; None when no table of such a name is wanted.

        `orders__append` is taken for the second feed of `orders` if that has one, and else for a table of its own.
        """
        if self._destination_view is None and len(self.destinations) > 1:
            found = (view.feed(name) for view in self.destination_views)
            return next((feed for feed in found if feed is not None), None)
        bare = [name.name.removesuffix(f"__{mode}") for mode in Mode if name.name.endswith(f"__{mode}")]
        sources = [*(TableId(name.schema, text) for text in bare), name]
        return next((feed for table in sources for feed in self.feeds(table) if feed.name == name), None)

    def scoped_feed(self, name: ScopedName) -> Feed | None:
        """Return the feed of that name among all sources; None when no table of such a name is wanted."""
        source_view = next((source_view for source_view in self.source_views if source_view.scope == name.source), None)
        return None if source_view is None else source_view.feed(name.name)

    def target(self, table: TableId) -> TableId:
        """Return the table's name at the destination, in the first of its modes."""
        return next((feed.target for feed in self.feeds(table)), table)


def require_destinations(pipeline: Pipeline) -> None:
    """Raise when two destinations are one, or when rules or the policy ask for what no destination can give."""
    names = [destination.name for destination in pipeline.destinations]
    for number, name in enumerate(names):
        if not name:
            raise misplaced(("destinations", number, "name"), "is missing")
        if name in names[:number]:
            problem = f"is {name}, and so is another destination's; give each its own"
            raise misplaced(("destinations", number, "name"), problem)
    for number, rule in enumerate(pipeline.tables):
        for name in rule.destinations or ():
            if name not in names:
                key = "mode" if rule.to is None else "to"
                raise misplaced(("tables", number, key), f"names {name}; the destinations are {', '.join(names)}")
    for number, destination in enumerate(pipeline.destinations):
        ruled = [rule for rule in (rule.at(destination.name) for rule in pipeline.tables) if rule is not None]
        if not ruled:
            raise misplaced(("destinations", number, "name"), f"is {destination.name}, and no rule goes there")
    require_source_events(pipeline)
    require_fitting(pipeline.processors, pipeline.tables, pipeline.destinations)
    try:
        policy_of(pipeline.commit_policy, [(one.name, one.required) for one in pipeline.destinations])
    except ValueError as never:
        raise misplaced("commit_policy", str(never)) from None


def require_source_events(pipeline: Pipeline) -> None:
    """Raise where a stream asks for events of the source itself that a source does not have."""
    lacking = next((source for source in pipeline.sources if source.type != "postgres"), None)
    for number, destination in enumerate(pipeline.destinations):
        if lacking is None or not isinstance(destination, StreamSection) or not destination.wanted_events:
            continue
        asked = ("transactions", "schema_changes", "messages")
        key = next(key for key in asked if key in destination.model_fields_set)
        problem = f"must be left out: source {lacking.name} is of type {lacking.type}, which has no such events yet"
        raise misplaced(("destinations", number, key), problem)

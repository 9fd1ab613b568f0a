"""The pipeline file as values: what may be said, what is assumed when it is not, and which table goes where.

load.py builds these from YAML and turns what pydantic finds into a ConfigError; docs/config.md explains every key.
Models are frozen and picklable. Paths are absolute here: relative ones in the file are relative to the file.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import unquote, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from penstock.config.patterns import compile_pattern, matches, names_one_table
from penstock.config.source_url import checked_source_url
from penstock.config.units import Duration, Size
from penstock.model.feed import Feed, Mode, feed_name
from penstock.model.table import TableId

LONGEST_NAME = 54  # with `penstock_` before it, Postgres' 63

_TARGET = re.compile(r"(?:[^.{}]|\{schema\}|\{table\})+\.(?:[^.{}]|\{schema\}|\{table\})+")


def _pattern(text: str) -> str:
    compile_pattern(text)
    return text


def _property(value: object) -> object:
    """Spark properties are text, whatever YAML makes of `true` or `4`."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _located(text: str, info: ValidationInfo) -> str:
    """A URI as it is; a path made absolute, from the folder of the pipeline file."""
    if "://" in text:
        return text
    folder: Path = (info.context or {}).get("folder", Path.cwd())
    return str((folder / Path(text).expanduser()).resolve())


def _targets(value: Any) -> Any:
    """The first mode's table, or a table for each mode."""
    given = value.values() if isinstance(value, dict) else [value] if value is not None else []
    if not all(isinstance(text, str) and _TARGET.fullmatch(text) for text in given):
        raise ValueError("must be namespace.table, in which {schema} and {table} stand for the source's names")
    return value


def _modes(value: Any) -> list[Any]:
    """One mode, or a list of them."""
    named = value if isinstance(value, list) else [value]
    if not named or any(mode not in list(Mode) for mode in named):
        raise ValueError(f"must be {', '.join(Mode)}, or a list of them")
    if len(set(named)) < len(named):
        raise ValueError("names one mode twice; each may be there once")
    return named


def _source_url(secret: SecretStr, info: ValidationInfo) -> SecretStr:
    folder: Path = (info.context or {}).get("folder", Path.cwd())
    return SecretStr(checked_source_url(secret.get_secret_value(), folder))


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=LONGEST_NAME)]
SlotName = Annotated[str, Field(pattern=r"^[a-z0-9_]+$", max_length=63)]
Identifier = Annotated[str, Field(min_length=1, max_length=63)]
TablePattern = Annotated[str, AfterValidator(_pattern)]
Located = Annotated[str, Field(min_length=1), AfterValidator(_located)]
Properties = Annotated[dict[str, Annotated[str, BeforeValidator(_property)]], Field(repr=False)]


class Section(BaseModel):
    """A mapping of the file. A key it does not know is refused, with the nearest that it does."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in data:
                if key not in _keys(cls):
                    raise PydanticCustomError("unknown_key", "{problem}", {"key": key, "problem": _unknown(cls, key)})
        return data


def _keys(section: type[Section]) -> list[str]:
    """The keys as the file spells them."""
    return [field.alias or name for name, field in section.model_fields.items()]


def _unknown(section: type[Section], key: object) -> str:
    allowed = ", ".join(_keys(section))
    near = difflib.get_close_matches(str(key), _keys(section), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"unknown key; {hint}Allowed here: {allowed}"


class PostgresSource(Section):
    """Where changes come from. `publication` and `slot` are `penstock_{name}` unless the file says otherwise."""

    type: Literal["postgres"]
    url: Annotated[SecretStr, AfterValidator(_source_url)]
    publication: Identifier = ""
    slot: SlotName = ""

    _pipeline: str = PrivateAttr("")

    @property
    def pipeline(self) -> str:
        """The pipeline's name, by which a publication knows who manages it."""
        return self._pipeline


class TableRule(Section):
    """Tables that match and are not excluded, and what becomes of them."""

    match: TablePattern
    exclude: list[TablePattern] = []
    modes: Annotated[list[Mode], BeforeValidator(_modes), Field(alias="mode")] = [Mode.CLONE]
    target: Annotated[str | dict[str, str] | None, BeforeValidator(_targets)] = None

    @model_validator(mode="after")
    def _one_target_a_table(self) -> TableRule:
        for mode, target in self._named_targets.items():
            if mode not in self.modes:
                raise ValueError(f"target names a table for mode {mode}, which is not among this rule's modes")
            if not names_one_table(self.match) and "{table}" not in target:
                raise ValueError("target must contain {table}, for match stands for more than one table")
        return self

    def feeds(self, table: TableId) -> tuple[Feed, ...]:
        """What becomes of a table that the rule covers: one feed for each mode."""
        first = self._named(self._named_targets.get(self.modes[0]), table) or table
        return tuple(
            Feed(
                feed_name(table, mode, first=mode is self.modes[0]),
                table,
                self._named(self._named_targets.get(mode), table)
                or feed_name(first, mode, first=mode is self.modes[0]),
                mode,
            )
            for mode in self.modes
        )

    @property
    def _named_targets(self) -> dict[str, str]:
        """The names that the file gives, by mode."""
        if isinstance(self.target, dict):
            return self.target
        return {} if self.target is None else {self.modes[0]: self.target}

    @staticmethod
    def _named(target: str | None, table: TableId) -> TableId | None:
        if target is None:
            return None
        namespace, name = target.split(".")
        names = {"schema": table.schema, "table": table.name}
        return TableId(namespace.format(**names), name.format(**names))

    def covers(self, table: TableId) -> bool:
        return matches(self.match, table) and not any(matches(pattern, table) for pattern in self.exclude)


class Maintenance(Section):
    """How a table is kept small and quick to read, between batches."""

    expire_every: Annotated[int, Field(ge=1)] = 50
    keep_snapshots: Annotated[int, Field(ge=1)] = 20
    keep_for: Duration = 600.0
    compact_files: Annotated[int, Field(ge=2)] = 8
    advance_idle_every: Duration = 60.0


class IcebergDestination(Section):
    """Where tables go. Without `catalog`: a JDBC catalog on SQLite in the warehouse."""

    name: Name = "lake"
    type: Literal["iceberg"]
    warehouse: Located
    catalog: Properties = {}
    maintenance: Maintenance = Maintenance()


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


class Pipeline(Section):
    """One pipeline file. Made by `penstock.config.load.load`."""

    version: Literal[1]
    name: Name
    source: PostgresSource
    tables: list[TableRule] = Field(min_length=1)
    destinations: list[IcebergDestination] = Field(min_length=1, max_length=1)
    log: LogConfig = LogConfig()
    batch: BatchConfig = BatchConfig()
    copying: Annotated[CopyConfig, Field(alias="copy")] = CopyConfig()
    state: Annotated[Located | None, Field(repr=False)] = None
    spark: Properties = {}

    _file: Path = PrivateAttr(Path())

    @model_validator(mode="before")
    @classmethod
    def _names_by_default(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("source"), dict):
            return data
        default = f"penstock_{data.get('name')}"[:63]
        return {**data, "source": {"publication": default, "slot": default, **data["source"]}}

    @model_validator(mode="after")
    def _know_the_file(self, info: ValidationInfo) -> Pipeline:
        self._file = (info.context or {}).get("file", Path.cwd() / "pipeline.yaml")
        self.source._pipeline = self.name
        return self

    @property
    def file(self) -> Path:
        """The absolute path it was loaded from."""
        return self._file

    @property
    def home(self) -> Path:
        """The folder of state, log, index and lock: beside a local warehouse, else beside the file."""
        warehouse = local_path(self.destinations[0].warehouse)
        beside = warehouse.parent if warehouse is not None else self.file.parent
        return beside / f"penstock-{self.name}"

    @property
    def log_uri(self) -> str:
        return self.log.uri or str(self.home / "log")

    @property
    def state_url(self) -> str:
        """A path (SQLite) or an SQLAlchemy URL."""
        return self.state or str(self.home / "state.db")

    def rule_for(self, table: TableId) -> TableRule | None:
        """The first rule that matches the table and does not exclude it; None: the table is not wanted."""
        return next((rule for rule in self.tables if rule.covers(table)), None)

    def feeds(self, table: TableId) -> tuple[Feed, ...]:
        """What becomes of a source table, one feed for each of its modes; none when it is not wanted."""
        rule = self.rule_for(table)
        return () if rule is None else rule.feeds(table)

    def feed(self, name: TableId) -> Feed | None:
        """The feed of that name; None when no table of such a name is wanted. `orders__append` is taken for the second
        feed of `orders` if that has one, and else for a table of its own."""
        bare = [name.name.removesuffix(f"__{mode}") for mode in Mode if name.name.endswith(f"__{mode}")]
        sources = [*(TableId(name.schema, text) for text in bare), name]
        return next((feed for table in sources for feed in self.feeds(table) if feed.name == name), None)

    def target(self, table: TableId) -> TableId:
        """The table's name at the destination, in the first of its modes."""
        return next((feed.target for feed in self.feeds(table)), table)


def local_path(located: str) -> Path | None:
    """The path of a path or `file:` URI; None for any other store."""
    if "://" not in located:
        return Path(located)
    parts = urlsplit(located)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None

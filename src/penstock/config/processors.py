"""The sections under `processors:`, one class for each `type`. docs/processors.md explains every key.

Expressions and scripts are parsed when the file is read; `processors/factory.py` makes them runnable on executors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictFloat, StrictInt, model_validator

from penstock.config.patterns import compile_pattern, matches
from penstock.config.section import Identifier, Section
from penstock.config.units import Duration, Size
from penstock.model.processor import OnError, ProcessorSpec
from penstock.model.table import TableId
from penstock.processors.cel import check_text
from penstock.processors.expression import parse, parse_select
from penstock.processors.javascript import check_source
from penstock.processors.outbox import NAMES, unknown_placeholder

_LIMITS = frozenset({"timeout_ms", "cpu_ms", "mem_mb"})


def _operation(value: object) -> object:
    return "insert" if value == "create" else value


Operation = Annotated[Literal["insert", "update", "delete", "truncate", "read"], BeforeValidator(_operation)]
Plain = StrictBool | StrictInt | StrictFloat | str


def _pattern(text: str) -> str:
    compile_pattern(text)
    return text


def _expression(text: str) -> str:
    parse(text)
    return text


def _select(text: str) -> str:
    names = [item.name for item in parse_select(text)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"names {twice} twice")
    return text


def _cel(text: str) -> str:
    problem = check_text(text)
    if problem is not None:
        raise ValueError(f"is no CEL: {problem}")
    return text


def _script(text: str) -> str:
    problem = check_source(text)
    if problem is not None:
        raise ValueError(problem)
    return text


def _topic(text: str) -> str:
    unknown = unknown_placeholder(text)
    if unknown is not None:
        raise ValueError(f"names {{{unknown}}}; there are {', '.join(f'{{{name}}}' for name in NAMES)}")
    return text


OutboxTemplate = Annotated[str, Field(min_length=1), AfterValidator(_topic)]
ExpressionText = Annotated[str, AfterValidator(_expression)]
CelText = Annotated[str, AfterValidator(_cel)]


class TableChoice(Section):
    """Which tables a processor concerns: those of `include`, all if it names none, without those of `exclude`."""

    include: list[Annotated[str, AfterValidator(_pattern)]] = Field(default_factory=list)
    exclude: list[Annotated[str, AfterValidator(_pattern)]] = Field(default_factory=list)

    def has(self, table: TableId) -> bool:
        if any(matches(pattern, table) for pattern in self.exclude):
            return False
        return not self.include or any(matches(pattern, table) for pattern in self.include)


def _included(value: object) -> object:
    """Accept a list of patterns in place of the section."""
    return {"include": value} if isinstance(value, list) else value


class ProcessorSection(Section):
    """What every processor has. `id` is a name for its reader; nothing depends on it."""

    id: str | None = None
    tables: Annotated[TableChoice, BeforeValidator(_included)] = TableChoice()
    on_error: OnError = "dlq"
    changes_key: bool = False

    def concerns(self, table: TableId) -> bool:
        return self.tables.has(table)

    def spec(self, folder: str) -> ProcessorSpec:
        """Return what travels to the executors. `folder` is the pipeline file's."""
        settings = json.dumps(self._settings(folder), sort_keys=True)
        return ProcessorSpec(getattr(self, "type"), settings, self.on_error, self.changes_key)  # noqa: B009

    def _settings(self, folder: str) -> dict[str, Any]:
        raise NotImplementedError


def _limits(value: object) -> object:
    """DeltaForge's `timeout_ms`, `cpu_ms` and `mem_mb` stand for `seconds` and `memory`."""
    if not isinstance(value, dict) or not _LIMITS.intersection(value):
        return value
    rest = {key: one for key, one in value.items() if key not in _LIMITS}
    milliseconds = value.get("timeout_ms", value.get("cpu_ms"))
    if isinstance(milliseconds, int):
        rest.setdefault("seconds", milliseconds / 1000)
    if isinstance(value.get("mem_mb"), int):
        rest.setdefault("memory", value["mem_mb"] << 20)
    return rest


class Limits(Section):
    """What one call may take, for at most a few thousand events."""

    seconds: Annotated[Duration, Field(gt=0)] = 5.0
    memory: Annotated[Size, Field(ge=2**24)] = 512 * 2**20


class FieldTest(Section):
    """One column against a value."""

    path: Annotated[str, Field(min_length=1)]
    op: Literal[
        "eq", "ne", "gt", "gte", "lt", "lte", "in", "not_in", "exists", "not_exists", "contains", "regex", "changed"
    ]
    value: Plain | list[Plain] | None = None

    @model_validator(mode="after")
    def _fits(self) -> FieldTest:
        parse(self.expression)
        return self

    @property
    def expression(self) -> str:
        """The test as an expression."""
        side, dot, column = self.path.partition(".")
        if not dot or side not in ("before", "after"):
            side, column = "", self.path
        column, inner, path = column.partition(".")
        name = f"{side}.{_quoted(column)}" if side else _quoted(column)
        if inner and self.op != "changed":
            name = f"json_text({name}, {_literal(path)})"
            if isinstance(self.value, int | float) and not isinstance(self.value, bool):
                name = f"cast({name} as double)"
        signs = {"eq": "=", "ne": "<>", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
        if self.op in ("in", "not_in"):
            if not isinstance(self.value, list) or not self.value:
                raise ValueError("needs a list as its value")
            among = f"{name} in ({', '.join(map(_literal, self.value))})"
            return among if self.op == "in" else f"({name} is null or not {among})"
        if self.op in ("exists", "not_exists"):
            return f"{name} is {'not ' if self.op == 'exists' else ''}null"
        if self.op == "changed":
            return f"(op <> 'update' or changed({_quoted(column)}))"
        if self.value is None or isinstance(self.value, list):
            raise ValueError("needs a value")
        if self.op in ("contains", "regex"):
            pattern = str(self.value) if self.op == "regex" else re.escape(str(self.value))
            return f"regexp_like({name}, {_literal(pattern)})"
        return f"{name} {signs[self.op]} {_literal(self.value)}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(value: Plain) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else "'" + value.replace("'", "''") + "'"


class FilterProcessor(ProcessorSection):
    """Keep events: those of some operations, for which `where` is true and the `fields` are as they say."""

    type: Literal["filter"]
    ops: list[Operation] = Field(default_factory=list)
    where: ExpressionText | None = None
    fields: list[FieldTest] = Field(default_factory=list)
    match: Literal["all", "any"] = "all"

    @model_validator(mode="after")
    def _filters(self) -> FilterProcessor:
        if not (self.ops or self.where or self.fields):
            raise ValueError("needs `where`, `ops` or `fields`")
        return self

    def _settings(self, folder: str) -> dict[str, Any]:
        tests = f" {'and' if self.match == 'all' else 'or'} ".join(f"({one.expression})" for one in self.fields)
        both = " and ".join(f"({text})" for text in (self.where, tests) if text)
        return {"ops": self.ops, "where": both}


class SqlProcessor(ProcessorSection):
    """Compute columns, choose columns, leave events out."""

    type: Literal["sql"]
    select: Annotated[str, AfterValidator(_select)] | None = None
    set: dict[Identifier, ExpressionText] = Field(default_factory=dict)
    where: ExpressionText | None = None

    @model_validator(mode="after")
    def _does_something(self) -> SqlProcessor:
        if not (self.select or self.set or self.where):
            raise ValueError("needs `select`, `set` or `where`")
        return self

    def _settings(self, folder: str) -> dict[str, Any]:
        return {"select": self.select or "", "set": self.set, "where": self.where or ""}


class PythonProcessor(ProcessorSection):
    """A function of the user's, by columns (an Arrow table in and out) or event by event."""

    type: Literal["python"]
    function: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    rows: bool = False
    adds: list[Identifier] = Field(default_factory=list)
    limits: Annotated[Limits, BeforeValidator(_limits)] = Limits()

    def _settings(self, folder: str) -> dict[str, Any]:
        limits = {"seconds": self.limits.seconds, "memory": self.limits.memory}
        return {"function": self.function, "folder": folder, "rows": self.rows, "adds": self.adds, **limits}


class FlattenProcessor(ProcessorSection):
    """Fields of composite columns become columns; objects in the JSON columns named get one level."""

    type: Literal["flatten"]
    separator: Annotated[str, Field(min_length=1)] = "_"
    max_depth: Annotated[int, Field(ge=1, le=64)] = 16
    json_columns: Annotated[list[Identifier], Field(alias="json")] = Field(default_factory=list)
    lists: Literal["preserve", "index"] = "preserve"
    on_collision: Literal["error", "first", "last"] = "error"
    empty_object: Literal["preserve", "drop", "null"] = "preserve"
    empty_list: Literal["preserve", "drop", "null"] = "preserve"

    def _settings(self, folder: str) -> dict[str, Any]:
        return {
            "separator": self.separator,
            "max_depth": self.max_depth,
            "json": self.json_columns,
            "index": self.lists == "index",
            "on_collision": self.on_collision,
            "empty_object": self.empty_object,
            "empty_list": self.empty_list,
        }


class OutboxColumns(Section):
    """The names of the outbox's columns."""

    aggregate_type: Identifier = "aggregate_type"
    aggregate_id: Identifier = "aggregate_id"
    payload: Identifier = "payload"
    event_type: Identifier = "event_type"
    event_id: Identifier = "id"
    topic: Identifier = "topic"


class OutboxProcessor(ProcessorSection):
    """Rows of an outbox table become messages."""

    type: Literal["outbox"]
    columns: OutboxColumns = OutboxColumns()
    topic: OutboxTemplate = "{aggregate_type}"
    default_topic: Annotated[str, Field(min_length=1)] | None = None
    key: OutboxTemplate = "{aggregate_id}"
    additional_headers: dict[str, Identifier] = Field(default_factory=dict)
    raw_payload: bool = True
    strict: bool = False

    def _settings(self, folder: str) -> dict[str, Any]:
        return {
            "columns": self.columns.model_dump(),
            "topic": self.topic,
            "default_topic": self.default_topic or "",
            "key": self.key,
            "headers": self.additional_headers,
            "raw_payload": self.raw_payload,
            "strict": self.strict,
        }


class JavascriptProcessor(ProcessorSection):
    """A script that defines processBatch(events)."""

    type: Literal["javascript"]
    inline: Annotated[str, AfterValidator(_script)]
    events: Literal["native", "deltaforge"] = "native"
    adds: list[Identifier] = Field(default_factory=list)
    limits: Annotated[Limits, BeforeValidator(_limits)] = Limits()

    def _settings(self, folder: str) -> dict[str, Any]:
        limits = {"seconds": self.limits.seconds, "memory": self.limits.memory}
        shape = {} if self.events == "native" else {"shape": self.events}
        return {"source": self.inline, "adds": self.adds, **shape, **limits}


class CelProcessor(ProcessorSection):
    """Keep events and set columns by expressions of CEL."""

    type: Literal["cel"]
    where: CelText | None = None
    set: dict[Identifier, CelText] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _does_something(self) -> CelProcessor:
        if not (self.where or self.set):
            raise ValueError("needs `where` or `set`")
        return self

    def _settings(self, folder: str) -> dict[str, Any]:
        return {"where": self.where or "", "set": self.set}


AnyProcessor = Annotated[
    CelProcessor
    | FilterProcessor
    | FlattenProcessor
    | JavascriptProcessor
    | OutboxProcessor
    | PythonProcessor
    | SqlProcessor,
    Field(discriminator="type"),
]


def specs_of(processors: Sequence[ProcessorSection], table: TableId, folder: str) -> tuple[ProcessorSpec, ...]:
    """Return those of the processors that concern the table, in order."""
    return tuple(one.spec(folder) for one in processors if one.concerns(table))

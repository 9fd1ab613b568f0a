"""The rules under `tables:`: which tables a rule covers, in which modes, into which targets, and what is kept of them.

`model` has the pipeline that they are part of; docs/modes.md and docs/config.md explain every key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    StrictBool,
    StrictInt,
    model_validator,
)
from pydantic_core import PydanticCustomError

from penstock.config.facts import FACTS, expand_facts
from penstock.config.patterns import PUBLISHED, compile_pattern, matches, names_one_table
from penstock.config.processors import AnyProcessor
from penstock.config.section import Identifier, Section
from penstock.decode.choices import parse_choice, parse_key
from penstock.decode.dialect import Choices
from penstock.fold.condition import parse
from penstock.model.feed import ColumnChoice, Feed, Mode, Period, Projection, Sid, feed_name
from penstock.model.table import TableId
from penstock.model.type_map import WIDEST, TypeMap

_TARGET_PART = r"(?:[^.{}]|\{schema\}|\{table\}|\{source\})+"
_TARGET = re.compile(rf"{_TARGET_PART}\.{_TARGET_PART}")


def _pattern(text: str) -> str:
    compile_pattern(text)
    return text


def _targets(value: Any) -> Any:
    """Return the first mode's table, or a table for each mode."""
    given = value.values() if isinstance(value, dict) else [value] if value is not None else []
    if not all(isinstance(text, str) and _TARGET.fullmatch(text) for text in given):
        raise ValueError(
            "must be namespace.table, in which {schema} and {table} stand for the table's names at its source, and"
            " {source} for the source's"
        )
    return value


def _modes(value: Any) -> Any:
    """Return one mode, or a list of them; or that for each destination."""
    if isinstance(value, dict):
        if not value:
            raise ValueError("must name a destination's modes, or be a mode")
        return {destination: _modes(named) for destination, named in value.items()}
    named = value if isinstance(value, list) else [value]
    if not named or any(mode not in list(Mode) for mode in named):
        raise ValueError(f"must be {', '.join(Mode)}, or a list of them")
    if len(set(named)) < len(named):
        raise ValueError("names one mode twice; each may be there once")
    return named


def _off(value: Any) -> Any:
    """YAML reads the word as a boolean."""
    return "off" if value is False else value


def _type_keys(types: dict[str, str]) -> dict[str, str]:
    for key, choice in types.items():
        try:
            parse_key(key, choice)
        except ValueError as unfit:
            raise PydanticCustomError("unfit_key", "{problem}", {"key": key, "problem": str(unfit)}) from None
    return types


TablePattern = Annotated[str, AfterValidator(_pattern)]
Types = Annotated[dict[str, Annotated[str, AfterValidator(parse_choice)]], AfterValidator(_type_keys)]


class HistoryConfig(Section):
    """The names of the columns that a history has beside the source's, and when a row's first version begins."""

    valid_from: Identifier = "valid_from"
    valid_to: Identifier = "valid_to"
    deleted: Identifier = "deleted"
    first: Literal["always", "commit"] = "always"

    @model_validator(mode="after")
    def _three_columns(self) -> HistoryConfig:
        if len({self.valid_from, self.valid_to, self.deleted}) < 3:
            raise ValueError("must name three different columns")
        return self


def _history(value: Any) -> Any:
    """`kuvasz` stands for that program's names."""
    if value == "kuvasz":
        return {"valid_from": "kvsz_start", "valid_to": "kvsz_end", "deleted": "kvsz_deleted"}
    return value


class EventsConfig(Section):
    """What a table of events holds beside the changes."""

    markers: bool = False


class ColumnRule(Section):
    """What becomes of one column."""

    rename: Identifier = ""
    mask: bool = False


def _columns(value: Any) -> Any:
    """`keep`, `drop` and `mask` as words, or a mapping."""
    if not isinstance(value, dict):
        raise ValueError("must be a mapping of columns to keep, drop, mask or {rename: other_name}")
    for column, action in value.items():
        if not isinstance(action, dict) and action not in ("keep", "drop", "mask"):
            raise ValueError(f"says {action!r} for {column}; allowed are keep, drop, mask and {{rename: other_name}}")
    return value


def _choice(column: str, action: str | ColumnRule) -> ColumnChoice:
    if isinstance(action, ColumnRule):
        return ColumnChoice(column, masked=action.mask, name=action.rename)
    return ColumnChoice(column, dropped=action == "drop", masked=action == "mask")


def _facts(table: TableId) -> dict[str, str]:
    return {"table.schema": table.schema, "table.name": table.name}


def _constant(value: str | int | bool) -> str | int | bool:
    if isinstance(value, str):
        expand_facts(value, dict.fromkeys(FACTS, ""))
    return value


def _where(text: str) -> str:
    parse(text)
    return text


class TableRule(Section):
    """Tables that match and are not excluded, and what becomes of them."""

    match: TablePattern
    exclude: list[TablePattern] = Field(default_factory=list)
    to: list[str] | None = Field(default=None, min_length=1)
    given_modes: Annotated[list[Mode] | dict[str, list[Mode]], BeforeValidator(_modes), Field(alias="mode")] = Field(
        default_factory=lambda: [Mode.CLONE]
    )
    target: Annotated[str | dict[str, str] | None, BeforeValidator(_targets)] = None
    on_column_drop: Literal["keep", "drop", "rename"] = "keep"
    on_type_change: Literal["resync", "error"] = "resync"
    partitions: Literal["root", "each"] = "root"
    on_partition_drop: Literal["keep", "delete"] = "keep"
    history: Annotated[HistoryConfig, BeforeValidator(_history)] = HistoryConfig()
    events: EventsConfig = EventsConfig()
    anomalies: Annotated[Literal["off", "count", "log"], BeforeValidator(_off)] = "off"
    where: Annotated[str, AfterValidator(_where)] | None = None
    columns: Annotated[dict[str, Literal["keep", "drop", "mask"] | ColumnRule], BeforeValidator(_columns)] = Field(
        default_factory=dict
    )
    set: dict[Identifier, Annotated[StrictBool | StrictInt | str, AfterValidator(_constant)]] = Field(
        default_factory=dict
    )
    types: Types = Field(default_factory=dict)
    processors: list[AnyProcessor] = Field(default_factory=list)
    _within: tuple[str, ...] | None = PrivateAttr(None)  # patterns, of which one must stand for a table too

    @property
    def modes(self) -> list[Mode]:
        """The modes at the destination whose view of the rule this is, or at all of them."""
        if isinstance(self.given_modes, list):
            return self.given_modes
        return list(dict.fromkeys(mode for modes in self.given_modes.values() for mode in modes))

    @property
    def destinations(self) -> list[str] | None:
        """Where its tables go; None: to all destinations."""
        if self.to is None and isinstance(self.given_modes, dict):
            return list(self.given_modes)
        return self.to

    def at(self, destination: str) -> TableRule | None:
        """Return the rule as a destination sees it; None when its tables do not go there."""
        if self.destinations is not None and destination not in self.destinations:
            return None
        if isinstance(self.given_modes, list):
            return self
        modes = self.given_modes[destination]
        named = self.target
        if isinstance(named, dict):
            named = {mode: text for mode, text in named.items() if mode in modes}
        return self.model_copy(update={"given_modes": modes, "target": named})

    @property
    def choices(self) -> Choices:
        """What `types` says, types in one spelling."""
        return tuple((parse_key(key, choice), choice) for key, choice in self.types.items())

    @model_validator(mode="after")
    def _one_target_a_table(self) -> TableRule:
        if self.anomalies != "off" and self.where:
            raise ValueError("anomalies cannot be found where `where` leaves rows out: use one of the two")
        for mode, target in self._named_targets.items():
            if mode not in self.modes:
                raise ValueError(f"target names a table for mode {mode}, which is not among this rule's modes")
            if not names_one_table(self.match) and "{table}" not in target:
                raise ValueError("target must contain {table}, for match stands for more than one table")
        return self

    @model_validator(mode="after")
    def _modes_where_it_goes(self) -> TableRule:
        if self.to is not None and len(set(self.to)) < len(self.to):
            raise ValueError("`to` names a destination twice; each may be there once")
        if isinstance(self.given_modes, dict) and self.to is not None and set(self.to) != self.given_modes.keys():
            raise ValueError("`to` and `mode` name different destinations; name the same ones, or leave `to` out")
        return self

    @model_validator(mode="after")
    def _keeps_whole_tables(self) -> TableRule:
        if self.partitions == "each" and self.on_partition_drop == "delete":
            raise ValueError("on_partition_drop: delete is for partitions: root; with each, no table is ever dropped")
        return self

    def feeds(
        self,
        table: TableId,
        source: str,
        sid: Sid | None,
        salt: str = "",
        *,
        type_map: TypeMap = WIDEST,
        strict: bool = False,
    ) -> tuple[Feed, ...]:
        """Return the feeds of a source's table that the rule covers, one for each mode.

        `salt` is for masked columns, `type_map` is the destination's. Rows carry `sid`, unless the target has the
        source in its name: then no other source feeds it.
        """
        first = self._named(self._named_targets.get(self.modes[0]), table, source) or table
        own = self._named_targets.get(self.modes[0], "")  # names the others too, unless they have names
        return tuple(
            Feed(
                feed_name(table, mode, first=mode is self.modes[0]),
                table,
                self._named(self._named_targets.get(mode), table, source)
                or feed_name(first, mode, first=mode is self.modes[0]),
                mode,
                None if "{source}" in self._named_targets.get(mode, own) else sid,
                on_column_drop=self.on_column_drop,
                on_type_change=self.on_type_change,
                period=Period(**self.history.model_dump()),
                types=self.choices,
                type_map=type_map,
                strict=strict,
                projection=self._projection({**_facts(table), "source.name": source}, salt),
                markers=self.events.markers,
                anomalies=self.anomalies != "off" and mode in (Mode.CLONE, Mode.HISTORY),
                logs_anomalies=self.anomalies == "log" and mode in (Mode.CLONE, Mode.HISTORY),
            )
            for mode in self.modes
        )

    def _projection(self, facts: Mapping[str, str], salt: str) -> Projection:
        choices = tuple(_choice(column, action) for column, action in self.columns.items() if action != "keep")
        constants = tuple(
            (name, expand_facts(value, facts) if isinstance(value, str) else value) for name, value in self.set.items()
        )
        masks = any(choice.masked for choice in choices)
        return Projection(self.where or "", choices, constants, salt if masks else "")

    @property
    def masks(self) -> bool:
        return any(_choice(column, action).masked for column, action in self.columns.items() if action != "keep")

    @property
    def _named_targets(self) -> dict[str, str]:
        """The names that the file gives, by mode."""
        if isinstance(self.target, dict):
            return self.target
        return {} if self.target is None else {self.modes[0]: self.target}

    @staticmethod
    def _named(target: str | None, table: TableId, source: str) -> TableId | None:
        if target is None:
            return None
        namespace, name = target.split(".")
        names = {"schema": table.schema, "table": table.name, "source": source}
        return TableId(namespace.format(**names), name.format(**names))

    @property
    def only_published(self) -> bool:
        """Whether it is about what the source's publication has."""
        return self.match == PUBLISHED

    def covers(self, table: TableId) -> bool:
        if self._within is not None and not any(matches(pattern, table) for pattern in self._within):
            return False
        return matches(self.match, table) and not any(matches(pattern, table) for pattern in self.exclude)

    def within(self, patterns: Sequence[str]) -> TableRule:
        """Return the rule for those of its tables that one of the patterns stands for."""
        rule = self.model_copy()
        rule._within = tuple(patterns)
        return rule

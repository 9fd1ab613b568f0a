"""`cel`: keep events and set columns by expressions of the Common Expression Language, one event at a time.

Columns of the row are variables by their names, beside `before`, `after`, `op` and `table`. CEL has no decimals: they
are doubles there, so use `sql` where every digit counts.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

from penstock.errors import EnvironmentMissing
from penstock.processors.batch import EventBatch, StepFailed, batch_of, events_of


@dataclass(frozen=True)
class CelStep:
    where: str
    assigned: tuple[tuple[str, str], ...]
    most: int = 4096

    def run(self, batch: EventBatch) -> EventBatch:
        made = [(event["event"], kept) for event in events_of(batch) for kept in self._processed(event)]
        return batch_of(batch, made, [name for name, _ in self.assigned])

    def _processed(self, event: dict[str, Any]) -> Sequence[Mapping[str, Any]]:
        if event["op"] == "truncate":
            return [event]
        self._require_sent(event["unchanged"] or ())
        names = {"before": event["before"], "after": event["after"], "op": event["op"], "table": event["table"]}
        row = event["after"] if event["after"] is not None else event["before"] or {}
        if self.where and _value(self.where, {**row, **names}) is not True:
            return []
        for side in ("before", "after"):
            image = event[side]
            if image is not None:
                event[side] = image | {name: _value(text, {**image, **names}) for name, text in self.assigned}
        return [event]

    def _require_sent(self, unchanged: Sequence[str]) -> None:
        for text in (self.where, *(text for _, text in self.assigned)):
            for name in unchanged:
                if re.search(rf"\b{re.escape(name)}\b", text):
                    raise StepFailed(
                        "unsent",
                        f"`{text}` needs column {name}, which an UPDATE left alone and the source did not send; "
                        "REPLICA IDENTITY FULL sends it",
                    )


def engine() -> Any:
    """Return the module celpy. EnvironmentMissing without it."""
    try:
        return importlib.import_module("celpy")
    except ImportError as error:
        raise EnvironmentMissing(
            "a processor of type cel needs cel-python, which is not installed", "pip install 'penstock[cel]'"
        ) from error


def check_text(text: str) -> str | None:
    """Return what is wrong with an expression; None when it can be parsed."""
    celpy = engine()
    try:
        _program(text)
    except celpy.CELParseError as error:
        return " ".join(str(error.args[0]).split())
    return None


@lru_cache(maxsize=256)
def _program(text: str) -> Any:
    environment = engine().Environment()
    return environment.program(environment.compile(text))


def _value(text: str, names: Mapping[str, Any]) -> Any:
    celpy = engine()
    try:
        found = _program(text).evaluate({name: _cel(value) for name, value in names.items()})
    except celpy.CELEvalError as error:
        raise StepFailed("expression", f"`{text}`: {error.args[0]}") from error
    return _plain(found)


def _cel(value: Any) -> Any:
    """Return a value as CEL has it."""
    types = engine().celtypes
    match value:
        case None:
            return None
        case bool():
            return types.BoolType(value)
        case int():
            return types.IntType(value)
        case float() | Decimal():
            return types.DoubleType(float(value))
        case str():
            return types.StringType(value)
        case bytes():
            return types.BytesType(value)
        case datetime():
            return types.TimestampType(value)
        case date():
            return types.StringType(value.isoformat())
        case dict():
            return types.MapType({types.StringType(key): _cel(one) for key, one in value.items()})
        case list() | tuple():
            return types.ListType([_cel(one) for one in value])
        case _:
            return types.StringType(str(value))


def _plain(value: Any) -> Any:
    """Return a value of CEL as Python has it."""
    types = engine().celtypes
    match value:
        case None:
            return None
        case bool() | types.BoolType():
            return bool(value)
        case int():
            return int(value)
        case float():
            return float(value)
        case str():
            return str(value)
        case bytes():
            return bytes(value)
        case datetime():
            return datetime.fromisoformat(value.isoformat())
        case dict():
            return {str(key): _plain(one) for key, one in value.items()}
        case list():
            return [_plain(one) for one in value]
        case _:
            raise StepFailed("nonsense", f"the expression gives {type(value).__name__}, which no column holds")

"""`javascript`: a function `processBatch(events)` in QuickJS, which holds the limits on time and memory.

Events are plain objects. Numbers that JavaScript cannot hold exactly (decimals, integers past 2^53) are texts, moments
are ISO 8601, binary is base64. A value that comes back as it was given keeps the source's own form.
"""

from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from penstock.errors import EnvironmentMissing
from penstock.processors.batch import EventBatch, StepFailed, batch_of, events_of

EXACT = 2**53


@dataclass(frozen=True)
class JavascriptStep:
    source: str
    adds: tuple[str, ...]
    seconds: float
    memory: int
    most: int = 2048

    def run(self, batch: EventBatch) -> EventBatch:
        given = events_of(batch)
        shown = [_shown(event) for event in given]
        answer = self._called(json.dumps(shown))
        if not isinstance(answer, list):
            raise StepFailed("nonsense", "processBatch must return the array of events")
        made: list[tuple[int, Mapping[str, Any]]] = []
        by_origin = {event["event"]: (event, seen) for event, seen in zip(given, shown, strict=True)}
        for one in answer:
            if not isinstance(one, dict) or one.get("event") not in by_origin:
                raise StepFailed("nonsense", "processBatch returned something that is no event, or without its `event`")
            event, seen = by_origin[one["event"]]
            made.append((event["event"], _restored(one, event, seen)))
        made.sort(key=lambda pair: pair[0])
        return batch_of(batch, made, self.adds)

    def _called(self, events: str) -> Any:
        quickjs = engine()
        context = quickjs.Context()
        context.set_memory_limit(self.memory)
        context.set_time_limit(self.seconds)
        try:
            context.eval(self.source)
            context.set("penstockEvents", events)
            text = context.eval("JSON.stringify(processBatch(JSON.parse(penstockEvents)))")
        except quickjs.JSException as error:
            said = str(error).splitlines()[0]
            if "interrupted" in said:
                raise StepFailed("too-slow", f"it took longer than {self.seconds:g} s", slow=True) from error
            raise StepFailed("memory" if "out of memory" in said else "raised", said) from error
        return None if text is None else json.loads(text)


def engine() -> Any:
    """Return the module quickjs. EnvironmentMissing without it."""
    try:
        return importlib.import_module("quickjs")
    except ImportError as error:
        raise EnvironmentMissing(
            "a processor of type javascript needs quickjs, which is not installed", "pip install 'penstock[javascript]'"
        ) from error


def check_source(source: str) -> str | None:
    """Return what is wrong with a script; None when it defines processBatch."""
    quickjs = engine()
    context = quickjs.Context()
    context.set_time_limit(5)
    try:
        context.eval(source)
        if context.eval("typeof processBatch") != "function":
            return "defines no function processBatch(events)"
    except quickjs.JSException as error:
        return str(error).splitlines()[0]
    return None


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shown(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(one) for one in value]
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return value if abs(value) <= EXACT else str(value)
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | timedelta):
        return str(value)
    return str(value)


def _restored(made: Mapping[str, Any], given: Mapping[str, Any], shown: Mapping[str, Any]) -> dict[str, Any]:
    """Put the given values back where the script has left them alone."""
    restored = dict(made)
    for side in ("before", "after"):
        image, was, seen = made.get(side), given[side], shown[side]
        if isinstance(image, dict) and was is not None:
            restored[side] = {
                name: was[name] if name in was and _same(value, seen[name]) else value for name, value in image.items()
            }
    return restored


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)

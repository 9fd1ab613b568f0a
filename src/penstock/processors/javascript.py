"""`javascript`: a function `processBatch(events)` in QuickJS, which holds the limits on time and memory.

Events are plain objects. Numbers that JavaScript cannot hold exactly (decimals, integers past 2^53) are texts, moments
are ISO 8601, binary is base64. A value that comes back as it was given keeps the source's own form.

With `shape: deltaforge` events are as scripts of DeltaForge know them (`_as_deltaforge`), with `ev.route({topic, key,
headers})` and `route(ev, …)`; a script may return the events, one event, or nothing for those that it was given.
"""

from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal

from penstock.errors import EnvironmentMissing
from penstock.processors.batch import EventBatch, StepFailed, batch_of, events_of

EXACT = 2**53
Shape = Literal["native", "deltaforge"]
_CALL = "JSON.stringify(processBatch(JSON.parse(penstockEvents)))"
_DELTAFORGE_SETUP = """
function route(event, how) { event.__routing = how; }
function penstockCall(text) {
  const events = JSON.parse(text);
  for (const event of events) { event.route = function (how) { this.__routing = how; }; }
  const made = processBatch(events) ?? events;
  return JSON.stringify(Array.isArray(made) ? made : [made]);
}
"""
_DELTAFORGE_CALL = "penstockCall(penstockEvents)"


@dataclass(frozen=True)
class JavascriptStep:
    source: str
    adds: tuple[str, ...]
    seconds: float
    memory: int
    most: int = 2048
    shape: Shape = "native"

    def run(self, batch: EventBatch) -> EventBatch:
        given = events_of(batch)
        shown = [_shown(event) for event in given]
        answer = self._called(json.dumps(shown if self.shape == "native" else [*map(_as_deltaforge, shown)]))
        if self.shape == "deltaforge" and isinstance(answer, list):
            answer = [_from_deltaforge(one) if isinstance(one, dict) else one for one in answer]
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
            if self.shape == "deltaforge":
                context.eval(_DELTAFORGE_SETUP)
            context.eval(self.source)
            context.set("penstockEvents", events)
            text = context.eval(_CALL if self.shape == "native" else _DELTAFORGE_CALL)
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


_TO_LETTER = {"insert": "c", "update": "u", "delete": "d", "read": "r", "truncate": "t"}
_FROM_LETTER = {letter: word for word, letter in _TO_LETTER.items()}


def _as_deltaforge(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event as scripts of DeltaForge know it. `event`, its number, is ours."""
    moment = event["commit_time"]
    milliseconds = None if moment is None else round(datetime.fromisoformat(moment).timestamp() * 1000)
    source = {"connector": "postgresql", "ts_ms": milliseconds, "schema": event["schema"], "table": event["table"]}
    return {
        "event": event["event"],
        "before": event["before"],
        "after": event["after"],
        "source": {**source, "txId": event["transaction"]},
        "op": _TO_LETTER[event["op"]],
        "ts_ms": milliseconds,
        "timestamp": milliseconds,
        "table": f"{event['schema']}.{event['table']}",
    }


def _from_deltaforge(made: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a script made of such an event: its operation, its images, and where it is to go."""
    found = {name: made[name] for name in ("event", "before", "after") if name in made}
    how = made.get("__routing")
    if isinstance(how, dict):
        found |= {name: how[name] for name in ("topic", "key", "headers") if how.get(name) is not None}
    return {**found, "op": _FROM_LETTER.get(str(made.get("op")), made.get("op"))}


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

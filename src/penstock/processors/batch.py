"""Events as processors take and give them: by columns, with values of their types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Rows = npt.NDArray[np.int64]
UNCHANGED_TYPE = pa.list_(pa.field("element", pa.string()))


class StepFailed(Exception):
    """A processor fails on a batch. Of one event: that event is to blame. `slow`: it took too long."""

    def __init__(self, code: str, reason: str, *, slow: bool = False) -> None:
        super().__init__(reason)
        self.code, self.reason, self.slow = code, reason, slow


@dataclass(frozen=True)
class Facts:
    """What a processor may know of events beside their images; it cannot change these."""

    schema: str
    table: str
    key: tuple[str, ...]
    places: pa.Array  # text
    commit_time: pa.Array
    transaction: pa.Array


@dataclass(frozen=True)
class Route:
    """Where events go instead of where their destination's section says; null: there. `value` replaces the event."""

    topic: pa.Array
    key: pa.Array  # binary
    value: pa.Array  # binary
    headers: Mapping[str, pa.Array] = field(default_factory=dict)  # binary

    @classmethod
    def none(cls, rows: int) -> Route:
        return cls(pa.nulls(rows, pa.string()), pa.nulls(rows, pa.binary()), pa.nulls(rows, pa.binary()))

    def take(self, index: pa.Array) -> Route:
        headers = {name: values.take(index) for name, values in self.headers.items()}
        return Route(self.topic.take(index), self.key.take(index), self.value.take(index), headers)


@dataclass(frozen=True)
class EventBatch:
    """Events in order and in parallel.

    `origin` is the number of the event, among those that the chain was given, that each one is made of; several may be
    made of one. `facts` are of the given events, by `origin`.

    Images are structs, null where there is none. `unchanged` names columns that the source did not send: they are null
    in `after`, and that is not their value. `texts` are columns that were written as JSON.
    """

    facts: Facts
    origin: Rows
    op: pa.Array
    before: pa.StructArray
    after: pa.StructArray
    unchanged: pa.Array
    route: Route | None = None
    texts: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.origin)

    def take(self, rows: Rows) -> EventBatch:
        index = pa.array(rows)
        return replace(
            self,
            origin=self.origin[rows],
            op=self.op.take(index),
            before=self.before.take(index),
            after=self.after.take(index),
            unchanged=self.unchanged.take(index),
            route=None if self.route is None else self.route.take(index),
        )

    def fact(self, values: pa.Array) -> pa.Array:
        """Return a fact of each event."""
        return values.take(pa.array(self.origin))


def columns_of(images: pa.StructArray) -> dict[str, pa.Array]:
    """Return the columns of images; null where there is no image."""
    flat = images.flatten()
    return {field.name: values for field, values in zip(images.type, flat, strict=True)}


def images_of(columns: Mapping[str, pa.Array], missing: pa.Array) -> pa.StructArray:
    """Return images of columns; `missing` says where there is none."""
    fields = [pa.field(name, values.type) for name, values in columns.items()]
    if not fields:
        return pa.array([None if gone else {} for gone in missing.to_pylist()], pa.struct([]))
    return pa.StructArray.from_arrays(list(columns.values()), fields=fields, mask=missing)


def image_of_row(batch: EventBatch) -> pa.StructArray:
    """Return the row that each event is of: its new image, or the old one of a delete."""
    if not batch.after.null_count:
        return batch.after
    names = [field.name for field in batch.after.type]
    after, before = columns_of(batch.after), columns_of(batch.before)
    has_after = batch.after.is_valid()
    columns = {
        name: pc.if_else(has_after, after[name], before[name]) if name in before else after[name] for name in names
    }
    return images_of(columns, pc.and_(batch.after.is_null(), batch.before.is_null()))


def events_of(batch: EventBatch) -> list[dict[str, Any]]:
    """Return events as mappings, for processors that take one at a time."""
    columns = {
        "event": batch.origin.tolist(),
        "op": batch.op.to_pylist(),
        "place": batch.fact(batch.facts.places).to_pylist(),
        "commit_time": batch.fact(batch.facts.commit_time).to_pylist(),
        "transaction": batch.fact(batch.facts.transaction).to_pylist(),
        "before": batch.before.to_pylist(),
        "after": batch.after.to_pylist(),
        "unchanged": batch.unchanged.to_pylist(),
    }
    named = {"schema": batch.facts.schema, "table": batch.facts.table}
    return [dict(zip(columns, values, strict=True)) | named for values in zip(*columns.values(), strict=True)]


def batch_of(batch: EventBatch, made: Sequence[tuple[int, Mapping[str, Any]]], added: Sequence[str]) -> EventBatch:
    """Return the events that a processor has made of `batch`: each with the number of its origin.

    StepFailed for one that is no event.
    """
    known = [field.name for field in batch.after.type]
    names = [*known, *(name for name in added if name not in known)]
    for _, event in made:
        _require_event(event, names)
    by_origin = {origin: row for row, origin in enumerate(batch.origin.tolist())}
    rows = pa.array([by_origin[origin] for origin, _ in made], pa.int64())
    images = {}
    for side in ("before", "after"):
        given = columns_of(getattr(batch, side))
        found = [event.get(side) for _, event in made]
        columns = {
            name: _column(name, [None if one is None else one.get(name) for one in found], given.get(name))
            for name in names
        }
        images[side] = images_of(columns, pa.array([one is None for one in found], pa.bool_()))
    return replace(
        batch,
        origin=np.array([origin for origin, _ in made], np.int64),
        op=pa.array([event["op"] for _, event in made], pa.string()),
        unchanged=batch.unchanged.take(rows),
        route=_routes(batch, [event for _, event in made], rows),
        **images,
    )


OPERATIONS = ("insert", "update", "delete", "truncate", "read")


def _require_event(event: object, names: Sequence[str]) -> None:
    if not isinstance(event, Mapping):
        raise StepFailed("nonsense", f"it returned {type(event).__name__}, not an event")
    if event.get("op") not in OPERATIONS:
        raise StepFailed("nonsense", f"it returned the operation {event.get('op')!r}")
    for side in ("before", "after"):
        image = event.get(side)
        if image is not None and not isinstance(image, Mapping):
            raise StepFailed("nonsense", f"it returned {type(image).__name__} as `{side}`, not an image")
        for name in image or ():
            if name not in names:
                raise StepFailed(
                    "nonsense", f"it returned column {name}, which is neither the table's nor named in `adds`"
                )


def _column(name: str, values: list[Any], given: pa.Array | None) -> pa.Array:
    """Return a column of Python values: of the type that it had, if that holds them."""
    if given is not None:
        try:
            return pa.array(values, given.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            pass  # a value of another type is allowed: it is published as it is
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise StepFailed("nonsense", f"it returned values of column {name} that are of no type: {error}") from error


def _routes(batch: EventBatch, events: Sequence[Mapping[str, Any]], rows: pa.Array) -> Route | None:
    """Return where events go: as they were routed before, unless they say `topic`, `key` or `headers` themselves."""
    if batch.route is None and not any(event.keys() & {"topic", "key", "headers"} for event in events):
        return None
    before = Route.none(len(events)) if batch.route is None else batch.route.take(rows)
    names = dict.fromkeys([*before.headers, *(name for event in events for name in event.get("headers") or ())])
    headers = {}
    for name in names:
        own = [_octets((event.get("headers") or {}).get(name)) for event in events]
        earlier = before.headers.get(name, pa.nulls(len(events), pa.binary()))
        headers[name] = pc.coalesce(pa.array(own, pa.binary()), earlier)
    return Route(
        topic=pc.coalesce(pa.array([_text(event.get("topic")) for event in events], pa.string()), before.topic),
        key=pc.coalesce(pa.array([_octets(event.get("key")) for event in events], pa.binary()), before.key),
        value=before.value,
        headers=headers,
    )


def _text(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise StepFailed("nonsense", f"it returned {type(value).__name__} as `topic`, not a text")
    return value or None


def _octets(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise StepFailed("nonsense", f"it returned {type(value).__name__} as `key` or header, not a text")
    return value.encode()

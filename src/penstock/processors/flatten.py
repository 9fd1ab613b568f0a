"""`flatten`: columns of composite types become columns of their fields, and objects in JSON columns get one level."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa

from penstock.processors.batch import EventBatch, StepFailed, columns_of, images_of

OnCollision = Literal["error", "first", "last"]
Empty = Literal["preserve", "drop", "null"]


@dataclass(frozen=True)
class FlattenStep:
    """`json` are the JSON columns to flatten: each stays one column, whose objects have no objects in them.

    Lists stay as they are, or with `index` their elements are members by number. `on_collision` says which of two
    members or columns of one name counts; `empty_object` and `empty_list` what becomes of those inside of JSON.
    """

    separator: str
    max_depth: int
    json: tuple[str, ...] = ()
    index: bool = False
    on_collision: OnCollision = "error"
    empty_object: Empty = "preserve"
    empty_list: Empty = "preserve"

    def run(self, batch: EventBatch) -> EventBatch:
        before, after = self._images(batch.before), self._images(batch.after)
        return replace(batch, before=before, after=after, texts=batch.texts | set(self.json))

    def _images(self, images: pa.StructArray) -> pa.StructArray:
        made: dict[str, pa.Array] = {}
        for name, values in columns_of(images).items():
            if name in self.json:
                values = pa.array([None if one is None else self._text(name, one) for one in values.to_pylist()])
                values = values.cast(pa.string())
            for full, flat in self._columns(name, values, self.max_depth):
                if full in made and self.on_collision == "error":
                    raise StepFailed("collision", f"two columns would be named {full}; choose another separator")
                if full not in made or self.on_collision == "last":
                    made[full] = flat
        return images_of(made, images.is_null())

    def _columns(self, name: str, values: pa.Array, depth: int) -> Iterator[tuple[str, pa.Array]]:
        if not pa.types.is_struct(values.type) or not depth or not values.type.num_fields:
            yield name, values
            return
        for inner, flat in columns_of(values).items():
            yield from self._columns(f"{name}{self.separator}{inner}", flat, depth - 1)

    def _text(self, name: str, text: str) -> str:
        try:
            found = json.loads(text, parse_float=Decimal)
        except (ValueError, RecursionError) as error:
            raise StepFailed("nonsense", f"column {name} is no JSON: {error}") from error
        if not isinstance(found, dict):
            return text
        flat: dict[str, Any] = {}
        for key, value in self._members("", found, self.max_depth):
            empty = self.empty_object if value == {} else self.empty_list if value == [] else "preserve"
            if empty == "drop":
                continue
            if key in flat and self.on_collision == "error":
                raise StepFailed("collision", f"two members of {name} would be named {key}; choose another separator")
            if key not in flat or self.on_collision == "last":
                flat[key] = None if empty == "null" else value
        return _written(flat)

    def _members(self, prefix: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
        inner: Iterator[tuple[str, Any]] | None = None
        if isinstance(value, dict) and value and (depth or not prefix):
            inner = iter(value.items())
        elif isinstance(value, list) and value and self.index and depth:
            inner = ((str(number), one) for number, one in enumerate(value))
        if inner is None:
            yield prefix, value
            return
        for key, one in inner:
            yield from self._members(f"{prefix}{self.separator}{key}" if prefix else key, one, depth - 1)


def _written(value: Any) -> str:
    """Write JSON with the digits that its numbers had."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return (
            "{" + ",".join(f"{json.dumps(key, ensure_ascii=False)}:{_written(one)}" for key, one in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value, ensure_ascii=False)

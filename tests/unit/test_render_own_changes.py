"""What a shard leaves out before decoding: never anything of its own, whatever the layout."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from penstock.destinations.kafka.layout import KafkaLayout
from penstock.destinations.key_layout import KeyLayout
from penstock.destinations.redis.layout import StreamLayout
from penstock.destinations.stream_contract import Layout
from penstock.fold.envelope import fold_events
from penstock.fold.net_effect import NetEffect
from penstock.model.change import RawChanges
from penstock.model.feed import Feed
from penstock.model.table import TableSchema
from penstock.render import events, own_changes
from penstock.render.events import Rendered, render_changes
from penstock.render.format import EventFormat
from penstock.render.template import compiled
from pgoutput_messages import INT8, TEXT, Stream, delete, insert, table_schema, truncate, update

COLUMNS = {"id": INT8, "name": TEXT}
SCHEMAS = {
    "by key": table_schema(COLUMNS),
    "whole old rows": table_schema(COLUMNS, identity="full"),
    "key of two": table_schema(COLUMNS, key=("id", "name")),
    "no key": table_schema(COLUMNS, key=(), identity="full"),
}
LAYOUTS: dict[str, Layout] = {
    "keys": KeyLayout(3),
    "tables": KeyLayout(3, "table"),
    "kafka": KafkaLayout(3, {"public.things": 7, "of.things": 7}),
    "kafka in order": KafkaLayout(3, {"public.things": 7, "of.things": 7}, "source"),
    "redis": StreamLayout(3, frozenset(["public.things", "of.things"])),
}
FORMATS = {
    "native": EventFormat(),
    "tombstones": EventFormat(deletes="both", topic=compiled("of.${source.table}")),
    "topics by operation": EventFormat(topic=compiled("public.${source.table}"), key=compiled("${op}")),
}


@pytest.fixture(autouse=True)
def _any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "FEWEST", 1)


def workload(schema: TableSchema, count: int = 300) -> RawChanges:
    """Changes with moved keys, old images, truncates, and texts that are none."""
    choice, full = random.Random(7), schema.identity == "full"
    messages = []
    for _ in range(count):
        old, new = str(choice.randrange(50)), str(choice.randrange(50))
        name = "odd?" if choice.random() < 0.05 and "name" not in schema.key else f"n{new}"
        row, image = (old, f"n{old}"), (new, name)
        kind = choice.random()
        if kind < 0.4:
            message = insert(*image)
        elif kind < 0.6:
            message = update(*image, row=row) if full else update(*image, key=row)
        elif kind < 0.7 and not full:
            message = update(*image)
        elif kind < 0.98:
            message = delete(*row, full=full)
        else:
            message = truncate()
        messages.append(message.replace(b"odd?", b"odd\xff"))
    return Stream().transaction(*messages).raw(schema)


def told(rendered: Rendered) -> list[tuple[object, ...]]:
    columns = (rendered.places, rendered.keys, rendered.values, rendered.topics, rendered.partitions)
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_shard_has_the_same_records_whatever_was_left_out(schema: str, layout: str, format: str) -> None:
    changes, feed = workload(SCHEMAS[schema]), Feed.clone(SCHEMAS[schema].table)
    kept = []
    for shard in range(3):
        select = partial(LAYOUTS[layout].select, shard)
        whole, own = (
            render_changes(changes, feed, "shop", FORMATS[format], select=select, shared=shared)
            for shared in (False, True)
        )
        assert told(own) == told(whole)
        kept.append((own, whole))
    if kept[0][0].counts_own:
        counted = [one for own, _ in kept for one in own.rescues]
        assert sum(one.cells for one in counted) == sum(one.cells for one in kept[0][1].rescues)


def test_other_shards_changes_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = list[int]()
    fold = fold_events

    def counting(given: Sequence[RawChanges], **rest: Any) -> NetEffect:
        decoded.append(given[0].batch.num_rows)
        return fold(given, **rest)

    monkeypatch.setattr(events, "fold_events", counting)
    changes, feed = workload(SCHEMAS["by key"]), Feed.clone(SCHEMAS["by key"].table)
    for shard in range(3):
        render_changes(changes, feed, "shop", select=partial(KeyLayout(3).select, shard), shared=True)
    assert max(decoded) < 0.7 * changes.batch.num_rows
    assert own_changes.can_tell(feed, EventFormat())


def test_a_key_that_cannot_be_read_leaves_nothing_out() -> None:
    changes = Stream().transaction(insert("1", "a"), insert(None, "b")).raw(SCHEMAS["by key"])
    assert own_changes.own_changes(changes, lambda keys: np.arange(len(keys))) is None

"""Events per second of processor time through rendering, in each envelope, beside `json.dumps`.

    python benchmarks/render.py [--rows 200000] [--rounds 3]

`json.dumps` is given what it needs, a Python object per event in the native envelope, and only writes it: decoding and
building those objects are not counted. Rendering starts with raw messages. It runs on one core and measures processor
time, so that other work on the machine matters less.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from decode import COLUMNS, SCHEMA, segments
from harness import Result, parser, report, say
from penstock.model.change import RawChanges
from penstock.model.feed import Feed
from penstock.render import registry
from penstock.render.event import Origin
from penstock.render.events import render_changes
from penstock.render.format import Envelope, EventFormat, Registry
from watch import Watch

NATIVE, AVRO, DUMPS = "native, JSON", "native, Avro", "json.dumps of ready objects"
ORIGIN, FEED = Origin("shop", "shop"), Feed.clone(SCHEMA.table)
FORMATS = {
    NATIVE: EventFormat(),
    "debezium, JSON": EventFormat(Envelope("debezium")),
    "cloudevents, JSON": EventFormat(Envelope("cloudevents")),
    "faucet, JSON": EventFormat(Envelope("faucet")),
    AVRO: EventFormat(registry=Registry("http://nobody")),
    "debezium, Avro": EventFormat(Envelope("debezium"), Registry("http://nobody")),
}


def rendered(changes: list[RawChanges], format: EventFormat) -> None:
    for one in changes:
        render_changes(one, FEED, ORIGIN, format)


def objects(changes: list[RawChanges]) -> list[Any]:
    return [json.loads(value) for one in changes for value in render_changes(one, FEED, ORIGIN).values.to_pylist()]


def timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--rows", type=int, default=200_000)
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    registry.schema_number = lambda *_: 1  # its answers are kept, so a registry costs nothing here
    changes = segments(options.rows, options.rows // 4)
    ready = objects(changes)
    say("the messages are made")
    works: dict[str, Callable[[], object]] = {
        name: partial(rendered, changes, format) for name, format in FORMATS.items()
    }
    works[DUMPS] = lambda: [json.dumps(one, ensure_ascii=False) for one in ready]
    with Watch(os.getpid()) as watch:
        rounds = [{name: timed(work) for name, work in works.items()} for _ in range(options.rounds)]
    best = {name: min(one[name] for one in rounds) for name in works}
    report(
        "render",
        f"{options.rows:,} events of {len(COLUMNS)} columns: one core, best of {options.rounds}",
        ("what", "CPU seconds", "events/s"),
        [(name, seconds, round(options.rows / seconds)) for name, seconds in best.items()],
        options=options,
        results=[
            Result(
                f"rendering, {name}, {len(COLUMNS)} columns, one core",
                f"{options.rows / best[name]:,.0f} events/s",
                f"{DUMPS} {options.rows / best[DUMPS]:,.0f} events/s",
                best[DUMPS] / best[name],
                "× its speed",
            )
            for name in FORMATS
        ],
        processes={"this process": watch.roles},
    )


if __name__ == "__main__":
    main()

"""Events as JSON, one object an event: the shape for files, pipes and streams. Arrow in, text out.

| key           | holds                                                                                            |
|---------------|--------------------------------------------------------------------------------------------------|
| sid           | whose event it is, in a table of several sources; otherwise the key is not there                 |
| op            | as in `envelope.py`                                                                              |
| schema, table | the table's name at its source                                                                   |
| lsn           | the event's place, commit and ordinal: no two have the same, and text order is stream order      |
| ts_ms         | when it was committed, in milliseconds since 1970                                                |
| before, after | the images, null or an object by column (values: `decode/json_values.py`)                        |
| _rescued      | texts of values that fit no column, by image and column; not there when there are none           |

An `after` that the source did not send all of lacks those columns, and names them in `__unchanged_toast__`. When a
table's structure changes, its images go on in new columns; here they are `before` and `after` all the same.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from penstock.decode.json_values import json_values
from penstock.decode.rescue import RESCUED
from penstock.model.position import order_text

UNCHANGED_TOAST = "__unchanged_toast__"


def event_lines(events: pa.RecordBatch, sid: str | None = None) -> list[str]:
    """One line of JSON for each event, without line breaks in it. `sid` is the column that tells sources apart."""
    plain = {name: json_values(events.column(name)) for name in ("op", "schema", "table", "commit_lsn", "tx_ordinal")}
    moments = events.column("commit_time").cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()).to_pylist()
    unchanged = events.column("unchanged").to_pylist()
    rescued = json_values(events.column(RESCUED)) if RESCUED in events.schema.names else [None] * len(events)
    before, after = _images(events, "before"), _images(events, "after")
    sids = json_values(events.column(sid)) if sid is not None else []
    lines = []
    for row in range(events.num_rows):
        event: dict[str, Any] = {"sid": sids[row]} if sid is not None else {}
        event |= {name: plain[name][row] for name in ("op", "schema", "table")}
        event["lsn"] = order_text(plain["commit_lsn"][row], plain["tx_ordinal"][row])
        event["ts_ms"] = moments[row]
        event["before"], event["after"] = before[row], _sent(after[row], unchanged[row])
        if rescued[row]:
            event[RESCUED] = rescued[row]
        lines.append(json.dumps(event, ensure_ascii=False))
    return lines


def _images(events: pa.RecordBatch, side: str) -> list[dict[str, Any] | None]:
    """Each event has its image in one of the columns, or in none."""
    names = [name for name in events.schema.names if name == side or name.startswith(f"{side}_dropped_")]
    found: list[dict[str, Any] | None] = [None] * events.num_rows
    for name in names:
        found = [
            image if image is not None else own
            for own, image in zip(found, json_values(events.column(name)), strict=True)
        ]
    return found


def _sent(image: dict[str, Any] | None, unchanged: list[str] | None) -> dict[str, Any] | None:
    if image is None or not unchanged:
        return image
    return {name: value for name, value in image.items() if name not in unchanged} | {UNCHANGED_TOAST: unchanged}

"""Events as JSON, one object an event: the shape for files, pipes and streams. Arrow in, text out.

| key                                 | holds                                                                      |
|-------------------------------------|----------------------------------------------------------------------------|
| op                                  | as in `envelope.py`                                                        |
| sid                                 | whose event it is; only in a table of several sources                      |
| schema, table, table_id             | the table's name at its source, and its number there                       |
| place                               | commit and ordinal: text order is stream order                             |
| change_position                     | 16 hexadecimal digits; null for rows of the copy                           |
| transaction, commit_time            | of its transaction                                                         |
| schema_version                      | the fingerprint of the structure that it was under                         |
| before, after                       | the images, null or an object by column (values: `decode/json_values.py`)  |
| before_kind, unchanged,             | as in the native envelope; not there where they say nothing                |
| truncate_options                    |                                                                            |
| _rescued                            | texts of values that fit no column; not there when there are none          |

These are the keys of the native envelope, as far as the table has them. An `after` that the source did not send all of
lacks those columns. When a table's structure changes, its images go on in new columns; here they are `before` and
`after` all the same.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from penstock.decode.json_values import json_values
from penstock.decode.rescue import RESCUED
from penstock.model.place import place_at
from penstock.model.position import stored_text

_PLAIN = ("op", "schema", "table", "table_id", "commit_position", "ordinal", "change_position", "transaction")
_TIMES = ("commit_time", "schema_version", "before_kind", "unchanged", "truncate_options")
_SOMETIMES = ("before_kind", "unchanged", "truncate_options")


def event_lines(events: pa.RecordBatch, sid: str | None = None) -> list[str]:
    """One line of JSON for each event, without line breaks in it. `sid` is the column that tells sources apart."""
    found = {name: json_values(events.column(name)) for name in (*_PLAIN, *_TIMES)}
    rescued = json_values(events.column(RESCUED)) if RESCUED in events.schema.names else [None] * len(events)
    before, after = _images(events, "before"), _images(events, "after")
    sids = json_values(events.column(sid)) if sid is not None else []
    lines = []
    for row in range(events.num_rows):
        own = {name: values[row] for name, values in found.items()}
        change = own["change_position"]
        event: dict[str, Any] = {"op": own["op"]} | ({"sid": sids[row]} if sid is not None else {})
        event |= {name: own[name] for name in ("schema", "table", "table_id")}
        event["place"] = place_at(own["commit_position"], max(own["ordinal"], 0))
        event["change_position"] = None if change is None else stored_text(change)
        event |= {name: own[name] for name in ("transaction", "commit_time", "schema_version")}
        event["before"], event["after"] = before[row], _sent(after[row], own["unchanged"])
        event |= {name: own[name] for name in _SOMETIMES if own[name] is not None}
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
    return {name: value for name, value in image.items() if name not in unchanged}

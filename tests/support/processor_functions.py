"""Functions that tests give to processors of type python: some do as they should, some do not."""

from __future__ import annotations

import os
import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

NO_FUNCTION = 1


def upper_names(events: pa.Table) -> pa.Table:
    """Write names in capitals, and send them to a topic of their own."""
    after = events["after"].combine_chunks()
    fields = {field.name: pc.struct_field(after, field.name) for field in after.type}
    fields["name"] = pc.utf8_upper(fields["name"])
    image = pa.StructArray.from_arrays(list(fields.values()), names=list(fields), mask=after.is_null())
    events = events.set_column(events.schema.get_field_index("after"), "after", image)
    return events.append_column("topic", pa.repeat("people", events.num_rows))


def by_name(event: dict[str, Any]) -> Any:
    """Do what the row's name says."""
    row = event["after"] or event["before"]
    match row["name"]:
        case "raise":
            raise ValueError("this name is not wanted")
        case "loop":
            while True:
                time.sleep(0.01)
        case "memory":
            return bytearray(2**31)
        case "die":
            os._exit(3)
        case "nonsense":
            return 42
        case "column":
            return event | {"after": row | {"surprise": 1}}
        case "key":
            return event | {"after": row | {"id": row["id"] + 100}}
        case "drop":
            return None
        case "twice":
            return [event, event | {"after": row | {"name": "again"}, "headers": {"n": "2"}}]
        case "route":
            return event | {"topic": "elsewhere", "key": "k", "headers": {"h": "v"}}
    return event | {"after": row | {"shout": row["name"] + "!"}}


def not_a_table(events: pa.Table) -> Any:
    print("on stdout, where it must do no harm")  # noqa: T201
    return events.to_pylist()

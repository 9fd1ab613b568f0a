"""Events of the source itself as values of records: begin, commit, ddl, relation, message (model/source_events.py).

| envelope    | begin, commit                            | ddl, relation | message                |
|-------------|------------------------------------------|---------------|------------------------|
| native      | yes                                      | yes           | yes                    |
| debezium    | as in its topic of transaction metadata  | left out      | as its events of `m`   |
| cloudevents | yes, what native has as `data`           | yes           | yes                    |
| faucet      | left out                                 | left out      | left out               |

They are rare beside changes of rows, so they are written one by one.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.fold.column_identity import resolve
from penstock.fold.evolution import differences
from penstock.model.source_events import DDL, MESSAGES, RELATIONS, TRANSACTIONS
from penstock.model.table import TableId, TableSchema
from penstock.render.debezium import ConnectEvents
from penstock.render.event import Events, hexadecimal_texts
from penstock.render.format import EnvelopeType, EventFormat
from penstock.render.images import WRITTEN
from penstock.render.json_text import JsonRows, json_texts

_DEBEZIUM = frozenset((TRANSACTIONS, MESSAGES))
_TOPIC_WORDS = {DDL: "schema_change", RELATIONS: "schema_change"}


def has_shape(envelope: EnvelopeType, table: TableId) -> bool:
    """Whether an envelope can express such events."""
    return envelope in ("native", "cloudevents") or (envelope == "debezium" and table in _DEBEZIUM)


def topic_word(table: TableId) -> str:
    """Return what stands for the table's name in the topic of such events."""
    return _TOPIC_WORDS.get(table, table.name)


def source_values(events: Events, format: EventFormat) -> pa.Array:
    """Return the events as binary values."""
    kind = format.envelope.type
    if kind == "debezium":
        made = _debezium_messages(events) if events.table == MESSAGES else _debezium_transactions(events)
        if format.envelope.schemas == "empty":
            made = (f'{{"schema":null,"payload":{text}}}' for text in made)
        return pa.array([text.encode() for text in made], pa.binary())
    members = list(_members(events))
    if kind == "cloudevents":
        written = [_cloudevent(events, one, format.envelope.prefix) for one in members]
    else:
        written = members
    return pa.array([_json(one).encode() for one in written], pa.binary())


def _members(events: Events) -> Iterator[dict[str, Any]]:
    """Yield the members of the native envelope."""
    origin = events.origin
    head: dict[str, Any] = {"source": origin.source} | ({} if origin.sid is None else {"sid": origin.sid})
    head |= {"database": origin.database}
    rows = zip(
        events.ids.to_pylist(),
        events.places.to_pylist(),
        hexadecimal_texts(events.change_position).to_pylist(),
        events.transaction.to_pylist(),
        json_texts(events.commit_time).to_pylist(),
        _rows(events),
        strict=True,
    )
    for id, place, change, transaction, time, row in rows:
        op, own = _own_members(events.table, row)
        common = {"id": id, **head, "place": place, "change_position": change, "transaction": transaction}
        yield {"op": op, **common, "commit_time": json.loads(time), **own}


def _own_members(table: TableId, row: Mapping[str, str | None]) -> tuple[str, dict[str, Any]]:
    """Return the operation of an event and the members that only such events have."""
    if table == TRANSACTIONS:
        if row["status"] == "begin":
            return "begin", {}
        tables = [{"schema": schema, "table": name, "changes": count} for schema, name, count in _tables(row)]
        return "commit", {
            "end_position": row["end_position"],
            "changes": int(row["changes"] or 0),
            "tables": tables,
        }
    if table == MESSAGES:
        return "message", {"message": {"prefix": row.get("prefix"), "content": row.get("content")}}
    if table == RELATIONS:
        schema = TableSchema.from_json(row["structure"] or "")
        return "relation", {**_naming(schema), "columns": _columns(schema)}
    before, after = (TableSchema.from_json(row[side] or "") for side in ("before", "after"))
    earlier = before if all(column.number for column in before.columns) else resolve(after, before)
    changes = differences(earlier, resolve(earlier, after))
    return "ddl", {**_naming(after), "previous_version": before.structure, "changes": changes}


def _naming(schema: TableSchema) -> dict[str, Any]:
    return {
        "schema": schema.table.schema,
        "table": schema.table.name,
        "table_id": schema.relation_id,
        "schema_version": schema.structure,
    }


def _columns(schema: TableSchema) -> list[dict[str, Any]]:
    return [
        {
            "name": column.name,
            "type": column.type.name,
            "oid": column.type.oid,
            "modifier": column.type.modifier,
            "nullable": column.nullable,
            "key": column.name in schema.key,
            "number": column.number,
        }
        for column in schema.columns
    ]


def _cloudevent(events: Events, members: dict[str, Any], prefix: str) -> dict[str, Any]:
    about = topic_word(events.table)
    return {
        "specversion": "1.0",
        "id": members["id"],
        "source": f"penstock/{events.origin.source}/{about}",
        "type": f"{prefix}.{members['op']}",
        "time": members["commit_time"],
        "datacontenttype": "application/json",
        "subject": about,
        "data": {name: value for name, value in members.items() if name not in ("id", "commit_time")},
    }


def _debezium_transactions(events: Events) -> Iterator[str]:
    """Yield what Debezium writes into its topic of transaction metadata."""
    for time, row in zip(events.milliseconds.to_pylist(), _rows(events), strict=True):
        ends = row["status"] == "commit"
        counts = [{"data_collection": f"{schema}.{name}", "event_count": count} for schema, name, count in _tables(row)]
        yield _json(
            {
                "status": "END" if ends else "BEGIN",
                "id": row["id"],
                "event_count": int(row["changes"] or 0) if ends else None,
                "data_collections": counts if ends else None,
                "ts_ms": time,
            }
        )


def _debezium_messages(events: Events) -> Iterator[str]:
    """Yield what Debezium's connector writes for logical messages."""
    made = ConnectEvents(events)
    source = JsonRows().object({**made.source, "schema": "", "table": ""}).joined(len(events)).to_pylist()
    moments = {name: np.asarray(values).tolist() for name, values in made.moments.items()}
    for number, row in enumerate(_rows(events)):
        message = {"prefix": row.get("prefix"), "content": row.get("content")}
        times = {name: values[number] for name, values in moments.items()}
        yield _json({"op": "m", **times})[:-1] + f',"source":{source[number]},"message":{_json(message)}}}'


def _tables(row: Mapping[str, str | None]) -> list[tuple[str, str, int]]:
    return [(schema, name, count) for schema, name, count in json.loads(row["tables"] or "[]")]


def _rows(events: Events) -> Iterator[dict[str, str | None]]:
    """Yield the rows that the events are of. Content of messages is base64, as JSON has it."""
    written = {name for name, type in events.types.items() if type == WRITTEN}  # by a processor, as JSON
    for row in events.after.to_pylist():
        texts = {name: json.loads(text) if text is not None and name in written else text for name, text in row.items()}
        if events.table == MESSAGES and "content" not in written and texts.get("content") is not None:
            octets = bytes.fromhex(texts["content"][2:])  # Postgres writes them in hexadecimal
            texts["content"] = base64.b64encode(octets).decode()
        yield texts


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

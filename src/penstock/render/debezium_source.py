"""The block `source` of Debezium's records: where an event comes from, in the words of the source's connector."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.connect import ConnectType
from penstock.render.event import Events
from penstock.version import __version__

Values = dict[str, pa.Array | str | int | None]

STRING, LONG = ConnectType(pa.string(), "string"), ConnectType(pa.int64(), "int64")
_INT = ConnectType(pa.int32(), "int32")
_SNAPSHOT_WORDS = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
_SNAPSHOT = ConnectType(
    pa.string(), "string", "io.debezium.data.Enum", parameters=(("allowed", _SNAPSHOT_WORDS),), default="false"
)
_COMMON = (
    ("version", STRING, False),
    ("connector", STRING, False),
    ("name", STRING, False),
    ("ts_ms", LONG, False),
    ("snapshot", _SNAPSHOT, True),
    ("db", STRING, False),
    ("sequence", STRING, True),
    ("ts_us", LONG, True),
    ("ts_ns", LONG, True),
)
_POSTGRES = (
    ("schema", STRING, False),
    ("table", STRING, False),
    ("txId", LONG, True),
    ("lsn", LONG, True),
    ("xmin", LONG, True),
    ("origin", STRING, True),
    ("origin_lsn", LONG, True),
)
_MYSQL = (
    ("table", STRING, True),
    ("server_id", LONG, False),
    ("gtid", STRING, True),
    ("file", STRING, False),
    ("pos", LONG, False),
    ("row", _INT, False),
    ("thread", LONG, True),
    ("query", STRING, True),
)
_LOW = np.uint64(0xFFFFFFFF)


def source_type(connector: str) -> ConnectType:
    fields = (*_COMMON, *(_POSTGRES if connector == "postgresql" else _MYSQL))
    return ConnectType(pa.null(), "struct", f"io.debezium.connector.{connector}.Source", fields=fields)


def source_values(events: Events) -> Values:
    """Return the block's values. Of its moments, the commit's is the only one known."""
    origin = events.origin
    micros = np.asarray(events.microseconds)
    common: Values = {
        "version": __version__,
        "connector": origin.connector,
        "name": origin.source,
        "ts_ms": events.milliseconds,
        "snapshot": pc.if_else(pc.equal(events.op, "read"), "true", "false"),
        "db": origin.database_of(events.table),
        "sequence": None,
        "ts_us": events.microseconds,
        "ts_ns": pa.array(micros * 1000),
    }
    made: Callable[[Events], Values] = _postgres if origin.connector == "postgresql" else _mysql
    return common | made(events)


def _postgres(events: Events) -> Values:
    return {
        "sequence": _sequence(events),
        "schema": events.table.schema,
        "table": events.table.name,
        "txId": events.transaction,
        "lsn": events.change_position,
        "xmin": None,
        "origin": None,
        "origin_lsn": None,
    }


def _sequence(events: Events) -> pa.Array:
    """Return commit and change position. Debezium has the last commit that it has seen in place of this one."""
    commit = pa.array(events.commit.astype(np.int64)).cast(pa.string())
    change = events.change_position.cast(pa.string())
    return pc.binary_join_element_wise('["', commit, '","', pc.fill_null(change, "0"), '"]', "")


def _mysql(events: Events) -> Values:
    """Return file and place of the row event, and the row's number in it, from 0."""
    change = np.where(
        np.asarray(events.change_position.is_valid()),
        np.asarray(pc.fill_null(events.change_position, 0)).astype(np.uint64),
        events.commit,
    )
    numbers = change >> np.uint64(32) & np.uint64(0x3FFFFF)
    distinct, places = np.unique(numbers, return_inverse=True)
    base, digits = _file_name(events.origin.log_state)
    names = pa.array([f"{base}{number:0{digits}d}" for number in distinct.tolist()], pa.string())
    is_row = np.asarray(pc.not_equal(events.op, "read"))
    row = np.where(is_row, events.ordinal & _LOW, np.uint64(0)).astype(np.int32)
    return {
        "table": events.table.name,
        "server_id": 0,
        "gtid": _gtids(events),
        "file": names.take(pa.array(places)),
        "pos": pa.array((change & _LOW).astype(np.int64)),
        "row": pa.array(row),
        "thread": None,
        "query": None,
    }


def _gtids(events: Events) -> pa.Array | None:
    """Return MySQL's GTID of each event's transaction, where its number is that of one server's transactions only.

    The log has the GTIDs of all transactions that have ended, and of each change its transaction's number alone. Of a
    transaction of MariaDB, the number leaves open which server wrote it.
    """
    known: dict[str, str] = json.loads(events.origin.log_state)["gtids"] if events.origin.log_state else {}
    sets = {server: numbers for server, numbers in known.items() if "-" in server}
    if not sets:
        return None
    number = np.asarray(pc.fill_null(events.transaction, 0)).astype(np.int64)
    owner, owners = np.zeros(len(number), np.int64), np.zeros(len(number), np.int64)
    for place, numbers in enumerate(sets.values()):
        ranges = [one.partition("-") for one in numbers.split(":")]
        firsts = np.array([int(first) for first, _, _ in ranges])
        lasts = np.array([int(last or first) for first, _, last in ranges])
        at = np.searchsorted(firsts, number, "right") - 1
        has = (at >= 0) & (number <= lasts[at])
        owner[has], owners = place, owners + has
    servers = pa.array(list(sets), pa.string()).take(pa.array(owner))
    texts = pc.binary_join_element_wise(servers, pa.array(number).cast(pa.string()), ":")
    return pc.if_else(pa.array(owners == 1), texts, pa.scalar(None, pa.string()))


def _file_name(state: str) -> tuple[str, int]:
    """Return what stands before the number in names of binlog files, and the number's digits."""
    base, dot, number = (json.loads(state)["file"] if state else "").rpartition(".")
    return base + dot, len(number) or 6

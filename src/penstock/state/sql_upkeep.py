"""How tables are kept, in the SQL state store. Called by `sql.py`, inside its transactions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields

from sqlalchemy import Connection

from penstock.model.table import TableId
from penstock.model.upkeep import TableShape, Upkeep
from penstock.state.sql_statements import of_destination, put, table_key
from penstock.state.sql_tables import UPKEEP

FIGURES = tuple(field.name for field in fields(Upkeep) if field.name != "shape")
SHAPE = tuple(field.name for field in fields(TableShape))


def record(connection: Connection, destination: str, upkeep: Mapping[TableId, Upkeep]) -> None:
    for table, kept in upkeep.items():
        values = {name: getattr(kept, name) for name in FIGURES} | asdict(kept.shape)
        put(connection, UPKEEP, table_key(destination, table), values)


def read(connection: Connection, destination: str) -> dict[TableId, Upkeep]:
    found = {}
    for row in connection.execute(of_destination(UPKEEP, destination)).mappings():
        shape = TableShape(**{name: row[name] for name in SHAPE})
        kept = Upkeep(shape=shape, **{name: row[name] for name in FIGURES})
        found[TableId(row["table_schema"], row["table_name"])] = kept
    return dict(sorted(found.items()))

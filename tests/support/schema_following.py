"""Whether the lake follows the source column by column, whatever it has besides."""

from __future__ import annotations

import oracle
from databases import Database
from lake import Lake


def differing(lake: Lake, database: Database, *tables: str) -> dict[str, str]:
    """Tables of which a column of the source is missing in the lake, or has other values or another type."""
    wrong = {}
    with database.connect() as connection:
        for table in tables:
            rows, types = lake.read(table)
            there = [column.name for column in oracle.source_columns(connection, table)]
            missing = [name for name in there if name not in rows.column_names]
            if missing:
                wrong[table] = f"{table}: the lake lacks {missing}, has {rows.column_names}"
                continue
            kept = dict(types)
            found = oracle.compare(connection, table, rows.select(there), [(name, kept[name]) for name in there])
            if found:
                wrong[table] = str(found)
    return wrong


def assert_follows(lake: Lake, database: Database, *tables: str) -> None:
    wrong = differing(lake, database, *tables)
    assert not wrong, "\n".join(wrong.values())

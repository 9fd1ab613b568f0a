"""Columns that the binlog has as BINARY and the catalogue as another type: MariaDB's uuid, inet4 and inet6.

The binlog does not name these types, so the catalogue is asked. It may be of a later time: it counts only if the rest
of the table is the same there. If it is of another structure the table is copied again anyway, at the latest where the
binlog has the statement that made it so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.decode.mysql.packed import WIDTHS
from penstock.decode.mysql.types import STRING
from penstock.model.table import ColumnType, TableSchema
from penstock.source.mysql.catalogue import FoundColumn


def as_declared(columns: Sequence[FoundColumn], described: Callable[[], TableSchema | None]) -> list[FoundColumn]:
    """Return the columns with the types that the catalogue has for them."""
    given = list(columns)
    if not any(_is_binary(column.type) for column in given):
        return given
    now = described()
    if now is None or len(now.columns) != len(given):
        return given
    for column, declared in zip(given, now.columns, strict=True):
        same = column.type == declared.type or (_is_binary(column.type) and _stands_for(column.type, declared.type))
        if column.name != declared.name or not same:
            return given
    return [replace(column, type=declared.type) for column, declared in zip(given, now.columns, strict=True)]


def _is_binary(type: ColumnType) -> bool:
    return type.oid == STRING and type.charset == "binary" and type.modifier in WIDTHS.values()


def _stands_for(binary: ColumnType, declared: ColumnType) -> bool:
    return WIDTHS.get(declared.name) == binary.modifier

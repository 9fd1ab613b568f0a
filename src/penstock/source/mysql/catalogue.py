"""Tables as information_schema has them now, and why some of them cannot be followed exactly.

A schema's `relation_id` is a digest of the table's name and structure: any change of structure makes another table of
it, which is copied again, unless the binlog has the statement that made it so and it can be followed. A column's number
is a digest of its name. The binlog's own description (table_map.py) of the same structure gives the same schema.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from penstock.decode.mysql.charsets import CHARSETS
from penstock.decode.mysql.dialect import NAME, quoted
from penstock.decode.mysql.packed import WIDTHS
from penstock.decode.mysql.types import (
    BIT,
    BLOB,
    BLOB_COMPRESSED,
    DATE,
    DATETIME2,
    DOUBLE,
    ENUM,
    FLOAT,
    GEOMETRY,
    INT24,
    JSON,
    LONG,
    LONGLONG,
    NEWDECIMAL,
    SET,
    SHORT,
    STRING,
    TIME2,
    TIMESTAMP2,
    TINY,
    VARCHAR,
    VARCHAR_COMPRESSED,
    YEAR,
    column_type,
)
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.source.mysql.connect import Address, Connection, is_mariadb, rows

SYSTEM = ("mysql", "information_schema", "performance_schema", "sys")
_INTEGERS = {"tinyint": TINY, "smallint": SHORT, "mediumint": INT24, "int": LONG, "bigint": LONGLONG}
_TIMES = {"datetime": DATETIME2, "timestamp": TIMESTAMP2, "time": TIME2}
_LENGTHS = {"tiny": 1, "": 2, "medium": 3, "long": 4}
_GEOMETRIES = frozenset(
    [
        "geometry",
        "point",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geometrycollection",
        "geomcollection",
    ]
)
_LABEL = re.compile(r"'((?:[^']|'')*)'")

_COLUMNS = """
    SELECT c.TABLE_SCHEMA, c.TABLE_NAME, c.COLUMN_NAME, c.DATA_TYPE, c.COLUMN_TYPE, c.IS_NULLABLE,
           c.CHARACTER_OCTET_LENGTH, c.NUMERIC_PRECISION, c.NUMERIC_SCALE, c.DATETIME_PRECISION, c.CHARACTER_SET_NAME
    FROM information_schema.COLUMNS c
    WHERE (c.TABLE_SCHEMA, c.TABLE_NAME) IN ({tables})
    ORDER BY c.TABLE_SCHEMA, c.TABLE_NAME, c.ORDINAL_POSITION
"""
_KEYS = """
    SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS
    WHERE INDEX_NAME = 'PRIMARY' AND (TABLE_SCHEMA, TABLE_NAME) IN ({tables})
    ORDER BY TABLE_SCHEMA, TABLE_NAME, SEQ_IN_INDEX
"""
_CASCADE = re.compile(r"CONSTRAINT `((?:[^`]|``)+)` FOREIGN KEY .*? (ON (?:DELETE|UPDATE) (?:CASCADE|SET \w+))")


@dataclass(frozen=True)
class FoundColumn:
    name: str
    type: ColumnType
    nullable: bool


@dataclass(frozen=True)
class FoundTable:
    """A wanted table. `trouble` says why it cannot be followed, and `solution` what to do ("": it can)."""

    schema: TableSchema
    trouble: str = ""
    solution: str = ""


def schema_of(table: TableId, columns: Sequence[FoundColumn], key: Sequence[str]) -> TableSchema:
    """Make the schema of a structure. All columns of old rows are in the binlog, so its identity is full."""
    described = tuple(
        Column(column.name, column.type, column.nullable, _digest(column.name.lower(), 5)) for column in columns
    )
    text = json.dumps([str(table), [asdict(column) for column in described], list(key)], sort_keys=True)
    return TableSchema(table, _digest(text, 7), described, tuple(key), "full", dialect=NAME)


def _digest(text: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size], "big") | 1


def discover(
    connection: Connection, address: Address, wants: Callable[[TableId], bool], *, cascades: bool = False
) -> list[FoundTable]:
    """Return the wanted tables by name. With `cascades`, foreign keys count among their troubles: one query each."""
    found = rows(
        connection,
        address,
        "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE FROM information_schema.TABLES WHERE TABLE_TYPE <> 'VIEW'"
        f" AND TABLE_SCHEMA NOT IN {SYSTEM} ORDER BY 1, 2",
    )
    kinds = {
        TableId(str(database), str(name)): (str(kind), str(engine))
        for database, name, kind, engine in found
        if kind != "SEQUENCE" and wants(TableId(str(database), str(name)))
    }
    if not kinds:
        return []
    places = ", ".join(["(%s, %s)"] * len(kinds))
    names = [part for table in kinds for part in (table.schema, table.name)]
    columns: dict[TableId, list[tuple[object, ...]]] = {table: [] for table in kinds}
    for database, name, *rest in rows(connection, address, _COLUMNS.format(tables=places), names):
        columns[TableId(str(database), str(name))].append(tuple(rest))
    keys: dict[TableId, list[tuple[str, bool]]] = {table: [] for table in kinds}
    for database, name, column, part in rows(connection, address, _KEYS.format(tables=places), names):
        keys[TableId(str(database), str(name))].append((str(column), part is not None))
    return [
        _described(
            table,
            kind,
            engine,
            columns[table],
            keys[table],
            _cascade(connection, address, table) if cascades and engine.lower() == "innodb" else "",
        )
        for table, (kind, engine) in kinds.items()
    ]


def charsets_by_collation(connection: Connection, address: Address) -> dict[int, str]:
    table = "COLLATION_CHARACTER_SET_APPLICABILITY" if is_mariadb(connection) else "COLLATIONS"
    found = rows(connection, address, f"SELECT ID, CHARACTER_SET_NAME FROM information_schema.{table}")
    return {int(number): str(name) for number, name in found if number is not None}


def _cascade(connection: Connection, address: Address, table: TableId) -> str:
    """Return a foreign key of the table through which rows change without a word in the binlog; "" when it has none.

    information_schema shows foreign keys only to accounts that may alter a table; this only needs SELECT.
    """
    declared = str(rows(connection, address, f"SHOW CREATE TABLE {quoted(table)}")[0][1])
    found = next((_CASCADE.search(line) for line in declared.splitlines() if _CASCADE.search(line)), None)
    return f"{found[1]} ({found[2]})" if found is not None else ""


def _described(
    table: TableId,
    kind: str,
    engine: str,
    columns: Sequence[tuple[object, ...]],
    key: Sequence[tuple[str, bool]],
    cascade: str,
) -> FoundTable:
    found: list[FoundColumn] = []
    trouble, solution = "", ""
    for column in columns:
        try:
            found.append(_column(column))
        except ValueError as error:
            trouble = trouble or f"column {column[0]} is {column[2]}, which is not read yet ({error})"
            solution = "Leave the table out (`exclude`), or give the column another type"
            found.append(FoundColumn(str(column[0]), ColumnType(0, str(column[1])), nullable=True))
    if kind == "SYSTEM VERSIONED":
        trouble, solution = "it is system-versioned, which is not followed yet", "Leave the table out (`exclude`)"
    elif engine.lower() != "innodb":
        trouble = f"its engine is {engine}, which has no consistent reads: its copy would not be exact"
        solution = f"Run ALTER TABLE {table} ENGINE = InnoDB, or leave the table out (`exclude`)"
    elif any(prefix for _, prefix in key):
        trouble, solution = "its primary key has a prefix of a column", "Give it a key of whole columns"
    elif cascade:
        trouble = f"rows change through its foreign key {cascade}, and the binlog does not have these changes"
        solution = "Make the foreign key RESTRICT and change the rows in statements, or leave the table out (`exclude`)"
    return FoundTable(schema_of(table, found, [name for name, _ in key]), trouble, solution)


def _column(raw: tuple[object, ...]) -> FoundColumn:
    name, data_type, declared, nullable, octets, precision, scale, fraction, charset = raw
    kind, words = str(data_type).lower(), str(declared).lower()
    unsigned = " unsigned" in words
    type = _type(kind, str(declared), unsigned, octets, (precision, scale, fraction), str(charset or "binary"))
    if words.endswith(" compressed*/"):
        type = _compressed(type)
    return FoundColumn(str(name), type, nullable == "YES")


def _compressed(type: ColumnType) -> ColumnType:
    """Return SQL that unpacks a compressed value: a byte before it says how it is packed."""
    if type.oid == VARCHAR:
        return replace(type, oid=VARCHAR_COMPRESSED, modifier=type.modifier + 1)
    return replace(type, oid=BLOB_COMPRESSED)


def _type(
    kind: str, declared: str, unsigned: bool, octets: object, numbers: tuple[object, ...], charset: str
) -> ColumnType:
    precision, scale, fraction = (0 if one is None else int(str(one)) for one in numbers)
    if kind in _INTEGERS:
        return column_type(_INTEGERS[kind], -1, unsigned=unsigned)
    if kind in ("float", "double"):
        return column_type(FLOAT if kind == "float" else DOUBLE, -1, unsigned=unsigned)
    if kind == "decimal":
        return column_type(NEWDECIMAL, precision << 8 | scale, unsigned=unsigned)
    if kind in ("date", "year"):
        return column_type(DATE if kind == "date" else YEAR, -1)
    if kind in _TIMES:
        return column_type(_TIMES[kind], fraction)
    if kind == "bit":
        return column_type(BIT, precision)
    if kind in _GEOMETRIES:
        return column_type(GEOMETRY, 4)
    if kind in WIDTHS:
        return ColumnType(STRING, kind, WIDTHS[kind], charset="binary")
    if kind == "json":
        return column_type(JSON, 4)
    if charset not in CHARSETS:
        raise ValueError(f"character set {charset}")
    if kind in ("enum", "set"):
        labels = tuple(one.replace("''", "'") for one in _LABEL.findall(declared))
        return column_type(
            ENUM if kind == "enum" else SET, _label_bytes(kind, len(labels)), charset=charset, labels=labels
        )
    if kind in ("varchar", "varbinary", "char", "binary"):
        code = VARCHAR if kind.startswith("var") else STRING
        return column_type(code, int(str(octets)), charset=charset)
    for ending in ("text", "blob"):
        if kind.endswith(ending) and kind.removesuffix(ending) in _LENGTHS:
            return column_type(BLOB, _LENGTHS[kind.removesuffix(ending)], charset=charset)
    raise ValueError("a type that is not known")


def _label_bytes(kind: str, labels: int) -> int:
    if kind == "enum":
        return 1 if labels < 256 else 2
    size = (labels + 7) // 8
    return size if size <= 4 else 8

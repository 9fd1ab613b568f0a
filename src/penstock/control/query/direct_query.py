"""Simple reads of one table without Spark, which takes seconds to start: by pyiceberg, straight from the table's files.

Answers `SELECT columns|*|count(*) FROM schema.table [WHERE …] [LIMIT n]` over the embedded catalog of a local
warehouse, where the answer is certain to be Spark's: columns of plain types only, and in WHERE comparisons of whole
numbers and texts joined by AND. Everything else, and everything that fails here, is Spark's to answer: `answer` gives
None.
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import StaticTable

from penstock.config.model import Pipeline
from penstock.config.values import local_path

MOST_ROWS = 1_000_000  # read here; of larger tables Spark reads less at a time

_NAME = r"(?:[A-Za-z_]\w*|`[^`]+`)"
_SELECT = re.compile(
    rf"\s*SELECT\s+(?P<what>\*|COUNT\s*\(\s*(?:\*|1)\s*\)(?:\s+AS\s+(?P<alias>{_NAME}))?|{_NAME}(?:\s*,\s*{_NAME})*)"
    rf"\s+FROM\s+(?P<table>{_NAME}(?:\.{_NAME}){{1,2}})(?:\s+WHERE\s+(?P<where>.+?))?(?:\s+LIMIT\s+(?P<limit>\d{{1,9}}))?"
    r"\s*;?\s*",
    re.IGNORECASE | re.DOTALL | re.ASCII,
)
_TEST = re.compile(
    rf"\s*(?P<column>{_NAME})\s*(?P<sign>=|<>|!=|<=|>=|<|>)\s*(?:(?P<number>-?\d{{1,18}})|'(?P<text>[^'\\]*)')\s*",
    re.ASCII,
)
_AND = re.compile(r"'[^']*'|(\bAND\b)", re.IGNORECASE)
_WORDS = {"select", "from", "where", "limit", "count", "distinct", "all", "as", "and", "or", "not", "null", "case"}
_SIGNS = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


@dataclass(frozen=True)
class Test:
    column: str
    sign: str
    value: int | str


@dataclass(frozen=True)
class Read:
    """`columns` None: all of them. `counted`: the name of the count, if that is asked for."""

    schema: str
    table: str
    columns: tuple[str, ...] | None
    counted: str | None
    tests: tuple[Test, ...]
    limit: int | None


def answer(pipeline: Pipeline, statement: str) -> pa.Table | None:
    """The answer, or None when the statement is Spark's to answer."""
    destination = pipeline.lake
    warehouse = local_path(destination.warehouse)
    read = parsed(statement, destination.name)
    if read is None or warehouse is None or destination.catalog:
        return None
    try:
        location = _metadata(str(warehouse / "catalog.db"), destination.name, read)
        return None if location is None else _answered(read, location)
    except (ValueError, NotImplementedError, OSError, TypeError, pa.ArrowException, sqlite3.Error):
        return None  # Spark reads it, or says what is wrong


def parsed(statement: str, catalog: str) -> Read | None:
    """None when the statement is more than this reads."""
    found = _SELECT.fullmatch(statement)
    if found is None:
        return None
    *before, schema, table = [_plain(name) for name in re.findall(_NAME, found["table"])]
    if before not in ([], [catalog]):
        return None
    what, counted, columns = found["what"], None, None
    if re.match(r"count\s*\(", what, re.IGNORECASE):
        counted = _plain(found["alias"]) if found["alias"] else "count(1)"
    elif what != "*":
        names = [name.strip() for name in what.split(",")]
        columns = tuple(map(_plain, names))
        if any(name.lower() in _WORDS for name in names) or len(set(columns)) < len(columns):
            return None
    tests = _tests(found["where"]) if found["where"] else ()
    if tests is None:
        return None
    return Read(schema, table, columns, counted, tests, int(found["limit"]) if found["limit"] else None)


def _tests(where: str) -> tuple[Test, ...] | None:
    pieces, start = [], 0
    for found in _AND.finditer(where):
        if found[1] is not None:
            pieces.append(where[start : found.start()])
            start = found.end()
    tests = []
    for piece in [*pieces, where[start:]]:
        test = _TEST.fullmatch(piece)
        if test is None or test["column"].lower() in _WORDS:
            return None
        value = int(test["number"]) if test["number"] is not None else test["text"]
        tests.append(Test(_plain(test["column"]), test["sign"], value))
    return tuple(tests)


def _metadata(catalog: str, name: str, read: Read) -> str | None:
    """Where the table's metadata is; None when the catalog has no such table."""
    connection = sqlite3.connect(f"file:{catalog}?mode=ro", uri=True, timeout=10)
    try:
        row = connection.execute(
            "SELECT metadata_location FROM iceberg_tables WHERE catalog_name = ? AND table_namespace = ?"
            " AND table_name = ? AND coalesce(iceberg_type, 'TABLE') = 'TABLE'",
            (name, read.schema, read.table),
        ).fetchone()
    finally:
        connection.close()
    return None if row is None else str(row[0])


def _answered(read: Read, location: str) -> pa.Table | None:
    table = StaticTable.from_metadata(location)
    types = {field.name: _arrow(str(field.field_type)) for field in table.schema().fields}
    columns = list(types) if read.columns is None else list(read.columns)
    needed = [*dict.fromkeys([*([] if read.counted else columns), *(test.column for test in read.tests)])]
    if not all(_suits(test, types.get(test.column)) for test in read.tests):
        return None
    if any(types.get(name) is None for name in needed) or (read.counted and read.limit is not None):
        return None
    snapshot = table.current_snapshot()
    if snapshot is None:
        return None
    summary = snapshot.summary
    rows = int(summary["total-records"] or 0) if summary is not None else MOST_ROWS + 1
    deletes = int(summary["total-delete-files"] or 0) if summary is not None else 1
    if read.counted and not read.tests and not deletes:
        return _count(read.counted, rows)
    if rows > MOST_ROWS:
        return None
    limit = read.limit if not read.tests else None
    scan = table.scan(selected_fields=tuple(needed or list(types)[:1]), limit=limit)
    found = scan.to_arrow()
    for test in read.tests:
        found = found.filter(_SIGNS[test.sign](found[test.column], pa.scalar(test.value, types[test.column])))
    if read.counted:
        return _count(read.counted, found.num_rows)
    found = found if read.limit is None else found.slice(0, read.limit)
    return pa.table([found[name].cast(types[name]) for name in columns], names=columns)


def _count(name: str, rows: int) -> pa.Table:
    return pa.table({name: pa.array([rows], pa.int64())})


def _suits(test: Test, type: pa.DataType | None) -> bool:
    if isinstance(test.value, str):
        return bool(type == pa.string())
    return bool(type == pa.int64() or (type == pa.int32() and -(2**31) <= test.value < 2**31))


def _arrow(iceberg: str) -> pa.DataType | None:
    """The type that Spark's answers have; None for types that are Spark's to read."""
    decimal = re.fullmatch(r"decimal\((\d+), ?(\d+)\)", iceberg)
    if decimal:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    return _TYPES.get(iceberg)


_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}


def _plain(name: str) -> str:
    return name[1:-1] if name.startswith("`") else name

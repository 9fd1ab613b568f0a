"""Answer simple reads of one table without Spark, which takes seconds to start.

Answers `SELECT columns|*|count(*) FROM schema.table [WHERE …] [LIMIT n]` over a table that its destination reads
directly (`destinations.reading.DirectTable`), where the answer is certain to be Spark's: columns of plain types only,
and in WHERE comparisons of whole numbers and texts joined by AND. Everything else, and everything that fails here, is
Spark's to answer: `answer` gives None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.config.model import Pipeline
from penstock.destinations.factory import make_readable
from penstock.destinations.reading import DirectTable
from penstock.model.table import TableId

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
    """Return the answer, or None when the statement is Spark's to answer."""
    read = parsed(statement, pipeline.lake.name)
    if read is None:
        return None
    try:
        table = make_readable(pipeline.lake).direct(TableId(read.schema, read.table))
        return None if table is None else _answered(read, table)
    except (ValueError, NotImplementedError, OSError, TypeError, pa.ArrowException):
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


def _answered(read: Read, table: DirectTable) -> pa.Table | None:
    types = table.types
    columns = list(types) if read.columns is None else list(read.columns)
    needed = [*dict.fromkeys([*([] if read.counted else columns), *(test.column for test in read.tests)])]
    if not all(_suits(test, types.get(test.column)) for test in read.tests):
        return None
    if any(types.get(name) is None for name in needed) or (read.counted and read.limit is not None):
        return None
    size = table.size
    if size is None:
        return None
    if read.counted and not read.tests and table.exact:
        return _count(read.counted, size.rows)
    if size.rows > MOST_ROWS:
        return None
    limit = read.limit if not read.tests else None
    found = table.scan(needed or list(types)[:1], limit)
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


def _plain(name: str) -> str:
    return name[1:-1] if name.startswith("`") else name

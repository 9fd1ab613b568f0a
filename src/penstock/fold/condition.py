"""`where` of a table's rule: a small part of SQL over the source's columns, parsed once and evaluated on Arrow rows.

    condition  := all { OR all }            all := one { AND one }            one := NOT one | ( condition ) | test
    test       := column ( = | <> | != | < | <= | > | >= ) value | column [NOT] IN ( value, … ) | column IS [NOT] NULL
                | column [NOT] LIKE 'pattern' | column [NOT] BETWEEN value AND value | column
    value      := 'text' | number | true | false

As in SQL, a comparison with NULL is neither true nor false, and a row counts only where the condition is true. Texts
are compared by their code points. Used by `projection.py`, for the copy and the stream alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode import verbatim
from penstock.decode.dialect import dialect_of
from penstock.decode.schema import arrow_schema
from penstock.model.table import TableSchema
from penstock.model.tokens import NotUnderstood, tokens

ALLOWED = "comparisons of a column with a value, IN, LIKE, BETWEEN, IS NULL, and AND, OR, NOT, ( ) around them"
_COMPARISONS = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>[+-]?\d+(?:\.\d+)?)|(?P<quoted>"(?:[^"]|"")+")
    |(?P<word>[^\W\d]\w*)|(?P<sign><=|>=|<>|!=|[=<>(),]))""",
    re.VERBOSE,
)


class BadCondition(ValueError):
    """Says where, and what is allowed."""


@dataclass(frozen=True)
class Test:
    """One column against values; `values` are as written, and become the column's type when it is known."""

    column: str
    operator: str  # a comparison, in, like, between, is null, holds
    values: tuple[str | bool, ...] = ()


@dataclass(frozen=True)
class Both:
    operator: str  # and, or
    left: Node
    right: Node


@dataclass(frozen=True)
class Not:
    inner: Node


Node = Test | Both | Not


@dataclass(frozen=True)
class Condition:
    text: str
    root: Node

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that it needs, each once."""
        return tuple(dict.fromkeys(test.column for test in _tests(self.root)))

    def check(self, schema: TableSchema) -> None:
        """BadCondition when the table has no such column, or one that cannot be compared like that."""
        schema = verbatim.comparable(schema)
        arrow = arrow_schema(schema)
        for test in _tests(self.root):
            if test.column not in arrow.names:
                raise BadCondition(f"table {schema.table} has no column {test.column}; it has {', '.join(arrow.names)}")
            described, type = schema.column(test.column), arrow.field(test.column).type
            if pa.types.is_nested(type) or pa.types.is_binary(type):
                comparable = test.operator == "is null"
            elif pa.types.is_string(type):
                comparable = dialect_of(schema).compares_as_text(described.type) or test.operator in ("is null", "like")
            else:
                comparable = test.operator != "like"
            if test.operator == "holds":
                comparable = pa.types.is_boolean(type)
            if not comparable:
                raise BadCondition(
                    f"column {test.column} ({described.type.name}) cannot be tested with {test.operator}"
                )
            for value in test.values:
                try:
                    _scalar(value, type)
                except (pa.ArrowException, ValueError):
                    raise BadCondition(
                        f"{value!r} is no {described.type.name}, which column {test.column} is"
                    ) from None

    def holds(self, rows: pa.Table, schema: TableSchema | None = None) -> pa.ChunkedArray:
        """Test each row. `schema` is the rows', where they may have texts of values."""
        if schema is not None:
            rows = verbatim.comparable_rows(schema, rows, self.columns)
        return pc.fill_null(_evaluated(self.root, rows), False)


def parse(text: str) -> Condition:
    """BadCondition names the place, counted from 1, and what is allowed."""
    parser = _Parser(text)
    root = parser.any_of()
    parser.expect("end")
    return Condition(text, root)


class _Parser:
    def __init__(self, text: str) -> None:
        try:
            self._tokens = list(tokens(text, _TOKEN))
        except NotUnderstood as error:
            raise BadCondition(f"{error}; allowed are {ALLOWED}") from None
        self._next = 0

    def any_of(self) -> Node:
        node = self._all_of()
        while self._taken("or"):
            node = Both("or", node, self._all_of())
        return node

    def _all_of(self) -> Node:
        node = self._one()
        while self._taken("and"):
            node = Both("and", node, self._one())
        return node

    def _one(self) -> Node:
        if self._taken("not"):
            return Not(self._one())
        if self._taken("("):
            node = self.any_of()
            self.expect(")")
            return node
        return self._test()

    def _test(self) -> Node:
        column = self._column()
        token = self._tokens[self._next]
        if token.kind == "sign" and token.value in _COMPARISONS:
            self._next += 1
            return Test(column, token.value, (self._value(),))
        if self._taken("is"):
            negated = self._taken("not")
            self.expect("null")
            node: Node = Test(column, "is null")
            return Not(node) if negated else node
        negated = self._taken("not")
        if self._taken("in"):
            self.expect("(")
            values = [self._value()]
            while self._taken(","):
                values.append(self._value())
            self.expect(")")
            node = Test(column, "in", tuple(values))
        elif self._taken("like"):
            node = Test(column, "like", (self._value(),))
        elif self._taken("between"):
            low = self._value()
            self.expect("and")
            node = Test(column, "between", (low, self._value()))
        elif negated:
            raise self._wrong("IN, LIKE or BETWEEN")
        else:
            return Test(column, "holds")
        return Not(node) if negated else node

    def _column(self) -> str:
        token = self._tokens[self._next]
        if token.kind == "quoted":
            self._next += 1
            return token.value[1:-1].replace('""', '"')
        if token.kind != "word":
            raise self._wrong("a column")
        self._next += 1
        return token.value.lower()

    def _value(self) -> str | bool:
        token = self._tokens[self._next]
        self._next += 1
        if token.kind == "text":
            return token.value[1:-1].replace("''", "'")
        if token.kind == "number":
            return token.value
        if token.kind == "word" and token.value.lower() in ("true", "false"):
            return token.value.lower() == "true"
        self._next -= 1
        raise self._wrong("a value ('text', a number, true or false)")

    def _taken(self, word: str) -> bool:
        token = self._tokens[self._next]
        if token.kind in ("word", "sign") and token.value.lower() == word:
            self._next += 1
            return True
        return False

    def expect(self, word: str) -> None:
        if word == "end" and self._tokens[self._next].kind == "end":
            return
        if not self._taken(word):
            raise self._wrong("AND, OR or the end" if word == "end" else word.upper())

    def _wrong(self, wanted: str) -> BadCondition:
        token = self._tokens[self._next]
        there = "its end" if token.kind == "end" else repr(token.value)
        return BadCondition(f"at character {token.at + 1}: {wanted} is due, not {there}; allowed are {ALLOWED}")


def _tests(node: Node) -> Iterator[Test]:
    if isinstance(node, Test):
        yield node
    elif isinstance(node, Not):
        yield from _tests(node.inner)
    else:
        yield from _tests(node.left)
        yield from _tests(node.right)


def _evaluated(node: Node, rows: pa.Table) -> Any:
    if isinstance(node, Not):
        return pc.invert(_evaluated(node.inner, rows))
    if isinstance(node, Both):
        join = pc.and_kleene if node.operator == "and" else pc.or_kleene
        return join(_evaluated(node.left, rows), _evaluated(node.right, rows))
    column = rows[node.column]
    values = [_scalar(value, column.type) for value in node.values]
    if node.operator == "holds":
        return column
    if node.operator == "is null":
        return pc.is_null(column)
    if node.operator == "like":
        return pc.match_like(column, node.values[0])
    if node.operator == "between":
        return pc.and_kleene(pc.greater_equal(column, values[0]), pc.less_equal(column, values[1]))
    if node.operator == "in":
        held = pc.is_in(column, value_set=pa.array([value.as_py() for value in values], column.type))
        return pc.if_else(pc.is_null(column), pa.scalar(None, pa.bool_()), held)
    return _COMPARISONS[node.operator](column, values[0])


def _scalar(value: str | bool, type: pa.DataType) -> pa.Scalar:
    """Return a value as written, as the column's type."""
    if isinstance(value, bool):
        if not pa.types.is_boolean(type):
            raise ValueError("no truth value")
        return pa.scalar(value, type)
    if pa.types.is_boolean(type):
        raise ValueError("a truth value is written true or false")
    if pa.types.is_timestamp(type) and type.tz is not None and not re.search(r":\d.*(?:Z|[+-]\d\d(?::?\d\d)?)$", value):
        naive = pa.scalar(value).cast(pa.timestamp("us"))
        return pa.scalar(naive.value, pa.int64()).cast(type)
    if pa.types.is_time(type):  # Arrow reads no times of day
        return pa.scalar(pa.scalar(f"1970-01-01 {value}").cast(pa.timestamp("us")).value, pa.int64()).cast(type)
    return pa.scalar(value).cast(type)

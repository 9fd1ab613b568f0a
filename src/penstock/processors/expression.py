"""Expressions over events: a part of SQL, parsed once and evaluated on Arrow columns.

    expression := and { OR and }     and := not { AND not }     not := NOT not | test
    test       := sum [ ( = | <> | != | < | <= | > | >= ) sum | IS [NOT] NULL | [NOT] IN ( expression, … )
                | [NOT] LIKE sum | [NOT] BETWEEN sum AND sum ]
    sum        := product { ( + | - | || ) product }     product := unary { ( * | / | % ) unary }
    unary      := - unary | atom { :: type }
    atom       := 'text' | number | true | false | null | name | ( expression ) | function ( … )
                | CAST ( expression AS type ) | CASE { WHEN expression THEN expression } [ ELSE expression ] END

A name is a column of the row (`price`), of one of its images (`before.price`, `after.price`), or a fact of the event
(`op`, `schema`, `table`, `commit_time`, `transaction`). As in SQL, NULL makes a comparison neither true nor false.

It is built on Arrow's own kernels and not on an embedded database: decimals keep all of their digits, 64-bit numbers
and moments stay what they are, an overflow or an impossible cast is an error and never another value, and nothing is
copied out of Arrow. `evaluate.py` has the kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from penstock.model.tokens import NotUnderstood, Token, tokens

FACTS = ("op", "schema", "table", "commit_time", "transaction")
FUNCTIONS = {  # the least and the most arguments
    "abs": (1, 1),
    "ceil": (1, 1),
    "changed": (1, 1),
    "coalesce": (1, 99),
    "concat": (1, 99),
    "floor": (1, 1),
    "json_text": (2, 2),
    "length": (1, 1),
    "lower": (1, 1),
    "nullif": (2, 2),
    "regexp_like": (2, 2),
    "replace": (3, 3),
    "round": (1, 2),
    "sha256": (1, 1),
    "starts_with": (2, 2),
    "substring": (2, 3),
    "trim": (1, 1),
    "upper": (1, 1),
}
TYPES = ("text", "integer", "bigint", "double", "numeric", "boolean", "date", "timestamp", "timestamptz")
COMPARISONS = ("=", "<>", "!=", "<", "<=", ">", ">=")
DEPTH = 60  # of expressions within one another
_WORDS = {"and", "or", "not", "is", "in", "like", "between", "null", "true", "false", "case", "when", "then"}
_WORDS |= {"else", "end", "cast", "as"}
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>\d+(?:\.\d+)?)|(?P<quoted>"(?:[^"]|"")+")
    |(?P<word>[^\W\d]\w*)|(?P<sign><=|>=|<>|!=|\|\||::|[-=<>(),.+*/%]))""",
    re.VERBOSE,
)


class BadExpression(ValueError):
    """Says where, and what is expected there."""


@dataclass(frozen=True)
class Literal:
    value: str | int | Decimal | bool | None


@dataclass(frozen=True)
class Name:
    """`side` is before, after, "" (the row at hand) or fact."""

    side: str
    column: str


@dataclass(frozen=True)
class Call:
    """An operator or a function with its arguments; `cast` has the type as a text."""

    function: str
    arguments: tuple[Node, ...]


Node = Literal | Name | Call


@dataclass(frozen=True)
class Expression:
    text: str
    root: Node

    @property
    def names(self) -> tuple[Name, ...]:
        """The columns and facts that it needs, each once."""
        return tuple(dict.fromkeys(_names(self.root)))


@dataclass(frozen=True)
class Selected:
    """One item of a select list; `expression` None: all columns."""

    name: str
    expression: Expression | None


def parse(text: str) -> Expression:
    """Parse an expression. BadExpression names the place, counted from 1."""
    parser = _Parser(text)
    root = parser.any_of()
    parser.expect_end()
    return Expression(text, root)


def parse_select(text: str) -> tuple[Selected, ...]:
    """Parse `expression [AS name], …`, where `*` stands for all columns."""
    parser = _Parser(text)
    items = [parser.selected()]
    while parser.taken(","):
        items.append(parser.selected())
    parser.expect_end()
    return tuple(items)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        try:
            self._tokens = list(tokens(text, _TOKEN))
        except NotUnderstood as error:
            raise BadExpression(str(error)) from None
        self._next = self._depth = 0

    def any_of(self) -> Node:
        self._depth += 1
        if self._depth > DEPTH:
            raise BadExpression(f"has more than {DEPTH} expressions within one another")
        node = self._all_of()
        while self.taken("or"):
            node = Call("or", (node, self._all_of()))
        self._depth -= 1
        return node

    def selected(self) -> Selected:
        if self.taken("*"):
            return Selected("*", None)
        start = self._token.at
        node = self.any_of()
        text = self._text[start : self._token.at].strip()
        if self.taken("as"):
            return Selected(self._identifier(), Expression(text, node))
        if not isinstance(node, Name) or node.side == "fact":
            raise self._wrong("AS and a name for the column")
        return Selected(node.column, Expression(text, node))

    def taken(self, word: str) -> bool:
        token = self._token
        if token.kind in ("word", "sign") and token.value.lower() == word:
            self._next += 1
            return True
        return False

    def expect_end(self) -> None:
        if self._token.kind != "end":
            raise self._wrong("an operator or the end")

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _expect(self, word: str) -> None:
        if not self.taken(word):
            raise self._wrong(word.upper())

    def _all_of(self) -> Node:
        node = self._not()
        while self.taken("and"):
            node = Call("and", (node, self._not()))
        return node

    def _not(self) -> Node:
        if self.taken("not"):
            return Call("not", (self._not(),))
        return self._test()

    def _test(self) -> Node:
        left = self._sum()
        token = self._token
        if token.kind == "sign" and token.value in COMPARISONS:
            self._next += 1
            return Call("<>" if token.value == "!=" else token.value, (left, self._sum()))
        if self.taken("is"):
            negated = self.taken("not")
            self._expect("null")
            return _negated(Call("is null", (left,)), negated)
        negated = self.taken("not")
        if self.taken("in"):
            return _negated(Call("in", (left, *self._arguments())), negated)
        if self.taken("like"):
            return _negated(Call("like", (left, self._sum())), negated)
        if self.taken("between"):
            low = self._sum()
            self._expect("and")
            return _negated(Call("and", (Call(">=", (left, low)), Call("<=", (left, self._sum())))), negated)
        if negated:
            raise self._wrong("IN, LIKE or BETWEEN")
        return left

    def _sum(self) -> Node:
        node = self._product()
        while self._token.value in ("+", "-", "||") and self._token.kind == "sign":
            sign = self._tokens[self._next].value
            self._next += 1
            node = Call(sign, (node, self._product()))
        return node

    def _product(self) -> Node:
        node = self._unary()
        while self._token.value in ("*", "/", "%") and self._token.kind == "sign":
            sign = self._tokens[self._next].value
            self._next += 1
            node = Call(sign, (node, self._unary()))
        return node

    def _unary(self) -> Node:
        if self.taken("-"):
            return Call("negate", (self._unary(),))
        node = self._atom()
        while self.taken("::"):
            node = Call("cast", (node, Literal(self._type())))
        return node

    def _atom(self) -> Node:
        token = self._token
        self._next += 1
        if token.kind == "text":
            return Literal(token.value[1:-1].replace("''", "'"))
        if token.kind == "number":
            return Literal(Decimal(token.value) if "." in token.value else int(token.value))
        if token.kind == "sign" and token.value == "(":
            node = self.any_of()
            self._expect(")")
            return node
        if token.kind == "word":
            word = token.value.lower()
            if word in ("true", "false", "null"):
                return Literal({"true": True, "false": False, "null": None}[word])
            if word == "case":
                return self._case()
            if word == "cast":
                return self._cast()
            if word not in _WORDS:
                self._next -= 1
                return self._named()
        if token.kind == "quoted":
            self._next -= 1
            return self._named()
        self._next -= 1
        raise self._wrong("a value, a column or a function")

    def _named(self) -> Node:
        token = self._token
        name = self._identifier()
        if token.kind == "word" and self._token.kind == "sign" and self._token.value == "(":
            return self._function(name)
        if name in ("before", "after") and self.taken("."):
            return Name(name, self._identifier())
        if token.kind == "word" and name in FACTS:
            return Name("fact", name)
        return Name("", name)

    def _function(self, name: str) -> Node:
        if name not in FUNCTIONS:
            raise BadExpression(f"there is no function {name}; there are {', '.join(FUNCTIONS)}")
        arguments = self._arguments()
        least, most = FUNCTIONS[name]
        if not least <= len(arguments) <= most:
            raise BadExpression(f"{name} takes {least if least == most else f'{least} to {most}'} arguments")
        if name == "changed" and not (isinstance(arguments[0], Name) and arguments[0].side == ""):
            raise BadExpression("changed takes the name of a column")
        constant = {"json_text": arguments[1:], "regexp_like": arguments[1:], "substring": arguments[1:]}
        constant |= {"replace": arguments[1:], "starts_with": arguments[1:], "round": arguments[1:]}
        if not all(isinstance(one, Literal) and one.value is not None for one in constant.get(name, ())):
            raise BadExpression(f"{name} takes constants behind its first argument")
        if name == "regexp_like":
            _require_pattern(arguments[1])
        return Call(name, arguments)

    def _arguments(self) -> tuple[Node, ...]:
        self._expect("(")
        found = [self.any_of()]
        while self.taken(","):
            found.append(self.any_of())
        self._expect(")")
        return tuple(found)

    def _cast(self) -> Node:
        self._expect("(")
        node = self.any_of()
        self._expect("as")
        type = self._type()
        self._expect(")")
        return Call("cast", (node, Literal(type)))

    def _type(self) -> str:
        token = self._token
        if token.kind != "word" or token.value.lower() not in TYPES:
            raise self._wrong(f"a type ({', '.join(TYPES)})")
        self._next += 1
        return token.value.lower()

    def _case(self) -> Node:
        branches: list[Node] = []
        while self.taken("when"):
            branches.append(self.any_of())
            self._expect("then")
            branches.append(self.any_of())
        if not branches:
            raise self._wrong("WHEN")
        branches.append(self.any_of() if self.taken("else") else Literal(None))
        self._expect("end")
        return Call("case", tuple(branches))

    def _identifier(self) -> str:
        token = self._token
        if token.kind == "quoted":
            self._next += 1
            return token.value[1:-1].replace('""', '"')
        if token.kind != "word" or token.value.lower() in _WORDS:
            raise self._wrong("a name")
        self._next += 1
        return token.value.lower()

    def _wrong(self, wanted: str) -> BadExpression:
        token = self._token
        there = "the end" if token.kind == "end" else repr(token.value)
        return BadExpression(f"at character {token.at + 1}: expected {wanted}, found {there}")


def _negated(node: Node, negated: bool) -> Node:
    return Call("not", (node,)) if negated else node


def _require_pattern(node: Node) -> None:
    assert isinstance(node, Literal)
    try:
        re.compile(str(node.value))
    except re.error as error:
        raise BadExpression(f"{node.value!r} is no regular expression: {error}") from None


def _names(node: Node) -> Iterator[Name]:
    if isinstance(node, Name):
        yield node
    elif isinstance(node, Call):
        if node.function == "changed":
            (column,) = node.arguments
            assert isinstance(column, Name)
            yield from (Name("before", column.column), Name("after", column.column))
            return
        for argument in node.arguments:
            yield from _names(argument)

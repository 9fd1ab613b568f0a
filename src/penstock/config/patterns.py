"""Table patterns: `schema.table`, `schema.*`, `schema.pre%`, `%.table`.

`%` stands for any run of characters, also none; `*` for a whole part. Everything else, `_` too, stands for itself,
upper and lower case as the catalogue has them. A part in double quotes is taken literally, so that a name may hold a
dot or `%`. `published` alone stands for every table, of which a source gives those that its publication has.
"""

from __future__ import annotations

import re
from functools import lru_cache

from penstock.model.table import TableId

ALLOWED = 'schema.table, schema.*, schema.pre% or %.table (a name with a dot, * or % in double quotes: "odd.name")'

PUBLISHED = "published"

_PART = r'"(?:[^"]|"")+"|\*|[^".*]+'
_PATTERN = re.compile(rf"({_PART})\.({_PART})")


class BadPattern(ValueError):
    """Not of the form that ALLOWED says."""


def matches(pattern: str, table: TableId) -> bool:
    """Whether the table's name is one that the pattern stands for. BadPattern when it is no pattern."""
    schema, name = compile_pattern(pattern)
    return bool(schema.fullmatch(table.schema) and name.fullmatch(table.name))


def names_one_table(pattern: str) -> bool:
    """Whether the pattern can stand for one table only."""
    return pattern != PUBLISHED and not any(wild in re.sub(r'"(?:[^"]|"")+"', "", pattern) for wild in "%*")


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Expressions for schema and table. BadPattern when it is no pattern."""
    if pattern == PUBLISHED:
        return _expression("*"), _expression("*")
    parts = _PATTERN.fullmatch(pattern)
    if parts is None:
        raise BadPattern(f"{pattern!r} is not {ALLOWED}")
    return _expression(parts[1]), _expression(parts[2])


def _expression(part: str) -> re.Pattern[str]:
    if part == "*":
        return re.compile(r".+", re.DOTALL)
    if part.startswith('"'):
        return re.compile(re.escape(part[1:-1].replace('""', '"')))
    return re.compile(".*".join(re.escape(literal) for literal in part.split("%")), re.DOTALL)

"""Cut a short text of a user's, such as the condition of a `where`, into its smallest parts.

Each language has its own pattern, a group per kind of token, and says itself what it allows: fold/condition.py,
processors/expression.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Token:
    """`kind` is the name of the pattern's group (text, number, quoted, word, sign), or `end`; `at` counts from 0."""

    kind: str
    value: str
    at: int


class NotUnderstood(ValueError):
    """No token begins here. It says where."""


def tokens(text: str, pattern: re.Pattern[str]) -> Iterator[Token]:
    """Yield the tokens, and one of kind `end` after them."""
    at = 0
    while text[at:].strip():
        found = pattern.match(text, at)
        if found is None:
            start = at + len(text[at:]) - len(text[at:].lstrip())
            raise NotUnderstood(f"at character {start + 1}: {text[start]!r} is not understood")
        kind = str(found.lastgroup)
        yield Token(kind, found[kind], found.start(kind))
        at = found.end()
    yield Token("end", "", len(text))

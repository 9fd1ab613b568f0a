"""Names of a stream's files: the range of places that a file covers, from where the one before it ended.

    {from}-{to}.jsonl              the events of [from, to); or .jsonl.gz, .jsonl.zst, .parquet
    {at}-{at}.{number}.jsonl       events of a table that stood behind, brought on when the others were at `at`

In a name, a place has a dot where its text has a slash. Sorted by name, files are in the order of their publication.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from penstock.destinations.files.encoding import ENDINGS
from penstock.model.place import Place

_PART = r"[0-9a-f]{16}\.[0-9a-f]{16}"
_NAME = re.compile(rf"({_PART})-({_PART})(?:\.([0-9]{{16}}))?({'|'.join(map(re.escape, ENDINGS))})")


@dataclass(frozen=True, order=True)
class Range:
    """What a file's name says. `number` tells apart the files that move the place of no table but one."""

    begin: Place
    end: Place
    number: int = 0
    ending: str = ".jsonl"

    @property
    def text(self) -> str:
        number = f".{self.number:016d}" if self.number else ""
        return f"{self.begin}-{self.end}".replace("/", ".") + number + self.ending


def parse_range(text: str) -> Range | None:
    """Return what a name says; None when it is not the name of a stream's file."""
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    return Range(found[1].replace(".", "/"), found[2].replace(".", "/"), int(found[3] or 0), found[4])


def hole(names: Iterable[Range], end: Place) -> tuple[Place, Place] | None:
    """Return the first range that no file covers before `end`, the end of the last file; None when all are there.

    The oldest files may have been removed, and so may all of them."""
    chain = sorted(names)
    for one, following in pairwise(chain):
        if one.end != following.begin:
            return one.end, following.begin
    if chain and chain[-1].end != end:
        return chain[-1].end, end
    return None

"""Digests by which two sides of a table are compared: the source's and the destination's, each computed where it lies.

Every value has a canonical text, the same on both sides. A row is the texts of its columns one after another: each
column ends with US and a comma, or is US and a minus when it is null, and a US within a text is doubled. The row's
digest is the MD5 of that, in UTF-8, as 32 hexadecimal digits; a checksum is the sum of digests' first DIGITS digits.
Rows fall into buckets by the last four digits of their key's digest, or of the row's where there is no key.

The source's side computes in its own way (source/contract.py, `ComparableTable`), the destination's in Spark
(control/verify/canonical.py); docs/verify.md says what the canonical text of a value is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

DIGITS = 15  # of a row's digest, for checksums: 60 bits, which the integers of both sides hold

Figures = tuple[int, int]  # rows, sum of their digests


@dataclass(frozen=True)
class Row:
    """`key` and `digest` are digests of the key and of the whole row; of a row without a key they are the same."""

    key: str
    digest: str
    key_text: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    digest: str | None  # None: null
    shown: str | None


class Side(Protocol):
    """One side of a table, always as of the same moment."""

    def figures(self, buckets: int) -> dict[int, Figures]:
        """Return the figures of the buckets that have rows."""
        ...

    def rows(self, buckets: int, chosen: Sequence[int]) -> list[Row]:
        """Return the rows of some buckets."""
        ...

    def cells(self, keys: Sequence[str]) -> dict[str, dict[str, Cell]]:
        """Return cells by key and column; of a key that is there several times, those of any of its rows."""
        ...

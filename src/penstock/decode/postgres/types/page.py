"""The table of types as docs/types.md shows it, made from the table that decodes them.

`python -m penstock.decode.postgres.types.page docs/types.md` writes it into the page, between two marks. A test
compares the two.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from penstock.decode.postgres.types.codec import Served
from penstock.decode.postgres.types.registry import TABLE

BEGIN = "<!-- made by python -m penstock.decode.postgres.types.page -->"
END = "<!-- end of what is made -->"
_HEAD = ("Postgres", "Arrow", "Iceberg", "kept", "rescued")
_BY_KIND = (
    (
        "arrays of any of these",
        "list<…>",
        "list<…>",
        "one dimension that begins at 1, with NULLs",
        "more dimensions, other lower bounds, an element that does not fit",
    ),
    (
        "composites",
        "struct<…>",
        "struct<…>",
        "every field; NULL and a row of NULLs differ",
        "a field that does not fit",
    ),
    ("enums", "string", "string", "the label", ""),
    ("domains", "as what they are over", "as what they are over", "", ""),
    ("ranges and multiranges of users", "string", "string", "its text, as Postgres writes it", ""),
    ("anything else (types of extensions)", "string", "string", "its text, as Postgres writes it", ""),
)


def table() -> str:
    """Return it as Markdown."""
    rows = [_HEAD, ("---",) * len(_HEAD), *map(_line, TABLE), *_BY_KIND]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def with_table(page: str) -> str:
    """Return the page with the table as it is now between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _line(served: Served) -> Iterable[str]:
    return ", ".join(served.types), served.arrow, served.iceberg, served.exact, served.rescued


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(with_table(file.read_text()))

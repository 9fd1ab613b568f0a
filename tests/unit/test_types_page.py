"""The page on types shows the table of types as it is."""

from __future__ import annotations

from pathlib import Path

from penstock.decode.postgres.types.page import BEGIN, END, table, with_table
from penstock.decode.postgres.types.registry import TABLE

PAGE = Path(__file__).parents[2] / "docs" / "types.md"


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text()
    assert text == with_table(text), "run: python -m penstock.decode.postgres.types.page docs/types.md"
    assert text.index(BEGIN) < text.index(END)


def test_every_line_says_what_it_is() -> None:
    lines = table().splitlines()[2:]
    for line in TABLE:
        assert line.types
        assert line.arrow
        assert line.iceberg
        assert line.exact
    assert len({line.count(" | ") for line in lines}) == 1
    assert len({name for line in TABLE for name in line.types}) == sum(len(line.types) for line in TABLE)

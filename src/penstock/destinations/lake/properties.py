"""What a lake table says of penstock in its properties, under the same names in every table format."""

from __future__ import annotations

from penstock.errors import OtherLayout
from penstock.fold.layout import Layout
from penstock.model.table import TableId

LAYOUT = "penstock.layout"
TARGET = "penstock.target"  # the name under which the table was made
COPYING, COPIED = "copying", "copied"


def structure_property(source: str) -> str:
    """Name the property with the structure that the table follows."""
    return f"penstock.structure.{source}"


def history_property(source: str) -> str:
    """Name the property with the id of the log that the source's position is of."""
    return f"penstock.history.{source}"


def rule_property(source: str) -> str:
    """Name the property with the rule under which the source's rows were copied."""
    return f"penstock.rule.{source}"


def copy_property(source: str) -> str:
    """Name the property that says whether a source's copy is under way (COPYING) or done (COPIED)."""
    return f"penstock.source.{source}"


def made_under(source: str, layout: Layout) -> dict[str, str]:
    """Return the properties that say what the rows of a copy were made under."""
    return {LAYOUT: layout.to_json(), rule_property(source): layout.rule}


def copied_under(source: str, layout: Layout, history: str) -> dict[str, str]:
    """Return the properties of a table that has been copied under that history and its present rule."""
    return {copy_property(source): COPIED, history_property(source): history, **made_under(source, layout)}


def require_layout(target: TableId, made: str | None, layout: Layout) -> None:
    """OtherLayout if the table was made for another mode, or for other names of its columns. `made` is its property."""
    if made is not None and not layout.made(made):
        raise OtherLayout(
            f"table {target}: it was made for another mode, or with other names for the columns of its history",
            f"Set the mode back, give the new one another `target`, or drop {target}: it is then copied again",
        )

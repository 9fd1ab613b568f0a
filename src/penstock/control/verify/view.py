"""Render what `verify` found as text and as JSON. Differing rows are named by key; cells are shortened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.control.text.figures import UNKNOWN, count_text
from penstock.control.verify.compare import Comparison, Difference, Kind
from penstock.control.verify.verification import Verified
from penstock.model.position import position_text

WORDS: dict[Kind, str] = {
    "missing": "missing in the lake",
    "extra": "extra in the lake",
    "differs": "differs",
    "doubled": "more than once in the lake",
}


def as_text(found: Sequence[Verified], shown: int) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("table")
    table.add_column("source rows", justify="right")
    table.add_column("lake rows", justify="right")
    table.add_column("at position")
    table.add_column("")
    for one in found:
        both = one.comparison
        table.add_row(
            str(one.table),
            count_text(both.source_rows if both else None),
            count_text(both.lake_rows if both else None),
            position_text(one.position) if one.position is not None else UNKNOWN,
            _result(one),
        )
    details = [Text(line) for one in found for line in _lines(one, shown)]
    return Group(table, *([Text(""), *details] if details else []))


def as_json(found: Sequence[Verified], shown: int) -> dict[str, Any]:
    return {
        "equal": all(one.equal for one in found),
        "tables": [
            {
                "table": str(one.table),
                "position": position_text(one.position) if one.position is not None else None,
                "equal": one.equal,
                "repaired": one.before is not None and one.equal,
                **_figures(one.comparison),
                "differing": _differing(one.before or one.comparison, shown),
                "error": one.error.what if one.error else None,
                "solution": one.error.solution if one.error else None,
            }
            for one in found
        ],
    }


def _result(one: Verified) -> Text:
    if one.comparison is None:
        return Text("NOT COMPARED", "bold red")
    if not one.equal:
        return Text("DIFFERENT" if one.before is None else "DIFFERENT STILL", "bold red")
    return Text("equal" if one.before is None else "equal after the repair", "green")


def _lines(one: Verified, shown: int) -> list[str]:
    lines = []
    if one.before is not None:
        lines += [f"{one.table}: {_summary(one.before)}; repaired", *_rows(one.before, shown)]
    if one.comparison is not None and not one.equal:
        lines += [f"{one.table}: {_summary(one.comparison)}", *_rows(one.comparison, shown)]
    if one.error is not None:
        lines.append(f"{one.table}: {one.error}")
    return lines


def _summary(comparison: Comparison) -> str:
    told = [
        f"{count:,} {WORDS[kind] if kind != 'differs' else 'with other values'}"
        for kind in WORDS
        if (count := comparison.count(kind))
    ]
    more = "" if comparison.complete else ", and there are more"
    return f"rows: {', '.join(told)}{more}"


def _rows(comparison: Comparison, shown: int) -> list[str]:
    lines = [f"  {_row(one)}" for one in comparison.differences[:shown]]
    left = len(comparison.differences) - shown
    return [*lines, f"  … and {left:,} more"] if left > 0 else lines


def _row(one: Difference) -> str:
    times = f" ({one.times} times)" if one.times > 1 and one.kind != "doubled" else ""
    text = f"({', '.join(one.key_text)}) {WORDS[one.kind]}{times}"
    cells = [f"{cell.column}: source {_cell(cell.source)}, lake {_cell(cell.lake)}" for cell in one.cells]
    return f"{text}: {'; '.join(cells)}" if cells else text


def _cell(value: str | None) -> str:
    return "NULL" if value is None else repr(value)


def _figures(comparison: Comparison | None) -> dict[str, Any]:
    if comparison is None:
        return {"source_rows": None, "lake_rows": None, "buckets": None, "differing_buckets": None}
    return {
        "source_rows": comparison.source_rows,
        "lake_rows": comparison.lake_rows,
        "buckets": comparison.buckets,
        "differing_buckets": comparison.differing_buckets,
    }


def _differing(comparison: Comparison | None, shown: int) -> dict[str, Any] | None:
    """Before the repair, if there was one."""
    if comparison is None:
        return None
    return {
        **{kind: comparison.count(kind) for kind in WORDS},
        "complete": comparison.complete,
        "rows": [
            {
                "kind": one.kind,
                "key": list(one.key_text),
                "times": one.times,
                "cells": [{"column": cell.column, "source": cell.source, "lake": cell.lake} for cell in one.cells],
            }
            for one in comparison.differences[:shown]
        ],
    }

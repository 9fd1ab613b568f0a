"""Types that installed packages add by name: destinations, processors and stores, through entry points.

A type of somebody else's is one of `type: python` whose class or function is named by the entry point. The file's
section is rewritten as such before it is read: keys that the section does not have are the arguments of the class.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from penstock.config.processors import PythonProcessor
from penstock.config.python_destination import PythonDestination
from penstock.config.python_state import PythonState
from penstock.config.section import Section, misplaced

DESTINATIONS, PROCESSORS, STORES = "penstock.destinations", "penstock.processors", "penstock.stores"
OURS = {(DESTINATIONS, "duckdb"): "penstock.destinations.duckdb:DuckDB"}
PYTHON = "python://"  # begins a store of a class: see state/opening.py


def with_installed_types(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the file's content with sections of `type: python` in the places of types that packages add."""
    filled = dict(data)
    if isinstance(data.get("destinations"), list):
        filled["destinations"] = [_processed(_destination(one)) for one in data["destinations"]]
    if isinstance(data.get("tables"), list):
        filled["tables"] = [_processed(one) for one in data["tables"]]
    if isinstance(data.get("state"), dict):
        filled["state"] = _state(data["state"], folder)
    read: dict[str, Any] = _processed(filled)
    return read


def _installed(group: str, name: object) -> str | None:
    """Return what an entry point of that name says; None when nobody has added one."""
    if not isinstance(name, str):
        return None
    found = entry_points(group=group)
    return found[name].value if name in found.names else OURS.get((group, name))


def _keys(section: type[Section]) -> Collection[str]:
    return {field.alias or name for name, field in section.model_fields.items()}


def _destination(section: Any) -> Any:
    found = _installed(DESTINATIONS, section.get("type")) if isinstance(section, dict) else None
    if found is None:
        return section
    own = {key: value for key, value in section.items() if key in _keys(PythonDestination)}
    config = {key: value for key, value in section.items() if key not in own}
    named = {"name": section["type"], **own, "type": "python", "class": found}
    return {**named, "config": {**(own.get("config") or {}), **config}}


def _processed(section: Any) -> Any:
    """Return a section with the processors in it as they are read."""
    if not isinstance(section, dict) or not isinstance(section.get("processors"), list):
        return section
    return {**section, "processors": [_processor(one) for one in section["processors"]]}


def _processor(section: Any) -> Any:
    found = _installed(PROCESSORS, section.get("type")) if isinstance(section, dict) else None
    if found is None:
        return section
    own = {key: value for key, value in section.items() if key in _keys(PythonProcessor)}
    strange = [key for key in section if key not in own]
    if strange:
        raise misplaced("processors", f"has {section['type']} with the key {strange[0]}, which a function cannot take")
    return {**own, "type": "python", "function": found}


def _state(section: dict[str, Any], folder: Path) -> str:
    found = _installed(STORES, section.get("type"))
    if found is not None:
        config = {key: value for key, value in section.items() if key != "type"}
        section = {"type": "python", "class": found, "config": config}
    read = PythonState.model_validate(section)
    return PYTHON + json.dumps({"class": read.found_at, "config": read.config, "folder": str(folder)})

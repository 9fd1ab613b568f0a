"""Find classes of a user's by `module:Class`: beside the pipeline file, or wherever Python finds modules."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from penstock.errors import ConfigError


def made_from(found_at: str, folder: str, config: dict[str, Any]) -> object:
    """Return an object of the class `module:Class`, made with `config` as its arguments."""
    return class_at(found_at, folder)(**config)


def class_at(found_at: str, folder: str) -> type[Any]:
    """Import a class. ConfigError where there is none."""
    module, _, name = found_at.partition(":")
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"class {found_at} cannot be imported: {error}", "Put its module beside the pipeline file, or install it"
        ) from error
    if not isinstance(found, type):
        raise ConfigError(f"module {module} has no class {name}", "Correct `class`: it is `module:Class`")
    return found

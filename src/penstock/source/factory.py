"""Make the source that a file's `type:` names. The only module outside an implementation that names one.

An implementation is imported when its first source is made: some need a library that is an extra.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

from penstock.errors import EnvironmentMissing, UsageError
from penstock.source.contract import Source


class SourceSection(Protocol):
    """A section of the pipeline file under `source` or `sources`."""

    @property
    def type(self) -> str: ...


Maker = Callable[[Any], Source]  # is given the section of its type

_OWN = {
    "postgres": "penstock.source.postgres.source:PostgresSource",
    "mysql": "penstock.source.mysql.source:MysqlSource",
}
_MADE_KNOWN: dict[str, Maker] = {}


def register(type: str, make: Maker) -> None:
    """Make a type of source known in this process. `make` is given the section of the file that has this type."""
    _MADE_KNOWN[type] = make


def source_of(section: SourceSection) -> Source:
    """Make the source that a section describes. It connects to nothing yet."""
    make = _MADE_KNOWN.get(section.type)
    return (make or _own(section.type))(section)


def _own(type: str) -> Maker:
    module, _, name = _OWN.get(type, "").partition(":")
    if not module:
        known = ", ".join(sorted({*_OWN, *_MADE_KNOWN}))
        raise UsageError(f"there is no source of type {type}", f"Known types: {known}")
    try:
        make: Maker = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise EnvironmentMissing(
            f"a source of type {type} needs the library {error.name}", f"Run: pip install 'penstock[{type}]'"
        ) from None
    return make

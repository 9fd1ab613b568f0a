"""Make the source that a file's `type:` names. The only module outside an implementation that imports one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from penstock.errors import UsageError
from penstock.source.contract import Source
from penstock.source.postgres.source import PostgresSource


class SourceSection(Protocol):
    """A section of the pipeline file under `source` or `sources`."""

    @property
    def type(self) -> str: ...


Maker = Callable[[Any], Source]  # is given the section of its type

_MAKERS: dict[str, Maker] = {"postgres": PostgresSource}


def register(type: str, make: Maker) -> None:
    """Add a kind of source. `make` is given the section of the file that has this type."""
    _MAKERS[type] = make


def source_of(section: SourceSection) -> Source:
    make = _MAKERS.get(section.type)
    if make is None:
        raise UsageError(f"there is no source of type {section.type}", f"Known types: {', '.join(sorted(_MAKERS))}")
    return make(section)

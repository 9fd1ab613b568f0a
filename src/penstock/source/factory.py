"""Make the source that a file's `type:` names. The only module outside an implementation that imports one."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

from penstock.errors import EnvironmentMissing, UsageError
from penstock.source.contract import Source
from penstock.source.postgres.source import PostgresSource


class SourceSection(Protocol):
    """A section of the pipeline file under `source` or `sources`."""

    @property
    def type(self) -> str: ...


Maker = Callable[[Any], Source]  # is given the section of its type


def _mysql(section: Any) -> Source:
    """Import it only where it is named: its libraries are an extra."""
    try:
        module = import_module("penstock.source.mysql.source")
    except ModuleNotFoundError as error:
        raise EnvironmentMissing(
            f"a source of type mysql needs the library {error.name}", "Run: pip install 'penstock[mysql]'"
        ) from None
    made: Source = module.MysqlSource(section)
    return made


_MAKERS: dict[str, Maker] = {"postgres": PostgresSource, "mysql": _mysql}


def register(type: str, make: Maker) -> None:
    """Add a kind of source. `make` is given the section of the file that has this type."""
    _MAKERS[type] = make


def source_of(section: SourceSection) -> Source:
    make = _MAKERS.get(section.type)
    if make is None:
        raise UsageError(f"there is no source of type {section.type}", f"Known types: {', '.join(sorted(_MAKERS))}")
    return make(section)

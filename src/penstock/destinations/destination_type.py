"""The record by which a type of destination says what its columns can be and what it needs of Spark. No Spark here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.model.type_map import AS_WRITTEN, TypeMap


class DestinationSettings(Protocol):
    """What every destination has in the pipeline file, whatever else its type adds."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> str: ...


@dataclass(frozen=True)
class CompiledJar:
    """A class of our own, compiled by the compiler that comes with Spark when the jars are fetched."""

    file_name: str
    class_name: str
    source: str


def no_settings(settings: Any, /, *, compiled: bool) -> dict[str, str]:
    """The Spark settings of a type that needs none."""
    return {}


@dataclass(frozen=True)
class DestinationType:
    """`spark_settings` gives what a destination of the type, as the file describes it, needs in Spark's configuration;
    `compiled` says whether Spark has the type's own classes. `reading_settings` gives what a session that only reads
    its tables needs besides. `type_map` says what its columns can be."""

    name: str
    packages: tuple[str, ...] = ()  # Maven coordinates of the jars that Spark needs
    reading_packages: tuple[str, ...] = ()  # of those that it needs to read tables back, and not to write them
    compiled: tuple[CompiledJar, ...] = ()
    worker_modules: tuple[str, ...] = ()  # imported once, before Spark's Python workers are forked
    spark_settings: Callable[..., dict[str, str]] = no_settings
    reading_settings: Callable[..., dict[str, str]] = no_settings
    type_map: TypeMap = AS_WRITTEN  # a stream's

"""The record by which a type of destination says what makes it, what its columns can be, and what it needs of Spark.

Declarations import neither Spark nor what the destinations are made of: Spark's Python workers read them."""

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
    """Return the Spark settings of a type that needs none."""
    return {}


def no_packages(settings: Any, /) -> tuple[str, ...]:
    """Return what a type needs whose tables are never in an object store."""
    return ()


@dataclass(frozen=True)
class DestinationType:
    """What a `type:` in the file stands for.

    What makes destinations of the type is named as `module:name` and imported when one is made: `tables` is called with
    the section of the file, Spark and a folder for caches, `readable` with the section, `stream` with the section and a
    folder for places.

    `spark_settings` gives what a destination of the type, as the file describes it, needs in Spark's configuration;
    `compiled` says whether Spark has the type's own classes. `reading_settings` gives what a session that only reads
    its tables needs besides. `store_packages` gives the jars by which Java reaches the object store that its
    tables are in. `type_map` says what its columns can be.
    """

    name: str
    tables: str = ""  # makes a TableDestination; "": the type holds none
    readable: str = ""  # makes ReadableTables
    stream: str = ""  # makes a StreamDestination; "": it is none
    library: str = ""  # a module that only its extra brings, which is called as the type is
    packages: tuple[str, ...] = ()  # Maven coordinates of the jars that Spark needs
    reading_packages: tuple[str, ...] = ()  # of those that it needs to read tables back, and not to write them
    every_store: tuple[str, ...] = ()  # all that `store_packages` may name
    store_packages: Callable[..., tuple[str, ...]] = no_packages
    compiled: tuple[CompiledJar, ...] = ()
    worker_modules: tuple[str, ...] = ()  # imported once, before Spark's Python workers are forked
    spark_settings: Callable[..., dict[str, str]] = no_settings
    reading_settings: Callable[..., dict[str, str]] = no_settings
    type_map: TypeMap = AS_WRITTEN  # a stream's

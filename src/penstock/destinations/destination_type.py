"""The record by which a type of destination says what it needs of Spark. Read by `registry`; no Spark is imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


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
    `compiled` says whether Spark has the type's own classes."""

    name: str
    packages: tuple[str, ...] = ()  # Maven coordinates of the jars that Spark needs
    compiled: tuple[CompiledJar, ...] = ()
    worker_modules: tuple[str, ...] = ()  # imported once, before Spark's Python workers are forked
    spark_settings: Callable[..., dict[str, str]] = no_settings

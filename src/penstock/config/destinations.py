"""The sections of the pipeline file that describe destinations, one class for each `type`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from penstock.config.section import Section
from penstock.config.units import Duration, Size
from penstock.config.values import Located, Name, Properties, local_path


def _local(located: str) -> str:
    if local_path(located) is None:
        raise ValueError("must be a folder: files are put in place by renames, which object stores do not have")
    return str(local_path(located))


def _without_snapshot(value: bool) -> bool:
    if value:
        raise ValueError("must be false for now: rows of the initial copy are not published to streams yet")
    return value


class Maintenance(Section):
    """How a table is kept small and quick to read, between batches."""

    expire_every: Annotated[int, Field(ge=1)] = 50
    keep_snapshots: Annotated[int, Field(ge=1)] = 50
    time_travel: Duration = 0.0
    keep_for: Duration = 600.0
    compact_files: Annotated[int, Field(ge=2)] = 8
    read_cost: Annotated[float, Field(ge=1.05)] = 1.3
    merge_at_once: Annotated[Size, Field(ge=2**20)] = 64 * 2**20
    pause: Duration = 0.5
    sweep_every: Duration = 86400.0
    sweep_age: Duration = 86400.0
    advance_idle_every: Duration = 60.0


class DestinationSection(Section):
    """What every destination has."""

    name: Name = ""
    required: bool = True


class IcebergDestination(DestinationSection):
    """Where tables go. Without `catalog`: a JDBC catalog on SQLite in the warehouse."""

    name: Name = "lake"
    type: Literal["iceberg"]
    start: Literal["copy"] = "copy"  # a table is complete with a copy only
    warehouse: Located
    catalog: Properties = Field(default_factory=dict)
    maintenance: Maintenance = Maintenance()


class FilesDestination(DestinationSection):
    """A stream of files: every event of the tables as a line of JSON, from where the stream begins."""

    name: Name = "files"
    type: Literal["files"]
    path: Annotated[Located, AfterValidator(_local)]
    format: Literal["jsonl"] = "jsonl"
    shards: Annotated[int, Field(ge=1, le=256)] = 1
    snapshot: Annotated[bool, AfterValidator(_without_snapshot)] = False
    start: Literal["log", "now"] = "log"


AnyDestination = Annotated[IcebergDestination | FilesDestination, Field(discriminator="type")]

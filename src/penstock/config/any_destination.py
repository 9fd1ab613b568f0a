"""All types of destinations that the pipeline file may name, told apart by their `type`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from penstock.config.delta_destination import DeltaDestination
from penstock.config.destinations import (
    FilesDestination,
    IcebergDestination,
    KafkaDestination,
    NatsDestination,
    RedisDestination,
    StdoutDestination,
)
from penstock.config.http_destination import HttpDestination
from penstock.config.postgres_destination import PostgresDestination
from penstock.config.python_destination import PythonDestination

AnyDestination = Annotated[
    IcebergDestination
    | DeltaDestination
    | FilesDestination
    | HttpDestination
    | KafkaDestination
    | NatsDestination
    | PostgresDestination
    | PythonDestination
    | RedisDestination
    | StdoutDestination,
    Field(discriminator="type"),
]

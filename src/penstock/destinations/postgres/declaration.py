"""The type `postgres`: tables in a Postgres database. It needs nothing of Spark."""

from __future__ import annotations

from penstock.destinations.destination_type import DestinationType
from penstock.destinations.postgres.type_map import POSTGRES_TYPES

POSTGRES_TYPE = DestinationType(
    "postgres",
    tables="penstock.destinations.postgres.destination:make_tables",
    readable="penstock.destinations.postgres.reading:PostgresTables",
    worker_modules=("penstock.destinations.postgres.plan",),
    type_map=POSTGRES_TYPES,
)

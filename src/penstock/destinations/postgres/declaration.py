"""What destinations of type `postgres` need of Spark (nothing), and what their columns can be."""

from __future__ import annotations

from penstock.destinations.destination_type import DestinationType
from penstock.destinations.postgres.type_map import POSTGRES_TYPES

POSTGRES_TYPE = DestinationType(
    "postgres", worker_modules=("penstock.destinations.postgres.plan",), type_map=POSTGRES_TYPES
)

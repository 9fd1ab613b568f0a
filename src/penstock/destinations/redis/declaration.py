"""The type `redis`: Redis streams."""

from __future__ import annotations

from penstock.destinations.destination_type import DestinationType

REDIS_TYPE = DestinationType(
    "redis",
    stream="penstock.destinations.redis.destination:make_stream",
    worker_modules=("penstock.destinations.redis.publisher",),
)

"""What Spark needs for Redis: nothing but the modules that its Python workers import."""

from __future__ import annotations

from penstock.destinations.destination_type import DestinationType

REDIS_TYPE = DestinationType(name="redis", worker_modules=("penstock.destinations.redis.publisher",))

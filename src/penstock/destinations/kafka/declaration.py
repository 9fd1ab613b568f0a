"""What Spark needs for Kafka: nothing. The client library, an extra, is loaded by the first task that needs it."""

from __future__ import annotations

from penstock.destinations.destination_type import DestinationType

KAFKA_TYPE = DestinationType(name="kafka", worker_modules=("penstock.render.events",))

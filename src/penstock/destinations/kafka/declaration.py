"""The type `kafka`: Kafka. The client library is an extra, and is loaded by the first task that needs it."""

from __future__ import annotations

from penstock.destinations.destination_type import DestinationType

KAFKA_TYPE = DestinationType(
    "kafka",
    stream="penstock.destinations.kafka.destination:make_stream",
    library="confluent_kafka",
    worker_modules=("penstock.render.events",),
)

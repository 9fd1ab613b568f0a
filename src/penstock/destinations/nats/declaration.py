"""The type `nats`: NATS JetStream."""

from __future__ import annotations

from penstock.destinations.destination_type import DestinationType

NATS_TYPE = DestinationType(
    "nats",
    stream="penstock.destinations.nats.destination:make_stream",
    worker_modules=("penstock.destinations.nats.publisher",),
)

"""What Spark needs for NATS: nothing but the modules that its Python workers import."""

from __future__ import annotations

from penstock.destinations.destination_type import DestinationType

NATS_TYPE = DestinationType(name="nats", worker_modules=("penstock.destinations.nats.publisher",))

"""What Spark needs for standard output: what it needs for files, by way of which events get there."""

from __future__ import annotations

from penstock.destinations.destination_type import DestinationType

STDOUT_TYPE = DestinationType(
    name="stdout", worker_modules=("penstock.destinations.files.shard", "penstock.render.events")
)

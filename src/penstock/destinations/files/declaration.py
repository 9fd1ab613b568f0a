"""What Spark needs for streams of files: nothing but the modules that its Python workers import."""

from __future__ import annotations

from penstock.destinations.destination_type import DestinationType

FILES_TYPE = DestinationType(
    name="files", worker_modules=("penstock.destinations.files.shard", "penstock.render.events")
)

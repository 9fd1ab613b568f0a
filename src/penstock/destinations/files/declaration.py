"""The type `files`: streams of files."""

from __future__ import annotations

from penstock.destinations.destination_type import DestinationType

FILES_TYPE = DestinationType(
    "files",
    stream="penstock.destinations.files.growing:make_stream",
    worker_modules=("penstock.destinations.files.shard", "penstock.render.events"),
)

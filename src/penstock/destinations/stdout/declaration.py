"""The type `stdout`: standard output. Workers write files, and the driver prints what is in them."""

from __future__ import annotations

from penstock.destinations.destination_type import DestinationType

STDOUT_TYPE = DestinationType(
    "stdout",
    stream="penstock.destinations.stdout.destination:make_stream",
    worker_modules=("penstock.destinations.files.shard", "penstock.render.events"),
)

"""The type `http`: webhooks."""

from __future__ import annotations

from penstock.destinations.destination_type import DestinationType

HTTP_TYPE = DestinationType(
    "http",
    stream="penstock.destinations.http.destination:make_stream",
    worker_modules=("penstock.destinations.http.shard", "penstock.render.events"),
)

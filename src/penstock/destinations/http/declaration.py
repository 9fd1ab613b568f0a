"""What Spark needs for webhooks: nothing but the modules that its Python workers import."""

from __future__ import annotations

from penstock.destinations.destination_type import DestinationType

HTTP_TYPE = DestinationType(name="http", worker_modules=("penstock.destinations.http.shard", "penstock.render.events"))

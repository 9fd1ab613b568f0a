"""What Spark needs for users' destinations: nothing but the modules that its Python workers import."""

from __future__ import annotations

from penstock.destinations.destination_type import DestinationType

PYTHON_TYPE = DestinationType(
    name="python", worker_modules=("penstock.destinations.python.publisher", "penstock.render.events")
)

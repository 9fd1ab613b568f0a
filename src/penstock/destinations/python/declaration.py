"""The type `python`: classes of users."""

from __future__ import annotations

from penstock.destinations.destination_type import DestinationType

PYTHON_TYPE = DestinationType(
    "python",
    stream="penstock.destinations.python.stream:make_stream",
    worker_modules=("penstock.destinations.python.publisher", "penstock.render.events"),
)

"""The types of destinations, and what Spark must have for them. `factory` makes the destinations themselves.

Apart from the factory, because Spark's Python workers and `make install` read this: it imports neither Spark nor what
the destinations are made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.destinations.delta.declaration import DELTA_TYPE
from penstock.destinations.destination_type import CompiledJar, DestinationSettings, DestinationType
from penstock.destinations.files.declaration import FILES_TYPE
from penstock.destinations.http.declaration import HTTP_TYPE
from penstock.destinations.iceberg.declaration import ICEBERG_TYPE
from penstock.destinations.kafka.declaration import KAFKA_TYPE
from penstock.destinations.nats.declaration import NATS_TYPE
from penstock.destinations.postgres.declaration import POSTGRES_TYPE
from penstock.destinations.python.declaration import PYTHON_TYPE
from penstock.destinations.redis.declaration import REDIS_TYPE
from penstock.destinations.stdout.declaration import STDOUT_TYPE

EXTENSIONS = "spark.sql.extensions"

_ALL = (
    ICEBERG_TYPE,
    DELTA_TYPE,
    FILES_TYPE,
    HTTP_TYPE,
    KAFKA_TYPE,
    NATS_TYPE,
    POSTGRES_TYPE,
    PYTHON_TYPE,
    REDIS_TYPE,
    STDOUT_TYPE,
)
TYPES: Mapping[str, DestinationType] = {kind.name: kind for kind in _ALL}


def type_of(settings: DestinationSettings) -> DestinationType:
    return TYPES[settings.type]


def packages() -> tuple[str, ...]:
    """Maven coordinates of all jars that destinations need."""
    return tuple(dict.fromkeys(package for kind in TYPES.values() for package in kind.packages))


def reading_packages(destinations: Sequence[DestinationSettings] | None = None) -> tuple[str, ...]:
    """Maven coordinates of the jars by which tables of these destinations, or of all types, are read back."""
    kinds = TYPES.values() if destinations is None else map(type_of, destinations)
    return tuple(dict.fromkeys(package for kind in kinds for package in kind.reading_packages))


def store_packages(destinations: Sequence[DestinationSettings] | None = None) -> tuple[str, ...]:
    """Maven coordinates of the jars that reach the object stores of these destinations, or every store that works."""
    if destinations is None:
        return tuple(dict.fromkeys(package for kind in TYPES.values() for package in kind.every_store))
    return tuple(dict.fromkeys(package for one in destinations for package in type_of(one).store_packages(one)))


def compiled_jars() -> tuple[CompiledJar, ...]:
    return tuple(jar for kind in TYPES.values() for jar in kind.compiled)


def worker_modules() -> tuple[str, ...]:
    return tuple(dict.fromkeys(module for kind in TYPES.values() for module in kind.worker_modules))


def spark_settings(
    destinations: Sequence[DestinationSettings], *, compiled: bool, reading: bool = False
) -> dict[str, str]:
    """Return what Spark's configuration must have for these destinations; of two values for a setting, the first wins.

    SQL extensions of several types are joined. `compiled`: Spark has the jars of `compiled_jars`; `reading`: it has
    those of `reading_packages`, and reads tables back.
    """
    settings: dict[str, str] = {}
    extensions: dict[str, None] = {}
    for destination in destinations:
        kind = type_of(destination)
        wanted = dict(kind.spark_settings(destination, compiled=compiled))
        wanted |= kind.reading_settings(destination, compiled=compiled) if reading else {}
        extensions |= dict.fromkeys(filter(None, wanted.pop(EXTENSIONS, "").split(",")))
        settings = wanted | settings
    return settings | ({EXTENSIONS: ",".join(extensions)} if extensions else {})

"""The type `delta`: Delta Lake tables.

Tables are written without Spark's SQL, so the jars are for reading back alone: `penstock query` and `penstock verify`.
"""

from __future__ import annotations

from penstock.destinations.delta.type_map import DELTA_TYPES
from penstock.destinations.destination_type import DestinationType
from penstock.destinations.lake.settings import LakeSettings

PACKAGES = ("io.delta:delta-spark_4.1_2.13:4.4.0", "io.delta:delta-storage:4.4.0")


def _settings(settings: LakeSettings, /, *, compiled: bool) -> dict[str, str]:
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


DELTA_TYPE = DestinationType(
    "delta",
    tables="penstock.destinations.delta.destination:make_tables",
    readable="penstock.destinations.delta.reading:DeltaTables",
    reading_packages=PACKAGES,
    worker_modules=("penstock.destinations.lake.upsert_plan", "penstock.destinations.delta.data_files"),
    reading_settings=_settings,
    type_map=DELTA_TYPES,
)

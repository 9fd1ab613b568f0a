"""The type `iceberg`: Iceberg tables, and what they need of Spark."""

from __future__ import annotations

from penstock.destinations.destination_type import CompiledJar, DestinationType
from penstock.destinations.iceberg import group_operations, local_file_io
from penstock.destinations.iceberg.catalog import IcebergSettings, spark_settings
from penstock.destinations.iceberg.type_map import ICEBERG_TYPES

PACKAGES = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)


def _settings(settings: IcebergSettings, /, *, compiled: bool) -> dict[str, str]:
    return spark_settings(settings, local_file_io=local_file_io.CLASS if compiled else None)


ICEBERG_TYPE = DestinationType(
    "iceberg",
    tables="penstock.destinations.iceberg.destination:make_tables",
    readable="penstock.destinations.iceberg.reading:IcebergTables",
    packages=PACKAGES,
    compiled=(
        CompiledJar(local_file_io.JAR, local_file_io.CLASS, local_file_io.SOURCE),
        CompiledJar(group_operations.JAR, group_operations.CLASS, group_operations.SOURCE),
    ),
    worker_modules=(
        "penstock.destinations.lake.upsert_plan",
        "penstock.destinations.iceberg.data_files",
    ),
    spark_settings=_settings,
    type_map=ICEBERG_TYPES,
)

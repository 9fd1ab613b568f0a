"""The type `iceberg`: Iceberg tables, and what they need of Spark."""

from __future__ import annotations

from penstock.destinations.destination_type import CompiledJar, DestinationType
from penstock.destinations.iceberg import group_operations, local_file_io
from penstock.destinations.iceberg.catalog import IcebergSettings, is_in_s3, spark_settings
from penstock.destinations.iceberg.type_map import ICEBERG_TYPES

PACKAGES = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)
S3_PACKAGES = ("org.apache.iceberg:iceberg-aws-bundle:1.12.0",)  # 69 MB: fetched for those who need it


def _settings(settings: IcebergSettings, /, *, compiled: bool) -> dict[str, str]:
    return spark_settings(settings, local_file_io=local_file_io.CLASS if compiled else None)


def _store_packages(settings: IcebergSettings, /) -> tuple[str, ...]:
    return S3_PACKAGES if is_in_s3(settings) else ()


ICEBERG_TYPE = DestinationType(
    "iceberg",
    tables="penstock.destinations.iceberg.destination:make_tables",
    readable="penstock.destinations.iceberg.reading:IcebergTables",
    packages=PACKAGES,
    every_store=S3_PACKAGES,
    store_packages=_store_packages,
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

"""Which catalog a destination uses, as Spark properties, and where tables lie in its warehouse.

Without `catalog` in the pipeline file: Iceberg's JDBC catalog on SQLite, `catalog.db` in the warehouse, which
pyiceberg reads too. Otherwise any Iceberg catalog by its own Spark properties. Spark knows the catalog by the
destination's name. `declaration` hands the settings to Spark.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

from penstock.destinations.lake.settings import LakeSettings
from penstock.destinations.lake.warehouse import table_folder
from penstock.model.location import local_path
from penstock.model.table import TableId

BUSY_TIMEOUT_MS = 30_000
JDBC_CATALOG = "org.apache.iceberg.jdbc.JdbcCatalog"
S3_FILE_IO = "org.apache.iceberg.aws.s3.S3FileIO"
S3_SCHEMES = ("s3://", "s3a://", "s3n://")


class IcebergSettings(LakeSettings, Protocol):
    """The settings of an Iceberg destination; `config.destinations.IcebergDestination` has this shape."""

    @property
    def catalog(self) -> Mapping[str, str]: ...


def spark_settings(settings: IcebergSettings, *, local_file_io: str | None = None) -> dict[str, str]:
    """Return the catalog, under the destination's name and as Spark's default, so that `public.orders` is found.

    `local_file_io` names a class for file access that the embedded catalog uses in a local warehouse, if Spark has it.
    """
    prefix = f"spark.sql.catalog.{settings.name}"
    catalog = dict(settings.catalog) or _embedded(settings)
    if not settings.catalog and local_file_io is not None and local_path(settings.warehouse) is not None:
        catalog["io-impl"] = local_file_io
    properties = {"cache-enabled": "false", "warehouse": settings.warehouse, **_store(settings), **catalog}
    return {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.defaultCatalog": settings.name,
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{prefix}.{key}": value for key, value in properties.items()},
    }


def is_in_s3(settings: IcebergSettings) -> bool:
    """Return whether Java reaches the warehouse by Iceberg's own access to S3."""
    return settings.warehouse.startswith(S3_SCHEMES) and settings.catalog.get("io-impl", S3_FILE_IO) == S3_FILE_IO


def _store(settings: IcebergSettings) -> dict[str, str]:
    """Return how Java reaches S3: where, from the environment, as pyarrow does on executors. Never with what key.

    Credentials are found by each library for itself, by AWS's own rules.
    """
    if not is_in_s3(settings):
        return {}
    found = {"io-impl": S3_FILE_IO}
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    found |= {"client.region": region} if region else {}
    return found | ({"s3.endpoint": endpoint, "s3.path-style-access": "true"} if endpoint else {})


def _embedded(settings: IcebergSettings) -> dict[str, str]:
    return {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{local_path(settings.warehouse) or settings.warehouse}/catalog.db",
        "jdbc.schema-version": "V1",
        "jdbc.busy_timeout": str(BUSY_TIMEOUT_MS),
    }


def database(settings: IcebergSettings) -> tuple[str, dict[str, str]] | None:
    """Return the URL and settings of the database in which the catalog keeps its pointers.

    None if it is no JDBC catalog. Several tables can be committed in one transaction of such a database.
    """
    catalog = dict(settings.catalog) or _embedded(settings)
    if "uri" not in catalog or (catalog.get("type") != "jdbc" and JDBC_CATALOG not in catalog.get("catalog-impl", "")):
        return None
    given = {key.removeprefix("jdbc."): value for key, value in catalog.items() if key.startswith("jdbc.")}
    if catalog["uri"].startswith("jdbc:sqlite:"):
        given["transaction_mode"] = "IMMEDIATE"  # otherwise two writers may each wait for the other
    return catalog["uri"], given


def is_rest(settings: IcebergSettings) -> bool:
    """Return whether the catalog is reached over Iceberg's REST protocol.

    Such a catalog would let two changes of table properties pass each other: it checks the snapshot alone.
    """
    return settings.catalog.get("type") == "rest" or "rest" in settings.catalog.get("catalog-impl", "").lower()


def table_location(settings: IcebergSettings, target: TableId) -> str | None:
    """Return where a new table goes in the embedded catalog; any other catalog decides for itself."""
    if settings.catalog:
        return None
    return table_folder(settings, target)

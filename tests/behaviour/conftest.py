"""Destinations for the behaviour suite: the memory twin, Delta, Postgres, and Iceberg on the one Spark of the session.

`typed_lake` is for what only lakes have that take typed values: Postgres takes texts, and rescues nothing of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from destination_rows import Lake, delta_config, delta_lake, iceberg_config, iceberg_lake, memory_lake
from faulty_proxy import faulty_proxy
from object_store import BUCKET, object_store
from penstock.destinations.registry import store_packages
from penstock.runtime.spark import jars
from postgres_lake import postgres_lake
from rest_catalogs import RestServer, nessie, rest_catalog, store_properties


@pytest.fixture(params=["memory", "delta", "iceberg", "postgres"])
def any_lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "postgres":
        return postgres_lake(request.getfixturevalue("postgres"))
    return _typed_lake(request, tmp_path)


@pytest.fixture(params=["memory", "delta", "iceberg"])
def typed_lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return _typed_lake(request, tmp_path)


def _typed_lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "memory":
        return memory_lake()
    if request.param == "delta":
        return delta_lake(tmp_path, delta_config(tmp_path, compact_files=3, expire_every=5, keep_snapshots=3))
    spark: SparkSession = request.getfixturevalue("spark")
    return iceberg_lake(spark, tmp_path, iceberg_config(tmp_path, compact_files=3, expire_every=5, keep_snapshots=3))


@pytest.fixture(scope="session")
def rest_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestServer]:
    """Iceberg's own REST catalog, for a local warehouse, behind a proxy."""
    folder = tmp_path_factory.mktemp("rest")
    warehouse = folder / "warehouse"
    with rest_catalog(str(warehouse), folder / "catalog.db", {}) as address, faulty_proxy(address) as proxy:
        yield RestServer(proxy, str(warehouse))


@pytest.fixture(scope="session")
def nessie_server(request: pytest.FixtureRequest) -> Iterator[RestServer]:
    """Nessie, for a warehouse in S3."""
    jars.fetch(stores=store_packages())
    with object_store() as store, pytest.MonkeyPatch.context() as patch:
        for name, value in store.items():
            patch.setenv(name, value)
        spark: SparkSession = request.getfixturevalue("spark")  # Java has what was there when it started
        assert spark is not None
        warehouse = f"s3://{BUCKET}/nessie"
        with nessie(warehouse, store) as address, faulty_proxy(address) as proxy:
            known = {"warehouse": "wh", "uri": f"{proxy.address}/iceberg", **store_properties(store)}
            yield RestServer(proxy, warehouse, known)


@pytest.fixture
def nessie_lake(spark: SparkSession, nessie_server: RestServer, tmp_path: Path) -> Lake:
    nessie_server.empty()
    return nessie_server.lake(spark, tmp_path)


@pytest.fixture
def rest_lake(spark: SparkSession, rest_server: RestServer, tmp_path: Path) -> Lake:
    """A lake on the REST catalog, in which no earlier test has left a table."""
    rest_server.empty()
    return rest_server.lake(spark, tmp_path)


@pytest.fixture
def iceberg(spark: SparkSession, tmp_path: Path) -> Lake:
    return iceberg_lake(spark, tmp_path, iceberg_config(tmp_path))

"""Destinations for the behaviour suite: the memory twin, Delta, Postgres, and Iceberg on the one Spark of the session.

`typed_lake` is for what only lakes have that take typed values: Postgres takes texts, and rescues nothing of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from destination_rows import Lake, delta_config, delta_lake, iceberg_config, iceberg_lake, memory_lake
from postgres_lake import postgres_lake


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


@pytest.fixture
def iceberg(spark: SparkSession, tmp_path: Path) -> Lake:
    return iceberg_lake(spark, tmp_path, iceberg_config(tmp_path))

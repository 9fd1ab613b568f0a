"""Destinations for the behaviour suite: the memory twin, Delta, and Iceberg on the one Spark of the test session."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from destination_rows import Lake, delta_config, delta_lake, iceberg_config, iceberg_lake, memory_lake


@pytest.fixture(params=["memory", "delta", "iceberg"])
def any_lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "memory":
        return memory_lake()
    if request.param == "delta":
        return delta_lake(tmp_path, delta_config(tmp_path, compact_files=3, expire_every=5, keep_snapshots=3))
    spark: SparkSession = request.getfixturevalue("spark")
    return iceberg_lake(spark, tmp_path, iceberg_config(tmp_path, compact_files=3, expire_every=5, keep_snapshots=3))


@pytest.fixture
def iceberg(spark: SparkSession, tmp_path: Path) -> Lake:
    return iceberg_lake(spark, tmp_path, iceberg_config(tmp_path))

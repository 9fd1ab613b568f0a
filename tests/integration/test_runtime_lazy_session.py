"""Spark without its SQL: catalogs that Iceberg makes by itself, and SQL when somebody asks for it."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from penstock.destinations.iceberg.java import Java
from penstock.runtime.spark.lazy_session import LazySession


def test_a_catalog_is_what_the_settings_say_without_sql(spark: SparkSession, tmp_path: Path) -> None:
    """Also what they say for Hadoop, which Iceberg's own way of Spark would hand over."""
    session = spark.newSession()
    settings = {"type": "hadoop", "warehouse": str(tmp_path), "hadoop.penstock.told": "yes"}
    for name, value in settings.items():
        session.conf.set(f"spark.sql.catalog.other.{name}", value)
    catalog = Java(session).catalog("other")
    assert (catalog.name(), catalog.getConf().get("penstock.told")) == ("other", "yes")
    assert catalog.properties().get("hadoop.penstock.told") is None


def test_sql_is_made_when_it_is_first_asked_for(spark: SparkSession) -> None:
    lazy = LazySession(spark.sparkContext)
    assert lazy.conf.getAll["spark.app.name"] == spark.sparkContext.appName
    assert lazy.sql("select 1 + 1").collect()[0][0] == 2
    assert lazy.whole is lazy.whole

"""The pointers of a catalog at one instant: what is committed later does not move them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock.config.destinations import IcebergDestination
from penstock.destinations.iceberg.instant import instant_of
from penstock.errors import DestinationUnreachable, UsageError

POINTERS = "select table_name, metadata_location from iceberg_tables order by table_name"


def lake(folder: Path, **more: object) -> IcebergDestination:
    (folder / "warehouse").mkdir()
    return IcebergDestination.model_validate({"type": "iceberg", "warehouse": str(folder / "warehouse"), **more})


def test_pointers_stay_where_they_were_when_the_instant_was_chosen(tmp_path: Path) -> None:
    settings = lake(tmp_path)
    instant = instant_of(settings, tmp_path)
    with closing(sqlite3.connect(tmp_path / "warehouse" / "catalog.db")) as catalog:
        catalog.execute("create table iceberg_tables (table_name text, metadata_location text)")
        catalog.executemany("insert into iceberg_tables values (?, ?)", [("a", "a1"), ("b", "b1")])
        catalog.commit()
        instant.choose()
        catalog.execute("update iceberg_tables set metadata_location = 'later'")
        catalog.commit()
    (uri,) = instant.settings.values()
    assert list(instant.settings) == ["spark.sql.catalog.lake.uri"]
    with closing(sqlite3.connect(uri.removeprefix("jdbc:sqlite:"))) as copy:
        assert copy.execute(POINTERS).fetchall() == [("a", "a1"), ("b", "b1")]


def test_a_catalog_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DestinationUnreachable, match="the catalog of destination lake cannot be read"):
        instant_of(lake(tmp_path), tmp_path).choose()


def test_a_catalog_without_a_database_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="consistent_every"):
        instant_of(lake(tmp_path, catalog={"type": "rest", "uri": "http://catalog"}), tmp_path)

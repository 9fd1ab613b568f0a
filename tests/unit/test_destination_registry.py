"""What destinations need of Spark, and who makes them: by the `type` in the pipeline file."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest

from penstock.config.any_destination import AnyDestination
from penstock.config.destinations import IcebergDestination
from penstock.destinations import registry
from penstock.destinations.destination_type import DestinationType
from penstock.destinations.factory import make_tables


def lake(folder: Path, name: str) -> IcebergDestination:
    return IcebergDestination(type="iceberg", name=name, warehouse=str(folder / name))


def test_each_destination_has_a_catalog_and_the_first_is_the_default(tmp_path: Path) -> None:
    settings = registry.spark_settings([lake(tmp_path, "lake"), lake(tmp_path, "copy")], compiled=True)
    assert settings["spark.sql.defaultCatalog"] == "lake"
    assert settings["spark.sql.catalog.lake.warehouse"] == str(tmp_path / "lake")
    assert settings["spark.sql.catalog.copy.warehouse"] == str(tmp_path / "copy")
    assert settings["spark.sql.catalog.copy.io-impl"] == registry.compiled_jars()[0].class_name
    assert settings["spark.sql.extensions"].count("Iceberg") == 1


def test_sql_extensions_of_two_types_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = DestinationType("other", spark_settings=lambda settings, compiled: {"spark.sql.extensions": "a.B"})
    monkeypatch.setattr(registry, "TYPES", {**registry.TYPES, "other": other})
    settings = registry.spark_settings([lake(tmp_path, "lake"), SimpleNamespace(name="x", type="other")], compiled=True)
    assert settings["spark.sql.extensions"].split(",")[1:] == ["a.B"]


def test_modules_for_workers_are_there_and_the_registry_brings_no_spark() -> None:
    for module in registry.worker_modules():
        importlib.import_module(module)
    check = "import sys, penstock.destinations.registry; sys.exit('pyspark' in sys.modules or 'py4j' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize("kind", registry.TYPES.values(), ids=registry.TYPES)
def test_each_type_names_what_makes_it(kind: DestinationType) -> None:
    assert bool(kind.stream) != bool(kind.tables), "tables or a stream"
    for name in filter(None, (kind.tables, kind.readable, kind.stream)):
        module, _, attribute = name.partition(":")
        assert callable(getattr(importlib.import_module(module), attribute))


def test_the_file_may_name_each_registered_type_and_no_other() -> None:
    sections = get_args(get_args(AnyDestination)[0])
    assert {get_args(one.model_fields["type"].annotation)[0] for one in sections} == set(registry.TYPES)


def test_a_type_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="stream: type files does not hold tables"):
        make_tables(SimpleNamespace(name="stream", type="files"), cast(Any, None), index=tmp_path)

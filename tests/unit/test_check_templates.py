"""`penstock check` and the templates of a stream: columns that tables do not publish, or that deletes do not have."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.config.load import load
from penstock.control.check.rules import check_stream_tables, check_templates
from penstock.errors import ConfigError
from penstock.model.table import TableId, TableSchema
from penstock.source.factory import source_of
from pgoutput_messages import INT8, TEXT, table_schema
from pipeline_files import pipeline_file

THINGS = table_schema({"id": INT8, "name": TEXT})
KAFKA = {"type": "kafka", "brokers": "127.0.0.1:1"}


def found(folder: Path, schema: TableSchema = THINGS, *, rule: Any = None, **keys: Any) -> list[tuple[str, str]]:
    rules = [{"match": "public.*", **(rule or {})}]
    pipeline = load(pipeline_file(folder, destinations=[{**KAFKA, **keys}], tables=rules))
    (view,) = pipeline.destination_views
    findings = list(check_templates(view, [schema], source_of(pipeline.source).advice))
    assert all(one.level == "error" for one in findings)
    return [(one.what, one.fix) for one in findings]


def test_columns_that_a_delete_does_not_have(tmp_path: Path) -> None:
    ((what, solution),) = found(tmp_path, key="${after.name}-${after.id}")
    assert what == (
        "table public.things: key of destination kafka is ${after.name}-${after.id}, and its deletes do not have the "
        "column name"
    )
    assert "REPLICA IDENTITY FULL" in solution
    assert not found(tmp_path, replace(THINGS, identity="full"), key="${after.name}")
    assert not found(tmp_path, key="${after.id}", headers={"op": "${op}"}, topic="${source.table}")


def test_columns_that_are_not_published(tmp_path: Path) -> None:
    ((what, _),) = found(tmp_path, headers={"who": "${before.who}"})
    assert "headers.who of destination kafka is ${before.who}, and the table does not publish a column who" in what
    dropped = {"columns": {"name": "drop"}}
    ((what, _),) = found(tmp_path, rule=dropped, topic="t-${after.name}")
    assert "does not publish a column name" in what


@pytest.mark.parametrize("key", ["topic", "key"])
def test_unknown_names_are_refused_when_the_file_is_read(tmp_path: Path, key: str) -> None:
    said = re.escape(f"destinations[0].{key} is '${{source.tabel}}', but names ${{source.tabel}}; allowed are")
    with pytest.raises(ConfigError, match=said):
        found(tmp_path, THINGS, **{key: "${source.tabel}"})


def test_variables_of_the_environment_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AREA", "eu")
    monkeypatch.setenv("key", "not this one")
    topic = "${AREA}.${source.table}.${key}.${op}"
    pipeline = load(pipeline_file(tmp_path, destinations=[{**KAFKA, "topic": topic, "name": "${AREA}"}]))
    (stream,) = pipeline.destinations
    assert (stream.name, getattr(stream, "topic", "")) == ("eu", "eu.${source.table}.${key}.${op}")
    with pytest.raises(ConfigError, match="malformed variable"):
        load(pipeline_file(tmp_path, destinations=[{**KAFKA, "brokers": "${source.name}:9092"}]))


def test_patterns_of_a_stream_that_stand_for_no_table_of_its_rules(tmp_path: Path) -> None:
    rules = [{"match": "public.*", "exclude": ["public.secrets"]}]
    stream = {**KAFKA, "tables": ["public.things", "public.secrets", "shop.%"]}
    (view,) = load(pipeline_file(tmp_path, destinations=[stream], tables=rules)).destination_views
    found = list(check_stream_tables(view, [THINGS.table, TableId("public", "secrets")]))
    assert {one.level for one in found} == {"warning"}
    assert [one.what for one in found] == [
        f"`tables` of the stream kafka has {name}, which stands for no table of its rules"
        for name in ("public.secrets", "shop.%")
    ]

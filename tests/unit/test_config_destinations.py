"""Several destinations in one file: which table goes where and as what, and policies that can never hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from penstock.config.destinations import FilesDestination
from penstock.config.http_destination import HttpDestination
from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.config.python_destination import PythonDestination
from penstock.destinations.http.destination import HttpStream
from penstock.errors import ConfigError, UsageError
from penstock.model.feed import Mode
from penstock.model.table import TableId

ORDERS, PEOPLE = TableId("public", "orders"), TableId("public", "people")


def written(folder: Path, **changed: Any) -> Path:
    described: dict[str, Any] = {
        "version": 1,
        "name": "shop",
        "source": {"type": "postgres", "url": "postgresql://app@127.0.0.1:1/shop"},
        "tables": [{"match": "public.*"}],
        "destinations": [
            {"type": "iceberg", "name": "lake", "warehouse": "./lake"},
            {"type": "iceberg", "name": "second", "warehouse": "./second"},
            {"type": "iceberg", "name": "third", "warehouse": "./third", "required": False},
        ],
    }
    file = folder / "shop.yaml"
    file.write_text(yaml.safe_dump({**described, **changed}))
    return file


def modes(pipeline: Pipeline, table: TableId) -> dict[str, list[Mode]]:
    return {view.destination.name: [feed.mode for feed in view.feeds(table)] for view in pipeline.destination_views}


def test_tables_go_everywhere_unless_a_rule_says_where_and_as_what(tmp_path: Path) -> None:
    rules = [
        {"match": "public.orders", "mode": {"lake": "clone", "second": ["events", "history"]}},
        {"match": "public.orders", "to": ["third"], "where": "id > 5"},
        {"match": "public.%"},
    ]
    pipeline = load(written(tmp_path, tables=rules))
    assert modes(pipeline, ORDERS) == {"lake": ["clone"], "second": ["events", "history"], "third": ["clone"]}
    assert modes(pipeline, PEOPLE) == {"lake": ["clone"], "second": ["clone"], "third": ["clone"]}
    assert pipeline.destination_view("third").feeds(ORDERS)[0].projection.where == "id > 5"
    assert pipeline.destination_view("second").feed(TableId("public", "orders__history")) is not None
    third = pipeline.destination_view("third")
    assert (third.whole, third.home, third.policy) == (pipeline, pipeline.home, pipeline.policy)
    assert {feed.mode for feed in pipeline.feeds(ORDERS)} == {"clone", "events", "history"}
    assert pipeline.home == tmp_path / "penstock-shop"
    assert load(written(tmp_path, home="./elsewhere")).home == tmp_path / "elsewhere"


def test_one_of_several_must_be_named(tmp_path: Path) -> None:
    pipeline = load(written(tmp_path))
    with pytest.raises(UsageError, match="several destinations: lake, second, third"):
        _ = pipeline.destination
    with pytest.raises(UsageError, match="has no destination fourth"):
        pipeline.destination_view("fourth")
    assert pipeline.destination_view("second").destination.name == "second"


@pytest.mark.parametrize(
    ("policy", "among", "least"),
    [
        ({}, {"lake", "second"}, 2),
        ({"mode": "all"}, {"lake", "second", "third"}, 3),
        ({"mode": "quorum", "quorum": 2}, {"lake", "second", "third"}, 2),
    ],
)
def test_policies(tmp_path: Path, policy: dict[str, Any], among: set[str], least: int) -> None:
    made = load(written(tmp_path, commit_policy=policy)).policy
    assert made.among == frozenset(among)
    assert made.least == least
    assert made.is_met(dict.fromkeys(among, True))
    assert not made.is_met(dict.fromkeys(sorted(among)[: least - 1], True))
    positions = {"lake": 300, "second": 200, "third": 100}
    assert made.reached(positions) == sorted(positions[name] for name in among)[-least]


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"commit_policy": {"mode": "quorum"}}, "commit_policy has mode quorum, and not how many"),
        ({"commit_policy": {"mode": "quorum", "quorum": 4}}, "asks for 4 destinations, and there are 3"),
        ({"commit_policy": {"mode": "all", "quorum": 1}}, "names a quorum, and its mode is all"),
        (
            {"destinations": [{"type": "iceberg", "warehouse": "./lake", "required": False}]},
            "no destination is required",
        ),
        ({"tables": [{"match": "public.*", "to": ["lake", "nowhere"]}]}, "tables[0].to names nowhere"),
        ({"tables": [{"match": "public.*", "mode": {"nowhere": "clone"}}]}, "tables[0].mode names nowhere"),
        ({"tables": [{"match": "public.*", "to": ["lake"]}]}, "destinations[1].name is second, and no rule goes there"),
        ({"tables": [{"match": "public.*", "to": ["lake"], "mode": {"second": "clone"}}]}, "different destinations"),
    ],
)
def test_what_can_never_hold_is_refused(tmp_path: Path, changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(written(tmp_path, **changed))
    assert problem in refused.value.what


def webhook(**changed: Any) -> list[dict[str, Any]]:
    return [{"type": "http", "url": "https://example.org/hook/s3cret", **changed}]


def test_a_webhook_shows_nothing_that_is_secret(tmp_path: Path) -> None:
    given = webhook(headers={"Authorization": "Bearer hunter2"}, signature={"secret": "whsec_c2VzYW1l"})
    (made,) = load(written(tmp_path, destinations=given)).destinations
    assert not any(secret in repr(made) for secret in ("hunter2", "s3cret", "c2VzYW1l", "sesame"))


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"url": "ftp://example.org"}, "must be an http:// or https:// address"),
        ({"headers": {"Idempotency-Key": "mine"}}, "penstock sets it"),
        ({"headers": {"no name": "x"}}, "name of an HTTP header"),
        ({"headers": {"A": "two\nlines"}}, "that no HTTP header can have"),
        ({"signature": {"secret": "whsec_?"}}, "base64"),
        ({"deletes": "tombstone"}, "no tombstones"),
    ],
)
def test_what_no_webhook_can_be(tmp_path: Path, changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load(written(tmp_path, destinations=webhook(**changed)))


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"path": "./changes.jsonl", "format": "parquet"}, "one growing file"),
        ({"path": "./changes.jsonl", "shards": 2}, "one growing file"),
        ({"path": "s3://bucket/changes.jsonl"}, "must be local"),
        ({"path": "./changes", "compression": "lz4"}, "compression"),
        ({"path": "./changes", "headers": {"op": "${op}"}}, "headers must be left out"),
        ({"path": "./changes", "roll": {"age": 0}}, "age"),
    ],
)
def test_what_no_stream_of_files_can_be(tmp_path: Path, changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load(written(tmp_path, destinations=[{"type": "files", **changed}]))


def test_a_stream_of_files_may_be_anywhere(tmp_path: Path) -> None:
    for path, folder in (("./a", tmp_path / "a"), ("./b.jsonl", tmp_path), ("s3://bucket/c", None)):
        (made,) = load(written(tmp_path, destinations=[{"type": "files", "path": path}])).destinations
        assert isinstance(made, FilesDestination)
        assert made.folder == folder


@pytest.mark.parametrize(
    ("changed", "content_type"),
    [
        ({}, "application/json"),
        ({"envelope": "cloudevents"}, "application/cloudevents-batch+json"),
        ({"envelope": "cloudevents", "batch": 1}, "application/cloudevents+json"),
    ],
)
def test_a_webhook_is_told_what_its_events_are(tmp_path: Path, changed: dict[str, Any], content_type: str) -> None:
    (made,) = load(written(tmp_path, destinations=webhook(**changed))).destinations
    assert isinstance(made, HttpDestination)
    assert HttpStream.of(made).endpoint.content_type == content_type
    assert not made.record_format.headers


def test_a_class_of_the_users_copies_rows_into_one_shard_only() -> None:
    own = {"type": "python", "class": "audit:Audit"}
    for fine in ({}, {"shards": 2, "start": "log"}):
        PythonDestination.model_validate({**own, **fine})
    for wrong in ({"shards": 2}, {"shards": 2, "start": "log", "snapshot": True}):
        with pytest.raises(ValidationError, match="must be 1 where rows are copied"):
            PythonDestination.model_validate({**own, **wrong})


def test_a_stream_publishes_only_the_tables_that_it_names(tmp_path: Path) -> None:
    lake = {"type": "iceberg", "name": "lake", "warehouse": "./lake"}
    stream = {"type": "files", "path": "./changes", "tables": ["public.orders", "%.log_%"]}
    rules = [{"match": "public.people", "to": ["lake"]}, {"match": "public.*", "exclude": ["public.log_secret"]}]
    pipeline = load(written(tmp_path, destinations=[lake, stream], tables=rules))
    whole, published = (pipeline.destination_view(name) for name in ("lake", "files"))
    names = ("orders", "people", "items", "log_in", "log_secret")
    tables = [TableId("public", name) for name in names]
    assert [table.name for table in tables if whole.wants(table)] == ["orders", "people", "items", "log_in"]
    assert [table.name for table in tables if published.wants(table)] == ["orders", "log_in"]
    assert [len(published.feeds(table)) for table in tables] == [1, 0, 0, 1, 0]
    with pytest.raises(ConfigError, match=r"destinations\[0\].tables\[0\] is 'orders', but 'orders' is not schema"):
        load(written(tmp_path, destinations=[{**stream, "tables": ["orders"]}]))
    with pytest.raises(ConfigError, match=r"destinations\[0\].tables"):
        load(written(tmp_path, destinations=[{**stream, "tables": []}]))
    with pytest.raises(ConfigError, match="tables is an unknown key"):
        load(written(tmp_path, destinations=[{**lake, "tables": ["public.orders"]}]))


def test_headers_of_requests_are_no_templates(tmp_path: Path) -> None:
    hooks = {"type": "http", "url": "http://127.0.0.1:1", "headers": {"x-table": "${source.table}"}}
    with pytest.raises(ConfigError, match="has a template for x-table: a request holds many events"):
        load(written(tmp_path, destinations=[hooks]))

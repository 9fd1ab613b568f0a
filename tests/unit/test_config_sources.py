"""Several sources in one file: names, sids, and what each source sees of the pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.errors import ConfigError, UsageError
from penstock.model.feed import Sid
from penstock.model.table import TableId
from pipeline_files import of_postgres

EU = "{name: eu, type: postgres, url: postgresql://app@eu/shop}"
US = "{name: us, type: postgres, url: postgresql://app@us/shop}"
CUSTOMERS = TableId("public", "customers")


def pipeline_of(folder: Path, *sources: str, tables: str = "[{match: public.*}]", more: str = "") -> Pipeline:
    file = folder / "pipeline.yaml"
    listed = "\n".join(f"  - {source}" for source in sources)
    file.write_text(
        f"version: 1\nname: crm\nsources:\n{listed}\ntables: {tables}\n"
        f"destinations: [{{type: iceberg, warehouse: ./warehouse}}]\n{more}"
    )
    return load(file)


def refused(folder: Path, *sources: str, more: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        pipeline_of(folder, *sources, more=more)
    return caught.value.what


def test_each_source_has_names_paths_and_a_position_of_its_own(tmp_path: Path) -> None:
    eu, us = pipeline_of(tmp_path, EU, US).source_views
    assert (of_postgres(eu.source).slot, of_postgres(us.source).slot) == ("penstock_crm_eu", "penstock_crm_us")
    assert (of_postgres(eu.source).publication, of_postgres(us.source).publication) == (
        "penstock_crm_eu",
        "penstock_crm_us",
    )
    assert (eu.key, us.key) == ("crm.eu", "crm.us")
    assert (eu.log_uri, us.log_uri) == (f"{eu.home}/log/eu", f"{us.home}/log/us")
    assert eu.home == us.home
    assert eu.state_url == us.state_url


def test_rows_of_several_sources_carry_their_sid_which_is_the_name_unless_given(tmp_path: Path) -> None:
    eu, us = pipeline_of(tmp_path, EU.replace("}", ", sid: Europe}"), US, more="sid_column: region\n").source_views
    assert [feed.sid for feed in eu.feeds(CUSTOMERS)] == [Sid("region", "Europe", "crm")]
    assert [feed.sid for feed in us.feeds(CUSTOMERS)] == [Sid("region", "us", "crm")]
    assert eu.feeds(CUSTOMERS)[0].target == us.feeds(CUSTOMERS)[0].target


def test_a_target_with_the_source_in_it_is_that_sources_own_and_carries_no_sid(tmp_path: Path) -> None:
    rules = '[{match: public.*, mode: [clone, append], target: "{source}.{table}"}]'
    eu, us = pipeline_of(tmp_path, EU, US, tables=rules).source_views
    assert [(str(feed.target), feed.sid) for feed in eu.feeds(CUSTOMERS)] == [
        ("eu.customers", None),
        ("eu.customers__append", None),
    ]
    assert str(us.feeds(CUSTOMERS)[0].target) == "us.customers"


def test_a_named_target_of_a_second_mode_is_shared_though_the_firsts_is_not(tmp_path: Path) -> None:
    rules = '[{match: public.*, mode: [clone, append], target: {clone: "{source}.{table}", append: "all.{table}"}}]'
    (eu, _) = pipeline_of(tmp_path, EU, US, tables=rules).source_views
    assert [(str(feed.target), feed.sid is None) for feed in eu.feeds(CUSTOMERS)] == [
        ("eu.customers", True),
        ("all.customers", False),
    ]


def test_one_source_in_a_list_is_named_like_several_so_that_more_may_follow(tmp_path: Path) -> None:
    (eu,) = pipeline_of(tmp_path, EU).source_views
    assert (eu.key, of_postgres(eu.source).slot, eu.feeds(CUSTOMERS)[0].sid) == (
        "crm.eu",
        "penstock_crm_eu",
        Sid("sid", "eu", "crm"),
    )


def test_a_pipeline_of_several_sources_has_none_that_is_meant_without_a_word(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="several sources: eu, us"):
        _ = pipeline_of(tmp_path, EU, US).source


@pytest.mark.parametrize(
    ("sources", "what"),
    [
        ((EU, EU), r"sources[1].name is eu, and so is another source's"),
        ((EU, US.replace("}", ", sid: eu}")), r"sources[1].sid is eu, and so is another source's"),
        ((EU, US.replace("}", ", sid: 2}")), r"sources must have sids that are all text or all numbers"),
        ((EU, US.replace("}", ", sid: 2.5}")), r"sources[1].sid is 2.5, but must be text or a whole number"),
        ((EU, US.replace("name: us, ", "")), r"sources[1].name is missing"),
        (
            (EU, EU.replace("name: eu", "name: eu2").replace("}", ", slot: penstock_crm_eu}")),
            r"sources[1].slot is penstock_crm_eu, and so is another source's",
        ),
        (
            (EU, US.replace("name: us", f"name: {'u' * 54}")),
            r"sources[1].publication must be at most 63 characters long",
        ),
    ],
)
def test_sources_that_cannot_be_told_apart_are_refused(tmp_path: Path, sources: tuple[str, ...], what: str) -> None:
    assert what in refused(tmp_path, *sources)


def test_numbers_may_be_sids(tmp_path: Path) -> None:
    source_views = pipeline_of(tmp_path, EU.replace("}", ", sid: 1}"), US.replace("}", ", sid: 2}")).source_views
    assert [source_view.sid for source_view in source_views] == [Sid("sid", 1, "crm"), Sid("sid", 2, "crm")]


def test_slots_of_different_servers_may_have_one_name(tmp_path: Path) -> None:
    source_views = pipeline_of(tmp_path, EU.replace("}", ", slot: s}"), US.replace("}", ", slot: s}")).source_views
    assert [of_postgres(source_view.source).slot for source_view in source_views] == ["s", "s"]


def test_source_and_sources_exclude_each_other_and_one_of_them_is_needed(tmp_path: Path) -> None:
    both = "source: {type: postgres, url: postgresql://app@eu/shop}\n"
    assert "sources and `source` are mutually exclusive" in refused(tmp_path, EU, more=both)
    file = tmp_path / "none.yaml"
    file.write_text(
        "version: 1\nname: crm\ntables: [{match: public.*}]\ndestinations: [{type: iceberg, warehouse: w}]\n"
    )
    with pytest.raises(ConfigError, match="source is missing, and so is `sources`"):
        load(file)


def test_a_single_source_may_carry_a_sid_and_keeps_its_plain_names(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(
        "version: 1\nname: crm\nsource: {type: postgres, url: postgresql://app@eu/shop, sid: eu}\n"
        'tables: [{match: public.*, target: "{source}_{schema}.{table}"}, {match: x.*}]\n'
        "destinations: [{type: iceberg, warehouse: w}]\n"
    )
    pipeline = load(file)
    assert (pipeline.key, of_postgres(pipeline.source).slot, pipeline.source_views) == (
        "crm",
        "penstock_crm",
        [pipeline],
    )
    assert str(pipeline.feeds(CUSTOMERS)[0].target) == "crm_public.customers"
    assert pipeline.feeds(TableId("x", "y"))[0].sid == Sid("sid", "eu", "crm")

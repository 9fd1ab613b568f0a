"""From a pipeline file to values, and every mistake to one line that says where, what and what is allowed."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Annotated, get_args, get_origin

import pytest

from penstock.config.destinations import FilesDestination, IcebergDestination
from penstock.config.load import load
from penstock.config.model import BatchConfig, Pipeline
from penstock.destinations.iceberg.type_map import ICEBERG_TYPES
from penstock.errors import ConfigError, UsageError
from penstock.model.feed import ColumnChoice, Feed, Mode, Projection
from penstock.model.table import TableId
from pipeline_files import of_postgres, pipeline_file

SECRET = "s3cr3t-hunter2"
GOOD = """\
version: 1
name: shop
source:
  type: postgres
  url: postgresql://app:${SHOP_PASSWORD}@db:5432/shop
tables:
  - match: public.*
    exclude: [public.tmp_%]
destinations:
  - type: iceberg
    warehouse: ./warehouse
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    return tmp_path


def loaded(folder: Path, text: str = GOOD) -> Pipeline:
    file = folder / "pipeline.yaml"
    file.write_text(text)
    return load(file)


def lake_of(pipeline: Pipeline) -> IcebergDestination:
    lake = pipeline.lake
    assert isinstance(lake, IcebergDestination)
    return lake


def refused(folder: Path, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        loaded(folder, text)
    error = caught.value
    assert SECRET not in str(error)
    assert "\n" not in str(error)
    assert str(folder / "pipeline.yaml") in error.what
    assert error.solution
    return error


def test_what_is_not_said_has_a_default(folder: Path) -> None:
    pipeline = loaded(folder)
    assert pipeline.file == folder / "pipeline.yaml"
    assert pipeline.source.url.get_secret_value() == f"postgresql://app:{SECRET}@db:5432/shop"
    assert (of_postgres(pipeline.source).publication, of_postgres(pipeline.source).slot) == (
        "penstock_shop",
        "penstock_shop",
    )
    assert pipeline.destinations[0].name == "lake"
    assert lake_of(pipeline).warehouse == str(folder / "warehouse")
    assert pipeline.home == folder / "penstock-shop"
    assert pipeline.log_uri == str(folder / "penstock-shop" / "log")
    assert pipeline.state_url == str(folder / "penstock-shop" / "state.db")
    assert (pipeline.log.segment_bytes, pipeline.log.segment_age, pipeline.batch.max_age) == (2**24, 0.2, 0.5)
    assert pipeline.batch.of_streams.max_age == 0, "in streams changes do not wait for company"
    assert BatchConfig(max_age=1.5).of_streams.max_age == 1.5, "unless the file says so"


def test_paths_are_relative_to_the_file_and_not_to_where_one_stands(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "p.yaml").write_text(
        GOOD.replace("./warehouse", "../lake") + "state: s/state.db\nlog: {uri: l}\n"
    )
    monkeypatch.chdir(folder)
    pipeline = load(Path("sub/p.yaml"))
    assert pipeline.file == folder / "sub" / "p.yaml"
    assert lake_of(pipeline).warehouse == str(folder / "lake")
    assert pipeline.home == folder / "penstock-shop"
    assert pipeline.state_url == str(folder / "sub" / "s" / "state.db")
    assert loaded(folder, GOOD + "state: memory\n").state_url == "memory"
    assert pipeline.log_uri == str(folder / "sub" / "l")


def test_a_file_uri_with_one_slash_is_a_local_folder(folder: Path) -> None:
    pipeline = loaded(folder, GOOD.replace("./warehouse", f"file:{folder}/lake"))
    assert lake_of(pipeline).warehouse == f"file://{folder}/lake"


def test_a_remote_warehouse_keeps_the_home_beside_the_file(folder: Path) -> None:
    pipeline = loaded(folder, GOOD.replace("./warehouse", "s3://bucket/lake"))
    assert lake_of(pipeline).warehouse == "s3://bucket/lake"
    assert pipeline.home == folder / "penstock-shop"


def test_certificate_paths_in_the_url_are_relative_to_the_file(folder: Path) -> None:
    pipeline = loaded(folder, GOOD.replace("5432/shop", "5432/shop?sslmode=verify-full&sslrootcert=certs/ca.pem"))
    assert f"sslrootcert={folder}/certs/ca.pem" in pipeline.source.url.get_secret_value()
    system = loaded(folder, GOOD.replace("5432/shop", "5432/shop?sslmode=verify-full&sslrootcert=system"))
    assert system.source.url.get_secret_value().endswith("sslrootcert=system")


def test_the_first_rule_that_matches_and_does_not_exclude_decides(folder: Path) -> None:
    text = GOOD.replace(
        "  - match: public.*\n",
        "  - match: public.orders\n    target: raw.sales_orders\n"
        '  - match: "%.audit"\n    target: audit.{schema}_{table}\n'
        "  - match: public.*\n",
    )
    pipeline = loaded(folder, text)
    assert pipeline.target(TableId("public", "orders")) == TableId("raw", "sales_orders")
    assert pipeline.target(TableId("odd.schema", "audit")) == TableId("audit", "odd.schema_audit")
    assert pipeline.target(TableId("public", "items")) == TableId("public", "items")
    assert pipeline.rule_for(TableId("public", "tmp_1")) is None
    assert pipeline.rule_for(TableId("sales", "orders")) is None


def test_a_table_may_have_several_modes_each_with_a_table_of_its_own(folder: Path) -> None:
    text = GOOD.replace(
        "  - match: public.*\n",
        "  - match: public.orders\n    mode: [clone, append]\n    target: raw.orders\n"
        "  - match: public.items\n    mode: [append, clone]\n    target: {clone: raw.present}\n"
        "  - match: public.*\n    mode: append\n",
    )
    pipeline = loaded(folder, text)

    def feeds(name: str) -> list[tuple[str, str, str]]:
        return [(str(feed.name), str(feed.target), feed.mode) for feed in pipeline.feeds(TableId("public", name))]

    assert feeds("orders") == [
        ("public.orders", "raw.orders", "clone"),
        ("public.orders__append", "raw.orders__append", "append"),
    ]
    assert feeds("items") == [
        ("public.items", "public.items", "append"),
        ("public.items__clone", "raw.present", "clone"),
    ]
    assert feeds("others") == [("public.others", "public.others", "append")]
    for feed in pipeline.feeds(TableId("public", "orders")):
        assert pipeline.feed(feed.name) == feed
    lone = TableId("public", "orders__clone")
    alone = Feed(lone, lone, lone, Mode.APPEND, type_map=ICEBERG_TYPES)
    assert pipeline.feed(lone) == alone, "a table of that very name"
    assert pipeline.feed(TableId("sales", "orders__append")) is None


def test_rows_and_columns_of_a_rule(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASK_SALT", "pepper")
    rule = (
        "  - match: public.customers\n    where: \"country <> 'XX'\"\n"
        "    columns: {email: mask, notes: drop, id: keep, name: {rename: full_name, mask: true}}\n"
        '    set: {region: "${source.name}: ${table.schema}.${table.name}", tier: 1, live: true}\n'
    )
    text = GOOD.replace("  - match: public.*\n", rule + "  - match: public.*\n") + "mask_salt: ${MASK_SALT}\n"
    pipeline = loaded(folder, text)
    (feed,) = pipeline.feeds(TableId("public", "customers"))
    assert feed.projection == Projection(
        "country <> 'XX'",
        (
            ColumnChoice("email", masked=True),
            ColumnChoice("notes", dropped=True),
            ColumnChoice("name", masked=True, name="full_name"),
        ),
        (("region", "shop: public.customers"), ("tier", 1), ("live", True)),
        "pepper",
    )
    assert "pepper" not in repr(pipeline) + repr(feed)
    assert pipeline.feeds(TableId("public", "orders"))[0].projection == Projection()
    assert "mask_salt is missing, and a column is masked" in str(
        refused(folder, text.replace("mask_salt: ${MASK_SALT}", ""))
    )
    wrong = {
        "country <> 'XX'": ("country ~ 'X'", r"where .*at character 9: '~' is not understood; allowed are comparisons"),
        "notes: drop": ("notes: forget", r"columns says 'forget' for notes; allowed are keep, drop, mask"),
        "${table.name}": ("${table.nam}", r"names \$\{table.nam\}; allowed are \$\{source.name\}"),
    }
    for right, (mistake, said) in wrong.items():
        assert re.search(said, str(refused(folder, text.replace(right, mistake)))), said


def test_spark_and_catalog_properties_are_text(folder: Path) -> None:
    text = GOOD + "    catalog: {type: rest, cache-enabled: false}\nspark: {spark.cores.max: 4, spark.x: yes}\n"
    pipeline = loaded(folder, text)
    assert lake_of(pipeline).catalog == {"type": "rest", "cache-enabled": "false"}
    assert pipeline.spark == {"spark.cores.max": "4", "spark.x": "true"}


def test_spark_may_be_left_out_before_its_settings(folder: Path) -> None:
    text = GOOD + "spark: {master: 'spark://host:7077', spark.cores.max: 4}\n"
    assert loaded(folder, text).spark == {"spark.master": "spark://host:7077", "spark.cores.max": "4"}
    twice = refused(folder, GOOD + "spark: {master: yarn, spark.master: yarn}\n")
    assert "spark has spark.master twice" in str(twice)


def test_a_pipeline_survives_pickling_and_hides_its_password(folder: Path) -> None:
    pipeline = pickle.loads(pickle.dumps(loaded(folder)))
    assert pipeline == loaded(folder)
    assert pipeline.file == folder / "pipeline.yaml"
    assert pipeline.source.pipeline == "shop"
    assert SECRET not in repr(pipeline)
    assert SECRET not in str(pipeline)


def test_variables_have_defaults_and_an_escape(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOP_HOME", raising=False)
    monkeypatch.setenv("SHOP_EMPTY", "")
    text = GOOD.replace("./warehouse", "${SHOP_HOME:-/srv}/${SHOP_EMPTY:-lake}/$${literal}")
    assert lake_of(loaded(folder, text)).warehouse == "/srv/lake/${literal}"
    monkeypatch.setenv("SHOP_HOME", "/elsewhere")
    assert lake_of(loaded(folder, text)).warehouse == "/elsewhere/lake/${literal}"


def test_a_variable_cannot_add_keys(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_HOME", "x\nspark: {a: b}")
    pipeline = loaded(folder, GOOD.replace("./warehouse", "${SHOP_HOME}"))
    assert pipeline.spark == {}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # what is replaced, by what, and what the error must say
        (("version: 1", "version: 2"), r":1: version is 2, but must be 1"),
        (("version: 1\n", ""), r": version is missing"),
        (("name: shop", "name: My Shop"), r":2: name is 'My Shop', but must match \^\[a-z\]"),
        (("name: shop", "name: " + "n" * 55), r"at most 54 characters"),
        (
            ("source:", "sorce:"),
            r":3: sorce is an unknown key; did you mean source\? Allowed here: version, name, source",
        ),
        (("  type: postgres", "  typ: postgres"), r":4: source\.typ is an unknown key; did you mean type\?"),
        (("  type: postgres", "  type: oracle"), r":4: source\.type is 'oracle', but must be 'postgres' or 'mysql'"),
        (("match:", "mtach:"), r":7: tables\[0\]\.mtach is an unknown key; did you mean match\?"),
        (("public.*", "orders"), r":7: tables\[0\]\.match is 'orders', but .* is not schema\.table, schema\.\*"),
        (("[public.tmp_%]", "public.tmp_%"), r":8: tables\[0\]\.exclude is .*, but must be a list"),
        (("public.tmp_%", "tmp_"), r":8: tables\[0\]\.exclude\[0\] is 'tmp_'"),
        (("  - match: public.*\n    exclude: [public.tmp_%]\n", "  []\n"), r"tables must have at least 1 entry"),
        (("exclude: [public.tmp_%]", "mode: hstory"), r"mode is 'hstory', but must be clone"),
        (("exclude: [public.tmp_%]", "mode: [clone, clone]"), r"mode names one mode twice"),
        (
            ("exclude: [public.tmp_%]", 'mode: append\n    target: {clone: "a.{table}"}'),
            r"names a table for mode clone, which is not",
        ),
        (("exclude: [public.tmp_%]", "target: lake.all"), r"target must contain \{table\}"),
        (("exclude: [public.tmp_%]", "target: nodot"), r"tables\[0\]\.target is 'nodot', but must be namespace\.table"),
        (("./warehouse", "''"), r"destinations\[0\]\.warehouse must not be empty"),
        (("    warehouse: ./warehouse\n", ""), r"destinations\[0\]\.warehouse is missing"),
        (("name: shop", "name: shop\nname: shop"), r":3: name is defined twice"),
        (("type: iceberg", "type: hudi"), r"destinations\[0\]\.type is 'hudi', but must be 'iceberg'"),
        (
            ("type: iceberg\n    warehouse: ./warehouse", "type: delta\n    warehouse: gs://bucket/delta"),
            r"destinations\[0\]\.warehouse must be a folder or s3://bucket/folder",
        ),
        (("name: shop", "name: [shop"), r":\d+ is not valid YAML"),
        (("public.*", "%.orders"), r":7 is not valid YAML.* in quotes"),
        (("name: shop", "name: shop\nlog: {max_bytes: lots}"), r":3: log\.max_bytes is 'lots', but must be .*16MiB"),
        (("name: shop", "name: shop\nbatch: {max_age: soon}"), r":3: batch\.max_age is 'soon', but must be .*200ms"),
        (("name: shop", "name: shop\nbatch: {max_changes: 0}"), r"batch\.max_changes is 0, but must be at least 1"),
        (("name: shop", "name: shop\nbatch: {max_changes: many}"), r"must be a whole number"),
        (("name: shop", "name: shop\nlog: fast"), r"log is 'fast', but must be a mapping"),
        (("name: shop", "name: shop\nspark: {a: [1]}"), r"spark\.a must be text"),
        (("${SHOP_PASSWORD}", "${SHOP_NOT_SET}"), r":5: source\.url needs the environment variable SHOP_NOT_SET"),
        (("${SHOP_PASSWORD}", "${SHOP PASSWORD}"), r":5: source\.url has a malformed variable"),
        (("${SHOP_PASSWORD}", "${SHOP_PASSWORD"), r":5: source\.url has a malformed variable"),
        (("postgresql://", "mysql://"), r":5: source\.url must be postgresql://user"),
        (("5432/shop", "5432/shop?sslmode=strict"), r"source\.url has an sslmode .*verify-full"),
        (("5432/shop", "5432/shop?sslmod=require"), r"source\.url is not a URL that libpq understands"),
        (("app:$", "app:a/b$"), r"percent-encoded.*PGPASSWORD"),
        (("app:$", "app:p@ss$"), r"percent-encoded.*PGPASSWORD"),
        (("app:$", "app:100%zz$"), r"percent-encoded.*PGPASSWORD"),
        (("@db:5432", "@db:port"), r"source\.url has a port that is no number"),
        (("  url: ", "  slot: Shop-Slot\n  url: "), r"source\.slot is 'Shop-Slot', but must match"),
    ],
)
def test_a_mistake_is_one_line_with_place_and_way_out(folder: Path, change: tuple[str, str], expected: str) -> None:
    assert change[0] in GOOD
    error = refused(folder, GOOD.replace(*change, 1))
    assert re.search(expected, str(error)), str(error)


def test_two_destinations_need_two_names(folder: Path) -> None:
    error = refused(folder, GOOD + "  - {type: iceberg, warehouse: ./other}\n")
    assert "destinations[1].name is lake, and so is another destination's" in error.what


def test_several_mistakes_are_counted(folder: Path) -> None:
    error = refused(folder, GOOD.replace("version: 1", "version: 9").replace("type: iceberg", "type: hudi"))
    assert "(1 more to correct)" in error.what


def test_a_value_that_came_from_the_environment_is_never_shown(folder: Path) -> None:
    error = refused(folder, GOOD.replace("name: shop", "name: ${SHOP_PASSWORD}"))
    assert ":2: name must match" in error.what


def test_properties_are_never_shown(folder: Path) -> None:
    kept = loaded(folder, GOOD + f"    catalog: {{token: {SECRET}}}\nstate: postgresql://app:{SECRET}@db/state\n")
    assert lake_of(kept).catalog == {"token": SECRET}
    assert SECRET not in repr(kept)
    error = refused(folder, GOOD + f"    catalog: {{token: [{SECRET}]}}\n")
    assert "destinations[0].catalog.token must be text" in error.what


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_an_empty_file(folder: Path, text: str) -> None:
    assert "is empty" in refused(folder, text).what


@pytest.mark.parametrize("text", ["just words\n", "- a\n- list\n"])
def test_a_file_that_is_no_mapping(folder: Path, text: str) -> None:
    assert "must be a mapping" in refused(folder, text).what


def test_a_missing_file_names_the_one_that_is_there(folder: Path) -> None:
    (folder / "pipeline.yaml").write_text(GOOD)
    with pytest.raises(ConfigError, match=r"there is no such file\. Did you mean pipeline\.yaml\?"):
        load(folder / "pipline.yaml")


def test_a_folder_and_bytes_are_no_pipeline_files(folder: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        load(folder)
    (folder / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load(folder / "bytes.yaml")


def test_the_keys_of_the_file_are_these() -> None:
    """The public contract: a change here is a change for every user, and docs/config.md explains each key."""
    assert {field.alias or name for name, field in Pipeline.model_fields.items()} == {
        "version", "name", "source", "sources", "sid_column", "tables", "destinations", "log", "batch", "copy", "state",
        "spark", "mask_salt", "commit_policy", "home", "processors", "ready", "labels", "tenant",
    }  # fmt: skip


TYPES = """
    types:
      amount: Decimal(30, 10)
      "pg:timestamp with time zone": TEXT
      pg:int4[]: text
"""


def test_a_stream_of_files(folder: Path) -> None:
    iceberg = "type: iceberg\n    warehouse: ./warehouse"
    assert iceberg in GOOD
    pipeline = loaded(folder, GOOD.replace(iceberg, "type: files\n    path: ./changes"))
    (stream,) = pipeline.destinations
    assert isinstance(stream, FilesDestination)
    assert (stream.path, stream.shards, stream.start) == (str(folder / "changes"), 1, "log")
    assert pipeline.home.parent == folder, "a pipeline without a warehouse has its folder beside the file"
    for given, problem in (
        ("path: s3://bucket/changes.jsonl", "destinations[0].path names one growing file, which must be local"),
        ("path: ./x\n    start: yesterday", "destinations[0].start is 'yesterday', but must be log, now, copy or a"),
        ("path: ./x\n    shards: 0", "destinations[0].shards is 0, but must be at least 1"),
        ("warehouse: ./x", "destinations[0].warehouse is an unknown key"),
    ):
        error = refused(folder, GOOD.replace(iceberg, f"type: files\n    {given}"))
        assert problem in error.what
    for start, position, rows in (("now", "now", False), ("copy", "now", True), ("0/16B3748", 0x16B3748, False)):
        (stream,) = loaded(
            folder, GOOD.replace(iceberg, f'type: files\n    path: ./x\n    start: "{start}"')
        ).destinations
        assert isinstance(stream, FilesDestination)
        assert (stream.first_position, stream.publishes_rows) == (position, rows)
    with pytest.raises(UsageError, match="no destination of tables"):
        _ = pipeline.lake


def test_choices_for_columns_and_types(folder: Path) -> None:
    pipeline = loaded(folder, GOOD.replace("    exclude: [public.tmp_%]\n", TYPES[1:]))
    (feed,) = pipeline.feeds(TableId("public", "orders"))
    assert feed.types == (("amount", "decimal(30,10)"), ("pg:timestamptz", "text"), ("pg:int4[]", "text"))
    assert not feed.strict
    (strict,) = pickle.loads(pickle.dumps(pipeline.strictly())).feeds(feed.table)
    assert strict.strict


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("amount: money", "tables[0].types.amount is 'money', but must be text, or decimal(p,s)"),
        ("amount: 'decimal(39,2)'", "tables[0].types.amount is 'decimal(39,2)', but must be text, or decimal(p,s)"),
        ("amount: 'decimal(5,6)'", "0 <= s <= p"),
        ("amount: decimal(30,10)", "tables[0].types.amount is 'decimal(30', but must be quoted between braces"),
        ("amount: 5", "tables[0].types.amount is 5, but must be text"),
        (
            "pg:text: 'decimal(5,2)'",
            "tables[0].types.pg:text is 'decimal(5,2)', but may be decimal(p,s) for pg:numeric",
        ),
        ("'pg:numeric[]': 'decimal(5,2)'", "any other type may be text"),
        ("'pg:varchar(5)': text", "must name a type as Postgres does"),
        ("'pg:': text", "must name a type as Postgres does"),
    ],
)
def test_choices_that_nobody_can_make(folder: Path, written: str, problem: str) -> None:
    error = refused(folder, GOOD.replace("exclude: [public.tmp_%]", f"types: {{{written}}}"))
    assert problem in error.what


def test_every_key_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "config.md").read_text()
    documented = set(re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE))
    assert documented == _all_keys(Pipeline)


def test_the_documented_pipelines_load_and_say_the_defaults(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "p")
    text = (Path(__file__).parents[2] / "docs" / "config.md").read_text()
    examples = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if block.startswith("version:")]
    shortest, complete = (loaded(folder, example) for example in examples)
    assert complete.source == shortest.source
    assert complete.destinations == shortest.destinations
    assert complete.batch == shortest.batch
    assert complete.copying == shortest.copying
    assert complete.log.model_copy(update={"uri": None}) == shortest.log
    assert (complete.log_uri, complete.state_url) == (shortest.log_uri, shortest.state_url)
    assert complete.feeds(TableId("public", "orders")) == shortest.feeds(TableId("public", "orders"))
    mine, default = complete.tables[0], shortest.tables[0]
    assert (mine.partitions, mine.on_partition_drop) == (default.partitions, default.on_partition_drop)


def _all_keys(model: object) -> set[str]:
    keys: set[str] = set()
    for name, field in getattr(model, "model_fields", {}).items():
        keys.add(field.alias or name)
        for inner in (field.annotation, *getattr(field.annotation, "__args__", ())):
            choices = get_args(inner.__origin__) if get_origin(inner) is Annotated else (inner,)
            for choice in choices:
                keys |= _all_keys(choice)
    return keys


def test_only_a_strict_run_rescues_nothing(folder: Path) -> None:
    rule = 'mode: [clone, append, history, events]\n    where: "a = 1"\n    columns: {b: mask}\n    set: {c: 1}'
    text = GOOD.replace("exclude: [public.tmp_%]", rule) + "mask_salt: salt\n"
    pipeline, table = loaded(folder, text), TableId("public", "t")
    assert [feed.strict for feed in pipeline.feeds(table)] == [False] * 4
    assert [feed.strict for feed in pipeline.strictly().feeds(table)] == [True] * 4


def test_tables_may_be_whatever_the_publication_has(tmp_path: Path) -> None:
    pipeline = load(pipeline_file(tmp_path, tables="publication"))
    orders = TableId("public", "orders")
    assert pipeline.wants(orders)
    assert pipeline.by_publication(orders)
    named = [{"match": "public.orders", "mode": "history"}, {"match": "published", "exclude": ["audit.*"]}]
    pipeline = load(pipeline_file(tmp_path, tables=named))
    assert not pipeline.by_publication(orders)
    assert pipeline.by_publication(TableId("public", "items"))
    assert not pipeline.wants(TableId("audit", "log"))
    source = {"type": "mysql", "url": "mysql://u@127.0.0.1/shop"}
    with pytest.raises(ConfigError, match="has no publication"):
        load(pipeline_file(tmp_path, tables="publication", source=source))

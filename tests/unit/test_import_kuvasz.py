"""`penstock import kuvasz`: the file that it prints is one that penstock reads, and nothing is left out silently."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.cli import main as cli
from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.config.postgres_destination import PostgresDestination
from penstock.model.feed import Feed, Mode
from penstock.model.table import TableId
from pipeline_files import of_postgres

SECRET = "hunter2"
ONE = """
- database: shop
  urls:
  - url: postgres://kuvasz:hunter2@127.0.0.1:5432/shop?replication=database&application_name=repl&sslmode=disable
    sid: local
  tables:
    orders:
"""
SIX = "\n".join(
    [
        "- database: db1",
        "  urls:",
        *(f"  - {{url: 'postgres://kuvasz:hunter2@127.0.0.1:60{sid}/db1', sid: {sid}}}" for sid in range(12, 18)),
        "  tables: {t0: , t2: {target: rt2}, t3: {type: append}, t4: {type: history},",
        "    t7: {partitions_regex: 't7_.*'}, sales.t8: }",
    ]
)
CONF = """
[server]
address = ":8000"
[database]
url = "postgres://kuvasz:hunter2@10.0.0.1/dest"
schema = "warehouse"
[app]
map_file = "map.yaml"
default_schema = "app"
sync_rate = 5000
num_workers = 2
"""


@dataclass(frozen=True)
class Outcome:
    """What the command printed, where, and how it ended."""

    code: int
    text: str
    notes: list[str]


class Importer:
    """Runs the command on a map, and reads what it prints with penstock's own reader."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._patch, self._capsys = folder, patch, capsys

    def run(self, text: str, *options: str) -> Outcome:
        file = self.folder / "map.yaml"
        file.write_text(text)
        code = cli.main(["import", "kuvasz", str(file), *options])
        shown = self._capsys.readouterr()
        assert SECRET not in shown.out + shown.err
        return Outcome(code, shown.out, shown.err.replace(f"{self.folder}/", "").splitlines())

    def load(self, text: str) -> Pipeline:
        for name in re.findall(r"\$\{([A-Z0-9_]+)\}", text):
            self._patch.setenv(name, "postgresql://app@db/shop" if name.endswith("_URL") else SECRET)
        file = self.folder / "pipeline.yaml"
        file.write_text(text)
        return load(file)

    def conf(self, text: str) -> list[str]:
        file = self.folder / "kuvasz-streamer.toml"
        file.write_text(text)
        return ["--conf", str(file)]


@pytest.fixture
def importer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Importer:
    return Importer(tmp_path, monkeypatch, capsys)


def urls(pipeline: Pipeline) -> list[str]:
    return [of_postgres(source).url.get_secret_value() for source in pipeline.sources]


def feed(pipeline: Pipeline, schema: str, name: str) -> Feed:
    (found,) = pipeline.source_views[0].feeds(TableId(schema, name))
    return found


def test_one_database(importer: Importer) -> None:
    done = importer.run(ONE)
    pipeline = importer.load(done.text)
    assert (done.code, pipeline.name) == (0, "shop")
    assert [(source.name, source.sid) for source in pipeline.sources] == [("local", "local")]
    assert urls(pipeline) == ["postgres://kuvasz:hunter2@127.0.0.1:5432/shop?application_name=repl&sslmode=disable"]
    orders = feed(pipeline, "public", "orders")
    assert (orders.mode, orders.target) == (Mode.CLONE, TableId("public", "orders"))
    (destination,) = pipeline.destinations
    assert isinstance(destination, PostgresDestination)
    assert not destination.create
    assert "# set SHOP_LOCAL_PASSWORD: the password" in done.text
    assert "slot and publication here are kuvasz_shop_local" in done.text
    assert "if the tables lack the column sid: `source: {type: postgres, url: ...}`" in done.text
    assert done.notes == [
        "the destination's URL is in kuvasz-streamer.toml: import with --conf, or set DESTINATION_URL to it",
        "schemas are taken to be public, kuvasz-streamer's default, at the sources and at the destination",
    ]
    assert all(f"# {note}" in done.text for note in done.notes)


def test_six_databases_into_one_table_by_sid(importer: Importer) -> None:
    done = importer.run(SIX)
    pipeline = importer.load(done.text)
    sids = [str(sid) for sid in range(12, 18)]
    assert [source.sid for source in pipeline.sources] == sids
    assert urls(pipeline) == [f"postgres://kuvasz:hunter2@127.0.0.1:60{sid}/db1" for sid in sids]
    fed = [view.feeds(TableId("public", "t0"))[0] for view in pipeline.source_views]
    assert {one.target for one in fed} == {TableId("public", "t0")}
    assert [one.sid and one.sid.value for one in fed] == sids


def test_modes_targets_and_schemas(importer: Importer) -> None:
    done = importer.run(SIX, *importer.conf(CONF))
    pipeline = importer.load(done.text)
    assert feed(pipeline, "app", "t2").target == TableId("warehouse", "rt2")
    assert feed(pipeline, "app", "t3").mode is Mode.APPEND
    history = feed(pipeline, "app", "t4")
    assert (history.mode, history.period.valid_to) == (Mode.HISTORY, "kvsz_end")
    assert feed(pipeline, "sales", "t8").target == TableId("warehouse", "t8")
    assert not pipeline.wants(TableId("public", "t2"))
    assert not pipeline.each_partition(TableId("app", "t7"))
    assert "# partitions_regex was t7_.*" in done.text
    assert pipeline.copying.max_rows_per_second == 5000
    (destination,) = pipeline.destinations
    assert isinstance(destination, PostgresDestination)
    assert destination.url.get_secret_value() == "postgres://kuvasz:hunter2@10.0.0.1/dest"
    assert done.notes == [
        "map.yaml:9: tables.t3: the first copy replaces the rows of this sid in warehouse.t3, also those that the"
        " source has deleted; keep them as docs/postgres.md says",
        "map.yaml:9: tables.t4: a version in warehouse.t4 counts as open if its kvsz_end is 9999-01-01 in UTC; if the"
        " server's time zone is another, correct it first as docs/postgres.md says",
        "not carried over: [server] of kuvasz-streamer's settings",
        "not carried over: app.num_workers of kuvasz-streamer's settings",
    ]


def test_unknown_keys_are_comments_and_notes(importer: Importer) -> None:
    done = importer.run(
        """
- database: shop
  region: eu
  urls:
  - url: postgres://kuvasz@db/shop?pool_max_conns=4
    sid: a
    passwort: hunter2
  tables:
    orders: {type: clone, colour: red, insert: x}
"""
    )
    assert importer.load(done.text).wants(TableId("public", "orders"))
    expected = [
        "map.yaml:3: not carried over: database shop: region is no key of kuvasz-streamer's",
        "map.yaml:5: not carried over: option pool_max_conns in the url of a, which libpq does not have",
        "map.yaml:7: not carried over: source a: passwort is no key of kuvasz-streamer's",
        "map.yaml:9: tables.orders: not carried over: insert, which kuvasz-streamer reads and does not use",
        "map.yaml:9: not carried over: tables.orders: colour is no key of kuvasz-streamer's",
    ]
    assert done.notes[:5] == expected
    assert all(f"# {note.split(': ', 1)[1]}" in done.text for note in expected)


TABLES_IN_DOUBT = """
- database: shop
  urls: [{url: "postgres://kuvasz@db/shop", sid: a}]
  tables:
    good:
    filtered: {filter: "country != 'XX'"}
    computed: {set: {id: id, name: "first + last"}}
    strange: {type: mirror}
    deep: {target: other.deep}
    twin: {target: good}
    public.good: {type: history}
"""


def test_tables_that_would_hold_other_rows_are_commented_out(importer: Importer) -> None:
    done = importer.run(TABLES_IN_DOUBT)
    pipeline = importer.load(done.text)
    assert done.code == 0
    assert [rule.match for rule in pipeline.tables] == ["public.good"]
    assert pipeline.tables[0].modes == [Mode.CLONE]
    for name, why in {
        "filtered": "6: not carried over: tables.filtered: filter is an expression in CEL; write it as `where`",
        "computed": "7: not carried over: tables.computed: set computes columns",
        "strange": "8: not carried over: tables.strange: type mirror is none of clone, append, history",
        "deep": "9: not carried over: tables.deep: target public.other.deep cannot be written here",
        "twin": "10: not carried over: tables.twin: public.good is also the target of public.good",
        "public.good": "11: not carried over: tables.public.good: public.good is in the map twice",
    }.items():
        assert any(note.startswith(f"map.yaml:{why}") for note in done.notes), (name, done.notes)
        assert f"  # - match: public.{name.removeprefix('public.')}\n" in done.text
    assert "# filter was country != 'XX'" in done.text
    assert "# set was name: first + last" in done.text


def test_rules_that_are_commented_out_are_whole(importer: Importer) -> None:
    """An operator who has decided removes the marks, and has a rule."""
    done = importer.run(TABLES_IN_DOUBT)
    decided = done.text.replace(
        "  # - match: public.filtered\n  #   mode", "  - match: public.filtered\n    mode"
    ).replace("  #   target: public.filtered", "    target: public.filtered\n    where: country <> 'XX'")
    assert importer.load(decided).wants(TableId("public", "filtered"))


def test_a_map_of_which_nothing_can_be_followed_is_an_error(importer: Importer) -> None:
    done = importer.run(ONE.replace("orders:", "orders: {filter: 'id > 7'}"))
    assert done.code == 2
    assert "# filter was id > 7" in done.text
    assert done.notes[-1].startswith("penstock: [config] none of the tables in map.yaml can be followed")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("postgres://kuvasz:hunter2@db/shop", "postgres://kuvasz:hunter2@db/shop"),
        ("postgresql://u:hunter2@a:1,b:2/shop", "postgresql://u:hunter2@a:1,b:2/shop"),
        ("postgres://u:hunter2@[::1]:5433/shop", "postgres://u:hunter2@[::1]:5433/shop"),
        ("postgres://u@db/shop?password=hunter2", "postgres://u@db/shop?password=hunter2"),
        ("postgres://u@db/shop", "postgres://u@db/shop"),
        ("postgres://u:${PGPASS}@db/shop", "postgres://u:hunter2@db/shop"),
        ("postgres://u:${hunter2$@db/shop", "postgres://u:hunter2@db/shop"),
        ("${SHOP_URL}", "postgresql://app@db/shop"),
        # It is not certain where these passwords end: a variable stands for the whole.
        ("postgres://u:hunter2@x@db/shop", "postgresql://app@db/shop"),
        ("postgres://u:x/hunter2@db/shop", "postgresql://app@db/shop"),
        ("postgres://u:x?hunter2@db/shop", "postgresql://app@db/shop"),
        ("postgres://u:x#hunter2@db/shop", "postgresql://app@db/shop"),
        ("postgres://u:hunter2", "postgresql://app@db/shop"),
        ("postgres://u:hunter2@db/${shop", "postgresql://app@db/shop"),
        ("postgres://u:hunter2@db/shop?sslmode=maybe", "postgresql://app@db/shop"),
        ("host=db user=u password=hunter2", "postgresql://app@db/shop"),
        ("hunter2", "postgresql://app@db/shop"),
    ],
)
def test_passwords_become_variables(importer: Importer, given: str, read: str) -> None:
    done = importer.run(f"- database: shop\n  urls: [{{url: '{given}', sid: a}}]\n  tables: {{t: }}")
    assert urls(importer.load(done.text)) == [read]
    if "app@db" in read and not given.startswith("$"):
        wanted = "map.yaml:2: url of a is not carried over: set SHOP_A_URL to the whole URL, with its password"
        assert done.notes[0] == wanted
        assert "# set SHOP_A_URL: the whole URL" in done.text


@pytest.mark.parametrize(
    "odd", ["Été", "12", "true", "a-b", "x: y # z", 'q"%*q', "${HOME}", "ab\\x07", "日本", "n" * 80]
)
def test_odd_names_come_back_as_they_were(importer: Importer, odd: str) -> None:
    quoted = '"' + odd.replace('"', '\\"') + '"'
    tables = f'{{{quoted}: {{target: t}}, {quoted[:-1]}2": {{target: t2}}}}'
    servers = f"[{{url: 'postgres://u@a/x', sid: {quoted}}}, {{url: 'postgres://u@b/x', sid: other}}]"
    done = importer.run(f"- database: {quoted}\n  urls: {servers}\n  tables: {tables}")
    pipeline = importer.load(done.text)
    name = odd.replace("\\x07", "\x07")
    assert pipeline.sources[0].sid == name
    assert feed(pipeline, "public", name).target == TableId("public", "t")
    assert feed(pipeline, "public", f"{name}2").target == TableId("public", "t2")


def test_a_source_without_a_sid_is_reported(importer: Importer) -> None:
    done = importer.run(ONE.replace("    sid: local\n", ""))
    assert importer.load(done.text).source_views[0].sid is not None
    assert done.notes[0] == ("map.yaml:4: source shop has no sid in the map: its rows carry shop, not an empty text")


TWO = """
- database: eu
  urls: [{url: "postgres://u@eu/crm", sid: 1}]
  tables: &tables {customers: , notes: {type: append}}
- database: us
  urls: [{url: "postgres://u@us/crm", sid: 2}]
  tables: *tables
"""


def test_databases_with_the_same_tables_are_one_pipeline(importer: Importer) -> None:
    pipeline = importer.load(importer.run(TWO).text)
    assert [(source.name, source.sid) for source in pipeline.sources] == [("sid_1", "1"), ("sid_2", "2")]
    merged = TWO.replace("*tables", "{customers: {colour: red}, notes: {type: append}}")
    assert "tables.customers of database us: colour is no key" in importer.run(merged).text


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [("sid: 2", "sid: 1", "they share the sid 1"), ("*tables", "{customers: , invoices: }", "their tables differ")],
)
def test_other_databases_need_a_pipeline_each(importer: Importer, old: str, new: str, why: str) -> None:
    text = TWO.replace(old, new)
    done = importer.run(text)
    assert (done.code, done.text) == (2, "")
    assert done.notes == [
        f"penstock: [usage] map.yaml has databases eu, us, which need a pipeline each: {why}. Import them one by one:"
        " penstock import kuvasz map.yaml --database eu > eu.yaml"
    ]
    chosen = importer.run(text, "--database", "us")
    assert "public.customers is also filled from database eu" in chosen.text
    assert "public.customers is also filled from database eu" in " ".join(chosen.notes)


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("- database: [", [], "[config] map.yaml:1 is not valid YAML: expected the node content, but found"),
        ("", [], "[config] map.yaml is empty"),
        ("[]", [], "[config] map.yaml has no database"),
        ("database: shop", [], "[config] map.yaml:1: the map must be a list"),
        ("- urls: []", [], "[config] map.yaml:1: a database has no name"),
        ("- {database: shop, urls: hunter2}", [], "[config] map.yaml:1: `urls` of shop must be a list"),
        (
            "- {database: shop, urls: [hunter2]}",
            [],
            "[config] map.yaml:1: an entry of `urls` of shop must be a mapping",
        ),
        ("- {database: shop, urls: [{sid: 1}]}", [], "[config] map.yaml:1: an entry of `urls` of shop has no `url`"),
        ("- {database: shop, database: hunters}", [], "[config] map.yaml:1: a database has database twice"),
        ("- {database: shop, tables: {t: [x]}}", [], "[config] map.yaml:1: table t must be a mapping"),
        ("- {database: shop, tables: {t: }}", [], "[usage] map.yaml:1: database shop has no urls"),
        (ONE.replace("orders:", ""), [], "[usage] map.yaml:2: database shop has no tables"),
        (ONE, ["--database", "crm"], "[usage] map.yaml has no database crm. It has shop"),
        (ONE, ["--conf", "nowhere.toml"], "[config] nowhere.toml: there is no such file"),
    ],
)
def test_a_map_that_cannot_be_read_is_one_line(importer: Importer, text: str, options: list[str], said: str) -> None:
    done = importer.run(text, *options)
    assert (done.code, done.text, len(done.notes)) == (2, "", 1)
    assert done.notes[0].startswith(f"penstock: {said}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[database\nurl = 'hunter2'", "is not valid TOML"),
        ("database = 'hunter2'", "database must be a section"),
        ("[database]\nurl = 7", "database.url must be text"),
        ("[app]\nsync_rate = 'fast'", "app.sync_rate must be a number"),
    ],
)
def test_settings_that_cannot_be_read_are_one_line(importer: Importer, text: str, said: str) -> None:
    done = importer.run(ONE, *importer.conf(text))
    assert (done.code, done.text, len(done.notes)) == (2, "", 1)
    assert done.notes[0].startswith("penstock: [config] kuvasz-streamer.toml")
    assert said in done.notes[0]


def test_a_map_in_a_database_is_reported(importer: Importer) -> None:
    done = importer.run(ONE, *importer.conf("[app]\nmap_database = 'map.db'"))
    assert done.notes[-1].startswith("app.map_database is set")
    assert "the destination's URL is not in that file: set DESTINATION_URL to it" in done.notes

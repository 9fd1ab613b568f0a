"""kuvasz-streamer's own test suites, over a pipeline file that `penstock import kuvasz` made of its map.

Databases with a sid each go into one set of tables (three, and six with --full), and one into tables without a sid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import yaml

from databases import Database, fresh_database
from kuvasz_suites import (
    SOURCE,
    SOURCE_WITHOUT_SID,
    TARGET,
    TARGET_WITHOUT_SID,
    Triple,
    suites,
    type_triples,
)
from penstock.demo.server import PostgresServer
from running import PipelineFile, Running, await_condition, make_pipeline, running

SIDS = ("12", "13", "14", "15", "16", "17")
SECONDS = 180.0


@pytest.fixture
def dest(embedded_server: PostgresServer) -> Iterator[Database]:
    with fresh_database(embedded_server) as database:
        yield database


@pytest.fixture
def databases(embedded_server: PostgresServer, full: bool) -> Iterator[dict[str, Database]]:
    with ExitStack() as cleanup:
        yield {sid: cleanup.enter_context(fresh_database(embedded_server)) for sid in (SIDS if full else SIDS[:3])}


def imported(folder: Path, sources: Mapping[str, Database], dest: Database, tables: Mapping[str, Any]) -> PipelineFile:
    """The pipeline file that the import makes, with a state and a log of the test's own."""
    urls = [{"url": database.url, "sid": sid} for sid, database in sources.items()]
    (folder / "map.yaml").write_text(yaml.safe_dump([{"database": "db1", "urls": urls, "tables": dict(tables)}]))
    (folder / "kuvasz.toml").write_text(f'[database]\nurl = "{dest.url}"\nschema = "public"\n')
    file = make_pipeline(folder, next(iter(sources.values())))
    made = file.command("import", "kuvasz", str(folder / "map.yaml"), "--conf", str(folder / "kuvasz.toml"))
    assert made.returncode == 0, made.stderr
    kept = {name: file.settings[name] for name in ("log", "batch", "state", "spark")}
    file.settings = {**yaml.safe_load(made.stdout), **kept, "copy": {"max_connections": 1}}
    file.write()
    return file


def rows(database: Database, query: str) -> list[Any]:
    with database.connect() as connection:
        return connection.execute(query.encode()).fetchall()


def play(run: Running, sources: Mapping[str, Database], dest: Database, suites: Sequence[Sequence[Triple]]) -> None:
    """Run the next statement of each suite at every source, and wait until the destination has what the source has.
    Suites have tables of their own, so they go on side by side."""
    for triples in zip_longest(*suites):
        asked = [one for one in triples if one is not None]
        for database in sources.values():
            database.execute(*(statement.format() for statement, _, _ in asked))
        wanted = {
            (sid, statement): rows(database, query.format())
            for sid, database in sources.items()
            for statement, query, _ in asked
        }
        found: dict[tuple[str, str], Any] = {}

        def arrived() -> bool:
            assert run.process.poll() is None, run.tail()
            for sid, statement in wanted:  # noqa: B023
                (query,) = [query for one, _, query in asked if one == statement]  # noqa: B023
                found[sid, statement] = rows(dest, query.format(sid=sid))  # noqa: B023
            return found == wanted  # noqa: B023

        try:
            await_condition(arrived, "the destination to follow", SECONDS, 0.1)
        except AssertionError as late:
            wrong = {one: (wanted[one], found[one]) for one in wanted if wanted[one] != found[one]}
            raise AssertionError(f"{late}: {wrong}\n{run.tail()}") from None


CHOSEN = "select id, name, 2 from many where salary > 10 order by id"
FILTERED = [
    (statement, CHOSEN, "select id, name, tier from few order by id")
    for statement in (
        "insert into many (name, salary) values ('in', 11), ('out', 10), ('unknown', null)",
        "update many set salary = 12 where name = 'unknown'",
        "update many set salary = salary - 1 where name = 'in'",
    )
]


def rules(letter: str) -> dict[str, Any]:
    """The tables of their map."""
    return {
        f"{letter}0": None,
        f"{letter}1": None,
        f"{letter}2": {"target": f"r{letter}2"},
        f"{letter}3": {"type": "append"},
        f"{letter}4": {"type": "history"},
        f"{letter}6": None,
        f"{letter}7": {"partitions_regex": f"{letter}7_.*"},
        f"{letter}8": None,
        f"private.{letter}8": {"target": f"p{letter}8"},
    }


def test_databases_into_tables_with_a_sid(
    databases: dict[str, Database], dest: Database, tmp_path: Path, full: bool
) -> None:
    dest.execute(*TARGET)
    for database in databases.values():
        database.execute(*SOURCE)
    file = imported(tmp_path, databases, dest, {**rules("t"), "t5": None})
    with running(file) as run:
        play(run, databases, dest, [*suites("t", "sid = '{sid}'"), type_triples(each=full)])
        assert rows(dest, "select sid, count(*) from t0 group by 1 order by 1") == [(sid, 11) for sid in databases]
        databases["14"].execute("truncate t8", "alter table t8 add column late text")
        play(run, databases, dest, [[("insert into t8 (name) values ('again')", "select 1", "select 1")]])
        left = "select sid, array_agg(name order by name) from t8 group by 1 order by 1"
        wanted = [(sid, ["again"] if sid == "14" else ["again", "x1"]) for sid in databases]
        await_condition(lambda: rows(dest, left) == wanted, "a TRUNCATE of one source's rows", SECONDS)


def test_one_database_into_tables_without_a_sid(postgres: Database, dest: Database, tmp_path: Path) -> None:
    """The map's rules for tables without a sid; a filter and a constant as penstock writes them."""
    dest.execute(*TARGET_WITHOUT_SID, "create table few (id int, name text, tier int)")
    postgres.execute(*SOURCE_WITHOUT_SID, "create table many (id serial primary key, name text, salary int)")
    file = imported(tmp_path, {"12": postgres}, dest, rules("d"))
    (only,) = file.settings.pop("sources")
    file.settings["source"] = {"type": "postgres", "url": only["url"]}  # as the comment beside the sid says
    rule = {"match": "public.many", "target": "public.few", "where": "salary > 10", "set": {"tier": 2}}
    file.settings["tables"].append(rule)
    file.write()
    with running(file) as run:
        play(run, {"": postgres}, dest, [*suites("d", ""), FILTERED])

"""What people do to tables and no change tells, from outside: noticed while it runs, and at the start after it was not.

Each case is a small table. What is done to it ends with a source that the stream alone cannot follow; the judges are
equality with the source and whether the table was copied again, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from databases import Database
from lake import Lake
from penstock.state.sql import find_store
from running import PipelineFactory, PipelineFile, Running, await_condition, running

SECONDS = 120.0
PLAIN = (
    "create table {t} (id int primary key, n int, word text)",
    "insert into {t} select g, g, 'x' from generate_series(1, 20) g",
)
PARTITIONED = (
    "create table {t} (id int, k int, primary key (k, id)) partition by range (k)",
    "create table {t}_0 partition of {t} for values from (0) to (10)",
    "create table {t}_1 partition of {t} for values from (10) to (20)",
    "insert into {t} select g, g % 20 from generate_series(1, 100) g",
)


@dataclass(frozen=True)
class Case:
    done: tuple[str, ...]
    why: str = ""  # it is copied again; "": it is not
    made: tuple[str, ...] = PLAIN


LEFT = "left publication"
CASES = {
    "dropped": Case(("alter publication {p} drop table {t}", "update {t} set n = -n"), LEFT),
    "swapped": Case(
        ("alter publication {p} drop table {t}", "delete from {t} where id < 5", "alter publication {p} add table {t}"),
        LEFT,
    ),
    "filtered": Case(
        (
            "alter publication {p} drop table {t}",
            "alter publication {p} add table {t} where (id > 10)",
            "update {t} set n = -n; delete from {t} where id % 2 = 0",
            "alter publication {p} drop table {t}",
            "alter publication {p} add table {t}",
        ),
        LEFT,
    ),
    "moved": Case(
        ("alter table {t} set schema away", "update away.{t} set n = -n", "alter table away.{t} set schema public"),
        "",  # the reason depends on what is met first
    ),
    "using": Case(("alter table {t} alter n type int using n * 10",), "written again"),
    "serial": Case(("alter table {t} add s serial",), "written again"),
    "constant": Case(("alter table {t} add c int default 7",), "older rows show '7'"),
    "mood": Case(
        ("alter type {t}_mood rename value 'calm' to 'quiet'",),
        "was renamed",
        (
            "create type {t}_mood as enum ('calm', 'cross')",
            "create table {t} (m {t}_mood primary key, list {t}_mood[])",
            "insert into {t} values ('calm', '{{calm,cross}}'), ('cross', null)",
        ),
    ),
    "pair": Case(
        ("alter type {t}_pair add attribute c int",),
        "was altered",
        (
            "create type {t}_pair as (a int, b text)",
            "create table {t} (id int primary key, p {t}_pair)",
            "insert into {t} values (1, row(1, 'one')), (2, null)",
        ),
    ),
    "emptied": Case(
        (
            "alter table {t} detach partition {t}_0",
            "delete from {t}_0",
            "alter table {t} attach partition {t}_0 for values from (0) to (10)",
        ),
        "detached and attached again",
        PARTITIONED,
    ),
    "remade": Case(
        ("drop table {t}_0", "create table {t}_0 partition of {t} for values from (0) to (10)"),
        "created again",
        PARTITIONED,
    ),
    "calm": Case(
        (
            "vacuum full {t}",
            "cluster {t} using {t}_pkey",
            "truncate {t}",
            "insert into {t} values (1, 'calm')",
            "alter type {t}_mood add value 'odd'",
            "insert into {t} values (2, 'odd')",
            "vacuum full {t}",
        ),
        made=(
            "create type {t}_mood as enum ('calm', 'cross')",
            "create table {t} (id int primary key, m {t}_mood)",
            "insert into {t} values (1, 'calm'), (2, 'cross')",
        ),
    ),
}
COPIED = {name for name in CASES if name != "calm"}


def words(file: PipelineFile, phase: str, name: str) -> dict[str, str]:
    return {"t": f"{phase}_{name}", "p": file.slot}


def do(file: PipelineFile, phase: str, database: Database) -> None:
    for name, case in CASES.items():
        database.execute(*(statement.format(**words(file, phase, name)) for statement in case.done))


def copies(file: PipelineFile) -> dict[str, list[str]]:
    """Why each table was copied again, as often as it was."""
    store = find_store(file.state)
    assert store is not None
    try:
        events = [event for event in store.events(1000) if event.kind == "resync"]
    finally:
        store.close()
    found: dict[str, list[str]] = {}
    for event in events:
        assert event.table is not None
        found.setdefault(event.table.name, []).append(event.message)
    return found


def until_equal(run: Running, lake: Lake, database: Database, tables: Iterable[str]) -> None:
    differs: list[str] = []

    def equal() -> bool:
        run.drain()
        try:
            lake.assert_equals(database, tables)
        except AssertionError as error:
            differs[:] = [str(error)[:2000]]
            return False
        return True

    try:
        await_condition(equal, "the lake to equal the source", SECONDS, every=0.5)
    except AssertionError as late:
        raise AssertionError(f"{late}\n{differs}\n{run.tail()}") from None


def assert_copied(file: PipelineFile, phase: str) -> None:
    found = copies(file)
    for name, case in CASES.items():
        reasons = found.get(f"{phase}_{name}", [])
        assert bool(reasons) == (name in COPIED), (name, reasons)
        assert case.why in " ".join(reasons), (name, reasons)
        assert len(reasons) <= 2, (name, reasons)


def test_what_no_change_tells_is_noticed(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    file = pipeline(copy={"discover_every": "300ms"}, tables=[{"match": "public.*", "on_partition_drop": "delete"}])
    postgres.execute("create schema away", *PLAIN[0].format(t="excluded").split(";"), PLAIN[1].format(t="excluded"))
    for phase in ("on", "off"):
        for name, case in CASES.items():
            postgres.execute(*(statement.format(**words(file, phase, name)) for statement in case.made))
    on, off = ([f"public.{phase}_{name}" for name in CASES] for phase in ("on", "off"))
    with running(file) as run:
        run.drain()
        lake.assert_equals(postgres, [*on, *off])
        assert file.component("source tables")["state"] == "ok"
        do(file, "on", postgres)
        until_equal(run, lake, postgres, [*on, *off])
        assert_copied(file, "on")
        assert not [name for name in copies(file) if name.startswith("off")]

    do(file, "off", postgres)
    file.settings["tables"][0]["exclude"] = ["public.excluded"]
    file.write()
    file.run_once("--yes")  # it leaves the publication
    postgres.execute("update excluded set n = -n", "delete from excluded where id = 3")
    lake.assert_equals(postgres, off)
    assert_copied(file, "off")
    del file.settings["tables"][0]["exclude"]
    file.write()
    before = Counter({name: len(reasons) for name, reasons in copies(file).items()})
    with running(file) as run:
        until_equal(run, lake, postgres, [*on, *off, "public.excluded"])
        after = Counter({name: len(reasons) for name, reasons in copies(file).items()})
        assert dict(after - before) == {"excluded": 1}, "the others were copied already"

        postgres.execute(
            f"alter publication {file.slot} set (publish = 'insert')",
            "update on_calm set m = 'cross'",
            f"alter publication {file.slot} set (publish = 'insert, update, delete, truncate')",
        )
        until_equal(run, lake, postgres, [*on, *off, "public.excluded"])
        assert "was altered" in copies(file)["on_calm"][-1]

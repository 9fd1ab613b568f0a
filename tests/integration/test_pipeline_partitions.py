"""Partitioned tables from outside: rows, and whole partitions that come and go, while it runs and while it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from databases import Database
from lake import Lake
from running import PipelineFactory, PipelineFile, Running, await_condition, running

SECONDS = 90.0
PARTITIONED = """
    create table {0} (id int, k int, body text, primary key (k, id)) partition by range (k);
    create table {0}_0 partition of {0} for values from (0) to (10);
    create table {0}_1 (body text, gone int, k int not null, id int not null);
    alter table {0}_1 drop gone, add primary key (k, id);
    alter table {0} attach partition {0}_1 for values from (10) to (20);
    alter table {0} alter body set storage external;
    insert into {0} select g, g % 20, repeat('x', 2500) || g from generate_series(1, 200) g;
"""
LOOSE = """
    create table {0}_2 (like {0} including all);
    insert into {0}_2 select g, 20 + g % 10, 'loose ' || g from generate_series(1, 100) g;
    alter table {0} attach partition {0}_2 for values from (20) to (30);
"""


def remarks(file: PipelineFile, table: str) -> list[tuple[str, str]]:
    (found,) = [one for one in file.status()["tables"] if one["table"] == table]
    return [(one["partition"], one["is"]) for one in found["partitions"]]


def state_of(file: PipelineFile, table: str) -> str:
    (found,) = [one for one in file.status()["tables"] if one["table"] == table]
    return str(found["state"])


def until_equal(run: Running, lake: Lake, database: Database, *tables: str) -> None:
    """Until the lake equals the source: what is noticed by looking is not there at once."""

    def equal() -> bool:
        run.drain()
        if not all(map(lake.has, tables)):
            return False
        try:
            lake.assert_equals(database, tables)
        except AssertionError:
            return False
        return True

    await_condition(equal, f"{', '.join(tables)} to equal the source\n{run.tail()}", SECONDS, every=0.3)


def until(holds: Callable[[], Any], what: str, run: Running) -> None:
    await_condition(lambda: bool(holds()), f"{what}\n{run.tail()}", SECONDS, every=0.3)


def test_partitions_come_and_go(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    for table in ("kept", "mirror", "each"):
        postgres.execute(PARTITIONED.format(table))
    file = pipeline(
        tables=[
            {"match": "public.each%", "partitions": "each"},
            {"match": "public.mirror", "on_partition_drop": "delete"},
            {"match": "public.kept"},
        ],
        copy={"discover_every": "300ms"},
    )
    with running(file) as run:
        run.drain()
        lake.assert_equals(postgres, ("public.kept", "public.mirror", "public.each_0", "public.each_1"))
        for table in ("kept", "mirror", "each"):
            postgres.execute(
                f"update {table} set k = k + 10 where k < 5",  # to the other partition, whose columns stand otherwise
                f"update {table} set k = k - 10 where id % 7 = 0 and k >= 10",
                f"update {table} set id = id + 1000 where id % 3 = 0",  # within it, its long value not sent
                f"update {table} set body = 'short' where id % 5 = 0; delete from {table} where id % 11 = 0",
                f"create table {table}_9 partition of {table} for values from (90) to (99)",
                f"insert into {table} values (1, 91, 'new')",
            )
        until_equal(run, lake, postgres, *("public.kept", "public.mirror", "public.each_0", "public.each_9"))

        postgres.execute(
            "truncate each_1; insert into each values (1, 11, 'after')",
            "truncate mirror_0; insert into mirror values (1, 1, 'after')",
            LOOSE.format("each"),
        )
        until_equal(run, lake, postgres, "public.mirror", "public.each_1", "public.each_2")
        postgres.execute(LOOSE.format("mirror"), "vacuum full mirror_1", "truncate each")
        until_equal(run, lake, postgres, "public.mirror", "public.each_0", "public.each_1", "public.each_2")
        assert "truncated" not in str([event for event in file.status()["events"] if "mirror_1" in event["message"]])

        gone = postgres.value("select count(*) from kept_1")
        postgres.execute("drop table mirror_1", "alter table kept detach partition kept_1")
        until_equal(run, lake, postgres, "public.mirror")
        until(lambda: remarks(file, "public.kept") == [("public.kept_1", "kept")], "a remark", run)
        assert lake.count("public.kept") == postgres.value("select count(*) from kept") + gone
        assert gone > 0

    postgres.execute(LOOSE.format("kept"), "truncate mirror_2")  # while it is stopped
    with running(file) as run:
        until_equal(run, lake, postgres, "public.mirror")
        expected = [("public.kept_1", "kept"), ("public.kept_2", "missing")]
        until(lambda: remarks(file, "public.kept") == expected, "two remarks", run)
        until(lambda: state_of(file, "public.kept") == "Errored", "it is not Ready and different", run)
        assert lake.count("public.kept") == postgres.value("select count(*) from only kept_0") + gone + 1
        shown = " ".join(file.command("status", "FILE").stdout.split())
        assert "penstock resync" in shown
        assert file.command("resync", "FILE", "public.kept").returncode == 0
        until_equal(run, lake, postgres, "public.kept")
        until(lambda: remarks(file, "public.kept") == [], "no remark", run)

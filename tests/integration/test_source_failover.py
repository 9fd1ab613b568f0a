"""The source fails over: its replica, which keeps the slot in step, is promoted, and the pipeline goes on there."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from databases import Database
from lake import Lake
from penstock.demo.server import PostgresServer
from replica import make_replica
from running import Running, await_condition, make_pipeline

ROWS = "insert into t select g, 'row ' || g from generate_series({}, {}) g"


@pytest.mark.full
def test_a_promoted_replica_with_the_slot_is_the_same_source(spark: SparkSession, tmp_path: Path) -> None:
    with PostgresServer(settings={"synchronized_standby_slots": "replica"}) as primary, PostgresServer() as second:
        first = Database("shop", primary.url())
        first.execute(
            "select pg_create_physical_replication_slot('replica')", "create table t (id int primary key, note text)"
        )
        follow = {
            "primary_conninfo": f"host=127.0.0.1 port={primary.port} user=postgres dbname=postgres",
            "primary_slot_name": "replica",
            "sync_replication_slots": "on",
            "hot_standby_feedback": "on",
        }
        make_replica(primary, second, follow)
        promoted = Database("shop", second.url())
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{second.port}"
        url = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"
        file = make_pipeline(tmp_path, first, source={"url": url})
        first.execute(ROWS.format(1, 1000))
        run = Running(file)
        try:
            run.await_streaming()
            run.drain()
            first.execute(ROWS.format(1001, 1200), "delete from t where id % 10 = 0")
            run.drain()
            kept = "select count(*) from pg_replication_slots where synced and not temporary"
            await_condition(lambda: promoted.value(kept) == 1, "the replica to have the slot", 60)
            primary.stop("immediate")
            promoted.execute("select pg_promote()", ROWS.format(2001, 2200), "update t set note = 'x' where id < 50")
            file.database = promoted
            run.drain()
            Lake(spark, file.warehouse).assert_equals(promoted, ["public.t"])
            states = {table["name"]: table["state"] for table in file.status()["tables"]}
            assert states == {"public.t": "Ready"}
            assert run.text().count("table copied") <= 1, "it was not copied again"
            run.stop()
        finally:
            run.clean_up()

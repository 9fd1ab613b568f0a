"""Everything that people do to a database, its publication, its pipeline and its lake, at random, with one judge."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from databases import Database
from lake import Lake
from penstock.demo.server import PostgresServer
from penstock.model.table_state import GONE
from people import lake_acts, names, operator, rows, source
from people.judge import await_all_ready, judge
from people.pulse import Pulse
from people.world import CONTROL, DATABASE, SALT, World
from running import make_pipeline

Act = Callable[[World], None]
ACTS: dict[Act, int] = {
    rows.fuzzed: 20,
    rows.traffic: 20,
    rows.truncate: 1,
    rows.keyless_update: 1,
    rows.prepared: 2,
    source.drop_from_publication: 3,
    source.set_publication: 2,
    source.publish_less: 2,
    source.filter_publication: 2,
    source.move_schema: 2,
    source.rename_label: 2,
    source.alter_composite: 2,
    source.identity: 2,
    source.detach_and_attach: 3,
    source.replace_partition: 2,
    source.truncate_partition: 2,
    source.detach_deep: 2,
    source.rewrite_untouched: 3,
    source.swap_while_older_writes: 3,
    source.swap_in_savepoint: 3,
    source.swap_without_triggers: 2,
    source.replace_last_column: 3,
    source.hold_lock: 2,
    source.role_settings: 3,
    source.strange_message: 3,
    source.crash: 1,
    source.take_image: 2,
    source.put_back: 2,
    names.swap_tables: 3,
    names.rename_table: 3,
    names.rename_schema: 1,
    names.make_unlogged: 2,
    names.identify_by_index: 2,
    names.drop_publication: 1,
    names.rename_publication: 1,
    names.move_slot: 1,
    lake_acts.drop: 2,
    lake_acts.roll_back: 3,
    lake_acts.edit: 1,
    lake_acts.rewrite: 2,
    lake_acts.expire: 2,
    lake_acts.lose_file: 1,
    operator.stop: 2,
    operator.kill: 2,
    operator.start: 6,
    operator.fall_behind: 4,
    operator.catch_up: 4,
    operator.kill_capture: 2,
    operator.exclude: 2,
    operator.include: 3,
    operator.filter_rows: 2,
    operator.change_column: 2,
    operator.lose_state: 1,
}
JUDGED_EVERY = 10


def _world(server: PostgresServer, folder: Path, spark: SparkSession, seed: int) -> World:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("create role pipeline superuser login replication")
    database = Database(DATABASE, server.url(DATABASE))
    file = make_pipeline(
        folder,
        database,
        source={"type": "postgres", "url": server.url(DATABASE, user="pipeline")},
        tables=[{"match": "public.*", "on_partition_drop": "delete"}],
        copy={"discover_every": "500ms"},
        mask_salt=SALT,
    )
    pulse = Pulse(database.url, file.state, CONTROL)
    return World(server, file, Lake(spark, folder / "warehouse"), random.Random(seed), pulse)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(3, 21))])
def test_random_acts_of_people(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, full: bool, seed: int
) -> None:
    """Every second seed runs on Debian's server; every third has the DDL trigger."""
    steps = 100 if full else 20
    binaries = request.getfixturevalue("debian_server").binaries if seed % 2 == 0 else None
    counts: Counter[str] = Counter()
    with PostgresServer(binaries=binaries, settings={"max_prepared_transactions": "5"}) as server:
        world = _world(server, tmp_path, spark, seed)
        try:
            world.create()
            if seed % 3 == 0:
                assert world.file.command("source", "ddl-trigger", "install", "FILE").returncode == 0
            world.start()
            world.pulse.start()
            judge(world, counts)
            acts, weights = list(ACTS), list(ACTS.values())
            for step in range(1, steps + 1):
                (act,) = world.random.choices(acts, weights)
                act(world)
                if step % JUDGED_EVERY == 0:
                    judge(world, counts)
            _put_right(world)
            judge(world, counts)
            done = world.file.command("verify", "FILE", seconds=300)
            assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{world.told()}"
            world.stop()
        finally:
            world.close()
    seconds, by_the_clock = world.pulse.latest
    late = f"the control table was {seconds:.1f} s late at most, {by_the_clock:.1f} s by the clock"
    request.node.add_report_section("call", "figures", f"{dict(counts)}; {late}")
    assert counts["Ready"] > sum(counts.values()) / 2, f"too little was judged: {counts}"


def _put_right(world: World) -> None:
    """The operator undoes what keeps tables Errored, and has everything copied that still is."""
    with psycopg.connect(world.server.url(), autocommit=True) as other:
        other.execute("alter role pipeline reset all")
    operator.follow_everything(world)
    world.sql("alter table whole replica identity full", "alter table loose replica identity full")
    world.sql("alter table labels replica identity default", "alter table large replica identity default")
    for kind in range(3):
        world.sql(f"create table if not exists parted_{kind} partition of parted for values in ({kind})")
    for fuzzer in world.fuzzers.values():
        fuzzer.settle(world.connection)
    world.ensure_up()
    errored = {one["table"]: one["solution"] for one in world.file.status()["tables"] if one["state"] == "Errored"}
    for name, solution in errored.items():
        words = ("drop", "FILE", name, "--yes") if f"drop {name} there" in solution else ("resync", "FILE", name)
        done = world.file.command(*words)
        world.say(f"{words}: {done.returncode} {done.stdout} {done.stderr}")
    await_all_ready(world)
    for table in world.file.status()["tables"]:
        if table["state"] == "Errored" and GONE in table["error"]:  # a partition that was a table for a while
            forgotten = world.file.command("forget", "FILE", table["table"])
            assert forgotten.returncode == 0, forgotten.stderr

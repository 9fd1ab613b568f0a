"""Acts that take names and publications away: tables swap names, a schema is renamed, a slot or a publication goes."""

from __future__ import annotations

import time

import psycopg

from people.rows import traffic
from people.world import FUZZED, World


def swap_tables(world: World) -> None:
    """Two tables swap their names, as when a rebuilt copy takes a table's place."""
    first, second = world.random.sample(FUZZED, 2)
    if world.excluded & {first, second}:
        return
    renames = ((first, "between_tables"), (second, first), ("between_tables", second))
    statements = [f"alter table {before} rename to {after}" for before, after in renames]
    if world.random.random() < 0.5:
        statements = ["begin", *statements, "commit"]
    world.sql(*statements)
    world.fuzzers[first].try_update(world.connection)
    world.fuzzers[second].try_insert(world.connection)


def rename_table(world: World) -> None:
    """A table has another name for a while, and changes under it."""
    name = world.random.choice(("labels", "large", "parted", "whole", "loose"))
    if world.sql(f"alter table {name} rename to away"):
        world.sql("delete from away where ctid in (select ctid from away limit 1)")
        time.sleep(world.random.choice((0.0, 0.2, 1.5)))
        world.sql(f"alter table away rename to {name}")


def rename_schema(world: World) -> None:
    """All tables are in a schema of another name for a while; the control table too, which may be late then."""
    world.pulse.unwatch()
    if world.sql("alter schema public rename to away"):
        world.sql(
            "update away.large set small = small + 1 where id % 2 = 0", "delete from away.labels where id % 3 = 0"
        )
        time.sleep(world.random.choice((0.0, 0.2, 1.5)))
        world.sql("alter schema away rename to public")


def make_unlogged(world: World) -> None:
    """A table leaves the publication, or is a partition, which may stay; it is unlogged for a while, and changes."""
    name = world.random.choice(("labels", "large", "parted_1", "parted_high"))
    if not name.startswith("parted_"):
        world.sql(f"alter publication {world.publication} drop table only {name}")
    if world.sql(f"alter table {name} set unlogged"):
        traffic(world)
        time.sleep(world.random.choice((0.0, 1.5)))
        world.sql(f"alter table {name} set logged")


def identify_by_index(world: World) -> None:
    """Rows are told by another unique index, which goes in the end."""
    name = world.random.choice(("labels", "large"))
    columns = "mood, id" if name == "labels" else "id"
    if world.sql(
        f"create unique index {name}_told on {name} ({columns})",
        f"alter table {name} replica identity using index {name}_told",
    ):
        traffic(world)
        world.sql(f"drop index {name}_told")
        traffic(world)
        world.sql(f"alter table {name} replica identity default")


def drop_publication(world: World) -> None:
    """The publication goes, and comes back when somebody makes it again or penstock does."""
    world.sql(f"drop publication {world.publication}")
    traffic(world)


def rename_publication(world: World) -> None:
    if world.sql(f"alter publication {world.publication} rename to hidden"):
        traffic(world)
        time.sleep(world.random.choice((0.0, 1.5)))
        world.sql(f"alter publication hidden rename to {world.publication}")


def move_slot(world: World) -> None:
    """While the pipeline is stopped somebody moves its slot on, or drops it."""
    world.stop()
    traffic(world)
    act = world.random.choice(("pg_drop_replication_slot('{0}')", "pg_replication_slot_advance('{0}', {1})"))
    call = act.format(world.file.slot, "pg_current_wal_lsn()")
    with psycopg.connect(world.database.url, autocommit=True) as other:
        try:
            other.execute(f"select {call}".encode())
            world.say(f"select {call}")
        except psycopg.Error as refused:
            world.say(f"-- select {call}: {refused}")
    traffic(world)

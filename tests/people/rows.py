"""Acts of the application: rows come, change and go. What the database refuses was never done."""

from __future__ import annotations

import time

from people.world import FUZZED, World


def fuzzed(world: World) -> None:
    """Rows and structure of one table, as the schema fuzzer does."""
    fuzzer = world.fuzzers[world.random.choice(FUZZED)]
    before = len(fuzzer.history)
    fuzzer.turn(world.connection)
    for line in fuzzer.history[before:]:
        world.say(line)


def traffic(world: World) -> None:
    """A few rows of every other table."""
    number = world.random.randint(1, 10_000)
    picked = world.random.randint(0, 4)
    for statement in (
        f"insert into labels select {number}, (enum_range(null::mood))[1], null, 'n' on conflict do nothing",
        f"update labels set notes = 'u{number}' where id % 5 = {picked}",
        f"delete from labels where id % 7 = {picked}",
        f"insert into parted values ({number}, {number % 4}, 'n') on conflict do nothing",
        f"update parted set note = 'u{number}' where id % 5 = {picked}",
        f"update large set small = {number} where id % 5 = {picked}",
        f"insert into large values ({number}, 1, repeat(md5('{number}'), 200)) on conflict do nothing",
        f"insert into loose values ({picked}, 'n')",
        f"insert into whole values ({picked}, 'n')",
        f"update whole set b = 'u{number % 3}' where ctid in (select ctid from whole where a = {picked} limit 2)",
        f"delete from whole where ctid in (select ctid from whole where a = {picked} limit 1)",
    ):
        if world.random.random() < 0.5:
            world.sql(statement)


def truncate(world: World) -> None:
    world.sql(f"truncate {world.random.choice(('labels', 'parted', 'large', 'whole', 'loose'))}")


def keyless_update(world: World) -> None:
    """Changes rows of a table without a key; the application must never be refused. A session reports what it has
    changed when it has been idle for ten seconds at the latest; this one is asked to do so at once."""
    world.connection.execute("update loose set b = b || '!' where a = 1")
    world.connection.execute("select pg_stat_force_next_flush()")
    world.say("update loose set b = b || '!' where a = 1")


def prepared(world: World) -> None:
    """A transaction is prepared, and later committed or rolled back by another session."""
    number = world.random.randint(1, 10**9)
    if world.sql(
        "begin",
        f"update large set small = {number % 1000} where id % 3 = 0",
        f"insert into labels values ({number}, (enum_range(null::mood))[2], null, 'prepared')",
        f"prepare transaction 'p{number}'",
    ):
        world.sql("insert into loose values (9, 'meanwhile')")
        time.sleep(world.random.choice((0.0, 1.0)))
        world.sql(f"{world.random.choice(('commit', 'commit', 'rollback'))} prepared 'p{number}'")

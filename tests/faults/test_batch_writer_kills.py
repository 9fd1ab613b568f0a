"""SIGKILL while a batch is written beside the commits of the one before: after a restart the lake equals the source."""

from __future__ import annotations

import random

from databases import Database
from lake import Lake
from running import PipelineFactory, running

NAMES = ("first", "second", "third")
TABLES = [f"public.{name}" for name in NAMES]
TRANSACTIONS, ROWS = 25, 40
KILLS = [("apply.written_beside", 2)]
KILLS_IN_FULL = [
    *((name, nth) for nth in (1, 3, 5, 8) for name in ("apply.written_beside", "apply.files_written")),
    *((name, nth) for nth in (2, 4, 7, 11) for name in ("apply.before_commit", "apply.after_commit")),
    ("apply.batch_committed", 3),
]


def _traffic(database: Database, chance: random.Random) -> None:
    """Each transaction updates, deletes and inserts keys that the ones before have touched as well."""
    with database.connect() as connection:
        for _ in range(TRANSACTIONS):
            name, low = chance.choice(NAMES), chance.randrange(200)
            with connection.transaction():
                for statement in (
                    f"insert into {name} select g, 0, repeat(md5(g::text), 100) "
                    "from generate_series(%s::int, %s::int) g "
                    "on conflict (id) do update set n = excluded.n + 1, body = excluded.body",
                    f"update {name} set n = n + 1 where id between %s and %s and id %% 3 = 0",
                    f"delete from {name} where id between %s and %s and id %% 7 = 0",
                ):
                    connection.execute(statement.encode(), (low, low + ROWS))


def test_killed_between_two_batches(pipeline: PipelineFactory, postgres: Database, lake: Lake, full: bool) -> None:
    """Segments and batches are small, so that one follows the other."""
    chance = random.Random(7)
    for name in NAMES:
        postgres.execute(f"create table {name} (id bigint primary key, n int, body text)")
        postgres.execute(f"alter table {name} alter body set storage external")
    file = pipeline(log={"segment_bytes": "64KiB"}, batch={"max_changes": 50})
    with running(file) as run:
        run.drain()
    for name, nth in KILLS_IN_FULL if full else KILLS:
        _traffic(postgres, chance)
        file.arm(name, nth)
        with running(file) as run:
            run.await_killed()
    _traffic(postgres, chance)
    with running(file) as run:
        run.drain()
        lake.assert_equals(postgres, TABLES)

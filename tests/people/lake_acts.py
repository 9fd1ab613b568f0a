"""Acts of whoever has the lake's tables open: dropped, rolled back, edited, rewritten, expired, a file lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from people.world import FUZZED, World


def _some(world: World) -> str:
    return world.random.choice((*FUZZED, "labels", "large"))


def _try(world: World, what: str, act: Callable[[], object]) -> bool:
    """A batch may be first in a race for the table, and the table may not be there."""
    try:
        act()
        world.say(f"lake: {what}")
        return True
    except (PySparkException, Py4JJavaError) as refused:
        world.say(f"-- lake: {what}: {str(refused).splitlines()[0][:150]}")
        return False


def drop(world: World) -> None:
    name = _some(world)
    _try(world, f"drop {name}", lambda: world.lake.sql(f"drop table lake.public.{name}"))


def roll_back(world: World) -> None:
    name = _some(world)

    def act() -> None:
        rows = world.lake.sql(
            f"select snapshot_id from lake.public.{name}.history where is_current_ancestor order by made_current_at"
        )
        if len(rows) > 1:
            chosen = world.random.choice(rows[:-1])[0]
            world.lake.sql(f"call lake.system.rollback_to_snapshot('public.{name}', {chosen})")

    _try(world, f"roll {name} back", act)


def edit(world: World) -> None:
    """Somebody deletes rows in the lake. Only `verify` can find that, so the operator copies the table again."""
    name = _some(world)
    if _try(world, f"delete from {name}", lambda: world.lake.sql(f"delete from lake.public.{name} where true")):
        done = world.file.command("resync", "FILE", f"public.{name}")
        world.say(f"resync public.{name}: {done.returncode} {done.stdout.strip()} {done.stderr.strip()}")


def rewrite(world: World) -> None:
    name = _some(world)
    options = "options => map('rewrite-all', 'true')"
    call = f"call lake.system.rewrite_data_files(table => 'public.{name}', {options})"
    _try(world, f"rewrite {name}", lambda: world.lake.sql(call))


def expire(world: World) -> None:
    name = _some(world)
    call = (
        f"call lake.system.expire_snapshots(table => 'public.{name}', retain_last => 1, "
        "older_than => timestamp '2100-01-01 00:00:00')"
    )
    _try(world, f"expire {name}", lambda: world.lake.sql(call))


def lose_file(world: World) -> None:
    """A data file goes. Its table is Errored once it is met; the operator copies it again."""
    name = _some(world)

    def act() -> None:
        files = world.lake.sql(f"select file_path from lake.public.{name}.files where content = 0")
        if files:
            Path(world.random.choice(files)[0].removeprefix("file:")).unlink(missing_ok=True)

    if _try(world, f"lose a file of {name}", act):
        world.damaged.add(name)

"""The only judge: at a quiet moment each table is equal to its source, or copying, or Errored with a way out."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from people.world import FILTERED, SALT, World
from running import await_condition
from schema_following import differing

SETTLE_SECONDS = 180.0
LOOKS_SECONDS = 2.5  # several looks at the catalogue
NOTICED_SECONDS = 20.0  # a look, and up to ten seconds until an idle session reports what it wrote
ALLOWED = frozenset({"Ready", "Errored", "Init", "DataSync", "FinishedCopy", "SyncWait", "Catchup", "SyncDone"})


def judge(world: World, counts: Counter[str]) -> None:
    """Waits for a quiet moment, then judges every table of the application."""
    world.ensure_up()
    _resync_damaged(world)
    with world.pulse.stopped():
        world.pulse.unwatch()
        _settle(world)
        if world.ended():  # a gap that showed only now
            world.ensure_up()
            world.pulse.unwatch()
            _settle(world)
        found = {table["table"]: table for table in world.file.status()["tables"]}
        expected = [f"public.{name}" for name in world.tables() if name not in world.excluded]
        missing = [name for name in expected if name not in found]
        assert not missing, f"tables that nobody speaks of: {missing}\n{world.told()}"
        states = {name: found[name]["state"] for name in expected}
        world.say(f"judged: {states}")
        _assert_ways_out(world, {name: found[name] for name in expected})
        ready = [name for name, state in states.items() if state == "Ready"]
        wrong = _still_wrong(world, _differing(world, ready))
        assert not wrong, "Ready and different:\n" + "\n".join(wrong.values()) + "\n\n" + world.told()
        counts.update(states.values())
    if world.run is not None:
        world.pulse.watch()
    assert not world.pulse.late, "\n".join(world.pulse.late) + "\n\n" + world.told()


def _still_wrong(world: World, wrong: dict[str, str]) -> dict[str, str]:
    """Give those that are Ready and different for longer than it may take to notice that something was done."""
    deadline = time.monotonic() + NOTICED_SECONDS
    while wrong and time.monotonic() < deadline and not world.ended():
        world.say(f"different, not yet noticed: {', '.join(wrong)}")
        time.sleep(1.0)
        states = {table["table"]: table["state"] for table in world.file.status()["tables"]}
        wrong = _differing(world, [name for name in wrong if states[name] == "Ready"])
    return wrong


def _differing(world: World, tables: list[str]) -> dict[str, str]:
    """Tables whose rows are not the source's, or not those that the table's rule makes of them."""
    filtered = f"public.{FILTERED}"
    if (world.where is None and world.body is None) or filtered not in tables:
        return differing(world.lake, world.database, *tables)
    wrong = differing(world.lake, world.database, *(name for name in tables if name != filtered))
    if difference := _rule_broken(world, filtered):
        wrong[filtered] = f"{filtered} where {world.where}, body {world.body}: {difference}"
    return wrong


def _rule_broken(world: World, table: str) -> str:
    """How the lake's table is not what its rule makes of the source's rows; "" when it is."""
    rows = world.lake.read(table)[0]
    column = {None: "body", "mask": "body", "rename": "contents", "drop": None}[world.body]
    if {"body", "contents"}.intersection(rows.column_names) != ({column} if column else set()):
        return f"the lake has the columns {rows.column_names}"
    body = "encode(sha256(convert_to(%s || body, 'UTF8')), 'hex')" if world.body == "mask" else "%s::text || body"
    query = f"select id, {body} from {table} where {world.where or 'true'}"
    salt = SALT if world.body == "mask" else ""
    source = world.connection.execute(query.encode(), (salt,)).fetchall()
    if column is None:
        source = [(number, None) for number, _ in source]
    bodies = rows.column(column).to_pylist() if column else [None] * rows.num_rows
    lake = list(zip(rows.column("id").to_pylist(), bodies, strict=True))
    missing, extra = Counter(source) - Counter(lake), Counter(lake) - Counter(source)
    return f"the lake lacks {list(missing)[:5]} and has {list(extra)[:5]}" if missing or extra else ""


def _resync_damaged(world: World) -> None:
    """A file that nobody reads is missed by nobody: the operator, who knows, has those tables copied again."""
    for name in sorted(world.damaged):
        done = world.file.command("resync", "FILE", f"public.{name}")
        world.say(f"resync public.{name}: {done.returncode} {done.stdout.strip()} {done.stderr.strip()}")
    world.damaged.clear()


def _settle(world: World) -> None:
    """Until everything written so far is processed, the catalogue was looked at, and no copy is under way."""
    deadline = time.monotonic() + SETTLE_SECONDS
    quiet_since: float | None = None
    while time.monotonic() < deadline and not world.ended():
        assert world.run is not None
        if (world.file.processed() or 0) >= world.database.flush_position():
            quiet_since = quiet_since or time.monotonic()
            if time.monotonic() - quiet_since > LOOKS_SECONDS:
                return
        else:
            quiet_since = None if world.file.processed() is None else quiet_since
        time.sleep(0.1)
    if not world.ended():
        raise AssertionError(f"no quiet moment within {SETTLE_SECONDS:g} s\n{world.told()}")


def _assert_ways_out(world: World, tables: dict[str, Any]) -> None:
    odd = [
        name
        for name, table in tables.items()
        if table["state"] not in ALLOWED or (table["state"] == "Errored" and not (table["error"] and table["solution"]))
    ]
    assert not odd, f"no reason or no way out: { {name: tables[name] for name in odd} }\n{world.told()}"


def await_all_ready(world: World) -> None:
    """After the operator has put everything right, every table is Ready."""

    def all_ready() -> bool:
        tables = {table["table"]: table["state"] for table in world.file.status()["tables"]}
        return all(tables.get(f"public.{name}") == "Ready" for name in world.tables())

    try:
        await_condition(all_ready, "every table to be Ready", SETTLE_SECONDS, every=0.5)
    except AssertionError as late:
        tables = [one for one in world.file.status()["tables"] if one["state"] != "Ready"]
        raise AssertionError(f"{late}; {tables}\n{world.told()}") from None

"""Acts of the operator: starts, stops, kills, falls behind, and edits the pipeline file."""

from __future__ import annotations

from contextlib import suppress

import psutil

from people.world import FILTERED, FUZZED, World

COLUMNS: dict[str, object] = {"drop": "drop", "mask": "mask", "rename": {"rename": "contents"}}


def stop(world: World) -> None:
    world.stop()


def kill(world: World) -> None:
    world.stop(kill=True)


def start(world: World) -> None:
    world.ensure_up()


def fall_behind(world: World) -> None:
    world.pause()


def catch_up(world: World) -> None:
    world.resume()


def kill_capture(world: World) -> None:
    if world.run is not None and world.paused is None and not world.ended():
        with suppress(psutil.NoSuchProcess, AssertionError):
            world.run.capture().kill()
            world.say("capture is killed")


def exclude(world: World) -> None:
    """A table is excluded for a while: the file is edited, the run started again."""
    name = world.random.choice((*FUZZED, "labels", "large"))
    world.stop()
    world.excluded.add(name)
    _write_rules(world)
    if world.random.random() < 0.7:
        world.start()


def include(world: World) -> None:
    if not world.excluded:
        return
    world.stop()
    world.excluded.clear()
    _write_rules(world)
    if world.random.random() < 0.7:
        world.start()


def follow_everything(world: World) -> None:
    """Every table is followed, with all of its rows."""
    world.stop()
    world.excluded.clear()
    world.where = world.body = None
    _write_rules(world)


def filter_rows(world: World) -> None:
    """The rows of a table are chosen otherwise from now on."""
    world.stop()
    world.where = world.random.choice((None, "id <= 10", "id > 5", "id <= 500"))
    _write_rules(world)
    if world.random.random() < 0.7:
        world.start()


def change_column(world: World) -> None:
    """A column of a table is dropped, masked or renamed in the lake from now on, or is as it was."""
    world.stop()
    world.body = world.random.choice((None, *COLUMNS))
    _write_rules(world)
    if world.random.random() < 0.7:
        world.start()


def lose_state(world: World) -> None:
    """The state store is lost while the pipeline is stopped."""
    world.stop()
    for path in world.file.state.parent.glob(f"{world.file.state.name}*"):
        path.unlink()
    world.say("the state store is lost")


def _write_rules(world: World) -> None:
    def change(settings: dict[str, object]) -> None:
        rule: dict[str, object] = {"match": "public.*", "on_partition_drop": "delete"}
        if world.excluded:
            rule["exclude"] = [f"public.{name}" for name in sorted(world.excluded)]
        rules = [rule]
        own: dict[str, object] = {"where": world.where} if world.where is not None else {}
        if world.body is not None:
            own["columns"] = {"body": COLUMNS[world.body]}
        if own and FILTERED not in world.excluded:
            rules.insert(0, {"match": f"public.{FILTERED}", **own})
        settings["tables"] = rules

    world.edit(change)

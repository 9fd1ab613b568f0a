"""Acts of whoever keeps backups: the state store, penstock's own folder or the lake is put back as it was earlier.

Each is copied while the pipeline is stopped, and put back while it is stopped again. What the other parts of the
pipeline know is then newer than what was put back.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from people.world import World


def back_up(world: World) -> None:
    """State store, penstock's folder and warehouse, as they are now."""
    world.ensure_up()
    world.stop()
    shutil.rmtree(world.backup, ignore_errors=True)
    world.backup.mkdir()
    for path in _parts(world):
        if path.is_dir():
            shutil.copytree(path, world.backup / path.name)
        elif path.exists():
            shutil.copyfile(path, world.backup / path.name)
    world.say("-- state, log and lake are backed up")


def put_state_back(world: World) -> None:
    """The state store alone: what it says of copies and of the source's catalogue is old."""
    _put_back(world, "the state store", world.file.state)


def put_home_back(world: World) -> None:
    """The state store and penstock's folder: the change log ends before the slot."""
    _put_back(world, "the state store and the change log", world.file.state, world.file.home)


def put_lake_back(world: World) -> None:
    """The lake alone: its tables are older than what the state store says was copied."""
    _put_back(world, "the lake", world.file.warehouse)


def _parts(world: World) -> tuple[Path, ...]:
    return world.file.state, world.file.home, world.file.warehouse


def _put_back(world: World, what: str, *parts: Path) -> None:
    if not world.backup.exists():
        return
    world.stop()
    for part in parts:
        _restore(world.backup / part.name, part)
    world.say(f"-- {what} as it was is put back")


def _restore(kept: Path, place: Path) -> None:
    """Files are written in place: another program may have the catalog open."""
    if kept.is_file():
        for path in place.parent.glob(f"{place.name}-*"):
            path.unlink()  # a journal of the newer one
        shutil.copyfile(kept, place)
        return
    for path in sorted(place.rglob("*"), reverse=True):
        if not (kept / path.relative_to(place)).exists():
            path.rmdir() if path.is_dir() else path.unlink()
    for path in sorted(kept.rglob("*")):
        there = place / path.relative_to(kept)
        if path.is_dir():
            there.mkdir(exist_ok=True)
        else:
            shutil.copyfile(path, there)

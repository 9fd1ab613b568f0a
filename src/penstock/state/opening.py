"""Open the state store that a pipeline names: of penstock's own (`sql.py`), or of a user's class.

A store of a user's is written as `python://` and a JSON object with its `class`, its `config` and the `folder` of the
pipeline file.
"""

from __future__ import annotations

import json
from pathlib import Path

from penstock.errors import ConfigError, PenstockError, StateError
from penstock.state import sql
from penstock.state.memory import MemoryStateStore
from penstock.state.store import StateStore
from penstock.user_class import made_from

PYTHON = "python://"
MEMORY = "memory"


def open_store(where: str | Path) -> StateStore:
    """Return the store at a path (SQLite), a database URL or of a class, created when missing."""
    if str(where) == MEMORY:
        return MemoryStateStore()
    return _of_class(str(where)) if str(where).startswith(PYTHON) else sql.open_store(where)


def find_store(where: str | Path) -> StateStore | None:
    """Return the store that is there, for reading and for requests; None where there is none yet.

    A store of a class is made in any case: what it then holds is the class's to say. One in memory is nobody's but its
    run's."""
    if str(where) == MEMORY:
        return None
    return _of_class(str(where)) if str(where).startswith(PYTHON) else sql.find_store(where)


def _of_class(where: str) -> StateStore:
    given = json.loads(where.removeprefix(PYTHON))
    try:
        made = made_from(given["class"], given["folder"], given["config"])
    except PenstockError:
        raise
    except Exception as error:
        raise StateError(
            f"the state store {given['class']} cannot be opened: {type(error).__name__}: {error}",
            "Check `class` and `config` under `state`: it is tried again",
        ) from error
    if not callable(getattr(made, "table_status", None)) or not callable(getattr(made, "of_source", None)):
        raise ConfigError(f"{given['class']} is not a penstock.Store", "Name a class that has all of its methods")
    store: StateStore = made  # type: ignore[assignment]  # what else it lacks shows in `store_suite`
    return store

"""penstock keeps lakehouse tables equal to a live database. Start at `docs/architecture.md`.

The names of `__all__` are public: docs/library.md has each. They are imported when they are first used, for every
process of penstock's imports this module, and most of them need none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.destinations.python.batch import Events as Events
    from penstock.destinations.python.destination import ACCEPTED as ACCEPTED
    from penstock.destinations.python.destination import DURABLE as DURABLE
    from penstock.destinations.python.destination import Delivery as Delivery
    from penstock.destinations.python.destination import Destination as Destination
    from penstock.destinations.python.events import Begin as Begin
    from penstock.destinations.python.events import Column as Column
    from penstock.destinations.python.events import Commit as Commit
    from penstock.destinations.python.events import Ddl as Ddl
    from penstock.destinations.python.events import Delete as Delete
    from penstock.destinations.python.events import Event as Event
    from penstock.destinations.python.events import Insert as Insert
    from penstock.destinations.python.events import Message as Message
    from penstock.destinations.python.events import Read as Read
    from penstock.destinations.python.events import Relation as Relation
    from penstock.destinations.python.events import Table as Table
    from penstock.destinations.python.events import Truncate as Truncate
    from penstock.destinations.python.events import Unsupported as Unsupported
    from penstock.destinations.python.events import Update as Update
    from penstock.destinations.python.tables import TableDestination as TableDestination
    from penstock.errors import CommitUnknown as CommitUnknown
    from penstock.errors import DestinationUnreachable as DestinationUnreachable
    from penstock.errors import Overtaken as Overtaken
    from penstock.errors import PenstockError as PenstockError
    from penstock.errors import RecordRefused as RecordRefused
    from penstock.errors import TableError as TableError
    from penstock.library.pipeline import Pipeline as Pipeline
    from penstock.model.table import TableId as TableId
    from penstock.state.memory import MemoryStateStore as MemoryStore  # noqa: F401
    from penstock.state.store import StateStore as Store  # noqa: F401

_PUBLIC = {
    "penstock.destinations.python.batch": ("Events",),
    "penstock.destinations.python.destination": ("ACCEPTED", "DURABLE", "Delivery", "Destination"),
    "penstock.destinations.python.events": (
        "Begin",
        "Column",
        "Commit",
        "Ddl",
        "Delete",
        "Event",
        "Insert",
        "Message",
        "Read",
        "Relation",
        "Table",
        "Truncate",
        "Unsupported",
        "Update",
    ),
    "penstock.destinations.python.tables": ("TableDestination",),
    "penstock.errors": (
        "CommitUnknown",
        "DestinationUnreachable",
        "Overtaken",
        "PenstockError",
        "RecordRefused",
        "TableError",
    ),
    "penstock.library.pipeline": ("Pipeline",),
    "penstock.model.table": ("TableId",),
}
_FOUND_AT = {name: (module, name) for module, names in _PUBLIC.items() for name in names} | {
    "MemoryStore": ("penstock.state.memory", "MemoryStateStore"),
    "Store": ("penstock.state.store", "StateStore"),
}

__all__ = ["__version__", *sorted(_FOUND_AT)]


def __getattr__(name: str) -> object:
    if name not in _FOUND_AT:
        raise AttributeError(f"module penstock has no attribute {name}")
    module, attribute = _FOUND_AT[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)

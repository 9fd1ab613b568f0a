"""What a state store must keep to, as tests: the suite that penstock's own stores pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock.state.store import StateStore
from penstock.testing import store_findings, store_tables

MakeStore = Callable[[Path], StateStore]


class StoreSuite:
    """The suite; `store_suite` makes one for a store. A class that extends it may have a fixture `store` of its own."""

    make: ClassVar[MakeStore]

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[StateStore]:
        made = type(self).make(tmp_path)
        yield made
        made.close()


for _module in (store_tables, store_findings):
    for _name, _test in vars(_module).items():
        if _name.startswith("test_"):
            setattr(StoreSuite, _name, staticmethod(_test))


def store_suite(make: MakeStore) -> type[StoreSuite]:
    """Return a class of tests for pytest to collect: bind it to a name that begins with `Test`.

    `make` opens a new store that works on an empty folder."""
    members: dict[str, Any] = {"make": staticmethod(make), "__doc__": "The store's behaviour."}
    return type("Suite", (StoreSuite,), members)

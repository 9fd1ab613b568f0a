"""What a user's destination of tables must keep to, as tests: net effects by key, one transaction, SIGKILL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock.destinations.python.destination import Destination
from penstock.errors import TablesRefused
from penstock.model.table import Column, ColumnType
from penstock.testing.destination import ORDERS, PEOPLE, STEPS, TABLES, Shard, killed_at
from penstock.testing.made_events import event, insert, row, table

MakeTables = Callable[[Path], Destination]
ReadRows = Callable[[Path, str], Sequence[dict[str, Any]]]
KEYLESS = replace(table("visits"), key=())
WIDER = replace(ORDERS, columns=(*ORDERS.columns, Column("note", ColumnType(25, "text"), number=99)))


class TableSuite:
    """The suite; `table_suite` makes one for a class."""

    make: ClassVar[MakeTables]
    rows: ClassVar[ReadRows]

    def _shard(self, folder: Path) -> Shard:
        return Shard(folder, type(self).make, {**TABLES, "visits": KEYLESS, "wider": WIDER})

    def _names(self, folder: Path, of: str) -> dict[int, Any]:
        """Return the names of rows by their ids. No id is there twice."""
        found = [(one["id"], one["name"]) for one in type(self).rows(folder, of)]
        assert len(found) == len(dict(found)), f"rows of {of} are there twice: {found}"
        return dict(found)

    def test_rows_are_what_the_events_make_of_them(self, tmp_path: Path) -> None:
        shard = self._shard(tmp_path)
        first = [insert(100 + key, ORDERS, key, f"row {key}") for key in range(6)] + [insert(110, PEOPLE, 1)]
        shard.publish(120, first)
        later = [
            event("update", 120, ORDERS, 1, after=row(1, "changed")),
            event("update", 121, ORDERS, 1, after=row(1, "changed twice")),
            event("delete", 122, ORDERS, 2, before={"id": 2}, before_kind="key"),
            event("update", 123, ORDERS, 30, before={"id": 3}, before_kind="key", after=row(30, "moved")),
            event("delete", 124, ORDERS, 4, before={"id": 4}, before_kind="key"),
            insert(125, ORDERS, 4, "again"),
            insert(126, ORDERS, 9, "short-lived"),
            event("delete", 127, ORDERS, 9, before={"id": 9}, before_kind="key"),
        ]
        shard.publish(130, later)
        shard.publish(130, later)
        shard.close()
        orders = {0: "row 0", 1: "changed twice", 30: "moved", 4: "again", 5: "row 5"}
        assert self._names(tmp_path, "orders") == orders
        assert self._names(tmp_path, "people") == {1: "x"}
        kept = next(one for one in type(self).rows(tmp_path, "orders") if one["id"] == 5)
        assert (kept["ratio"], kept["active"], bytes(kept["raw"])) == (0.25, True, b"\x00\xff")
        assert str(kept["price"]) == "12.50"

    def test_a_truncate_leaves_what_comes_after_it(self, tmp_path: Path) -> None:
        shard = self._shard(tmp_path)
        shard.publish(110, [insert(100, ORDERS, 1), insert(101, PEOPLE, 1)])
        shard.publish(120, [insert(110, ORDERS, 2), event("truncate", 111, ORDERS, None), insert(112, ORDERS, 3)])
        shard.close()
        assert set(self._names(tmp_path, "orders")) == {3}
        assert set(self._names(tmp_path, "people")) == {1}

    def test_values_that_were_not_sent_stay(self, tmp_path: Path) -> None:
        shard = self._shard(tmp_path)
        shard.publish(110, [insert(100, ORDERS, 1), insert(101, ORDERS, 2)])
        short = {name: value for name, value in row(1, "new").items() if name not in ("raw", "doc")}
        unsent = {"unchanged": ["raw", "doc"]}
        moved = {**short, "id": 7}
        changes = [
            event("update", 110, ORDERS, 1, after=short, **unsent),
            event("update", 111, ORDERS, 7, before={"id": 2}, before_kind="key", after=moved, **unsent),
        ]
        shard.publish(120, changes)
        shard.close()
        assert self._names(tmp_path, "orders") == {1: "new", 7: "new"}
        assert [bytes(one["raw"]) for one in type(self).rows(tmp_path, "orders")] == [b"\x00\xff"] * 2

    def test_values_that_do_not_fit_are_rescued(self, tmp_path: Path) -> None:
        shard = self._shard(tmp_path)
        shard.publish(110, [event("insert", 100, ORDERS, 1, after={**row(1), "price": "NaN"})])
        shard.close()
        (found,) = type(self).rows(tmp_path, "orders")
        assert (found["price"], found["_rescued"]) == (None, '{"price": "NaN"}')

    def test_a_copy_takes_the_place_of_what_was_there(self, tmp_path: Path) -> None:
        shard = self._shard(tmp_path)
        shard.publish(110, [insert(100, ORDERS, 1), insert(101, PEOPLE, 1)])
        shard.copy("snapshot", [event("read", 110, ORDERS, key, after=row(key, "copied")) for key in range(5)])
        shard.close()
        assert self._names(tmp_path, "orders") == dict.fromkeys(range(5), "copied")
        assert set(self._names(tmp_path, "people")) == {1}

    def test_another_structure_is_refused_until_the_table_is_copied(self, tmp_path: Path) -> None:
        shard = self._shard(tmp_path)
        shard.publish(110, [insert(100, ORDERS, 1)])
        added = event("insert", 111, WIDER, 2, after={**row(2), "note": "new"})
        with pytest.raises(TablesRefused, match="its structure at the source is another"):
            shard.publish(120, [insert(110, PEOPLE, 1), added])
        assert shard.publisher().open().place <= added["place"], "its event is not passed over"
        shard.copy("snapshot", [event("read", 112, WIDER, 2, after={**row(2), "note": "new"})])
        shard.close()
        assert [one["note"] for one in type(self).rows(tmp_path, "orders")] == ["new"]
        assert set(self._names(tmp_path, "people")) == {1}, "the other table's events were applied"

    def test_a_column_that_was_dropped_and_added_again_is_another(self, tmp_path: Path) -> None:
        shard = self._shard(tmp_path)
        shard.publish(110, [insert(100, ORDERS, 1)])
        *others, last = ORDERS.columns
        again = replace(ORDERS, columns=(*others, replace(last, number=50)), numbered=50)
        assert again.structure == ORDERS.structure
        shard.tables = {"orders": again}
        with pytest.raises(TablesRefused, match=f"column {last.name} dropped"):
            shard.publish(120, [insert(111, again, 2)])
        shard.copy("snapshot", [event("read", 112, again, 2, after=row(2, "copied"))])
        shard.publish(130, [insert(120, again, 3)])
        shard.close()
        assert set(self._names(tmp_path, "orders")) == {2, 3}

    @pytest.mark.parametrize("step", STEPS)
    def test_a_process_that_is_killed_doubles_and_loses_nothing(self, tmp_path: Path, step: str) -> None:
        events = [insert(100 + key, KEYLESS if key % 2 else ORDERS, key, f"row {key}") for key in range(9)]
        for nth in (1, 2):
            killed_at(step, nth, lambda: self._shard(tmp_path).publish(200, events))
        shard = self._shard(tmp_path)
        shard.publish(200, events)
        shard.close()
        for of, odd in (("orders", 0), ("visits", 1)):
            assert self._names(tmp_path, of) == {key: f"row {key}" for key in range(9) if key % 2 == odd}

    def test_a_table_without_a_key_takes_inserts_alone(self, tmp_path: Path) -> None:
        shard = self._shard(tmp_path)
        shard.publish(110, [insert(100, KEYLESS, 1), insert(101, KEYLESS, 2)])
        with pytest.raises(TablesRefused, match="it has no key"):
            shard.publish(120, [event("delete", 110, KEYLESS, None, before=row(1), before_kind="full")])
        shard.close()
        assert set(self._names(tmp_path, "visits")) == {1, 2}


def table_suite(make: MakeTables, rows: ReadRows) -> type[TableSuite]:
    """Return a class of tests for pytest to collect: bind it to a name that begins with `Test`.

    `make` gives a new object of the destination that works on a folder; objects on one folder share what they store.
    `rows` returns the rows of a table in schema `public` there, as dicts."""
    members = {"make": staticmethod(make), "rows": staticmethod(rows), "__doc__": "The destination's behaviour."}
    return type("Suite", (TableSuite,), members)

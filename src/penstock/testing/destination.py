"""What a user's destination must keep to, as tests: order, kinds of events, repeated batches, copies, and SIGKILL.

Each test works on a folder of its own. A process that is killed is a real one: the test forks, the child publishes and
is ended by SIGKILL at a step, and the test goes on where it was with a new object over the same folder.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock.destinations.places.folder import LocalFolder
from penstock.destinations.python.destination import Destination, keeps_position
from penstock.destinations.python.publisher import PythonPublisher
from penstock.destinations.python.stream import PythonDestination, PythonStream
from penstock.destinations.stream_contract import CopyPlace, ShardPlace, StreamId
from penstock.model.place import place_at
from penstock.model.table import TableSchema
from penstock.testing.made_events import event, insert, records_of, row, table

ORDERS, PEOPLE = table("orders"), table("people")
TABLES = {"orders": ORDERS, "people": PEOPLE}
STEPS = ("publish.file_written", "publish.taken", "publish.piece_out", "publish.committed")
ORDERS_PLACE = '"public"."orders"'

Make = Callable[[Path], Destination]
Seen = Callable[[Path], Sequence[str]]


class Shard:
    """A destination as the pipeline has it, over a folder that outlives it. Pieces have at most two events."""

    def __init__(self, folder: Path, make: Make, tables: Mapping[str, TableSchema] = TABLES) -> None:
        self.user, self.tables = make(folder), tables
        stream = PythonStream("suite", "", "{}", "", 30.0, 2, made=self.user)
        self.destination = PythonDestination(stream, LocalFolder(folder / "places"))
        self.destination.ensure(StreamId("shop", "history", place_at(100)))

    def publisher(self) -> PythonPublisher:
        return self.destination.publisher("shop", 0)

    def publish(self, until: int, events: Iterable[dict[str, Any]]) -> None:
        """Publish what lies behind the shard's place, as a run does."""
        publisher = self.publisher()
        at = publisher.open()
        fresh = [one for one in events if one["place"] >= at.place]
        if at.place < place_at(until):
            given = [records_of(fresh, self.tables)] if fresh else []
            publisher.publish(given, lambda: ShardPlace(place_at(until), at.behind, at.copies))

    def copy(self, snapshot: str, rows: list[dict[str, Any]]) -> None:
        """Publish the rows of a whole copy of `orders`."""
        publisher = self.publisher()
        at = publisher.open()
        known = at.copies.get(ORDERS_PLACE)
        if known is None or known.snapshot != snapshot or not known.complete:
            copies = {**at.copies, ORDERS_PLACE: CopyPlace(snapshot, 1, complete=True)}
            upto = ShardPlace(at.place, {**at.behind, ORDERS_PLACE: at.place}, copies)
            publisher.publish([records_of(rows, self.tables)], lambda: upto)

    def close(self) -> None:
        self.destination.close()


class DestinationSuite:
    """The suite; `destination_suite` makes one for a class."""

    make: ClassVar[Make]
    seen: ClassVar[Seen]

    def _shard(self, folder: Path) -> Shard:
        return Shard(folder, type(self).make)

    def _seen(self, folder: Path) -> list[str]:
        return list(type(self).seen(folder))

    def _require(self, folder: Path, expected: list[dict[str, Any]]) -> None:
        """Have all events there, first in order: each once, or more often where the destination has no position."""
        found, wanted = self._seen(folder), [one["id"] for one in expected]
        if keeps_position(type(self).make(folder)):
            assert found == wanted, "a destination with a position has every event once, in order"
        else:
            assert list(dict.fromkeys(found)) == wanted, "every event is there, first in order"

    def test_events_arrive_once_and_in_order(self, tmp_path: Path) -> None:
        shard = self._shard(tmp_path)
        first = [insert(100 + number, TABLES["people" if number % 3 else "orders"], number) for number in range(7)]
        later = [insert(200 + number, ORDERS, 10 + number) for number in range(3)]
        shard.publish(200, first)
        shard.publish(300, later)
        shard.publish(300, later)
        shard.close()
        assert self._seen(tmp_path) == [one["id"] for one in (*first, *later)]

    def test_every_kind_of_event_is_taken(self, tmp_path: Path) -> None:
        shard = self._shard(tmp_path)
        old = {key: value for key, value in row(1).items() if key != "raw"}
        events = [
            insert(100, ORDERS, 1),
            event("insert", 101, ORDERS, 3, after={**row(3), "at": "infinity", "price": "NaN", "name": None}),
            event("update", 110, ORDERS, 1, after=row(1, "new")),
            event("update", 120, ORDERS, 1, after=old, unchanged=["raw"]),
            event("update", 130, ORDERS, 2, before={"id": 1}, before_kind="key", after=row(2)),
            event("delete", 140, ORDERS, 2, before=row(2), before_kind="full"),
            event("delete", 150, ORDERS, 9, before={"id": 9}, before_kind="key"),
            event("truncate", 160, ORDERS, None, truncate_options=["cascade"]),
            insert(170, PEOPLE, 1, "äöü\u2028 'quoted' \"twice\" \\ \x7f"),
        ]
        shard.publish(200, events)
        shard.close()
        self._require(tmp_path, events)

    def test_another_object_goes_on_where_the_first_ended(self, tmp_path: Path) -> None:
        events = [insert(100 + number, ORDERS, number) for number in range(5)]
        for until in (102, 104, 200):
            shard = self._shard(tmp_path)
            shard.publish(until, [one for one in events if one["place"] < place_at(until)])
            shard.publisher().open()
            shard.close()
        self._require(tmp_path, events)

    def test_a_place_without_events_is_kept(self, tmp_path: Path) -> None:
        shard = self._shard(tmp_path)
        shard.publish(200, [insert(100, ORDERS, 1)])
        publisher = shard.publisher()
        publisher.advance(ShardPlace(place_at(300), publisher.open().behind))
        shard.close()
        again = self._shard(tmp_path)
        assert again.publisher().open().place == place_at(300)
        again.close()

    def test_a_copy_begins_with_an_empty_table(self, tmp_path: Path) -> None:
        shard = self._shard(tmp_path)
        first = [event("read", 100 + number, ORDERS, number, after=row(number)) for number in range(3)]
        second = [event("read", 200 + number, ORDERS, number, after=row(number)) for number in range(4)]
        other = insert(150, PEOPLE, 1)
        shard.copy("snapshot 1", first)
        shard.publish(160, [other])
        shard.copy("snapshot 2", second)
        shard.copy("snapshot 2", second)
        shard.close()
        kept = [] if self._clears(tmp_path) else first
        assert self._seen(tmp_path) == [one["id"] for one in (*kept, other, *second)]

    @pytest.mark.parametrize("step", STEPS)
    def test_a_process_that_is_killed_loses_nothing(self, tmp_path: Path, step: str) -> None:
        events = [insert(100 + number, TABLES["people" if number % 2 else "orders"], number) for number in range(7)]
        for nth in (1, 2):
            killed_at(step, nth, lambda: self._shard(tmp_path).publish(200, events))
        shard = self._shard(tmp_path)
        shard.publish(200, events)
        shard.close()
        self._require(tmp_path, events)

    def test_a_process_that_is_killed_during_a_copy_loses_nothing(self, tmp_path: Path) -> None:
        rows = [event("read", 100 + number, ORDERS, number, after=row(number)) for number in range(5)]
        for step in STEPS:
            killed_at(step, 1, lambda: self._shard(tmp_path).copy("snapshot", rows))
        shard = self._shard(tmp_path)
        shard.copy("snapshot", rows)
        shard.close()
        self._require(tmp_path, rows)

    def _clears(self, folder: Path) -> bool:
        return type(type(self).make(folder)).begin_copy is not Destination.begin_copy


def destination_suite(make: Make, seen: Seen) -> type[DestinationSuite]:
    """Return a class of tests for pytest to collect: bind it to a name that begins with `Test`.

    `make` gives a new object of the destination that works on a folder; objects on one folder share what they store.
    `seen` returns the ids of the events that are stored there, in order."""
    members = {"make": staticmethod(make), "seen": staticmethod(seen), "__doc__": "The destination's behaviour."}
    return type("Suite", (DestinationSuite,), members)


def killed_at(step: str, nth: int, work: Callable[[], object]) -> bool:
    """Do the work in a process of its own that is ended by SIGKILL when it reaches the step for the nth time.

    Return whether it was; it ends by itself if it does not come there."""
    with tempfile.TemporaryDirectory() as folder:
        armed = Path(folder) / "step"
        armed.write_text(f"{step} {nth} SIGKILL")
        child = os.fork()
        if not child:
            code = 1
            try:
                os.environ["PENSTOCK_FAILPOINT_FILE"] = str(armed)
                work()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    assert os.waitstatus_to_exitcode(status) == 0, "the work failed in its own process: its output says why"
    return False

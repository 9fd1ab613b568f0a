"""What `type: stdout` prints: every event, in order, at least once, from the driver."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.destinations.places.folder import LocalFolder
from penstock.destinations.stdout.destination import StdoutDestination
from penstock.destinations.stream_contract import TOPIC_TYPE, Records, ShardPlace, StreamId
from penstock.errors import DestinationUnreachable
from penstock.model.place import place_at

SHOP = StreamId("shop", "history 1", place_at(100))


def records(*numbers: int) -> Records:
    return Records(
        pa.array([place_at(number) for number in numbers]),
        pa.array([b"key"] * len(numbers), pa.binary()),
        pa.array([b"%d" % number for number in numbers], pa.binary()),
        pa.array(["public.orders"] * len(numbers), TOPIC_TYPE),
        pa.array([0] * len(numbers), pa.int32()),
    )


def publish(destination: StdoutDestination, *numbers: int) -> None:
    """As a task on an executor does it."""
    for number in numbers:
        publisher = destination.publisher("shop", 0)
        publisher.open()
        publisher.publish([records(number)], lambda number=number: ShardPlace(place_at(number + 1)))  # type: ignore[misc]


def test_events_are_printed_in_order_and_once(tmp_path: Path) -> None:
    for first, expected in ((100, b"100\n101\n102\n"), (200, b"200\n201\n202\n")):
        output = io.BytesIO()
        destination = StdoutDestination("stdout", LocalFolder(tmp_path), output=output)
        destination.ensure(SHOP)
        publish(destination, *range(first, first + 3))
        destination.close()
        assert output.getvalue() == expected, "a second run prints what is new"


def test_what_cannot_be_printed_waits_and_is_reported(tmp_path: Path) -> None:
    closed = io.BytesIO()
    closed.close()
    destination = StdoutDestination("stdout", LocalFolder(tmp_path), output=closed)
    destination.ensure(SHOP)
    publish(destination, 100)
    with pytest.raises(DestinationUnreachable, match="standard output cannot be written"):
        destination.close()
    with pytest.raises(DestinationUnreachable, match="standard output"):
        destination.publisher("shop", 0)
    output = io.BytesIO()
    again = StdoutDestination("stdout", LocalFolder(tmp_path), output=output)
    again.ensure(SHOP)
    publish(again, 101)
    again.close()
    assert output.getvalue() == b"100\n101\n"

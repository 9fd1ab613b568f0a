"""Connections of copies: never more than allowed, and no destination waits behind another's many ranges."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from penstock.runtime.copy.connections import CopyConnections


def await_true(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_free_connection_goes_to_the_destination_that_uses_the_fewest() -> None:
    connections = CopyConnections(2)
    order: list[str] = []
    gates = {name: threading.Event() for name in ("a1", "a2", "a3", "a4", "b1", "c1")}

    def copy(name: str) -> None:
        with connections.one(name[0]):
            order.append(name)
            gates[name].wait(30)

    threads = []
    for number, name in enumerate(gates, start=1):
        threads.append(threading.Thread(target=copy, args=(name,)))
        threads[-1].start()
        await_true(lambda number=number: len(order) + len(connections._waiting) == number)  # type: ignore[misc]
    assert order == ["a1", "a2"], "no more than allowed"
    for name, came in (("a1", "b1"), ("b1", "c1"), ("c1", "a3"), ("a2", "a4")):
        gates[name].set()
        await_true(lambda came=came: came in order)  # type: ignore[misc]
    assert order == ["a1", "a2", "b1", "c1", "a3", "a4"]
    for gate in gates.values():
        gate.set()
    for thread in threads:
        thread.join()


def test_a_connection_comes_back_when_its_range_fails() -> None:
    connections = CopyConnections(1)
    for _ in range(3):
        try:
            with connections.one("lake"):
                raise ValueError
        except ValueError:
            pass
    with connections.one("other"):
        assert connections._used.total() == 1

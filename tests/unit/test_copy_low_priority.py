"""Work that gives way has a lower priority, and who asked for it keeps the own."""

from __future__ import annotations

import os
import threading

import pytest

from penstock.runtime.copy.low_priority import NICENESS, at_low_priority


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_only_the_work_gives_way() -> None:
    before = niceness()
    assert at_low_priority(niceness) == min(19, before + NICENESS)
    assert niceness() == before
    assert at_low_priority(niceness) == min(19, before + NICENESS)


def test_what_it_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        at_low_priority(lambda: 1 // 0)
